//! The send queue.

use std::marker::PhantomData;

use verbless_prm::hot::{
    CtrlFlags, CtrlSegment, CtrlWord, OpcodeQpn, completion, cqe_format, cqe_opcode,
};

use zerocopy::big_endian::U32;

use super::malformed;
use crate::completion::{Completion, CompletionError, Failure, Malformed, Operation, Status};
use crate::cq::{Cqe, Request};
use crate::ring::{LayoutError, Record, SendRing, SharedMemory, Slots};
use crate::service::{Rc, Service};
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
pub struct SendQueue<S: Service = Rc> {
    ring: SendRing,
    slots: Slots<Slot>,
    /// Blocks posted so far, modulo 2^32.
    producer: u32,
    /// Blocks completed so far, modulo 2^32. Never more than a ring behind `producer`.
    completed: u32,
    blocks: u32,
    /// The control words with what is the same in every request: the number, the completion mode.
    control: u64,
    flags: u64,
    /// What is the same in every [`Slot::request`], as it stands there.
    request: u32,
    limits: Limits,
    /// Copy a lone WQE of `ds` units if `ds - 2` is below this: of gathered data, of inline data.
    copy: [u32; 2],
    record: Record,
    doorbell: SendDoorbell,
    service: PhantomData<S>,
}

/// What we remember of a posted request, at the index of its first block.
#[derive(Clone, Copy)]
struct Slot {
    cookie: u64,
    /// Opcode and queue, as a CQE of the request has them: an [`OpcodeQpn`].
    request: U32,
    /// Index behind the last block, modulo 2^32.
    end: u32,
    /// Index of the first block.
    index: u16,
    operation: Operation,
}

impl Default for Slot {
    fn default() -> Self {
        Self { cookie: 0, request: U32::ZERO, end: 0, index: 0, operation: Operation::Nop }
    }
}

/// A request that stands in the ring, and that the device has not been told of.
#[derive(Clone, Copy)]
struct Posted {
    index: u32,
    /// Its first 8 bytes, as they stand in the ring.
    word: u64,
}

impl SendQueue {
    /// An empty queue of the reliable connected service over this memory.
    pub fn new(parts: SendQueueParts) -> Result<Self, LayoutError> {
        Self::of(parts)
    }
}

