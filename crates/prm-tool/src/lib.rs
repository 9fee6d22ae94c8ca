//! The PRM as data in `prm/`, and its tasks: import, generate, check, verify, show, find, list,
//! decode, book.
//!
//! `cargo xtask prm` runs a [`Task`] of this crate. The tools read only the tables, so they work
//! while the generated code or the driver does not compile.

use clap::Subcommand;

mod adb;
mod at;
mod book;
mod cards;
mod check;
mod decode;
mod description;
mod evidence;
mod facts;
mod find;
mod generate;
mod golden;
mod header;
mod import;
mod list;
mod mailbox;
mod names;
mod raw;
mod refusals;
mod repository;
mod runtime;
mod search;
mod show;
mod trace;
mod verify;

#[cfg(feature = "book")]
pub use book::site;
pub use repository::Result;

/// The tasks of `cargo xtask prm`.
#[derive(Subcommand)]
pub enum Task {
    /// Copy offsets from recorded facts to the tables that name them as sources; docs, enums and
    /// comments stay.
    Import(import::Options),
    /// Write crates/prm/src/generated from prm/, and the model's profiles as Rust from
    /// crates/model/profiles.
    Generate,
    /// Check that prm/ is consistent (no overlaps, no unnamed gaps, every enum and source known)
    /// and that the generated code is up to date.
    Check,
    /// Compare every field with public descriptions that it does not come from, with the trace of a
    /// real device, golden WQEs, mailboxes and mstflint's registers.
    Verify(verify::Options),
    /// Show a structure, command, enum, register, field or value: bit diagram, fields, their
    /// confirmations, sources, users. For an error code in a message, show every meaning.
    Show {
        /// Any of the entry's names: cq_context, cqc, mlx5_ifc_cqc_bits, MLX5_CMD_OP_CREATE_CQ,
        /// mlx5_cqe64, dbr_addr, cqc.oi, an opcode (0x400) or a register id (0x5003); or a number
        /// of a message, or its words: 12, 0x15, err(-22), IBV_WC_RETRY_EXC_ERR, "bad parameter".
        #[arg(allow_negative_numbers = true)]
        name: String,
    },
    /// Find entries, fields and chapters by words of their names and docs.
    Find(search::Options),
    /// List commands: by what DevX does with them, the capability that gates them, states.
    List(list::Options),
    /// Decode a pasted log or hexdump to named fields and sentences.
    Decode(decode::Options),
    /// Render the chapters of prm/book and a page for each entry as a static site.
    #[command(disable_help_flag = true)]
    Book {
        /// Options of the program that renders; `--help` shows them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// Runs the task.
pub fn run(task: Task) -> Result {
    let root = repository::root();
    match task {
        Task::Import(options) => import::run(&root, &options),
        Task::Generate => generate::run(&root),
        Task::Check => check::run(&root),
        Task::Verify(options) => verify::run(&root, &options),
        Task::Show { name } => show::run(&root, &name),
        Task::Find(options) => search::run(&root, &options),
        Task::List(options) => list::run(&root, &options),
        Task::Decode(options) => decode::run(&root, &options),
        Task::Book { arguments } => book::render(&root, &arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Prm {
        #[command(subcommand)]
        task: Task,
    }

    #[test]
    fn task_error_reaches_caller() {
        for (line, says) in [
            ("prm import --from /nowhere/facts.json", "/nowhere/facts.json: "),
            ("prm verify --ifc /nowhere/mlx5_ifc.h", "/nowhere/mlx5_ifc.h: "),
            ("prm show zzzzqqqqzzzz", "no entry named `zzzzqqqqzzzz`"),
            ("prm decode /nowhere/hex", "/nowhere/hex: "),
        ] {
            let task = Prm::try_parse_from(line.split(' ')).unwrap().task;
            let error = run(task).unwrap_err().to_string();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}
