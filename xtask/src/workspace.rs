//! What all tasks share: the tree that they work on, and how they end.

use std::path::Path;

/// What a task returns: nothing, or an error that is shown to the user as it is.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The root of the workspace.
pub(crate) fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