impl<S: Service> SendQueue<S> {
    /// An empty queue over this memory.
    pub fn of(parts: SendQueueParts) -> Result<Self, LayoutError> {
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
            completed: 0,
            blocks: ring.blocks(),
            control: CtrlWord::new().with_qpn(qpn).into_bits(),
            request: OpcodeQpn::new().with_qpn(qpn).into_bits().to_be(),
            flags: CtrlFlags::new().with_ce(ce).into_bits(),
            limits: Limits { sges: parts.max_sges, inline: parts.max_inline },
            copy: match parts.blueflame {
                BlueFlame::Always => [copied, copied],
                BlueFlame::Inline => [0, copied],
                BlueFlame::Never => [0, 0],
            },
            record: Record::new(&parts.record, 4)?,
            doorbell: parts.doorbell,
            service: PhantomData,
            ring,
        })
    }

    /// Starts over, as the device does when the queue pair goes to RESET. What was posted is forgotten.
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.completed = 0;
        self.slots.clear();
        self.record.store(0);
    }

    /// The number of the QP or SQ.
    pub fn qpn(&self) -> Qpn {
        Qpn(u32::from_be(self.request))
    }

    /// Blocks in the ring.
    pub fn capacity(&self) -> u32 {
        self.blocks
    }

    /// Blocks that are free. A request takes one for each 64 bytes of its WQE.
    pub fn free(&self) -> u32 {
        self.blocks - self.producer.wrapping_sub(self.completed)
    }

    /// Posts `request` and rings the doorbell. `cookie` comes back in its completion.
    ///
    /// Slots of requests that are not signaled are freed by the next completion behind them.
    #[inline(always)]
    pub fn post<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let Some(units) = request.usual_units(&self.limits) else {
            return self.post_unusual(*request, cookie);
        };
        self.post_units(request, cookie, units)
    }

    #[cold]
    #[inline(never)]
    fn post_unusual<W: WorkRequest<S>>(
        &mut self,
        request: W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let units = request.units(&self.limits)?;
        self.post_units(&request, cookie, units)
    }

    #[inline(always)]
    fn post_units<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
        units: u32,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.enqueue(request, cookie, units)?;
        self.publish();
        if self.copies(units, W::INLINE) {
            self.ring_by_copy(posted.index, units);
        } else {
            self.ring_doorbell(posted.word);
        }
        Ok(WqeIndex(posted.index as u16))
    }

    /// Starts a batch: requests that the device is told of by one doorbell.
    #[inline(always)]
    pub fn batch(&mut self) -> SendBatch<'_, S> {
        SendBatch { first: self.producer, last: self.producer, inline: false, queue: self }
    }

    /// What the CQE says of this queue's requests; frees the slots of all up to the one that it names.
    #[inline(always)]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        if cqe.is_plain_request() {
            match self.succeed(cqe.request()) {
                Some(completion) => Ok(completion),
                None => self.misfit(cqe.request().opcode_qpn, cqe.wqe_index()),
            }
        } else {
            self.complete_other(&cqe.apart())
        }
    }

    /// Says of a good CQE which request succeeded, and frees everything up to it. `None` if none can have:
    /// [`SendQueue::misfit`] then tells why.
    ///
    /// One comparison tells that queue and opcode are those of the request; the window tells that it is outstanding.
    #[inline(always)]
    pub(crate) fn succeed(&mut self, request: Request) -> Option<Completion> {
        let WqeIndex(index) = request.index;
        let slot = self.slots.get(index.into());
        if slot.request != request.opcode_qpn || slot.index != index || !self.is_outstanding(slot) {
            return None;
        }
        self.completed = slot.end;
        let Slot { cookie, operation, .. } = *slot;
        Some(Completion { cookie, operation, data: request.byte_count.into() })
    }

    /// Whether a request that was posted has not completed, nor been taken back: whether fewer blocks are behind its
    /// end than are outstanding.
    #[inline(always)]
    fn is_outstanding(&self, slot: &Slot) -> bool {
        self.producer.wrapping_sub(slot.end) < self.producer.wrapping_sub(self.completed)
    }

    /// Why a good CQE cannot be.
    #[cold]
    #[inline(never)]
    pub(super) fn misfit(
        &self,
        opcode_qpn: U32,
        index: WqeIndex,
    ) -> Result<Completion, CompletionError> {
        let opcode_qpn = OpcodeQpn::from_bits(opcode_qpn.get());
        Err(malformed(if opcode_qpn.qpn() != self.qpn().0 {
            Malformed::Queue(Qpn(opcode_qpn.qpn()))
        } else if self.find(index).is_none() {
            Malformed::Index(index)
        } else {
            Malformed::WorkRequest(opcode_qpn.wqe_opcode())
        }))
    }

    /// What any other CQE says: a good one with data, an error, or one that cannot be.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_other(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn() {
            return Err(malformed(Malformed::Queue(cqe.qpn())));
        }
        match (cqe.opcode(), cqe.format()) {
            (cqe_opcode::REQUESTER, cqe_format::COMPRESSED) => {
                Err(malformed(Malformed::Format(cqe.format())))
            }
            (cqe_opcode::REQUESTER, _) => match self.succeed(cqe.request()) {
                Some(completion) => Ok(completion),
                None => self.misfit(cqe.request().opcode_qpn, cqe.wqe_index()),
            },
            (cqe_opcode::REQUESTER_ERROR, _) => {
                let index = cqe.wqe_index();
                let Some(slot) = self.find(index) else {
                    return Err(malformed(Malformed::Index(index)));
                };
                self.completed = slot.end;
                Err(CompletionError::Failed(Failure {
                    cookie: slot.cookie,
                    status: Status::from_syndrome(cqe.syndrome()),
                    vendor_syndrome: cqe.vendor_syndrome(),
                    wqe_index: index,
                    receive: false,
                }))
            }
            (other, _) => Err(malformed(Malformed::Opcode(other))),
        }
    }

    /// The outstanding request whose first block has this index.
    fn find(&self, WqeIndex(index): WqeIndex) -> Option<Slot> {
        let slot = *self.slots.get(index.into());
        (slot.index == index && self.is_outstanding(&slot)).then_some(slot)
    }

    /// Writes a WQE of so many units into the ring and remembers it. On an error nothing has changed.
    #[inline(always)]
    fn enqueue<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
        units: u32,
    ) -> Result<Posted, PostError> {
        // Not `div_ceil`, which guards against an overflow that cannot be.
        let blocks = (units + 3) >> 2;
        let index = self.producer;
        if self.blocks.wrapping_sub(index.wrapping_sub(self.completed)) < blocks {
            return Err(PostError::Full);
        }
        let wqe = self.ring.wqe(index);
        let control =
            CtrlWord::pack(0, index as u16, W::OPERATION as u8, 0, units as u8).into_bits();
        let flags = request.options().flags(request.immediate()).into_bits();
        let segment: [u64; 2] = zerocopy::transmute!(CtrlSegment::new(
            CtrlWord::from_bits(self.control | control),
            CtrlFlags::from_bits(self.flags | flags),
        ));
        wqe.store(0, segment);
        request.write(&wqe);
        let slot = Slot {
            cookie,
            // In memory the opcode is the first byte.
            request: U32::from_bytes(
                (self.request | (u32::from(W::OPERATION as u8) << 24).to_be()).to_ne_bytes(),
            ),
            end: index.wrapping_add(blocks),
            index: index as u16,
            operation: W::OPERATION,
        };
        self.slots.set(index, slot);
        self.producer = index.wrapping_add(blocks);
        Ok(Posted { index, word: segment[0] })
    }

    /// Tells the doorbell record what is in the ring.
    #[inline(always)]
    fn publish(&mut self) {
        // Read here: behind the barrier it would be read from memory again.
        let producer = self.producer;
        event(Event::Barrier("before_doorbell_record"));
        barrier::before_doorbell_record();
        self.record.store(producer & 0xffff);
    }

    /// Whether a lone request of so many units goes to the device by BlueFlame.
    #[inline(always)]
    fn copies(&self, units: u32, inline: bool) -> bool {
        units.wrapping_sub(2) < self.copy[inline as usize]
    }

    /// Rings: writes `word`, the first 8 bytes of the last request as they stand in the ring.
    #[inline(always)]
    fn ring_doorbell(&mut self, word: u64) {
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        self.doorbell.ring(word);
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
    }

    /// Rings by BlueFlame for the request at `index`, of so many units.
    #[inline(never)]
    fn ring_by_copy(&mut self, index: u32, units: u32) {
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        self.doorbell.copy(&self.ring.wqe(index), units.div_ceil(4));
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
    }
}

