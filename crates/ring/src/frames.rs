//! Receives Ethernet frames: the receive queue, and its CQEs.
//!
//! A raw receive queue is a [`ReceiveQueue`] with other CQEs than a queue pair: they have the flow
//! tag of the matching rule in place of the QPN, and only the user index identifies the queue. So
//! CQEs of frames are taken with their words ([`FrameReceiver::poll`],
//! [`CompletionQueue::poll_frame`]), and cleaned by user index
//! ([`CqCleaner::clean_frames`](crate::CqCleaner::clean_frames)).
//!
//! ```no_run
//! # fn f(mut frames: verbless_ring::FrameReceiver, mut cq: verbless_ring::CompletionQueue,
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

use crate::completion::{Completion, CompletionError, Malformed, malformed};
use crate::cq::{CompletionQueue, Cqe, RequestId};
use crate::dispatch::Completes;
use crate::frame_cqe::FrameWords;
pub use crate::frame_cqe::{FrameCqe, Network, ReceiveHash, ReceivedFrame, Transport};
use crate::poll::{self, Poll};
use crate::qp::{ReceiveBatch, ReceiveQueue};
use crate::ring::{LayoutError, Look};
use crate::types::{Qpn, WqeIndex};
use crate::wr::{Gather, PostError};

impl CompletionQueue {
    /// Takes the next CQE with the words that describe a frame, if there is one. For a completion
    /// queue of several receivers, or of a receiver and a send queue.
    pub fn poll_frame(&mut self) -> Option<FrameCqe> {
        let taken = self.take_frame();
        if taken.is_some() {
            self.publish();
        }
        taken
    }

    fn take_frame(&mut self) -> Option<FrameCqe> {
        let mut skipped = false;
        loop {
            let look = self.look();
            if look.is_not_ours() {
                // The queue may be full of retired CQEs.
                if skipped {
                    self.publish();
                }
                return None;
            }
            let _ = RequestId::read(&look);
            let words = FrameWords::read(&look);
            if let Some(cqe) = self.read_whole() {
                return Some(FrameCqe { cqe, words });
            }
            skipped = true;
        }
    }
}

/// The receive queue of a raw Ethernet queue (RQ): memory for frames in the order of arrival.
#[derive(Debug)]
pub struct FrameReceiver {
    queue: ReceiveQueue,
    user_index: u32,
}

impl FrameReceiver {
    /// The queue of an RQ that was created with this user index, which identifies it in a
    /// completion queue of several receivers.
    ///
    /// # Errors
    /// The user index has more than 24 bits, or is 0xffffff, the index of a retired CQE.
    pub fn new(queue: ReceiveQueue, user_index: u32) -> Result<Self, LayoutError> {
        if user_index >= NO_QUEUE {
            let why = "is not below 0xffffff, which stands for no queue";
            return Err(LayoutError::new("the user index of a receiver", why, user_index.into()));
        }
        Ok(Self { queue, user_index })
    }

    /// The number of the RQ.
    pub fn rqn(&self) -> Qpn {
        self.queue.qpn()
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
    pub fn post<G: Gather>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
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
    fn succeed(&mut self, look: &Look<'_>) -> Option<ReceivedFrame> {
        let request = RequestId::read(look);
        let [user_index, immediate] = look.user_index_and_immediate();
        if CqeUserIndex::from_raw(user_index).srqn_uidx() != self.user_index {
            return None;
        }
        let cookie = self.queue.retire(request.index())?;
        Some(ReceivedFrame {
            cookie,
            byte_count: look.dword::<{ offset_of!(hot::Cqe, byte_cnt) }>(),
            opcode_qpn: request.opcode_qpn,
            immediate,
            words: FrameWords::read(look),
        })
    }

    /// Completes this queue's oldest receive with the frame that the CQE reports; frees its slot.
    ///
    /// A CQE of another queue comes back in [`CompletionError::OtherFrame`]: complete it there.
    pub fn complete(&mut self, cqe: FrameCqe) -> Result<ReceivedFrame, CompletionError> {
        let completion = match self.judge(&cqe.cqe) {
            Err(CompletionError::OtherQueue(_)) => return Err(CompletionError::OtherFrame(cqe)),
            judged => judged?,
        };
        match cqe.frame(completion.cookie) {
            Some(frame) => Ok(frame),
            None => Err(malformed(Malformed::Opcode(cqe.cqe.opcode()))),
        }
    }

    fn judge(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        match cqe.opcode() {
            cqe_opcode::RESPONDER_SEND | cqe_opcode::RESPONDER_ERROR => {}
            cqe_opcode::REQUESTER | cqe_opcode::REQUESTER_ERROR => {
                return Err(CompletionError::OtherQueue(cqe.apart()));
            }
            other => return Err(malformed(Malformed::Opcode(other))),
        }
        if cqe.user_index() != self.user_index {
            return Err(CompletionError::OtherQueue(cqe.apart()));
        }
        self.queue.complete_any(cqe)
    }
}

impl Poll for FrameReceiver {
    type Completion = ReceivedFrame;

    #[inline(always)]
    fn is_usual(look: &Look<'_>) -> bool {
        look.is_plain_receive()
    }

    #[inline(always)]
    fn complete_usual(&mut self, look: &Look<'_>) -> Option<ReceivedFrame> {
        self.succeed(look)
    }

    #[cold]
    #[inline(never)]
    fn take_other(&mut self, cq: &mut CompletionQueue) -> PolledFrame {
        cq.take_frame().map(|cqe| self.complete(cqe))
    }
}

/// Result of polling a receiver's completion queue: nothing, a frame, or an error.
pub type PolledFrame = Option<Result<ReceivedFrame, CompletionError>>;

/// The user index of no queue: that of a retired CQE.
const NO_QUEUE: u32 = 0xff_ffff;

/// For dispatch by user index
/// ([`Dispatcher::poll_by_user_index`](crate::Dispatcher::poll_by_user_index)): the completion has
/// only the length of the frame's description.
impl Completes for FrameReceiver {
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.judge(&cqe)
    }
}
