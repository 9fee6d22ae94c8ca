//! The model's other work while it moves messages of 1 GiB, measured by its example `busy`: how
//! long commands take, and whether two functions use two processors.

use std::process::Stdio;

use super::speed::{priority, urgent};
use super::tally::{Tally, number_behind};
use crate::workspace::Result;

/// A number that the example prints, and its limit.
struct Row {
    name: &'static str,
    label: &'static str,
    unit: &'static str,
    limit: Limit,
}

enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

use Limit::{AtLeast, AtMost};

/// Of two functions on two processors less than twice the rate of one is left where the machine
/// does something else as well: 1.6 to 2.1 were seen, and 1.0 with one thread for both. Commands
/// are a query, and such that make a memory key and destroy it.
const ROWS: [Row; 4] = [
    Row {
        name: "busy: a command of another function",
        label: "other:",
        unit: "ms",
        limit: AtMost(5.0),
    },
    Row { name: "busy: of the one written to", label: "target:", unit: "ms", limit: AtMost(5.0) },
    Row { name: "busy: of the one that writes", label: "writer:", unit: "ms", limit: AtMost(20.0) },
    Row {
        name: "busy: two functions, against one",
        label: "two devices:",
        unit: "times",
        limit: AtLeast(1.4),
    },
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |row: &&Row| filter.is_none_or(|part| row.name.contains(part));
    if !ROWS.iter().any(|row| chosen(&row)) {
        return Ok(());
    }
    let output =
        urgent(&crate::run::program("examples/busy")?).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the example busy failed".into());
    }
    let report = String::from_utf8(output.stdout)?;
    println!("\nwhile 1 GiB is written at a time, the best of 3 rounds, {}\n", priority());
    for Row { name, label, unit, limit } in ROWS.iter().filter(chosen) {
        let number = number_behind(&report, label).ok_or("the example busy lacks a row")?;
        let (holds, bound) = match *limit {
            AtMost(bound) => (number <= bound, bound),
            AtLeast(bound) => (number >= bound, bound),
        };
        let verdict = if holds { "" } else { "  OUT OF BOUND" };
        println!("{name:36} {number:>12.2} {unit:12} {bound:>10}{verdict}");
        tally.count(holds);
    }
    Ok(())
}
