//! Shared receive queues (SRQs).
//!
//! The ring is a linked list: each WQE has the index of the next, and the device follows the links.
//! The receives of different queue pairs complete in any order, so a free WQE goes to the end of
//! the list, wherever it lies in the ring. The last WQE of the list is never posted: its link is
//! not known yet.

use core::mem::offset_of;
use verbless_prm::hot::{self, DataSegment, SrqNextSegment, cqe_format, cqe_opcode};
use zerocopy::transmute;

use crate::completion::{
    Completion, CompletionError, FailedRequest, InvalidCqe, WcOpcode, invalid_cqe,
};
use crate::cq::Cqe;
pub use crate::returns::SrqReturns;
use crate::ring::{LayoutError, ReceiveRing, Record, RecordMemory, RingMemory, Slots};
use crate::trace::{Event, event};
use crate::types::WqeIndex;
use crate::uar::barrier;
use crate::wr::{PostError, SgList, data_segment, sge_ds};

/// Parts of a shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueueParts {
    /// The ring: a power of two of strides, 2 to 32768. The device must not know of it yet.
    pub ring: RingMemory,
    /// Bytes of a WQE, a power of two from 32 to 512: 16 for the link, and 16 for each SGE.
    pub stride: usize,
    /// The doorbell record.
    pub record: RecordMemory,
}

/// A receive queue that several queue pairs share.
///
/// A queue pair's completion queue reports the receive that a message consumed: pass such a CQE
/// ([`Cqe::is_receive`]) to [`SharedReceiveQueue::complete`].
pub struct SharedReceiveQueue {
    ring: ReceiveRing,
    slots: Slots<SrqSlot>,
    /// The next WQE to post, and the last WQE of the list.
    head: u16,
    tail: u16,
    /// WQEs posted so far, modulo 65536.
    producer: u16,
    free: u32,
    record: Record,
    returns: SrqReturns,
}

/// Software state of a WQE. The links in the ring are written for the device, and never read back.
#[derive(Clone, Copy, Default)]
struct SrqSlot {
    cookie: u64,
    next: u16,
    posted: bool,
}

impl SharedReceiveQueue {
    /// An empty queue over this memory; links its WQEs.
    pub fn new(parts: SharedReceiveQueueParts) -> Result<Self, LayoutError> {
        let ring = ReceiveRing::new(parts.ring, parts.stride)?;
        let count = ring.count();
        if ring.segments() < 2 {
            let stride = parts.stride as u64;
            let why = "has no room for an SGE: use at least 32";
            return Err(LayoutError::new("SRQ stride", why, stride));
        }
        if count < 2 {
            let why = "has too few WQEs: use at least 2";
            return Err(LayoutError::new("SRQ ring", why, count.into()));
        }
        let mut queue = Self {
            slots: Slots::new(count),
            head: 0,
            tail: (count - 1) as u16,
            producer: 0,
            free: count - 1,
            record: Record::new(&parts.record, offset_of!(hot::SrqDoorbellRecord, srq_record)),
            returns: SrqReturns::new(count),
            ring,
        };
        for index in 0..count - 1 {
            queue.link(index as u16, index as u16 + 1);
        }
        Ok(queue)
    }

    /// Receives that can be posted at once.
    pub fn capacity(&self) -> u32 {
        self.ring.count() - 1
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> u32 {
        self.free + self.returns.count()
    }

    /// The list to which a [`CqCleaner`](crate::cq::CqCleaner) returns the WQEs of a destroyed
    /// queue pair.
    pub fn returns(&self) -> SrqReturns {
        self.returns.clone()
    }

    /// The cookie of a receive whose queue pair was reset or dropped before its completion was
    /// polled: its memory can be used again. A post to a full queue reclaims such WQEs itself,
    /// without reporting their cookies.
    ///
    /// The removed CQE keeps its entry until the completion queue is polled past it. If that queue
    /// has no spare entries, poll it until it is empty before posting the WQE again.
    pub fn take_returned(&mut self) -> Option<u64> {
        loop {
            let index = self.returns.take()?;
            if let Some(cookie) = self.retire(index) {
                return Some(cookie);
            }
        }
    }

    /// Posts memory for one message to any of the queue pairs. `cookie` comes back in its
    /// completion.
    #[inline(always)]
    pub fn post<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        let posted = match self.enqueue(into, cookie) {
            Err(PostError::Full) => self.enqueue_again(into, cookie),
            posted => posted,
        };
        if posted.is_ok() {
            self.publish();
        }
        posted
    }

