//! `cargo xtask`: the tasks of the project, one module per task.
//!
//! A task that needs the driver or the model is a program of its own that this one starts, so that
//! `cargo xtask prm` builds in seconds and works while the rest of the tree does not compile.

use std::process::ExitCode;

use clap::Parser;

mod prm;

/// What a task returns: nothing, or an error that is shown to the user as it is.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// The PRM as data: import, generate, check, verify, show, decode.
    #[command(subcommand)]
    Prm(prm::Task),
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Prm(task) => prm::run(task),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
