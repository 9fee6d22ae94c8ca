//! `hwtest`: runs the conformance suite on a device and says what it can do.
//!
//! - `options`: the command line.
//! - `suite`, `sweep`: runs of the cases; `doctor`: the chain of checks alone.
//! - `connect`: the cases of two machines; `serve`: the other machine.
//! - `perf`: bandwidths and latencies.
//! - `results`: where a run's results go, and its end; `summary`: what a run closes with.
//! - `reports`: what is made of a report.
//! - `unknowns`: the questions that only a card answers.
//! - `replay`: the cases of a recording again.
//! - `sink`: the files that they write; `versions`: what this program is.

mod connect;
mod doctor;
mod options;
mod perf;
mod replay;
mod reports;
mod results;
mod serve;
mod sink;
mod suite;
mod summary;
mod sweep;
mod unknowns;
mod versions;

use std::error::Error;
use std::io;
use std::process::ExitCode;

use clap::Parser;

use options::{Command, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match &options.command {
        Some(Command::Doctor(options)) => doctor::run(options),
        Some(Command::Report(options)) => reports::page(options),
        Some(Command::Diff(options)) => reports::diff(options),
        Some(Command::Profile(options)) => reports::profile(options),
        Some(Command::Replay(options)) => replay::run(options),
        Some(Command::Perf(options)) => perf::run(options),
        Some(Command::Serve(options)) => serve::run(options),
        Some(Command::Role(options)) => serve::role(options),
        None if options.suite.connect.is_some() => connect::run(&options.suite),
        None => suite::run(&options.suite),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&*error) => ExitCode::from(2),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