    /// Tries again if WQEs come back from queue pairs that were reset or destroyed.
    #[cold]
    #[inline(never)]
    fn enqueue_again<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        let mut some = false;
        while self.take_returned().is_some() {
            some = true;
        }
        if some { self.enqueue(into, cookie) } else { Err(PostError::Full) }
    }

    /// Starts a batch: several receives with one update of the doorbell record.
    #[inline(always)]
    pub fn batch(&mut self) -> SrqBatch<'_> {
        SrqBatch { first: self.head, posted: 0, queue: self }
    }

    /// Completes the receive that a CQE of any of the queue pairs reports; frees its WQE.
    ///
    /// A CQE that completes no receive is [`InvalidCqe::Opcode`]: check [`Cqe::is_receive`] first.
    /// A queue pair returns a receive CQE in [`CompletionError::OtherSrq`].
    #[inline]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        let operation = match cqe.opcode() {
            cqe_opcode::RESPONDER_SEND => WcOpcode::Receive,
            cqe_opcode::RESPONDER_SEND_IMM => WcOpcode::ReceiveImm,
            cqe_opcode::RESPONDER_SEND_INVALIDATE => WcOpcode::ReceiveInvalidate,
            cqe_opcode::RESPONDER_WRITE_IMM => WcOpcode::ReceiveWriteImm,
            cqe_opcode::RESPONDER_ERROR => return Err(self.fail(&cqe)),
            other => return Err(invalid_cqe(InvalidCqe::Opcode(other))),
        };
        if cqe.format() == cqe_format::COMPRESSED {
            return Err(invalid_cqe(InvalidCqe::Format(cqe.format())));
        }
        match self.retire(cqe.wqe_index()) {
            Some(cookie) => Ok(Completion::received(cookie, &cqe, operation)),
            None => Err(invalid_cqe(InvalidCqe::Index(cqe.wqe_index()))),
        }
    }

    #[cold]
    fn fail(&mut self, cqe: &Cqe) -> CompletionError {
        match self.retire(cqe.wqe_index()) {
            Some(cookie) => CompletionError::Failed(FailedRequest::new(cookie, cqe)),
            None => invalid_cqe(InvalidCqe::Index(cqe.wqe_index())),
        }
    }

    /// Moves a posted WQE to the end of the list; ignores any other index from the device.
    #[inline(always)]
    fn retire(&mut self, WqeIndex(index): WqeIndex) -> Option<u64> {
        let slot = *self.slots.get(index.into());
        if u32::from(index) >= self.ring.count() || !slot.posted {
            return None;
        }
        self.slots.set(index.into(), SrqSlot { posted: false, ..slot });
        self.link(self.tail, index);
        self.tail = index;
        self.free += 1;
        Some(slot.cookie)
    }

    /// Makes `next` the WQE after `index`, which is not posted.
    #[inline(always)]
    fn link(&mut self, index: u16, next: u16) {
        let segment = *SrqNextSegment::zeroed().set_next_wqe_index(next);
        self.ring.store(index.into(), 0, transmute!(segment));
        let slot = *self.slots.get(index.into());
        self.slots.set(index.into(), SrqSlot { next, ..slot });
    }

    #[inline(always)]
    fn enqueue<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        let sges = into.as_sges();
        if sges.len() >= self.ring.segments() as usize {
            return Err(PostError::TooManySges);
        }
        for sge in sges {
            sge_ds(sge)?;
        }
        let index = self.head;
        if index == self.tail {
            return Err(PostError::Full);
        }
        let mut segments = 1;
        for sge in sges {
            if sge.length != 0 {
                self.ring.store(index.into(), segments, data_segment(sge));
                segments += 1;
            }
        }
        if segments < self.ring.segments() {
            self.ring.store(index.into(), segments, transmute!(DataSegment::END));
        }
        let next = self.slots.get(index.into()).next;
        self.slots.set(index.into(), SrqSlot { cookie, next, posted: true });
        self.head = next;
        self.producer = self.producer.wrapping_add(1);
        self.free = self.free.wrapping_sub(1);
        Ok(WqeIndex(index))
    }

    #[inline(always)]
    fn publish(&mut self) {
        let producer = self.producer;
        event(Event::Barrier("before_doorbell_record"));
        barrier::before_doorbell_record();
        self.record.store(producer.into());
    }
}

impl core::fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("capacity", &self.capacity())
            .field("producer", &self.producer)
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

/// Receives that are posted together. Dropping it without [`SrqBatch::ring`] removes them.
pub struct SrqBatch<'q> {
    queue: &'q mut SharedReceiveQueue,
    first: u16,
    posted: u16,
}

impl SrqBatch<'_> {
    /// Adds memory for one message. On an error, the batch keeps its receives.
    #[inline(always)]
    pub fn post<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        let index = match self.queue.enqueue(into, cookie) {
            Err(PostError::Full) => self.queue.enqueue_again(into, cookie)?,
            posted => posted?,
        };
        self.posted = self.posted.wrapping_add(1);
        Ok(index)
    }

    /// Posts the batch.
    #[inline(always)]
    pub fn ring(mut self) {
        self.posted = 0;
        self.queue.publish();
    }
}

impl Drop for SrqBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.posted == 0 {
            return;
        }
        let mut index = self.first;
        for _ in 0..self.posted {
            let slot = *self.queue.slots.get(index.into());
            self.queue.slots.set(index.into(), SrqSlot { posted: false, ..slot });
            index = slot.next;
        }
        self.queue.head = self.first;
        self.queue.producer = self.queue.producer.wrapping_sub(self.posted);
        self.queue.free = self.queue.free.wrapping_add(self.posted.into());
    }
}
