//! Copies into registered memory and out of it, as ratios to `memcpy` of the same sizes in the same
//! run (`crates/ring/benches/copies.rs`).
//!
//! The machine's other work may slow down either of the two for a whole run. So the median of
//! several runs counts, and the runs end once every row reaches its bound.

use std::path::Path;

use super::speed;
use super::tally::{Tally, build, number_after};
use crate::workspace::Result;

/// A copy that must reach this share of `memcpy`'s rate.
struct Row {
    name: &'static str,
    /// The text before the ratio in the program's output.
    label: &'static str,
    bound: f64,
}

/// Maximum number of runs.
const RUNS: usize = 7;

/// Measured on a busy machine, medians in and out: 1.3 to 1.6 at 64 B, 0.98 to 1.05 at 256 B, 0.97
/// to 1.12 at 1 KiB, 1.14 at 8 KiB, 1.3 at 64 KiB; 0.8 to 1.3 at 16 MiB, where the rate is that of
/// memory.
const ROWS: [Row; 12] = [
    Row { name: "copies: 64 B in", label: "ratio in 64 B:", bound: 0.8 },
    Row { name: "copies: 64 B out", label: "ratio out 64 B:", bound: 0.8 },
    Row { name: "copies: 256 B in", label: "ratio in 256 B:", bound: 0.8 },
    Row { name: "copies: 256 B out", label: "ratio out 256 B:", bound: 0.8 },
    Row { name: "copies: 1 KiB in", label: "ratio in 1024 B:", bound: 0.8 },
    Row { name: "copies: 1 KiB out", label: "ratio out 1024 B:", bound: 0.8 },
    Row { name: "copies: 8 KiB in", label: "ratio in 8192 B:", bound: 0.8 },
    Row { name: "copies: 8 KiB out", label: "ratio out 8192 B:", bound: 0.8 },
    Row { name: "copies: 64 KiB in", label: "ratio in 65536 B:", bound: 0.8 },
    Row { name: "copies: 64 KiB out", label: "ratio out 65536 B:", bound: 0.8 },
    Row { name: "copies: 16 MiB in", label: "ratio in 16777216 B:", bound: 0.5 },
    Row { name: "copies: 16 MiB out", label: "ratio out 16777216 B:", bound: 0.5 },
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |row: &&Row| filter.is_none_or(|part| row.name.contains(part));
    if !ROWS.iter().any(|row| chosen(&row)) {
        return Ok(());
    }
    let program = build("verbless-ring", "copies")?;
    let mut reports = Vec::new();
    while reports.len() < RUNS {
        reports.push(run(&program)?);
        let mut ratios = ROWS.iter().filter(chosen).map(|row| Ok((row, row.ratio(&reports)?)));
        if ratios.all(|it: Result<_>| it.is_ok_and(|(row, ratio)| ratio >= row.bound)) {
            break;
        }
    }
    println!("\ncopies, as a share of memcpy's rate, {}\n", speed::priority());
    for row in ROWS.iter().filter(chosen) {
        let ratio = row.ratio(&reports)?;
        let verdict = if ratio >= row.bound { "" } else { "  BELOW THE BOUND" };
        println!("{:36} {ratio:>12.2} {:12} {:>10}{verdict}", row.name, "of memcpy", row.bound);
        tally.count(ratio >= row.bound);
    }
    Ok(())
}

/// The program's output.
fn run(program: &Path) -> Result<String> {
    let output = speed::realtime_command(program).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the benchmark copies failed: {errors}").into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Row {
    /// The median of the row's ratios, the lower one of two.
    fn ratio(&self, reports: &[String]) -> Result<f64> {
        let ratios = reports.iter().map(|report| number_after(report, self.label));
        let mut ratios = ratios
            .collect::<Option<Vec<f64>>>()
            .ok_or_else(|| format!("the benchmark copies printed no `{}`", self.label))?;
        ratios.sort_by(f64::total_cmp);
        Ok(ratios[(ratios.len() - 1) / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::ROWS;

    #[test]
    fn one_disturbed_run_does_not_change_median() {
        let report = |ratio: f64| format!("ratio in 64 B: 9\n{} {ratio}\n", ROWS[3].label);
        let all = [0.41, 1.05, 1.04].map(report);
        assert_eq!(ROWS[3].ratio(&all).unwrap(), 1.04);
        assert_eq!(ROWS[3].ratio(&all[..2]).unwrap(), 0.41);
        assert!(ROWS[4].ratio(&all).unwrap_err().to_string().contains("ratio in 1024 B:"));
    }
}
