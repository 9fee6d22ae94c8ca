//! The send queue.

use verbless_prm::hot::{
    CtrlFlags, CtrlSegment, CtrlWord, completion, cqe_format, cqe_opcode, opcode,
};

use super::malformed;
use crate::completion::{Completion, CompletionError, Failure, Malformed, Operation, Status};
use crate::cq::Cqe;
use crate::ring::{LayoutError, Record, SendRing, SharedMemory, Slots};
use crate::trace::{Event, event};
use crate::types::{Qpn, WqeIndex};
use crate::uar::{SendDoorbell, barrier};
use crate::wr::{Limits, PostError, WorkRequest};

/// Which requests are copied to the device along with the doorbell, when their queue has a BlueFlame register: saves
/// the device a read of the ring, costs the CPU some stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlueFlame {
    /// Every request posted alone, of 2 to 16 units of 16 bytes.
    #[default]
    Always,
    /// Only those with inline data.
    Inline,
    /// None.
    Never,
}

/// What a send queue is built from.
pub struct SendQueueParts {
    /// The number of the QP or SQ.
    pub qpn: Qpn,
    /// The ring: a power of two of 64-byte blocks, at most 32768.
    pub ring: SharedMemory,
    /// The doorbell record of the queue pair: 8 bytes.
    pub record: SharedMemory,
    /// Where to ring.
    pub doorbell: SendDoorbell,
    /// Most SGEs of a request, at most 59.
    pub max_sges: u32,
    /// Most bytes of inline data of a request, at most 940.
    pub max_inline: u32,
    /// Every request gets a completion, signaled or not.
    pub signal_all: bool,
    /// When to use BlueFlame, if `doorbell` can.
    pub blueflame: BlueFlame,
}

/// The send queue of a QP: a ring that we fill and the device empties.
pub struct SendQueue {
    ring: SendRing,
    slots: Slots<Slot>,
    /// Blocks posted so far, modulo 2^32.
    producer: u32,
    /// Where `producer` may not go past: blocks completed so far, plus the size of the ring.
    limit: u32,
    qpn: Qpn,
    limits: Limits,
    default_flags: u64,
    /// Copy a lone WQE of `ds` units if `ds - 2` is below this: of gathered data, of inline data.
    copy: [u32; 2],
    record: Record,
    doorbell: SendDoorbell,
}

/// What we remember of a posted request, at the index of its first block.
#[derive(Clone, Copy, Default)]
struct Slot {
    cookie: u64,
    /// Index of the first block, modulo 2^32.
    index: u32,
    /// Blocks.
    blocks: u32,
}

/// A request that stands in the ring, and that the device has not been told of.
#[derive(Clone, Copy)]
struct Posted {
    index: u32,
    units: u32,
    /// Its first 8 bytes, as they stand in the ring.
    word: u64,
}

impl SendQueue {
    /// An empty queue over this memory.
    pub fn new(parts: SendQueueParts) -> Result<Self, LayoutError> {
        let Qpn(qpn) = parts.qpn;
        if qpn >> 24 != 0 {
            return Err(LayoutError::new("QP number", "has more than 24 bits", qpn.into()));
        }
        // Control, remote address and an atomic's operands leave 59 of the 63 units that `ds` can count.
        if parts.max_sges > 59 {
            return Err(LayoutError::new(
                "SGEs of a request",
                "are more than 59",
                parts.max_sges.into(),
            ));
        }
        if parts.max_inline > 940 {
            return Err(LayoutError::new(
                "inline data",
                "is more than 940 bytes",
                parts.max_inline.into(),
            ));
        }
        let ring = SendRing::new(&parts.ring)?;
        let copied = if parts.doorbell.copy_limit() == 0 { 0 } else { 15 };
        let ce = if parts.signal_all { completion::ALWAYS } else { completion::ON_ERROR };
        Ok(Self {
            slots: Slots::new(ring.blocks()),
            producer: 0,
            limit: ring.blocks(),
            qpn: parts.qpn,
            limits: Limits { sges: parts.max_sges, inline: parts.max_inline },
            default_flags: CtrlFlags::new().with_ce(ce).into_bits(),
            copy: match parts.blueflame {
                BlueFlame::Always => [copied, copied],
                BlueFlame::Inline => [0, copied],
                BlueFlame::Never => [0, 0],
            },
            record: Record::new(&parts.record, 4)?,
            doorbell: parts.doorbell,
            ring,
        })
    }

