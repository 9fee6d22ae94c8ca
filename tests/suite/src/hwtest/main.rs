//! `hwtest`: runs the conformance suite on a device and says what it can do.
//!
//! - `options`: the command line.
//! - `suite`, `sweep`: runs of the cases.
//! - `sink`: the files that they write; `versions`: what this program is.

mod options;
mod sink;
mod suite;
mod sweep;
mod versions;

use std::error::Error;
use std::io;
use std::process::ExitCode;

use clap::Parser;

use options::Options;

fn main() -> ExitCode {
    let options = Options::parse();
    match suite::run(&options.suite) {
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
