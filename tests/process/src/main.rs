//! `process`: cases of two programs that talk to each other over a device.
//!
//! A case has two roles. If the device is behind a kernel (under `verbless-model run`, in a VM, on
//! hardware), each role is a process of its own, this program again, and a signal kills it. On the
//! model in this process each role is a thread: closing its device files kills it, and links and
//! commands can fail meanwhile.
//!
//! - `case`: a case: its roles, its kill point, its fault and when it happens.
//! - `channel`: the messages between roles and their director, always with a time limit.
//! - `role`: the interface of a role; `single_role`: a role in its own process; `on`: the devices.
//! - `files`: the device files of a role, which close with it.
//! - `director`: starts roles, carries messages between them, kills, and judges.
//! - `cases`: the cases.

mod agent;
mod case;
mod cases;
mod channel;
mod director;
mod files;
mod on;
mod role;
mod single_role;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use verbless_conformance::{Outcome, Row, Run, Stop, unexpected_skips};

use agent::Address;
use case::{Case, Side};
use on::On;

/// Runs cases of two programs on an mlx5 device, or on the model where there is none.
#[derive(Parser)]
#[command(name = "process")]
struct Options {
    #[command(flatten)]
    on: On,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// The second role is on the DPU's side, and the `agent` that listens there starts it: at a
    /// socket's path under `verbless-model run --dpu`, or at tcp:HOST:PORT on another machine.
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// List the cases with their needs, and stop.
    #[arg(long)]
    list: bool,
    /// Fail if a case is skipped unexpectedly in this environment, or if an expected skip is
    /// missing: an entry of tests/suite/expected-skips.toml.
    #[arg(long, value_name = "ENVIRONMENT")]
    expect: Option<String>,
    #[command(subcommand)]
    role: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// One role of a case; its director is on standard input.
    #[command(hide = true)]
    Role { case: String, side: Side, life: u32 },
    /// Starts second roles for a director elsewhere, whose `--agent` leads to this address.
    Agent { address: Address },
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.role {
        Some(Task::Role { case, side, life }) => {
            single_role::in_this_process(&options.on, case, *side, *life)
        }
        Some(Task::Agent { address }) => agent::run(&options.on, address),
        None => all(&options),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Stop(what)) => {
            eprintln!("error: {what}");
            ExitCode::from(2)
        }
    }
}

/// Runs the cases; returns whether all succeeded.
fn all(options: &Options) -> Result<bool, Stop> {
    let cases = cases::all();
    let selected: Vec<&Case> =
        cases.iter().filter(|case| case.name.contains(&options.filter)).collect();
    if selected.is_empty() {
        return Err(Stop::fail(format!("no case contains {:?}; see --list", options.filter)));
    }
    if options.list {
        for case in selected {
            let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
            println!("process::{}  (needs {})", case.name, needs.join(", "));
        }
        return Ok(true);
    }
    let mut lab = options.on.lab()?;
    if options.agent.is_some() {
        lab = lab.with_remote_dpu();
    }
    println!("Running on {}", lab.describe());
    let mut run = Run { device: lab.describe(), preconditions: Vec::new(), cases: Vec::new() };
    for case in &selected {
        let start = std::time::Instant::now();
        let outcome = director::outcome(&options.on, options.agent.as_ref(), &lab, case);
        let seconds = start.elapsed().as_secs_f64();
        let case = format!("process::{}", case.name);
        let row = Row { case, outcome, seconds, failed_commands: Vec::new() };
        println!("{}", row.line());
        run.cases.push(row);
    }
    if let Some(address) = &options.agent {
        agent::end(address)?;
    }
    let unexpected = match &options.expect {
        Some(environment) => {
            let needs = selected.iter().map(|case| (case.name.clone(), &case.needs[..]));
            unexpected_skips(&lab, environment, needs)?
        }
        None => Vec::new(),
    };
    for line in &unexpected {
        println!("Unexpected: {line}");
    }
    let (passed, failed, skipped) = run.counts();
    for row in run.cases.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))) {
        println!("{}", row.line());
    }
    let all = options.filter.is_empty();
    let mut idle = 0;
    if let Some((happened, never)) = lab.faults() {
        println!("{happened}");
        for line in &never {
            println!("{}: {line}", if all { "FAIL" } else { "note" });
        }
        idle = if all { never.len() } else { 0 };
    }
    let failed = failed + unexpected.len() + idle;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}
