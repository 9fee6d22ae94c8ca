//! `chaos`: what a device behind a kernel must survive.
//!
//! `chaos kills` has programs use the device and kills them at any moment; `chaos lies` has
//! programs that lie to it. Meanwhile witnesses use it as it is meant to be used, and must not
//! notice. Whatever is random comes from one number, the seed, which is printed; with `--seed` it
//! is the same again, as far as the machine lets it.
//!
//! The programs are this one again, each with a part to play (`parts`), and talk to the one who
//! directs them over their standard input and output (`message`). Run it as `verbless-model run
//! --devices 2 -- chaos kills`.

mod cast;
mod director;
mod kills;
mod liar;
mod lies;
mod message;
mod parts;
mod random;
mod raw;
mod stream;
mod supervisor;
mod tape;
mod truths;
mod witness;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use verbless_conformance::Stop;

/// Puts a device and its kernel to the test by programs that are killed, or lie.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    trial: Trial,
}

#[derive(Subcommand)]
enum Trial {
    /// Programs that use the device are killed at any moment.
    Kills(kills::Options),
    /// Programs lie to the kernel, while others use the device.
    Lies(lies::Options),
    /// What such a program does.
    #[command(hide = true)]
    Part(parts::Options),
}

fn main() -> ExitCode {
    let result = match &Options::parse().trial {
        Trial::Kills(options) => kills::run(options),
        Trial::Lies(options) => lies::run(options),
        Trial::Part(options) => parts::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop(what)) => {
            eprintln!("error: {what}");
            ExitCode::FAILURE
        }
    }
}
