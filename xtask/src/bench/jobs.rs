//! The instructions of a DOCA job in addition to those of its request, which the queue layer posts
//! and polls (`crates/doca/benches/jobs.rs` and `rdma.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::tally::{Tally, built, number_after};
use crate::workspace::Result;

/// Maximum number of instructions of a job, as a multiple of its request's. The crate's
/// documentation, *Cost*, lists them.
const BOUND: f64 = 1.5;

/// A row of DMA: its name, and the functions of a case whose instructions it adds up.
struct Row {
    name: &'static str,
    case: &'static str,
    functions: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row { name: "DOCA DMA submit + retrieve", case: "pair", functions: &["pair"] },
    Row {
        name: "DOCA DMA, 64 submits, 64 retrieves",
        case: "batch",
        functions: &["submit", "retrieve"],
    },
];

/// The operations of RDMA.
const RDMA: [&str; 8] = [
    "receive",
    "send",
    "send_imm",
    "write",
    "write_imm",
    "read",
    "compare_and_swap",
    "fetch_and_add",
];

/// Measures, prints the rows and counts them.
pub(super) fn check(filter: Option<&str>, tally: &mut Tally) -> Result<()> {
    let wanted = |name: &str| filter.is_none_or(|part| name.contains(part));
    let rows: Vec<_> = ROWS.iter().filter(|row| wanted(row.name)).collect();
    if !rows.is_empty() {
        let program = Program::build("jobs")?;
        let bare = program.measure(&["queue"], "post")? + program.measure(&["queue"], "poll")?;
        for Row { name, case, functions } in rows {
            let mut job = 0.0;
            for function in *functions {
                job += program.measure(&[case], function)?;
            }
            print_row(name, job, bare, tally);
        }
    }
    let named =
        RDMA.map(|operation| (operation, format!("DOCA RDMA {}", operation.replace('_', " "))));
    let rows: Vec<_> = named.into_iter().filter(|(_, name)| wanted(name)).collect();
    if !rows.is_empty() {
        let program = Program::build("rdma")?;
        for (operation, name) in rows {
            let of = |function: &str| format!("{operation}::measured_{function}");
            let bare = program.collect(&[operation, "queue"], &of("post"))?
                + program.collect(&[operation, "queue"], "measured_poll")?;
            let job = program.collect(&[operation, "pair"], &of("pair"))?;
            print_row(&name, job, bare, tally);
        }
    }
    Ok(())
}

/// Prints a row, and counts it.
fn print_row(name: &str, job: f64, bare: f64, tally: &mut Tally) {
    let times = job / bare;
    let verdict = if times <= BOUND { "" } else { "  ABOVE THE BOUND" };
    println!("{name:36} {job:>12.1} instructions, {times:.2} times the {bare:.1} of post and poll");
    println!("{:36} {BOUND:>12} times at most{verdict}", "");
    tally.count(times <= BOUND);
}

/// A benchmark program.
struct Program {
    name: &'static str,
    path: PathBuf,
}

impl Program {
    fn build(name: &'static str) -> Result<Self> {
        Ok(Self { name, path: built(crate::run::programs()?, name)? })
    }

    /// Instructions of one operation inside `measured_{function}`.
    fn measure(&self, arguments: &[&str], function: &str) -> Result<f64> {
        self.collect(arguments, &format!("measured_{function}"))
    }

    /// The same for a function by its path in the program.
    fn collect(&self, arguments: &[&str], function: &str) -> Result<f64> {
        let Self { name, path } = self;
        let output = counted(path, &format!("{name}::{function}"), arguments)?;
        let report = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("the benchmark {name} under valgrind: {report}").into());
        }
        let collected = number_after(&report, "Collected :").ok_or("callgrind counted nothing")?;
        let operations = number_after(&String::from_utf8_lossy(&output.stdout), "operations:")
            .ok_or_else(|| format!("the benchmark {name} printed no count of operations"))?;
        if collected == 0.0 {
            return Err(format!("callgrind did not see {name}::{function}").into());
        }
        Ok(collected / operations)
    }
}

/// Runs a program under callgrind, which counts inside the function.
fn counted(program: &Path, function: &str, arguments: &[&str]) -> Result<std::process::Output> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={function}"))
        .arg(program)
        .args(arguments)
        .output();
    output.map_err(|error| format!("valgrind: {error} (is it installed?)").into())
}