    /// Starts over, as the device does when the queue pair goes to RESET. What was posted is forgotten.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.limit = self.ring.blocks();
        self.record.store(0);
    }

    /// The number of the QP or SQ.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Blocks in the ring.
    pub fn capacity(&self) -> u32 {
        self.ring.blocks()
    }

    /// Blocks that are free. A request takes one for each 64 bytes of its WQE.
    pub fn free(&self) -> u32 {
        self.limit.wrapping_sub(self.producer)
    }

    /// Posts `request` and rings the doorbell. `cookie` comes back in its completion.
    ///
    /// Slots of requests that are not signaled are freed by the next completion behind them.
    #[inline]
    pub fn post<W: WorkRequest>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.enqueue(request, cookie)?;
        self.publish();
        self.ring_doorbell(posted, true, W::INLINE);
        Ok(WqeIndex(posted.index as u16))
    }

    /// Starts a batch: requests that the device is told of by one doorbell.
    #[inline]
    pub fn batch(&mut self) -> SendBatch<'_> {
        SendBatch { first: self.producer, last: None, queue: self }
    }

    /// What the CQE says of this queue's requests; frees the slots of all up to the one that it names.
    #[inline]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn {
            return Err(malformed(Malformed::Queue(cqe.qpn())));
        }
        match cqe.opcode() {
            cqe_opcode::REQUESTER => {}
            cqe_opcode::REQUESTER_ERROR => return Err(self.fail(&cqe)),
            other => return Err(malformed(Malformed::Opcode(other))),
        }
        if cqe.format() == cqe_format::COMPRESSED {
            return Err(malformed(Malformed::Format(cqe.format())));
        }
        let (operation, byte_len) = match cqe.wqe_opcode() {
            opcode::SEND => (Operation::Send, 0),
            opcode::SEND_IMM => (Operation::SendImm, 0),
            opcode::SEND_INVALIDATE => (Operation::SendInvalidate, 0),
            opcode::WRITE => (Operation::Write, 0),
            opcode::WRITE_IMM => (Operation::WriteImm, 0),
            opcode::READ => (Operation::Read, cqe.byte_count()),
            opcode::COMPARE_SWAP => (Operation::CompareSwap, 8),
            opcode::FETCH_ADD => (Operation::FetchAdd, 8),
            opcode::NOP => (Operation::Nop, 0),
            opcode::UMR => (Operation::Umr, 0),
            other => return Err(malformed(Malformed::WorkRequest(other))),
        };
        match self.retire(cqe.wqe_index()) {
            Some(cookie) => Ok(Completion { cookie, operation, byte_len }),
            None => Err(malformed(Malformed::Index(cqe.wqe_index()))),
        }
    }

    #[cold]
    fn fail(&mut self, cqe: &Cqe) -> CompletionError {
        match self.retire(cqe.wqe_index()) {
            Some(cookie) => CompletionError::Failed(Failure {
                cookie,
                status: Status::from_syndrome(cqe.syndrome()),
                vendor_syndrome: cqe.vendor_syndrome(),
                wqe_index: cqe.wqe_index(),
                receive: false,
            }),
            None => malformed(Malformed::Index(cqe.wqe_index())),
        }
    }

    /// Frees everything up to the request that starts at `index`, and gives back its cookie. `None` if none does.
    #[inline(always)]
    fn retire(&mut self, index: WqeIndex) -> Option<u64> {
        let completed = self.limit.wrapping_sub(self.ring.blocks());
        // The outstanding request with these low bits, if there is one: a ring has at most 32768 blocks.
        let ahead = u32::from(index.0.wrapping_sub(completed as u16));
        let index = completed.wrapping_add(ahead);
        let slot = self.slots.get(index);
        if ahead >= self.producer.wrapping_sub(completed) || slot.index != index {
            return None;
        }
        self.limit = self.limit.wrapping_add(ahead + slot.blocks);
        Some(slot.cookie)
    }

    /// Writes a WQE into the ring and remembers it. On an error nothing has changed.
    #[inline(always)]
    fn enqueue<W: WorkRequest>(&mut self, request: &W, cookie: u64) -> Result<Posted, PostError> {
        let units = request.units(&self.limits)?;
        let blocks = units.div_ceil(4);
        let index = self.producer;
        if self.limit.wrapping_sub(index) < blocks {
            return Err(PostError::Full);
        }
        let wqe = self.ring.wqe(index);
        let control = CtrlWord::new()
            .with_wqe_index(index as u16)
            .with_opcode(W::OPCODE)
            .with_qpn(self.qpn.0 & 0xff_ffff)
            .with_ds((units & 63) as u8);
        let flags = request.options().flags().with_imm(request.immediate()).into_bits()
            | self.default_flags;
        let segment: [u64; 2] =
            zerocopy::transmute!(CtrlSegment::new(control, CtrlFlags::from_bits(flags)));
        wqe.store(0, segment);
        request.write(&wqe);
        self.slots.set(index, Slot { cookie, index, blocks });
        self.producer = index.wrapping_add(blocks);
        Ok(Posted { index, units, word: segment[0] })
    }

    /// Tells the doorbell record what is in the ring.
    #[inline(always)]
    fn publish(&mut self) {
        event(Event::Barrier("before_doorbell_record"));
        barrier::before_doorbell_record();
        self.record.store(self.producer & 0xffff);
    }

    /// Rings for the requests up to `posted`; if it is `alone`, by BlueFlame where that is to be.
    #[inline(always)]
    fn ring_doorbell(&mut self, posted: Posted, alone: bool, inline: bool) {
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        if alone && posted.units.wrapping_sub(2) < self.copy[inline as usize] {
            let wqe = self.ring.wqe(posted.index);
            self.doorbell.copy(&wqe, posted.units.div_ceil(4));
        } else {
            self.doorbell.ring(posted.word);
        }
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
    }
}

