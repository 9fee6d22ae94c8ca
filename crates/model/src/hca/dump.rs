//! A core dump of a process of the DPA that is being written.

use std::sync::Arc;

use super::objects::QueueMemory;
use crate::dpa::CoreDump;

/// A core dump that is being written.
pub(crate) struct Dumping {
    /// The object, which may have been destroyed meanwhile with its context.
    pub number: u32,
    pub mark: Arc<()>,
    pub file: CoreDump,
    /// The memory for the file; if the file is longer, nothing is written.
    pub room: QueueMemory,
    pub written: u64,
}
