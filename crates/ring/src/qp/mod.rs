//! Queue pairs: a send queue and a receive queue.
//!
//! ```no_run
//! # use verbless_ring::{CompletionQueue, QueuePair, RemoteAddr, Sge};
//! # fn f(mut qp: QueuePair, mut cq: CompletionQueue, sge: Sge, remote: RemoteAddr)
//! #      -> Result<(), Box<dyn std::error::Error>> {
//! use verbless_ring::wr::{Read, Write};
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
mod sides;

pub use receive::{ReceiveBatch, ReceiveQueue, ReceiveQueueParts};
pub use send::{BlueFlame, SendBatch, SendQueue, SendQueueParts};
pub use sides::{ReceiveSide, WithSrq};

use crate::completion::{Completion, CompletionError, Datagram};
use crate::cq::{CollapsedCompletionQueue, CompletionQueue, Cqe, Outcome, RequestId};
use crate::poll::{self, Poll};
use crate::ring::CqeView;
use crate::service::{Rc, Service, Ud};
use crate::types::{Qpn, WqeIndex};
use crate::wr::{PostError, SgList, WorkRequest};

/// A send queue and a receive queue with one QPN.
///
/// The two are independent: [`QueuePair::split`] gives them to two threads, and so do references to
/// the two fields, which share no cache line.
///
/// Queues are `Send` and take `&mut self`: one thread at a time uses each, without a lock. The same
/// holds for a completion queue: two threads that split a queue pair have one each, for sends and
/// for receives, and pass its CQEs to the `complete` of their half.
#[derive(Debug)]
#[repr(C)]
pub struct QueuePair<S: Service = Rc, R: ReceiveSide = ReceiveQueue> {
    /// The send queue.
    pub send: SendQueue<S>,
    /// The receive queue, or [`WithSrq`].
    pub receive: R,
}

impl<S: Service> QueuePair<S> {
    /// Posts a receive: [`ReceiveQueue::post`].
    #[inline(always)]
    pub fn post_receive<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        self.receive.post(into, cookie)
    }
}

impl<S: Service, R: ReceiveSide> QueuePair<S, R> {
    /// Joins two queues.
    pub fn new(send: SendQueue<S>, receive: R) -> Self {
        Self { send, receive }
    }

    /// The two queues, for two threads.
    pub fn split(self) -> (SendQueue<S>, R) {
        (self.send, self.receive)
    }

    /// Restarts at index 0, as the device does when the queue pair goes to RESET. Call it only
    /// after 2RST_QP has succeeded: otherwise the device continues with its own indexes, and the
    /// two never agree again. Clean earlier completions first: they would complete later requests.
    pub fn reset(&mut self) {
        self.send.reset();
        self.receive.reset();
    }

    /// Clears both doorbell records and [closes](SendQueue::close) the send queue, after 2RST_QP:
    /// the device restarts at index 0, and must find nothing posted there. Earlier completions can
    /// still be polled. Call [`QueuePair::reset`] before posting again.
    pub fn stop(&mut self) {
        self.send.stop();
        self.receive.stop();
    }

    /// Writes the count of posted receives to the doorbell record again: needed after RST2INIT_QP,
    /// because a device may ignore the record in RESET.
    pub fn publish_receives(&mut self) {
        self.receive.publish();
    }

    /// The number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.send.qpn()
    }

    /// Posts a request and rings: [`SendQueue::post`].
    #[inline(always)]
    pub fn post<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        self.send.post(request, cookie)
    }

    /// Starts a batch of requests: [`SendQueue::batch`].
    #[inline(always)]
    pub fn batch(&mut self) -> SendBatch<'_, S> {
        self.send.batch()
    }

    /// Completes the requests of this queue pair that the CQE reports; frees their slots.
    ///
    /// A CQE of another queue pair comes back in [`CompletionError::OtherQueue`]: check
    /// [`Cqe::qpn`] or [`Cqe::user_index`] first if several share a completion queue.
    #[inline(always)]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        if cqe.is_plain_request() {
            self.send.complete(cqe)
        } else {
            self.complete_other(&cqe.copied_out())
        }
    }

    /// Completes the newest send request that a collapsed completion queue reports:
    /// [`SendQueue::poll_collapsed`].
    ///
    /// # Errors
    /// As [`SendQueue::poll_collapsed`].
    pub fn poll_collapsed(
        &mut self,
        queue: &CollapsedCompletionQueue,
    ) -> Option<Result<Completion, CompletionError>> {
        self.send.poll_collapsed(queue)
    }

    /// Completes any CQE but a successful requester CQE without inline data.
    #[inline(never)]
    fn complete_other(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.is_request() {
            self.send.complete_other(cqe)
        } else {
            self.receive.complete(self.send.qpn(), cqe)
        }
    }
}

/// Polling, for a queue pair with its own receive queue. With a
/// [`SharedReceiveQueue`](crate::SharedReceiveQueue), poll the [`CompletionQueue`] and pass receive
/// CQEs to that queue: only it knows which of its WQEs they complete.
impl<S: Service> QueuePair<S> {
    /// Polls a completion queue that only this queue pair uses.
    #[inline(always)]
    pub fn poll(&mut self, cq: &mut CompletionQueue) -> Polled {
        poll::poll(self, cq)
    }

    /// Polls a completion queue that only this queue pair uses for up to `into.len()` completions;
    /// returns their number. The consumer index is written once, at the end.
    #[inline(always)]
    pub fn poll_into(&mut self, cq: &mut CompletionQueue, into: &mut [Polled]) -> usize {
        poll::poll_into(self, cq, into)
    }
}

impl<S: Service> Poll for QueuePair<S> {
    type Completion = Completion;

    #[inline(always)]
    fn is_plain(view: &CqeView<'_>) -> bool {
        view.is_plain_request()
    }

    #[inline(always)]
    fn complete_fast(&mut self, view: &CqeView<'_>) -> Option<Completion> {
        self.send.complete_success(RequestId::read(view), || Outcome::read(view))
    }

    #[inline(never)]
    fn take_slow(&mut self, cq: &mut CompletionQueue) -> Polled {
        let cqe = cq.take_slow()?;
        Some(if cqe.is_plain_request() {
            self.send.complete(cqe)
        } else {
            self.complete_other(&cqe)
        })
    }
}

impl QueuePair<Ud> {
    /// Polls a completion queue that only this queue pair uses; a received message has its source.
    #[inline]
    pub fn poll_datagram(
        &mut self,
        cq: &mut CompletionQueue,
    ) -> Option<Result<Datagram, CompletionError>> {
        let cqe = cq.poll()?;
        let source = cqe.source();
        Some(self.complete(cqe).map(|completion| Datagram { completion, source }))
    }
}

/// Result of polling a queue pair's completion queue: nothing, or the outcome of a request.
pub type Polled = Option<Result<Completion, CompletionError>>;
