//! The event of an instance that has ended.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::node::Node;
use crate::context::failure::JobError;
use crate::types::UserData;

/// An instance of a graph that has ended.
pub struct GraphDone {
    /// The user data of the submission.
    pub user_data: UserData,
    /// The result: that of the first node that failed, if one did.
    pub result: std::result::Result<(), JobError>,
    /// The first node that failed. If it is a sub-graph node, the sub-graph's own failed.
    pub failed: Option<Node>,
    /// The instance's data. It is untyped because graphs know of events, so events cannot know of
    /// graphs.
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