impl<S: Service> std::fmt::Debug for SendQueue<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &self.qpn())
            .field("blocks", &self.blocks)
            .field("producer", &self.producer)
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

/// Requests that stand in the ring, and that the device will be told of together.
///
/// Dropped without [`SendBatch::ring`], it takes its requests back: nothing was posted.
pub struct SendBatch<'q, S: Service = Rc> {
    queue: &'q mut SendQueue<S>,
    /// Indexes of the first and the last request.
    first: u32,
    last: u32,
    /// Whether the last one has inline data.
    inline: bool,
}

impl<S: Service> SendBatch<'_, S> {
    /// Adds a request. On an error, what the batch already has stays in it.
    #[inline(always)]
    pub fn post<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        match request.usual_units(&self.queue.limits) {
            Some(units) => self.post_units(request, cookie, units),
            None => self.post_unusual(*request, cookie),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_unusual<W: WorkRequest<S>>(
        &mut self,
        request: W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let units = request.units(&self.queue.limits)?;
        self.post_units(&request, cookie, units)
    }

    #[inline(always)]
    fn post_units<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
        units: u32,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.queue.enqueue(request, cookie, units)?;
        self.last = posted.index;
        self.inline = W::INLINE;
        Ok(WqeIndex(posted.index as u16))
    }

    /// Posts the batch: one doorbell for all of it. A batch of one is copied like a lone request; an empty one rings
    /// nothing.
    #[inline(always)]
    pub fn ring(mut self) {
        if self.queue.producer == self.first {
            return;
        }
        let alone = self.last == self.first;
        self.first = self.queue.producer;
        self.queue.publish();
        let word = self.queue.ring.wqe(self.last).load_word(0);
        let units = CtrlWord::from_bits(u64::from_be(word)).ds().into();
        if alone && self.queue.copies(units, self.inline) {
            self.queue.ring_by_copy(self.last, units);
        } else {
            self.queue.ring_doorbell(word);
        }
    }

    /// Counts the batch in the doorbell record, but does not ring: the next doorbell covers it. An idle device does
    /// not notice until then.
    pub fn hold(mut self) {
        self.first = self.queue.producer;
        self.queue.publish();
    }
}

impl<S: Service> Drop for SendBatch<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        self.queue.producer = self.first;
    }
}