impl std::fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &self.qpn)
            .field("blocks", &self.ring.blocks())
            .field("producer", &self.producer)
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

/// Requests that stand in the ring, and that the device will be told of together.
///
/// Dropped without [`SendBatch::ring`], it takes its requests back: nothing was posted.
pub struct SendBatch<'q> {
    queue: &'q mut SendQueue,
    first: u32,
    last: Option<(Posted, bool)>,
}

impl SendBatch<'_> {
    /// Adds a request. On an error, what the batch already has stays in it.
    #[inline(always)]
    pub fn post<W: WorkRequest>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.queue.enqueue(request, cookie)?;
        self.last = Some((posted, W::INLINE));
        Ok(WqeIndex(posted.index as u16))
    }

    /// Posts the batch: one doorbell for all of it. A batch of one is copied like a lone request; an empty one rings
    /// nothing.
    #[inline(always)]
    pub fn ring(mut self) {
        let Some((posted, inline)) = self.last.take() else { return };
        let alone = posted.index == self.first;
        self.first = self.queue.producer;
        self.queue.publish();
        self.queue.ring_doorbell(posted, alone, inline);
    }

    /// Counts the batch in the doorbell record, but does not ring: the next doorbell covers it. An idle device does
    /// not notice until then.
    pub fn hold(mut self) {
        self.first = self.queue.producer;
        self.queue.publish();
    }
}

impl Drop for SendBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.producer = self.first;
    }
}
