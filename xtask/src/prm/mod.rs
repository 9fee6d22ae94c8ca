//! `cargo xtask prm`: the PRM as data in `prm/`, and everything that is done with it.

use std::path::{Path, PathBuf};

use clap::Subcommand;

mod description;
mod facts;
mod generate;
mod import;
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
}

/// Runs the task.
pub(crate) fn run(task: Task) -> crate::Result {
    let root = root();
    match task {
        Task::Import(options) => import::run(&root, &options),
        Task::Generate => generate::run(&root),
    }
}

/// The repository that xtask was built from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

/// The description, or all its mistakes but missing texts as one error.
fn load_sound(root: &Path) -> crate::Result<Description> {
    let description = Description::load(root)?;
    let errors: Vec<_> = description.problems.iter().filter(|p| !p.only_text).collect();
    if errors.is_empty() {
        return Ok(description);
    }
    let lines: Vec<String> = errors.iter().map(|p| format!("  {p}")).collect();
    Err(format!("{} mistakes in the description:\n{}", lines.len(), lines.join("\n")).into())
}
