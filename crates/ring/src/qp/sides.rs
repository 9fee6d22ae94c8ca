//! The receive side of a queue pair: its own receive queue, or a shared receive queue.

use super::receive::ReceiveQueue;
use verbless_prm::hot::cqe_opcode;

use crate::completion::{Completion, CompletionError, InvalidCqe, invalid_cqe};
use crate::cq::Cqe;
use crate::types::Qpn;

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
    use crate::types::Qpn;

    /// The operations of a queue pair on its receive side.
    pub trait ReceiveSide {
        /// Completes a CQE that is not a requester's; `qpn` is the queue pair's number.
        fn complete(&mut self, qpn: Qpn, cqe: &Cqe) -> Result<Completion, CompletionError>;
        fn reset(&mut self);
        fn stop(&mut self);
        fn publish(&mut self);
    }
}

impl sealed::ReceiveSide for ReceiveQueue {
    fn complete(&mut self, _: Qpn, cqe: &Cqe) -> Result<Completion, CompletionError> {
        self.complete_other(cqe)
    }

    fn reset(&mut self) {
        ReceiveQueue::reset(self);
    }

    fn stop(&mut self) {
        ReceiveQueue::stop(self);
    }

    fn publish(&mut self) {
        ReceiveQueue::publish(self);
    }
}

impl sealed::ReceiveSide for WithSrq {
    fn complete(&mut self, qpn: Qpn, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != qpn {
            return Err(CompletionError::OtherQueue(cqe.copied_out()));
        }
        Err(match cqe.opcode() {
            cqe_opcode::RESPONDER_WRITE_IMM
            | cqe_opcode::RESPONDER_SEND
            | cqe_opcode::RESPONDER_SEND_IMM
            | cqe_opcode::RESPONDER_SEND_INVALIDATE
            | cqe_opcode::RESPONDER_ERROR => CompletionError::OtherSrq(cqe.copied_out()),
            other => invalid_cqe(InvalidCqe::Opcode(other)),
        })
    }

    /// Keeps the posted receives: they belong to all users of the shared receive queue.
    fn reset(&mut self) {}

    /// Does nothing: the shared receive queue continues.
    fn stop(&mut self) {}

    /// Does nothing: the shared receive queue writes its own doorbell record.
    fn publish(&mut self) {}
}
