//! `cargo xtask hwtest`: builds the conformance suite's program and runs it with the same options.

use std::process::Command;

use crate::workspace::{Result, workspace_root};

/// Options of `cargo xtask hwtest`; `--help` shows those of the program.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// What the program takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs it; the result says whether every case passed or was skipped.
///
/// It is built in the profile of this program: on a fresh machine the two then share what they
/// depend on, and cargo shows how far it is.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "--package", "verbless-conformance", "--bin", "hwtest"]);
    // The writer of JUnit files brings as many crates as the rest together.
    if options.arguments.iter().any(|argument| argument.starts_with("--junit")) {
        command.args(["--features", "junit"]);
    }
    command.arg("--").args(&options.arguments).current_dir(workspace_root());
    Ok(command.status()?.success())
}
