//! The instructions per second of a DPA core in the model, on three programs
//! (`crates/riscv/benches/speed.rs`).
//!
//! The best of several rounds counts, and a row ends once its bound is reached, as in
//! [`speed`].

use super::speed;
use super::tally::{Tally, build, number_after};
use crate::workspace::Result;

/// Millions of instructions a second that each program must reach.
const BOUND: f64 = 150.0;
/// Seconds of a round, and the most rounds.
const SECONDS: &str = "0.3";
const ROUNDS: &str = "30";

/// Names of rows, and the text before the rates in the program's output.
const ROWS: [(&str, &str); 3] =
    [("dpa: hash", "hash:"), ("dpa: sort", "sort:"), ("dpa: calls", "calls:")];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let chosen = |row: &&(&str, &str)| filter.is_none_or(|part| row.0.contains(part));
    if !ROWS.iter().any(|row| chosen(&row)) {
        return Ok(());
    }
    let mut program = speed::realtime_command(&build("verbless-riscv", "speed")?);
    let output = program.args([SECONDS, ROUNDS, &BOUND.to_string()]).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the benchmark of the RISC-V core failed: {errors}").into());
    }
    let report = String::from_utf8(output.stdout)?;
    let how = speed::priority();
    println!(
        "\ninstructions a second, the best of at most {ROUNDS} rounds of {SECONDS} s, {how}\n"
    );
    for (name, label) in ROWS.iter().filter(chosen) {
        let rate = number_after(&report, label).ok_or("the benchmark printed no rate for a row")?;
        let verdict = if rate >= BOUND { "" } else { "  BELOW THE BOUND" };
        println!("{name:36} {rate:>12.1} {:12} {BOUND:>10}{verdict}", "million/s");
        tally.count(rate >= BOUND);
    }
    Ok(())
}
