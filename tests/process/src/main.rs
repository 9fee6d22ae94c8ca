//! `process`: the conformance suite's cases of two programs that talk to each other over a device
//! (`verbless_conformance::roles`): in this process, under `verbless-model run`, in a VM, on
//! hardware.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use verbless_conformance::roles::{self, Case, Program, Side};
use verbless_conformance::{Choice, Outcome, Run, Stop, unexpected_skips};

/// Runs cases of two programs on an mlx5 device, or on the model where there is none.
#[derive(Parser)]
#[command(name = "process")]
struct Options {
    #[command(flatten)]
    on: On,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
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
}

/// The devices that the roles use.
#[derive(Args)]
struct On {
    /// `auto`, `model`, or the name of the first role's device (mlx5_0).
    #[arg(long, default_value = "auto", global = true)]
    device: String,
    /// The second role's device: `auto`, `none` (the first one's port loops back), or a name.
    #[arg(long, default_value = "auto", global = true)]
    peer: String,
    /// The model's profile.
    #[arg(long, default_value = "connectx6dx", global = true)]
    profile: String,
    /// The model's port type: infiniband or ethernet; the profile's own if not given.
    #[arg(long, global = true)]
    link: Option<String>,
    /// Faults of the model's links: a file as described in docs/faults.md. In this process, a run
    /// of all cases fails if an effect of the file happened to no frame; under `verbless-model run
    /// --faults FILE` this option only declares that links lose messages of the cases.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
}

impl On {
    fn choice(&self) -> Choice {
        Choice {
            device: self.device.clone(),
            peer: self.peer.clone(),
            profile: self.profile.clone(),
            link: self.link.clone(),
            faults: self.faults.clone(),
            ..Choice::default()
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.role {
        Some(Task::Role { case, side, life }) => {
            roles::play(&options.on.choice(), case, *side, *life).map(|()| true)
        }
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
    let cases = roles::all();
    let selected: Vec<&Case> =
        cases.iter().filter(|case| case.id().contains(&options.filter)).collect();
    if selected.is_empty() {
        return Err(Stop::fail(format!("no case contains {:?}; see --list", options.filter)));
    }
    if options.list {
        for case in selected {
            let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
            println!("{}  (needs {})", case.id(), needs.join(", "));
        }
        return Ok(true);
    }
    let lab = roles::lab(&options.on.choice())?;
    let On { device, peer, .. } = &options.on;
    let program = Program::this(["--device", device, "--peer", peer, "role"])?;
    println!("Running on {}", lab.describe());
    let mut run = Run { device: lab.describe(), preconditions: Vec::new(), cases: Vec::new() };
    for case in &selected {
        let row = roles::row(&program, None, &lab, case);
        println!("{}", row.line());
        run.cases.push(row);
    }
    let unexpected = match &options.expect {
        Some(environment) => {
            let needs = selected.iter().map(|case| (case.id(), &case.needs[..]));
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
