//! The conformance suite's time on the model in a release build, from its closing line. The suite's
//! steps of `cargo xtask test` have no bound, as other steps run beside them.

use std::process::{Command, Stdio};

use super::tally::{Tally, number_after};
use crate::workspace::{Result, workspace_root};

const NAME: &str = "suite: 1,000 cases on the model";
/// Seconds for 1,000 executed cases, at most. Measured on two processors: 6.7, and 29 to 31 in the
/// debug build that `cargo xtask hwtest` makes.
const BOUND: f64 = 15.0;
/// Runs; the best one counts.
const RUNS: u32 = 5;

/// Measures, prints the row and counts it.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    if filter.is_some_and(|part| !NAME.contains(part)) {
        return Ok(());
    }
    println!("\nthe conformance suite, the best of at most {RUNS} runs\n");
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        best = best.min(run()?);
        if best <= BOUND {
            break;
        }
    }
    let verdict = if best <= BOUND { "" } else { "  ABOVE THE BOUND" };
    println!("{NAME:36} {best:>12.1} {:12} {BOUND:>10}{verdict}", "s");
    tally.count(best <= BOUND);
    Ok(())
}

/// Runs the suite; returns its seconds for 1,000 cases.
fn run() -> Result<f64> {
    let output = Command::new(crate::run::program("hwtest")?)
        .args(["--device", "model"])
        .current_dir(workspace_root())
        .stderr(Stdio::inherit())
        .output()?;
    let report = String::from_utf8(output.stdout)?;
    let last = report.lines().last().unwrap_or_default();
    if !output.status.success() {
        return Err(format!("the conformance suite failed: {last}").into());
    }
    per_thousand(last).ok_or_else(|| format!("this is not the suite's last line: {last}").into())
}

/// Seconds for 1,000 executed cases, from a closing line.
fn per_thousand(line: &str) -> Option<f64> {
    let passed: f64 = line.split_once(" passed, ")?.0.parse().ok()?;
    let seconds = number_after(line, " skipped in ")?;
    (passed > 0.0).then_some(seconds * 1000.0 / passed)
}

#[cfg(test)]
mod tests {
    use super::per_thousand;

    #[test]
    fn suite_time_is_per_thousand_run_cases() {
        let line = "500 passed, 0 failed, 40 skipped in 12.5 s (40 cases/s)";
        assert_eq!(per_thousand(line), Some(25.0));
        assert_eq!(per_thousand("500 passed, 0 failed, 40 skipped"), None);
        assert_eq!(per_thousand("0 passed, 0 failed, 1 skipped in 0.0 s (0 cases/s)"), None);
    }
}
