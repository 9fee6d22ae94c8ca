//! The instructions of the model for a WRITE of 8 bytes, counted by callgrind: exact, where the
//! rates of [`speed`](super::speed) depend on the load of the machine.

use std::process::Command;

use super::tally::{Tally, number_after};
use crate::workspace::Result;

/// A path of a WRITE through the model.
struct Row {
    name: &'static str,
    /// The example's option.
    option: Option<&'static str>,
    /// Maximum number of instructions of a WRITE. The compiler's split of the crates into units
    /// moves the count by 3 % between commits that do not touch the path (3,991 and 4,111 were
    /// measured); the option of messages in packets costs a few per cent more (4,295). In packets,
    /// one each way, 17,000 were measured.
    bound: f64,
}

const ROWS: [Row; 2] = [
    Row { name: "the model: a write of 8 bytes", option: None, bound: 4_500.0 },
    Row { name: "packets: a write of 8 bytes", option: Some("--packets"), bound: 20_000.0 },
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    println!();
    for row in ROWS.iter().filter(|row| filter.is_none_or(|part| row.name.contains(part))) {
        let each = measure(row.option)?;
        let verdict = if each <= row.bound { "" } else { "  ABOVE THE BOUND" };
        println!("{:36} {each:>12.1} {:12} {:>10}{verdict}", row.name, "instructions", row.bound);
        tally.count(each <= row.bound);
    }
    Ok(())
}

/// Instructions of one WRITE.
fn measure(option: Option<&str>) -> Result<f64> {
    let program = crate::run::program("examples/stepped")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=stepped::measured_write")
        .arg(program)
        .args(option)
        .output()
        .map_err(|error| format!("valgrind: {error} (is it installed?)"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("the example stepped under valgrind: {report}").into());
    }
    let collected = number_after(&report, "Collected :").ok_or("callgrind counted nothing")?;
    let operations = number_after(&String::from_utf8_lossy(&output.stdout), "operations:")
        .ok_or("the example stepped printed no count of operations")?;
    if collected == 0.0 {
        return Err("callgrind did not see stepped::measured_write".into());
    }
    Ok(collected / operations)
}
