//! `chaos`: tests that a device behind a kernel must survive.
//!
//! `chaos kills` starts programs that use the device and kills them at any moment; `chaos hostile`
//! starts clients that make malformed and malicious calls. Meanwhile two checkers exchange data and
//! verify all of it: any mistake is a failure. Everything random comes from one seed, which is
//! printed; `--seed` repeats a run as far as scheduling allows.
//!
//! The programs are this executable again, each in a role (`roles`); the controlling process
//! exchanges messages with them over their standard input and output (`message`). Run it as
//! `verbless-model run --devices 2 -- chaos kills`.
//!
//! - `kills`, `hostile`: the two tests.
//! - `programs`, `roles`, `message`: starting programs, their roles, the messages to and from them.
//! - `checker`, `checkers`: one checker, and both on the controlling process's side.
//! - `hostile_client`, `recording`, `raw`: a hostile client's calls and their arguments.
//! - `expectations`: errnos that must be those of Linux.

mod checker;
mod checkers;
mod expectations;
mod hostile;
mod hostile_client;
mod kills;
mod message;
mod programs;
mod random;
mod raw;
mod recording;
mod roles;
mod stream;
mod supervisor;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use verbless_conformance::Stop;

/// Tests a device and its kernel with programs that are killed and with hostile clients.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    trial: Trial,
}

#[derive(Subcommand)]
enum Trial {
    /// Kills programs that use the device, at random moments.
    Kills(kills::Options),
    /// Makes malformed and malicious calls, while other programs use the device.
    Hostile(hostile::Options),
    /// Runs one of these programs.
    #[command(hide = true)]
    Role(roles::Options),
}

fn main() -> ExitCode {
    let result = match &Options::parse().trial {
        Trial::Kills(options) => kills::run(options),
        Trial::Hostile(options) => hostile::run(options),
        Trial::Role(options) => roles::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop(what)) => {
            eprintln!("error: {what}");
            ExitCode::FAILURE
        }
    }
}
