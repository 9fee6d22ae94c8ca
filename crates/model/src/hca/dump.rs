//! A core dump of a process of the DPA that is being written.

use std::sync::Arc;

use super::objects::QueueMemory;
use crate::dpa::CoreDump;

/// One that is being written.
pub(crate) struct Dumping {
    /// The object, which may be gone meanwhile with its context.
    pub number: u32,
    pub mark: Arc<()>,
    pub file: CoreDump,
    /// Where it goes; if it is longer, nothing is written.
    pub room: QueueMemory,
    pub written: u64,
}
