//! The event of an ended instance.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::node::Node;
use crate::context::failure::JobError;
use crate::types::UserData;

/// An ended instance of a graph.
pub struct GraphDone {
    /// The user data of the submission.
    pub user_data: UserData,
    /// The result of the first failed node, or success.
    pub result: std::result::Result<(), JobError>,
    /// The first failed node. For a sub-graph node, a node of the sub-graph failed.
    pub failed: Option<Node>,
    /// The instance's data. It is untyped because the graph module depends on events, so the event
    /// module cannot depend on graphs.
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
