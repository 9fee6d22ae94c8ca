//! What a modelled WRITE of 8 bytes costs the model in instructions, counted by callgrind: exact,
//! where the rates of [`speed`](super::speed) depend on what else the machine does.

use std::process::Command;

use super::{Tally, number_behind};
use crate::Result;

const NAME: &str = "the model: a write of 8 bytes";
/// The most instructions that one may take. How the compiler cuts the crates into units moves the
/// count by 3 % between commits that leave the path alone (3,991 and 4,111 were seen); that
/// messages may also go in packets costs a few per cent more (4,295).
const BOUND: f64 = 4_500.0;

/// Measures, prints the row and counts it.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    if filter.is_some_and(|part| !NAME.contains(part)) {
        return Ok(());
    }
    let program = crate::run::program("examples/stepped")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=stepped::measured_write")
        .arg(program)
        .output()
        .map_err(|error| format!("valgrind: {error} (is it installed?)"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("the example stepped under valgrind: {report}").into());
    }
    let collected = number_behind(&report, "Collected :").ok_or("callgrind counted nothing")?;
    let operations = number_behind(&String::from_utf8_lossy(&output.stdout), "operations:")
        .ok_or("the example stepped does not say how much it did")?;
    if collected == 0.0 {
        return Err("callgrind did not see stepped::measured_write".into());
    }
    let each = collected / operations;
    let verdict = if each <= BOUND { "" } else { "  ABOVE THE BOUND" };
    println!("\n{NAME:36} {each:>12.1} {:12} {BOUND:>10}{verdict}", "instructions");
    tally.count(each <= BOUND);
    Ok(())
}
