//! What a DMA job of DOCA Core costs in instructions beside the copy that it consists of, which the
//! queue layer posts and polls (`crates/doca/benches/jobs.rs`).

use std::path::Path;
use std::process::Command;

use super::{Tally, build, number_behind};
use crate::Result;

const NAME: &str = "DOCA DMA submit + retrieve";
/// As many times the instructions of the copy at most: what it is now and a little, so that it does
/// not grow. The aim is 1.5. Measured: 400 to 156, 2.6 times.
const BOUND: f64 = 2.7;

/// Measures, prints the row and counts it.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    if filter.is_some_and(|part| !NAME.contains(part)) {
        return Ok(());
    }
    let program = build("verbless-doca", "jobs")?;
    let bare = measure(&program, "queue", "post")? + measure(&program, "queue", "poll")?;
    let job = measure(&program, "job", "submit")? + measure(&program, "job", "retrieve")?;
    let times = job / bare;
    let verdict = if times <= BOUND { "" } else { "  ABOVE THE BOUND" };
    println!("{NAME:36} {job:>12.1} instructions, {times:.2} times the {bare:.1} of post and poll");
    println!("{:36} {BOUND:>12} times at most{verdict}", "");
    tally.count(times <= BOUND);
    Ok(())
}

/// Instructions of one operation inside `measured_{function}`.
fn measure(program: &Path, case: &str, function: &str) -> Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=jobs::measured_{function}"))
        .arg(program)
        .arg(case)
        .output()
        .map_err(|error| format!("valgrind: {error} (is it installed?)"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("the benchmark jobs under valgrind: {report}").into());
    }
    let collected = number_behind(&report, "Collected :").ok_or("callgrind counted nothing")?;
    let operations = number_behind(&String::from_utf8_lossy(&output.stdout), "operations:")
        .ok_or("the benchmark jobs does not say how much it did")?;
    if collected == 0.0 {
        return Err(format!("callgrind did not see jobs::measured_{function}").into());
    }
    Ok(collected / operations)
}
