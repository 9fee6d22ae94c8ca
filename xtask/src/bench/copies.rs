//! Copies into registered memory and out of it, as ratios to `memcpy` of the same sizes in the same
//! run (`crates/ring/benches/copies.rs`).

use super::{Tally, build, number_behind, speed};
use crate::Result;

/// A copy that must reach this share of `memcpy`'s rate.
struct Row {
    name: &'static str,
    /// What precedes the ratio in the program's output.
    label: &'static str,
    bound: f64,
}

/// Generous to noise. Measured on a busy machine, in and out: 1.27 to 1.73 at 64 B, 0.79 to 1.67 at
/// 256 B, 0.95 to 1.16 at 1 KiB, 1.12 to 1.14 at 8 KiB, 1.24 to 1.33 at 64 KiB; 0.73 to 1.39 at
/// 16 MiB, where memory sets the rate.
const ROWS: [Row; 12] = [
    Row { name: "copies: 64 B in", label: "ratio in 64 B:", bound: 0.8 },
    Row { name: "copies: 64 B out", label: "ratio out 64 B:", bound: 0.8 },
    Row { name: "copies: 256 B in", label: "ratio in 256 B:", bound: 0.6 },
    Row { name: "copies: 256 B out", label: "ratio out 256 B:", bound: 0.6 },
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
    let output = speed::urgent(&build("copies")?).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the benchmark copies failed: {errors}").into());
    }
    let report = String::from_utf8(output.stdout)?;
    println!("\ncopies, as a share of memcpy's rate, {}\n", speed::priority());
    for row in ROWS.iter().filter(chosen) {
        let ratio = number_behind(&report, row.label)
            .ok_or_else(|| format!("the benchmark copies printed no `{}`", row.label))?;
        let verdict = if ratio >= row.bound { "" } else { "  BELOW THE BOUND" };
        println!("{:36} {ratio:>12.2} {:12} {:>10}{verdict}", row.name, "of memcpy", row.bound);
        tally.count(ratio >= row.bound);
    }
    Ok(())
}
