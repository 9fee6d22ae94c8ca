//! The state of a DPA core dump in progress.

use std::sync::Arc;

use verbless_dpa::CoreDump;

use super::objects::QueueMemory;

/// A core dump in progress.
pub(crate) struct DumpInProgress {
    /// The core dump object. It may be destroyed meanwhile; another of its number has another
    /// `mark`.
    pub number: u32,
    pub mark: Arc<()>,
    pub file: CoreDump,
    /// The memory for the file; a longer file is not written at all.
    pub room: QueueMemory,
    pub written: u64,
}
