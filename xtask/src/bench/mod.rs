//! `cargo xtask bench`: the cost of posting and polling in instructions, each with a bound that
//! must hold.
//!
//! callgrind counts instructions exactly, so a change of one shows. The program under it is
//! `crates/ring/benches/instructions.rs`; its first comment defines an operation. The task also
//! checks the machine code of the same functions ([`code`]): no path to a panic, an allocation or a
//! lock, and memory accesses in the right order. Then it counts the instructions of a modelled
//! WRITE ([`mod@write`]) and of a DOCA Core job ([`jobs`]). Last, it measures copies into
//! registered memory ([`copies`]), a DPA core ([`dpa`]), the model's rates ([`speed`]) and its
//! other work meanwhile ([`busy`]), how costs grow ([`growth`]), programs under `verbless-model
//! run` ([`mod@run`]), `hwtest perf` beside perftest ([`perftest`]), and the conformance suite on
//! the model ([`suite`]).

pub(crate) mod aarch64;
mod busy;
mod code;
mod copies;
mod dpa;
mod growth;
mod jobs;
mod kernel_copies;
mod perftest;
mod run;
mod speed;
mod suite;
mod tally;
mod write;

use std::path::Path;
use std::process::Command;

use tally::{Tally, build, number_after};

use crate::workspace::Result;

/// Options of `cargo xtask bench`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Run only the operations whose name contains this.
    #[arg(long)]
    filter: Option<String>,
    /// Skip the checks of the machine code: no panic, allocation, lock or system call on post and
    /// poll, and the order of stores.
    #[arg(long)]
    no_code: bool,
    /// Only count instructions and check machine code, which do not depend on the machine's load.
    #[arg(long, conflicts_with = "rates")]
    counts: bool,
    /// Only measure rates and times.
    #[arg(long)]
    rates: bool,
}

/// An operation, measured as a call of a function and inlined.
struct Benchmark {
    name: &'static str,
    /// The case of the program, and the function whose instructions count: `measured_…`.
    case: &'static str,
    function: &'static str,
    /// Maximum number of instructions of an operation.
    bound: f64,
    /// rdma-core's instructions, if measured: single-threaded, with the 8-byte doorbell unless the
    /// row names BlueFlame.
    rdma_core: Option<f64>,
    /// The instructions of the smallest code that leaves the same bytes, if counted.
    floor: Option<u32>,
}

const OPERATIONS: &[Benchmark] = &[
    Benchmark {
        name: "post 64 B, 1 SGE, 8-byte doorbell",
        case: "post",
        function: "post",
        bound: 80.0,
        rdma_core: Some(213.0),
        floor: Some(48),
    },
    Benchmark {
        name: "post 64 B, 1 SGE, BlueFlame",
        case: "blueflame",
        function: "post",
        bound: 125.0,
        rdma_core: Some(256.0),
        floor: Some(99),
    },
    Benchmark {
        name: "post 8 B inline, 8-byte doorbell",
        case: "inline",
        function: "inline",
        bound: 110.0,
        rdma_core: Some(250.0),
        floor: None,
    },
    Benchmark {
        name: "batch of 32, 64 B, 1 SGE, each",
        case: "batch",
        function: "batch",
        bound: 52.0,
        rdma_core: Some(138.0),
        floor: None,
    },
    Benchmark {
        name: "poll one",
        case: "poll",
        function: "poll",
        bound: 48.0,
        rdma_core: Some(140.0),
        floor: None,
    },
    Benchmark {
        name: "poll in 32s, each",
        case: "polls",
        function: "polls",
        bound: 42.0,
        rdma_core: Some(105.0),
        floor: None,
    },
    Benchmark {
        name: "poll one, of a hundred queue pairs",
        case: "dispatch",
        function: "dispatch",
        bound: 70.0,
        rdma_core: None,
        floor: None,
    },
    Benchmark {
        name: "post and poll, 8-byte doorbell",
        case: "pair",
        function: "pair",
        bound: 125.0,
        rdma_core: Some(353.0),
        floor: None,
    },
    Benchmark {
        name: "post a datagram, 64 B, 8-byte doorbell",
        case: "datagram",
        function: "datagram",
        bound: 105.0,
        rdma_core: None,
        floor: None,
    },
    Benchmark {
        name: "post to an SRQ, 1 SGE",
        case: "shared",
        function: "shared",
        bound: 80.0,
        rdma_core: None,
        floor: None,
    },
    Benchmark {
        name: "post a frame, 18 B inline, 1 SGE",
        case: "frame",
        function: "frame",
        bound: 93.0,
        rdma_core: None,
        floor: None,
    },
    Benchmark {
        name: "poll one frame",
        case: "receive",
        function: "receive",
        bound: 74.0,
        rdma_core: None,
        floor: None,
    },
    Benchmark {
        name: "poll frames in 32s, each",
        case: "receives",
        function: "receives",
        bound: 61.0,
        rdma_core: None,
        floor: None,
    },
];

