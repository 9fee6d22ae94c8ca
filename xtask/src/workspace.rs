//! Parts shared by all tasks: the source tree and the result type.

use std::path::Path;
use std::process::Command;

/// The result of a task: nothing, or an error that is shown to the user verbatim.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Features of `verbless` that programs may use; its documentation tests use the model.
pub(crate) const FEATURES: &str = "verbless/doca,verbless/dpa,verbless/model,verbless/serde,\
                                   verbless/toml,verbless/tokio,\
                                   verbless/tracing,verbless-riscv/gdb,\
                                   verbless-prm-tool/book";

/// The root of the workspace.
pub(crate) fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// cargo, for a build whose programs print their commit in `--version`.
///
/// Every build of the programs sets the variable: cargo recompiles a program when it changes.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if let Some(commit) = commit() {
        cargo.env("VERBLESS_COMMIT", commit);
    }
    cargo
}

/// The commit of the sources, with `-dirty` if they differ from it; `None` without git.
pub(crate) fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .current_dir(workspace_root())
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}
