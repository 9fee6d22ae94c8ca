//! The receive queue.

use core::mem::offset_of;
use verbless_prm::hot::{self, DataSegment, cqe_format, cqe_opcode};
use zerocopy::transmute;

use crate::completion::{
    Completion, CompletionError, FailedRequest, InvalidCqe, WcOpcode, invalid_cqe,
};
use crate::cq::{Cqe, RequestId};
use crate::ring::{LayoutError, ReceiveRing, Record, RecordMemory, RingMemory, Slots};
use crate::trace::{Event, event};
use crate::types::{Qpn, WqeIndex};
use crate::uar::barrier;
use crate::wr::{PostError, SgList, data_segment, sge_ds};

/// Parts of a receive queue.
#[derive(Debug)]
pub struct ReceiveQueueParts {
    /// The number of the QP or RQ.
    pub qpn: Qpn,
    /// The ring: a power of two of strides, at most 32768.
    pub ring: RingMemory,
    /// Bytes of a WQE, a power of two from 16 to 512; 16 for each SGE.
    pub stride: usize,
    /// The doorbell record of the queue pair.
    pub record: RecordMemory,
}

/// The receive queue of a QP: memory for the peer's messages in the order of arrival. Aligned as
/// the [`SendQueue`](super::SendQueue).
#[repr(align(128))]
pub struct ReceiveQueue {
    ring: ReceiveRing,
    cookies: Slots<u64>,
    /// WQEs posted so far, modulo 2^32.
    producer: u32,
    /// WQEs completed so far, modulo 2^32.
    consumer: u32,
    qpn: Qpn,
    record: Record,
}

impl ReceiveQueue {
    /// An empty queue over this memory.
    pub fn new(parts: ReceiveQueueParts) -> Result<Self, LayoutError> {
        if parts.qpn.0 >> 24 != 0 {
            return Err(LayoutError::new("QP number", "has more than 24 bits", parts.qpn.0.into()));
        }
        let ring = ReceiveRing::new(parts.ring, parts.stride)?;
        Ok(Self {
            cookies: Slots::new(ring.count()),
            producer: 0,
            consumer: 0,
            qpn: parts.qpn,
            record: Record::new(
                &parts.record,
                offset_of!(hot::QpDoorbellRecord, qp_record_receive),
            ),
            ring,
        })
    }

    /// Restarts at index 0, as the device does when the queue pair goes to RESET, and forgets the
    /// posted receives.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.consumer = 0;
        self.record.store(0);
    }

    /// Clears the doorbell record: the queue pair is in RESET.
    pub(super) fn stop(&mut self) {
        self.record.store(0);
    }

    /// The number of the QP or RQ.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Receives that the ring has room for.
    pub fn capacity(&self) -> u32 {
        self.ring.count()
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> u32 {
        self.ring.count() - self.producer.wrapping_sub(self.consumer)
    }

    /// Posts memory for one message. `cookie` comes back in its completion.
    #[inline(always)]
    pub fn post<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        let index = self.enqueue(into, cookie)?;
        self.publish();
        Ok(index)
    }

    /// Starts a batch: several receives with one update of the doorbell record.
    #[inline(always)]
    pub fn batch(&mut self) -> ReceiveBatch<'_> {
        ReceiveBatch { first: self.producer, queue: self }
    }

    /// Completes this queue's oldest receive; frees its slot.
    ///
    /// Receives complete in posting order, so the CQE must have the index of the oldest one.
    #[inline(always)]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.complete_other(&cqe.copied_out())
    }

    pub(super) fn complete_other(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn {
            return Err(CompletionError::OtherQueue(cqe.copied_out()));
        }
        self.complete_any(cqe)
    }

    /// Completes the oldest receive without checking the CQE's QPN: for CQEs without one, or with
    /// it in another field.
    pub(crate) fn complete_any(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        let operation = match cqe.opcode() {
            cqe_opcode::RESPONDER_SEND => WcOpcode::Receive,
            cqe_opcode::RESPONDER_SEND_IMM => WcOpcode::ReceiveImm,
            cqe_opcode::RESPONDER_SEND_INVALIDATE => WcOpcode::ReceiveInvalidate,
            cqe_opcode::RESPONDER_WRITE_IMM => WcOpcode::ReceiveWriteImm,
            cqe_opcode::RESPONDER_ERROR => return Err(self.fail(cqe)),
            other => return Err(invalid_cqe(InvalidCqe::Opcode(other))),
        };
        if cqe.format() == cqe_format::COMPRESSED {
            return Err(invalid_cqe(InvalidCqe::Format(cqe.format())));
        }
        match self.retire(cqe.wqe_index()) {
            Some(cookie) => Ok(Completion::received(cookie, cqe, operation)),
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

    /// Frees the oldest receive and returns its cookie, if this is its index.
    #[inline(always)]
    pub(crate) fn retire(&mut self, WqeIndex(index): WqeIndex) -> Option<u64> {
        // Modulo the ring: Linux's drivers use no more of the index.
        let other = (u32::from(index) ^ self.consumer) & (self.ring.count() - 1);
        if self.consumer == self.producer || other != 0 {
            return None;
        }
        let cookie = *self.cookies.get(self.consumer);
        self.consumer = self.consumer.wrapping_add(1);
        Some(cookie)
    }

    /// Frees the oldest receive if the CQE is its own and it has this cookie; returns whether.
    #[inline(always)]
    pub(crate) fn try_complete(&mut self, request: RequestId, cookie: u64) -> bool {
        let WqeIndex(index) = request.index();
        let other = (u32::from(index) ^ self.consumer) & (self.ring.count() - 1);
        if request.opcode_qpn().qpn() != self.qpn.0
            || self.consumer == self.producer
            || other != 0
            || *self.cookies.get(self.consumer) != cookie
        {
            return false;
        }
        self.consumer = self.consumer.wrapping_add(1);
        true
    }

    #[inline(always)]
    fn enqueue<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        let sges = into.as_sges();
        if sges.len() > self.ring.segments() as usize {
            return Err(PostError::TooManySges);
        }
        for sge in sges {
            sge_ds(sge)?;
        }
        if self.free() == 0 {
            return Err(PostError::Full);
        }
        let index = self.producer;
        let mut segments = 0;
        for sge in sges {
            if sge.length != 0 {
                self.ring.store(index, segments, data_segment(sge));
                segments += 1;
            }
        }
        if segments < self.ring.segments() {
            self.ring.store(index, segments, transmute!(DataSegment::END));
        }
        self.cookies.set(index, cookie);
        self.producer = index.wrapping_add(1);
        Ok(WqeIndex(index as u16))
    }

    /// Writes the producer count to the doorbell record.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        event(Event::Barrier("before_doorbell_record"));
        barrier::before_doorbell_record();
        self.record.store(self.producer & 0xffff);
    }
}

impl core::fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReceiveQueue")
            .field("qpn", &self.qpn)
            .field("capacity", &self.capacity())
            .field("producer", &self.producer)
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

/// Receives that are posted together. Dropping it without [`ReceiveBatch::ring`] removes them.
pub struct ReceiveBatch<'q> {
    queue: &'q mut ReceiveQueue,
    first: u32,
}

impl ReceiveBatch<'_> {
    /// Adds memory for one message. On an error, the batch keeps its receives.
    #[inline(always)]
    pub fn post<G: SgList>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        self.queue.enqueue(into, cookie)
    }

    /// Posts the batch.
    #[inline(always)]
    pub fn ring(mut self) {
        self.first = self.queue.producer;
        self.queue.publish();
    }
}

impl Drop for ReceiveBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.producer = self.first;
    }
}