/// Measures, prints the table and `N passed, N failed, N skipped`; returns whether every bound
/// held.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut tally = Tally::default();
    if !options.rates {
        count(options, &mut tally)?;
    }
    if !options.counts {
        copies::check(options.filter.as_deref(), &mut tally)?;
        dpa::check(options.filter.as_deref(), &mut tally)?;
        speed::check(options.filter.as_deref(), &mut tally)?;
        busy::check(options.filter.as_deref(), &mut tally)?;
        growth::check(options.filter.as_deref(), &mut tally)?;
        run::check(options.filter.as_deref(), &mut tally)?;
        perftest::check(options.filter.as_deref(), &mut tally)?;
        suite::check(options.filter.as_deref(), &mut tally)?;
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    Ok(tally.failed == 0)
}

/// Counts instructions, and checks the machine code.
fn count(options: &Options, tally: &mut Tally) -> Result {
    let program = build("verbless-ring", "instructions")?;
    println!("instructions per operation (callgrind), call and loop included\n");
    println!(
        "{:36} {:>7} {:>8} {:>6} {:>10} {:>6}",
        "", "called", "inlined", "bound", "rdma-core", "floor"
    );
    let chosen = |operation: &&Benchmark| {
        options.filter.as_ref().is_none_or(|part| operation.name.contains(part.as_str()))
    };
    for operation in OPERATIONS.iter().filter(chosen) {
        let called = measure(&program, operation, "")?;
        let inlined = measure(&program, operation, "_inlined")?;
        let floor = operation.floor.map_or(String::new(), |floor| floor.to_string());
        let rdma_core = operation.rdma_core.map_or(String::new(), |count| count.to_string());
        let verdict = if called <= operation.bound { "" } else { "  ABOVE THE BOUND" };
        println!(
            "{:36} {called:>7.1} {inlined:>8.1} {:>6} {:>10} {floor:>6}{verdict}",
            operation.name, operation.bound, rdma_core
        );
        tally.count(called <= operation.bound);
    }
    println!("\n{SEMANTICS}\n");
    if !options.no_code {
        code::check(&program, tally)?;
    }
    write::check(options.filter.as_deref(), tally)?;
    jobs::check(options.filter.as_deref(), tally)
}

const SEMANTICS: &str = "\
Ours includes: filling the request, checks of SGE lengths, limits and free WQEBBs; the cookie and \
its slot; doorbell
record, sfence before and after the doorbell; polling checks owner, opcode, queue, index and \
window, and updates the
CQ record. No lock: `&mut self` makes one unnecessary. No lfence: x86 orders loads by itself.
rdma-core (recorded): libmlx5 with MLX5_SINGLE_THREADED=1, so no lock either; it has an lfence \
for each CQE.
The floor is the least code that leaves the same bytes in ring, record and UAR, without any check.";

/// Runs a case under callgrind; returns instructions per operation.
fn measure(program: &Path, operation: &Benchmark, variant: &str) -> Result<f64> {
    let function = format!("measured_{}{variant}", operation.function);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=instructions::{function}"))
        .arg(program)
        .arg(format!("{}{variant}", operation.case))
        .output()
        .map_err(|error| format!("valgrind: {error} (is it installed?)"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{function} under valgrind: {report}").into());
    }
    let collected: f64 = number_after(&report, "Collected :").ok_or("callgrind counted nothing")?;
    let operations: f64 = number_after(&String::from_utf8_lossy(&output.stdout), "operations:")
        .ok_or("the benchmark printed no count of operations")?;
    if collected == 0.0 {
        return Err(format!("callgrind did not see {function}").into());
    }
    Ok(collected / operations)
}
