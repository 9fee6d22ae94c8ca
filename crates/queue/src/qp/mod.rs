//! Queue pairs: a send queue and a receive queue.
//!
//! ```no_run
//! # fn f(mut qp: verbless_queue::QueuePair, mut cq: verbless_queue::CompletionQueue, sge: verbless_queue::Sge,
//! #      remote: verbless_queue::RemoteAddr) -> Result<(), Box<dyn std::error::Error>> {
//! use verbless_queue::wr::{Read, Write};
//!
//! qp.post(&Write::new(sge, remote).signaled(), 7)?;
//! let cqe = loop {
//!     if let Some(cqe) = cq.poll() {
//!         break cqe;
//!     }
//! };
//! assert_eq!(qp.complete(cqe)?.cookie, 7);
//!
//! let mut batch = qp.batch();
//! batch.post(&Write::new(sge, remote), 8)?;
//! batch.post(&Read::new(sge, remote).signaled(), 9)?;
//! batch.ring();
//! # Ok(())
//! # }
//! ```

mod receive;
mod send;

pub use receive::{ReceiveBatch, ReceiveQueue, ReceiveQueueParts};
pub use send::{BlueFlame, SendBatch, SendQueue, SendQueueParts};

use verbless_prm::hot::cqe_opcode;

use crate::completion::{Completion, CompletionError, Malformed};
use crate::cq::{CompletionQueue, Cqe};
use crate::types::{Qpn, WqeIndex};
use crate::wr::{Gather, PostError, WorkRequest};

/// A send queue and a receive queue of one number.
///
/// The two are independent: [`QueuePair::split`] lets two threads have one each.
#[derive(Debug)]
pub struct QueuePair {
    /// Its send queue.
    pub send: SendQueue,
    /// Its receive queue.
    pub receive: ReceiveQueue,
}

impl QueuePair {
    /// Joins two queues.
    pub fn new(send: SendQueue, receive: ReceiveQueue) -> Self {
        Self { send, receive }
    }

    /// The two queues, for two threads.
    pub fn split(self) -> (SendQueue, ReceiveQueue) {
        (self.send, self.receive)
    }

    /// Starts over, as the device does when the queue pair goes to RESET. Completions of what was posted before may
    /// still stand in the completion queue; whoever polls it drops them.
    pub(crate) fn reset(&mut self) {
        self.send.reset();
        self.receive.reset();
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.send.qpn()
    }

    /// Posts a request and rings: [`SendQueue::post`].
    #[inline]
    pub fn post<W: WorkRequest>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        self.send.post(request, cookie)
    }

    /// Starts a batch of requests: [`SendQueue::batch`].
    #[inline]
    pub fn batch(&mut self) -> SendBatch<'_> {
        self.send.batch()
    }

    /// Posts a receive: [`ReceiveQueue::post`].
    #[inline]
    pub fn post_receive<G: Gather>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        self.receive.post(into, cookie)
    }

    /// What the CQE says of this queue pair's requests; frees their slots.
    ///
    /// A CQE of another queue pair is [`Malformed::Queue`]: look at [`Cqe::qpn`] or [`Cqe::user_index`] first where
    /// several share a completion queue.
    #[inline]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        match cqe.opcode() {
            cqe_opcode::REQUESTER | cqe_opcode::REQUESTER_ERROR => self.send.complete(cqe),
            _ => self.receive.complete(cqe),
        }
    }

    /// Polls a completion queue that is this queue pair's alone.
    #[inline]
    pub fn poll(
        &mut self,
        cq: &mut CompletionQueue,
    ) -> Option<Result<Completion, CompletionError>> {
        let cqe = cq.poll()?;
        Some(self.complete(cqe))
    }
}

#[cold]
fn malformed(malformed: Malformed) -> CompletionError {
    CompletionError::Malformed(malformed)
}
