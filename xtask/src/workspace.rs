//! Parts shared by all tasks: the source tree and the result type.

use std::path::Path;

/// The result of a task: nothing, or an error that is shown to the user verbatim.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The root of the workspace.
pub(crate) fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
