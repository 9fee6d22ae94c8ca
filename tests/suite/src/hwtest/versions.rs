//! What this program is: its version, its commit, and the PRM that it was built with.

use std::sync::LazyLock;

use verbless_conformance::report::Program;

/// The commit of the sources; `None` if it was not `cargo xtask` that built the program.
const COMMIT: Option<&str> = option_env!("VERBLESS_COMMIT");

/// The line of `--version`, after the program's name.
pub(crate) fn line() -> &'static str {
    static LINE: LazyLock<String> = LazyLock::new(|| {
        let commit = COMMIT.unwrap_or("unknown, not built by cargo xtask");
        let prm = verbless_prm::fingerprint();
        format!("{} (commit {commit}; PRM {prm:016x})", env!("CARGO_PKG_VERSION"))
    });
    &LINE
}

/// Version, commit and PRM of this program, for a report.
pub(crate) fn program() -> Program {
    Program {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: COMMIT.map(str::to_owned),
        prm: format!("{:016x}", verbless_prm::fingerprint()),
    }
}
