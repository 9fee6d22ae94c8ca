//! What a DMA job of DOCA Core costs in instructions beside the copy that it consists of, which the
//! queue layer posts and polls (`crates/doca/benches/jobs.rs`).

use std::path::Path;
use std::process::Command;

use super::{Tally, build, number_behind};
use crate::Result;

/// A row: what it is, the functions of a case that it adds up, and how many times the instructions
/// of the copy it may take.
struct Row {
    name: &'static str,
    case: &'static str,
    functions: &'static [&'static str],
    bound: f64,
}

const ROWS: &[Row] = &[
    Row { name: "DOCA DMA submit + retrieve", case: "pair", functions: &["pair"], bound: 1.5 },
    Row {
        name: "DOCA DMA, 64 submits, 64 retrieves",
        case: "batch",
        functions: &["submit", "retrieve"],
        bound: 1.6,
    },
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let wanted = |row: &&Row| filter.is_none_or(|part| row.name.contains(part));
    let rows: Vec<_> = ROWS.iter().filter(wanted).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let program = build("verbless-doca", "jobs")?;
    let bare = measure(&program, "queue", "post")? + measure(&program, "queue", "poll")?;
    for Row { name, case, functions, bound } in rows {
        let mut job = 0.0;
        for function in *functions {
            job += measure(&program, case, function)?;
        }
        let times = job / bare;
        let verdict = if times <= *bound { "" } else { "  ABOVE THE BOUND" };
        println!(
            "{name:36} {job:>12.1} instructions, {times:.2} times the {bare:.1} of post and poll"
        );
        println!("{:36} {bound:>12} times at most{verdict}", "");
        tally.count(times <= *bound);
    }
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
