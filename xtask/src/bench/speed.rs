//! How fast the model moves data in release mode, as its example `speed` measures it: one thread posts and polls, another is the
//! device.
//!
//! A rate depends on what else the machine does, unlike a count of instructions. So the best of several short rounds counts, with
//! real-time priority where the system gives it, and a row ends once its bound is reached.

use std::process::{Command, Stdio};

use super::{Tally, number_behind};
use crate::{Result, workspace_root};

/// Seconds of a round, and rounds at most.
const SECONDS: &str = "0.3";
const ROUNDS: &str = "10";

/// A rate that must be reached.
struct Row {
    name: &'static str,
    /// What precedes the number in the example's output.
    label: &'static str,
    unit: &'static str,
    bound: f64,
}

const ROWS: [Row; 2] = [
    Row {
        name: "the model: writes of 8 bytes",
        label: "8 B:",
        unit: "operations/s",
        bound: 1_000_000.0,
    },
    Row { name: "the model: writes of 64 KiB", label: "65536 B:", unit: "GB/s", bound: 4.0 },
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |row: &&Row| filter.is_none_or(|part| row.name.contains(part));
    let rows: Vec<&Row> = ROWS.iter().filter(chosen).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "verbless-model",
            "--example",
            "speed",
        ])
        .current_dir(workspace_root())
        .status()?;
    if !built.success() {
        return Err("the example speed of verbless-model does not build".into());
    }
    let (report, priority) = measure()?;
    println!("\nthe best of at most {ROUNDS} rounds of {SECONDS} s, {priority}\n");
    for row in rows {
        let rate = report.lines().find_map(|line| rate(line, row));
        let rate = rate.ok_or("the example speed says nothing of a row")?;
        let verdict = if rate >= row.bound { "" } else { "  BELOW THE BOUND" };
        println!("{:36} {rate:>12.1} {:12} {:>10}{verdict}", row.name, row.unit, row.bound);
        tally.count(rate >= row.bound);
    }
    Ok(())
}

/// The example's output, and the priority that it ran with.
fn measure() -> Result<(String, &'static str)> {
    let program = workspace_root().join("target/release/examples/speed");
    let bounds = ROWS.map(|row| row.bound.to_string());
    let [operations, gigabytes] = &bounds;
    let arguments = [SECONDS, ROUNDS, operations, gigabytes];
    let mut urgent = Command::new("chrt");
    urgent.args(["--fifo", "1"]).arg(&program).args(arguments).stderr(Stdio::null());
    if let Ok(output) = urgent.output()
        && output.status.success()
    {
        return Ok((String::from_utf8(output.stdout)?, "with real-time priority"));
    }
    let output = Command::new(&program).args(arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the example speed failed".into());
    }
    Ok((String::from_utf8(output.stdout)?, "with ordinary priority"))
}

/// The rate in a line like `     8 B:    4612975 operations/s,   0.04 GB/s`, if it is the row's.
fn rate(line: &str, row: &Row) -> Option<f64> {
    let line = line.trim_start();
    line.starts_with(row.label).then_some(())?;
    match row.unit {
        "GB/s" => number_behind(line, "operations/s,"),
        _ => number_behind(line, row.label),
    }
}

#[cfg(test)]
mod tests {
    use super::{ROWS, rate};

    #[test]
    fn each_row_finds_its_own_line_and_number() {
        let lines = [
            "     8 B:    4612975 operations/s,   0.04 GB/s",
            " 65536 B:     754944 operations/s,  49.48 GB/s",
        ];
        assert_eq!(rate(lines[0], &ROWS[0]), Some(4_612_975.0));
        assert_eq!(rate(lines[1], &ROWS[0]), None);
        assert_eq!(rate(lines[0], &ROWS[1]), None);
        assert_eq!(rate(lines[1], &ROWS[1]), Some(49.48));
    }
}
