//! `cargo xtask prm`: the PRM as data in `prm/`, and everything that is done with it.

use std::path::{Path, PathBuf};

use clap::Subcommand;

mod check;
mod description;
mod facts;
mod generate;
mod import;
mod names;
mod place;

use description::Description;

/// What to do with the description.
#[derive(Subcommand)]
pub(crate) enum Task {
    /// Take offsets from recorded facts into the tables that name them as source; docs, enums and
    /// comments stay.
    Import(import::Options),
    /// Write crates/prm/src/generated from prm/.
    Generate,
    /// Hold the description against its own rules, and the generated code against it.
    Check,
}

/// Runs the task.
pub(crate) fn run(task: Task) -> crate::Result {
    let root = root();
    match task {
        Task::Import(options) => import::run(&root, &options),
        Task::Generate => generate::run(&root),
        Task::Check => check::run(&root),
    }
}

/// The repository that xtask was built from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

/// The description, or all its mistakes but missing texts as one error.
fn load_sound(root: &Path) -> crate::Result<Description> {
    let description = Description::load(root)?;
    let problems = check::all(&description);
    let lines: Vec<String> =
        problems.iter().filter(|p| !p.harmless).map(|p| format!("  {p}")).collect();
    if lines.is_empty() {
        return Ok(description);
    }
    Err(format!("{} mistakes in the description:\n{}", lines.len(), lines.join("\n")).into())
}
