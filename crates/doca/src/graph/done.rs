//! What an instance yields.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::node::Node;
use crate::context::failure::JobError;
use crate::types::UserData;

/// An instance of a graph that has ended.
pub struct GraphDone {
    /// What was given with the submission.
    pub user_data: UserData,
    /// How it went: as its first node to fail, if one did.
    pub result: std::result::Result<(), JobError>,
    /// The first node that failed. If it is a sub-graph node, the sub-graph's own failed.
    pub failed: Option<Node>,
    /// What an instance consists of. Events know nothing of graphs, whose nodes know of events.
    pub(super) instance: Arc<dyn Any + Send + Sync>,
}

impl GraphDone {
    /// The number in `doca_event::result`: 0, or [`ErrorKind::number`] of the failure.
    ///
    /// [`ErrorKind::number`]: crate::error::ErrorKind::number
    pub fn status(&self) -> u64 {
        self.result.err().map_or(0, |error| error.kind().number().into())
    }
}

impl fmt::Debug for GraphDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphDone")
            .field("user_data", &self.user_data)
            .field("result", &self.result)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
