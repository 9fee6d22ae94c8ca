//! How costs grow with numbers, measured by the model's example `growth`: a doorbell on a page of
//! 10 and of 10,000 queue pairs, a registration beside 40,000 mappings, and objects, connections,
//! flow rules and subscriptions beside 100 and 10,000 of their kind.
//!
//! Each ratio is taken in one run of the example, so that the machine's speed has no influence. Two
//! threads exchange the doorbells: without real-time priority, other processes decide the ratio.

use std::collections::BTreeMap;
use std::process::Stdio;

use super::speed::{priority, realtime_command};
use super::tally::{Tally, number_after};
use crate::workspace::Result;

/// The rows, and the most that the cost beside many may be, in costs beside few. Where all QPs post
/// in turn, each doorbell meets cold memory of the program and of the model: 1.4 to 2.3 were
/// measured.
const ROWS: [(&str, f64); 10] = [
    ("doorbell, one QP posts", 2.0),
    ("doorbell, QPs post in turn", 3.0),
    ("protection domain", 1.5),
    ("region of 4 KiB", 1.5),
    ("completion queue", 1.5),
    ("queue pair", 1.5),
    ("connection", 1.5),
    ("flow rule", 1.5),
    ("subscription to a new CQ", 1.5),
    ("region beside 40,000 mappings", 3.0),
];
/// Maximum number of runs: the example runs again while a row is out of bound, as times depend on
/// the machine's other work. The best ratio of a row in any run counts.
const RUNS: u32 = 10;

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let title = |name: &str| format!("growth: {name}");
    let rows: Vec<_> = ROWS
        .into_iter()
        .filter(|(name, _)| filter.is_none_or(|part| title(name).contains(part)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let program = crate::run::program("examples/growth")?;
    let best = measured(&rows, |name| {
        let output = realtime_command(&program).arg(name).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err("the example growth failed".into());
        }
        Ok(String::from_utf8(output.stdout)?)
    })?;
    println!("\ncost beside many by cost beside few, {}\n", priority());
    for (name, bound) in rows {
        let ratio = best[name];
        let verdict = if ratio <= bound { "" } else { "  ABOVE THE BOUND" };
        println!("{:44} {ratio:>6.2} {bound:>6}{verdict}", title(name));
        tally.count(ratio <= bound);
    }
    Ok(())
}

/// The best ratio of each row. `report` runs the example for the rows whose names contain a text.
fn measured(
    rows: &[(&'static str, f64)],
    mut report: impl FnMut(&str) -> Result<String>,
) -> Result<BTreeMap<&'static str, f64>> {
    let mut best = BTreeMap::new();
    for &(name, bound) in rows {
        for _ in 0..RUNS {
            let ratio = ratio(&report(name)?, name).ok_or("the example growth lacks a row")?;
            let best = best.entry(name).or_insert(ratio);
            *best = best.min(ratio);
            if *best <= bound {
                break;
            }
        }
    }
    Ok(best)
}

/// The ratio in the line of a row.
fn ratio(report: &str, name: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.starts_with(&format!("{name}:")))?;
    number_after(line, "ratio:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_ratio_of_a_row_counts() {
        let mut reports = [3.0, 1.25, 9.0].into_iter();
        let mut report = |_: &str| {
            let ratio = reports.next().ok_or("one too many")?;
            Ok(format!("flow rules: few 1 us\nflow rule: few 2 us, many 6 us, ratio: {ratio}\n"))
        };
        let best = measured(&[("flow rule", 1.5)], &mut report).expect("two reports suffice");
        assert_eq!(best["flow rule"], 1.25);
    }

    #[test]
    fn missing_row_is_an_error() {
        assert!(measured(&[("queue pair", 1.5)], |_| Ok("flow rule: ratio: 1".into())).is_err());
    }
}
