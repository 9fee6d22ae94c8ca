//! Where the messages of a queue pair go: receives of its own, or those that it shares with others.

use super::receive::ReceiveQueue;
use crate::completion::{Completion, CompletionError, Malformed, malformed};
use crate::cq::Cqe;

/// The receive side of a queue pair: a [`ReceiveQueue`], or [`WithSrq`].
pub trait ReceiveSide: sealed::ReceiveSide {}
impl<T: sealed::ReceiveSide> ReceiveSide for T {}

/// The receive side of a queue pair that draws from a
/// [`SharedReceiveQueue`](crate::SharedReceiveQueue).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithSrq;

pub(crate) mod sealed {
    use crate::completion::{Completion, CompletionError};
    use crate::cq::Cqe;

    /// What a queue pair asks of either.
    pub trait ReceiveSide {
        fn complete(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError>;
        fn reset(&mut self);
        fn publish(&mut self);
    }
}

impl sealed::ReceiveSide for ReceiveQueue {
    fn complete(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        self.complete_other(cqe)
    }

    fn reset(&mut self) {
        ReceiveQueue::reset(self);
    }

    fn publish(&mut self) {
        ReceiveQueue::publish(self);
    }
}

impl sealed::ReceiveSide for WithSrq {
    fn complete(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        Err(malformed(Malformed::Shared(cqe.wqe_index())))
    }

    /// What was posted is everybody's, and stays.
    fn reset(&mut self) {}

    /// The device was told by the shared receive queue.
    fn publish(&mut self) {}
}
