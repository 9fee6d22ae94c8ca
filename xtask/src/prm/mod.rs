//! `cargo xtask prm`: the PRM as data in `prm/`, and everything that is done with it.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;

mod check;
mod decode;
mod description;
mod facts;
mod find;
mod generate;
mod golden;
mod ifc;
mod import;
mod mailbox;
mod names;
mod place;
mod raw;
mod runtime;
mod show;
mod trace;
mod verify;

use description::Description;

/// What to do with the description.
#[derive(Subcommand)]
pub(crate) enum Task {
    /// Take offsets from recorded facts into the tables that name them as source; docs, enums and
    /// comments stay.
    Import(import::Options),
    /// Write crates/prm/src/generated from prm/.
    Generate,
    /// Check that prm/ is consistent (no overlaps, no unnamed gaps, every enum and source known) and that the generated code is up to date.
    Check,
    /// Hold every field against descriptions that it did not come from: a Linux header, the trace of
    /// a real device, golden WQEs.
    Verify(verify::Options),
    /// A structure, command, enum, register, field or value as a page of text: bit diagram, fields,
    /// who confirms them, sources, users.
    Show {
        /// By any of its names: cq_context, cqc, mlx5_ifc_cqc_bits, MLX5_CMD_OP_CREATE_CQ, mlx5_cqe64,
        /// dbr_addr, cqc.oi, an opcode (0x400) or a register id (0x5003).
        name: String,
    },
    /// A hexdump as named fields.
    Decode(decode::Options),
}

/// Runs the task.
pub(crate) fn run(task: Task) -> crate::Result {
    let root = root();
    match task {
        Task::Import(options) => import::run(&root, &options),
        Task::Generate => generate::run(&root),
        Task::Check => check::run(&root),
        Task::Verify(options) => verify::run(&root, &options),
        Task::Show { name } => show::run(&root, &name),
        Task::Decode(options) => decode::run(&root, &options),
    }
}

/// Prints a page; a reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> crate::Result {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
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
