//! Parts that every task needs: the root of the repository, and the output of results.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The result of a task: nothing, or an error that is shown to the user as it is.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Prints a page; a reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The repository that this crate was built from.
pub(crate) fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate is in the workspace").to_owned()
}
