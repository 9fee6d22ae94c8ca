//! Receives Ethernet frames: the receive queue, and its CQEs.
//!
//! A raw receive queue is a [`ReceiveQueue`] with other CQEs than a queue pair: they have the flow
//! tag of the matching rule in place of the QPN, and only the user index identifies the queue. So
//! [`RawRq::poll`] and [`CompletionQueue::poll_eth`] return each CQE with its Ethernet fields (RSS
//! hash and its types, VLAN, checksum), and
//! [`CqCleaner::clean_raw_rq`](crate::CqCleaner::clean_raw_rq) matches CQEs by user index.
//!
//! ```no_run
//! # fn f(mut frames: verbless_ring::RawRq, mut cq: verbless_ring::CompletionQueue,
//! #      buffer: verbless_ring::Sge) -> Result<(), Box<dyn std::error::Error>> {
//! frames.post(buffer, 7)?;
//! while let Some(frame) = frames.poll(&mut cq) {
//!     let frame = frame?;
//!     println!("{} bytes in buffer {}", frame.byte_len(), frame.cookie);
//! }
//! # Ok(())
//! # }
//! ```

use core::mem::offset_of;
use verbless_prm::hot::{self, CqeUserIndex, cqe_opcode};
use verbless_prm::number::Rqn;

use crate::completion::{Completion, CompletionError, InvalidCqe, invalid_cqe};
use crate::cq::{CompletionQueue, Cqe, RequestId};
use crate::dispatch::WorkQueue;
use crate::eth_cqe::EthCqeWords;
pub use crate::eth_cqe::{EthCqe, L3Type, L4Type, ReceivedFrame, RssHash};
use crate::poll::{self, Poll};
use crate::qp::{ReceiveBatch, ReceiveQueue};
use crate::ring::{CqeView, LayoutError};
use crate::types::WqeIndex;
use crate::wr::{PostError, SgList};

impl CompletionQueue {
    /// Takes the next CQE with its Ethernet fields, if there is one. For a completion queue of
    /// several receivers, or of a receiver and a send queue.
    pub fn poll_eth(&mut self) -> Option<EthCqe> {
        let taken = self.take_eth();
        if taken.is_some() {
            self.publish();
        }
        taken
    }

    fn take_eth(&mut self) -> Option<EthCqe> {
        let mut skipped = false;
        loop {
            let view = self.view();
            if view.is_device_owned() {
                // The queue may be full of retired CQEs.
                if skipped {
                    self.publish();
                }
                return None;
            }
            let _ = RequestId::read(&view);
            let words = EthCqeWords::read(&view);
            if let Some(cqe) = self.read_unless_retired() {
                return Some(EthCqe { cqe, words });
            }
            skipped = true;
        }
    }
}

/// The receive queue of a raw Ethernet queue (RQ): memory for frames in the order of arrival.
#[derive(Debug)]
pub struct RawRq {
    queue: ReceiveQueue,
    user_index: u32,
}

impl RawRq {
    /// The queue of an RQ that was created with this user index, which identifies it in a
    /// completion queue of several receivers.
    ///
    /// # Errors
    /// The user index has more than 24 bits, or is 0xffffff, the index of a retired CQE.
    pub fn new(queue: ReceiveQueue, user_index: u32) -> Result<Self, LayoutError> {
        if user_index >= NO_QUEUE {
            let why = "is not below 0xffffff, which means no queue";
            return Err(LayoutError::new("the user index of a receiver", why, user_index.into()));
        }
        Ok(Self { queue, user_index })
    }

    /// The number of the RQ.
    pub fn rqn(&self) -> Rqn {
        Rqn(self.queue.qpn().0)
    }

    /// The user index in the queue's CQEs.
    pub fn user_index(&self) -> u32 {
        self.user_index
    }

