//! The model's data rates in release mode, as its example `speed` measures them: one thread posts
//! and polls, another one is the device. In packets, one thread does both.
//!
//! A rate depends on the machine's load, unlike a count of instructions. So the best of several
//! short rounds counts, with real-time priority if the system gives it, and a row ends once it
//! reaches its bound.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tally::{Tally, number_after};
use crate::workspace::Result;

/// Seconds of a round, and the most rounds.
const SECONDS: &str = "0.3";
const ROUNDS: &str = "30";

/// A rate that must be reached.
pub(super) struct Row {
    pub name: &'static str,
    /// The text before the number in the example's output.
    pub label: &'static str,
    pub unit: &'static str,
    pub bound: f64,
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

/// The same in packets at path MTU 4096, on one core: a single thread posts, polls and is both
/// devices, so that the scheduler has no influence.
const IN_PACKETS: [Row; 2] = [
    Row { name: "packets: writes of 8 bytes", label: "8 B:", unit: "packets/s", bound: 300_000.0 },
    Row { name: "packets: writes of 64 KiB", label: "65536 B:", unit: "GB/s", bound: 1.0 },
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    for (rows, option) in [(&ROWS, None), (&IN_PACKETS, Some("--packets"))] {
        if rows.iter().any(|row| row.is_chosen(filter)) {
            let report = measure(realtime_command(&program()?).args(option), rows)?;
            print(filter, rows, &report, priority(), tally)?;
        }
    }
    Ok(())
}

/// A command with real-time priority if the system gives it, so that other processes do not delay
/// it.
pub(super) fn realtime_command(program: &Path) -> Command {
    if !has_realtime_priority() {
        return Command::new(program);
    }
    let mut command = Command::new("chrt");
    command.args(["--fifo", "1"]).arg(program);
    command
}

/// How [`realtime_command`] commands run here.
pub(super) fn priority() -> &'static str {
    if has_realtime_priority() { "with real-time priority" } else { "with ordinary priority" }
}

/// Whether the system gives real-time priority. With it, two threads that wait for each other need
/// two processors.
fn has_realtime_priority() -> bool {
    let parallel = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let tried =
        || Command::new("chrt").args(["--fifo", "1", "true"]).stderr(Stdio::null()).status();
    parallel && tried().is_ok_and(|status| status.success())
}

/// Builds the example; returns its path.
pub(super) fn program() -> Result<PathBuf> {
    crate::run::program("examples/speed")
}

/// Runs `program`, which is the example or ends in it; returns its lines for the rows.
pub(super) fn measure(program: &mut Command, rows: &[Row; 2]) -> Result<String> {
    let output = program.args(arguments(rows)).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the example speed failed".into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The example's arguments: a round that reaches a bound is the last one.
fn arguments(rows: &[Row; 2]) -> [String; 4] {
    let [operations, gigabytes] = rows;
    [SECONDS.into(), ROUNDS.into(), operations.bound.to_string(), gigabytes.bound.to_string()]
}

/// Prints the chosen rows and counts them.
pub(super) fn print(
    filter: Option<&str>,
    rows: &[Row],
    report: &str,
    how: &str,
    tally: &mut Tally,
) -> Result<()> {
    println!("\nthe best of at most {ROUNDS} rounds of {SECONDS} s, {how}\n");
    for row in rows.iter().filter(|row| row.is_chosen(filter)) {
        let rate = report.lines().find_map(|line| rate(line, row));
        let rate = rate.ok_or("the example speed printed no result for a row")?;
        let verdict = if rate >= row.bound { "" } else { "  BELOW THE BOUND" };
        println!("{:36} {rate:>12.1} {:12} {:>10}{verdict}", row.name, row.unit, row.bound);
        tally.count(rate >= row.bound);
    }
    Ok(())
}

impl Row {
    pub(super) fn is_chosen(&self, filter: Option<&str>) -> bool {
        filter.is_none_or(|part| self.name.contains(part))
    }
}

/// The rate in a line like `     8 B:    4612975 operations/s,   0.04 GB/s`, if it is the row's.
fn rate(line: &str, row: &Row) -> Option<f64> {
    let line = line.trim_start();
    line.starts_with(row.label).then_some(())?;
    match row.unit {
        "GB/s" => number_after(line, "operations/s,"),
        "packets/s" => number_after(line, "GB/s,"),
        _ => number_after(line, row.label),
    }
}

#[cfg(test)]
mod tests {
    use super::{IN_PACKETS, ROWS, rate};

    #[test]
    fn rate_matches_own_row_only() {
        let lines = [
            "     8 B:    4612975 operations/s,   0.04 GB/s",
            " 65536 B:     754944 operations/s,  49.48 GB/s",
        ];
        assert_eq!(rate(lines[0], &ROWS[0]), Some(4_612_975.0));
        assert_eq!(rate(lines[1], &ROWS[0]), None);
        assert_eq!(rate(lines[0], &ROWS[1]), None);
        assert_eq!(rate(lines[1], &ROWS[1]), Some(49.48));
        let in_packets = "     8 B:     427311 operations/s,   0.00 GB/s,     454018 packets/s";
        assert_eq!(rate(in_packets, &IN_PACKETS[0]), Some(454_018.0));
        assert_eq!(rate(lines[0], &IN_PACKETS[0]), None, "the line is not about packets");
    }
}
