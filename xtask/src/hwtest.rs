//! `cargo xtask hwtest`: builds the conformance suite's program and runs it with the same options.

use crate::workspace::{Result, cargo, workspace_root};

/// Options of `cargo xtask hwtest`; `--help` shows those of the program.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// The program's arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs it; returns whether every case passed or was skipped.
///
/// It is built in the profile of this program: on a fresh machine the two then share their
/// dependencies, and cargo shows its progress.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let status = cargo()
        .args(["run", "--package", "verbless-conformance", "--bin", "hwtest", "--"])
        .args(&options.arguments)
        .current_dir(workspace_root())
        .status()?;
    Ok(status.success())
}