    /// Frames that the ring has room for.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> u32 {
        self.queue.free()
    }

    /// Posts memory for one frame: [`ReceiveQueue::post`].
    #[inline(always)]
    pub fn post<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        self.queue.post(into, cookie)
    }

    /// Starts a batch: [`ReceiveQueue::batch`].
    #[inline(always)]
    pub fn batch(&mut self) -> ReceiveBatch<'_> {
        self.queue.batch()
    }

    /// Restarts at index 0, as the device does when the RQ goes to RST: see
    /// [`QueuePair::reset`](crate::QueuePair::reset).
    pub fn reset(&mut self) {
        self.queue.reset();
    }

    /// Writes the count of posted receives to the doorbell record again: needed after RST, where a
    /// device may ignore the record.
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    /// Polls a completion queue that only this queue uses.
    #[inline(always)]
    pub fn poll(&mut self, cq: &mut CompletionQueue) -> PolledFrame {
        poll::poll(self, cq)
    }

    /// Polls for frames until `into` is full or no CQE is left; returns the number of results in
    /// `into`. The consumer index is written once, at the end.
    #[inline(always)]
    pub fn poll_into(&mut self, cq: &mut CompletionQueue, into: &mut [PolledFrame]) -> usize {
        poll::poll_into(self, cq, into)
    }

    /// The frame that a successful CQE of this queue reports for the oldest receive; frees the
    /// receive's slot.
    #[inline(always)]
    fn complete_success(&mut self, view: &CqeView<'_>) -> Option<ReceivedFrame> {
        let request = RequestId::read(view);
        let [user_index, immediate] = view.user_index_and_immediate();
        if CqeUserIndex::from_raw(user_index).srqn_uidx() != self.user_index {
            return None;
        }
        let cookie = self.queue.retire(request.index())?;
        Some(ReceivedFrame {
            cookie,
            byte_count: view.dword::<{ offset_of!(hot::Cqe, byte_cnt) }>(),
            opcode_qpn: request.opcode_qpn,
            immediate,
            words: EthCqeWords::read(view),
        })
    }

    /// Completes this queue's oldest receive with the frame that the CQE reports; frees its slot.
    ///
    /// A CQE of another queue comes back in [`CompletionError::OtherRawRq`]: complete it there.
    pub fn complete(&mut self, cqe: EthCqe) -> Result<ReceivedFrame, CompletionError> {
        let completion = match self.complete_cqe(&cqe.cqe) {
            Err(CompletionError::OtherQueue(_)) => return Err(CompletionError::OtherRawRq(cqe)),
            judged => judged?,
        };
        match cqe.frame(completion.cookie) {
            Some(frame) => Ok(frame),
            None => Err(invalid_cqe(InvalidCqe::Opcode(cqe.cqe.opcode()))),
        }
    }

    fn complete_cqe(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        match cqe.opcode() {
            cqe_opcode::RESPONDER_SEND | cqe_opcode::RESPONDER_ERROR => {}
            cqe_opcode::REQUESTER | cqe_opcode::REQUESTER_ERROR => {
                return Err(CompletionError::OtherQueue(cqe.copied_out()));
            }
            other => return Err(invalid_cqe(InvalidCqe::Opcode(other))),
        }
        if cqe.user_index() != self.user_index {
            return Err(CompletionError::OtherQueue(cqe.copied_out()));
        }
        self.queue.complete_any(cqe)
    }
}

impl Poll for RawRq {
    type Completion = ReceivedFrame;

    #[inline(always)]
    fn is_plain(view: &CqeView<'_>) -> bool {
        view.is_plain_receive()
    }

    #[inline(always)]
    fn complete_fast(&mut self, view: &CqeView<'_>) -> Option<ReceivedFrame> {
        self.complete_success(view)
    }

    #[cold]
    #[inline(never)]
    fn take_slow(&mut self, cq: &mut CompletionQueue) -> PolledFrame {
        cq.take_eth().map(|cqe| self.complete(cqe))
    }
}

/// Result of polling a receiver's completion queue: nothing, a frame, or an error.
pub type PolledFrame = Option<Result<ReceivedFrame, CompletionError>>;

/// The user index of no queue: that of a retired CQE.
const NO_QUEUE: u32 = 0xff_ffff;

/// For dispatch by user index
/// ([`Dispatcher::poll_by_user_index`](crate::Dispatcher::poll_by_user_index)): the completion has
/// byte_cnt only, not the other Ethernet fields of the CQE.
impl WorkQueue for RawRq {
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.complete_cqe(&cqe)
    }
}
