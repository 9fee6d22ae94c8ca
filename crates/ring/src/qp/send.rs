//! The send queue.

#[cfg(test)]
mod tests;

use core::marker::PhantomData;
use core::mem::offset_of;

use verbless_prm::hot::{
    self, CqeTail, CtrlFlags, CtrlWord, OpcodeQpn, completion, cqe_format, cqe_opcode,
};

use crate::completion::{Completion, CompletionError, Failure, Malformed, Operation, malformed};
use crate::cq::{CollapsedQueue, CompletionQueue, Cqe, Outcome, RequestId};
use crate::ring::{LayoutError, Record, RecordMemory, RingMemory, SendRing, Slots};
use crate::service::{Eth, Rc, Service};
use crate::trace::{Event, event};
use crate::types::{Be32, Qpn, WqeIndex};
use crate::uar::{Copied, CopyLimit, SendDoorbell, barrier};
use crate::wr::{
    Capability, Fence, LEAST_HEADER, Limits, OperationInfo, PostError, UmrRules, Unsupported,
    WorkRequest,
};

/// Which requests are copied to the device along with the doorbell, when their queue has a
/// BlueFlame register: saves the device a read of the ring, costs the CPU some stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlueFlame {
    /// Every request posted alone, of 2 to 16 ds.
    #[default]
    Always,
    /// Only requests with inline data.
    Inline,
    /// None.
    Never,
}

/// Parts of a send queue.
pub struct SendQueueParts {
    /// The number of the QP or SQ.
    pub qpn: Qpn,
    /// The ring: a power of two of wqebbs (64 bytes), at most 32768.
    pub ring: RingMemory,
    /// The doorbell record of the queue pair, cleared: a device may read it before the first
    /// doorbell, and take what it holds for posted.
    pub record: RecordMemory,
    /// The doorbell register of the queue.
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
///
/// Aligned so that no other queue is in its cache lines, nor in one that is fetched along with
/// them.
#[repr(align(128))]
pub struct SendQueue<S: Service = Rc> {
    ring: SendRing,
    slots: Slots<Slot>,
    /// Wqebbs posted so far, modulo 2^32.
    producer: u32,
    /// The value that `producer` must not exceed: wqebbs of the ring plus those completed, modulo
    /// 2^32; `producer` while the queue is closed.
    limit: u32,
    /// Wqebbs that may be used: all of the ring, or none while the queue is closed.
    wqebbs: u32,
    /// The error when there is no room: the queue is full, or closed.
    no_room: PostError,
    /// The parts of the control segment that are the same in every request: the queue number, and
    /// the completion mode. From the first request that changes a key on, `flags` also has the
    /// small fence: the next request waits for the change, and those behind it for nothing, as
    /// requests begin in order. `flags` is in the byte order of the ring.
    control: u64,
    flags: u64,
    /// The part of every [`Slot::request`] that is the same: the QPN, in the byte order of the CQE.
    request: u32,
    limits: Limits,
    /// Which lone WQEs are copied: of gathered data, of inline data.
    copy: [CopyLimit; 2],
    record: Record,
    doorbell: SendDoorbell,
    /// While the queue is closed, wqebbs completed so far, modulo 2^32.
    done_closed: u32,
    service: PhantomData<S>,
}

/// Software state of a posted request, at the index of its first wqebb.
#[derive(Clone, Copy, Default)]
struct Slot {
    cookie: u64,
    /// Opcode and queue, as a CQE of the request has them: an [`OpcodeQpn`].
    request: Be32,
    /// The value of [`SendQueue::limit`] after the request has completed.
    limit: u32,
}

impl Slot {
    /// A slot of this queue without a request. Its limit is in the window of what is outstanding
    /// where the count nears 2^32, so it must not look like a request: it names the queue, so that
    /// no CQE of another queue fits it, and an opcode that is never posted.
    const fn empty(Qpn(qpn): Qpn) -> Self {
        let request = OpcodeQpn::new().with_wqe_opcode(NOT_POSTED).with_qpn(qpn);
        Self { cookie: 0, request: Be32::new(request.into_bits()), limit: 0 }
    }
}

/// The fence behind a change of a key, in [`SendQueue::flags`].
const BEHIND_KEY_CHANGE: u64 = CtrlFlags::new().with_fm(Fence::Small as u8).to_raw();

/// The lowest bit of the WQE index in a [`CtrlWord`].
const WQE_INDEX: u32 = CtrlWord::new().with_wqe_index(1).into_bits().trailing_zeros();

/// The lowest bit of its size there.
const DS: u32 = CtrlWord::new().with_ds(1).into_bits().trailing_zeros();

/// An opcode that no operation has.
const NOT_POSTED: u8 = 0xff;

/// A request that is in the ring, and whose doorbell has not been rung.
#[derive(Clone, Copy)]
struct Posted {
    index: u32,
    /// The first 8 bytes of the WQE, in the byte order of the ring.
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
        // Control, remote address and an atomic's operands leave 59 of the 63 that `ds` can
        // count.
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
        let ring = SendRing::new(parts.ring)?;
        let copied = parts.doorbell.copy_limit();
        let ce = if parts.signal_all { completion::ALWAYS } else { completion::ON_ERROR };
        Ok(Self {
            slots: Slots::of(ring.wqebbs(), Slot::empty(parts.qpn)),
            producer: 0,
            limit: ring.wqebbs(),
            wqebbs: ring.wqebbs(),
            no_room: PostError::Full,
            control: CtrlWord::new().with_qpn(qpn).into_bits(),
            request: OpcodeQpn::new().with_qpn(qpn).to_raw(),
            flags: CtrlFlags::new().with_ce(ce).to_raw(),
            limits: Limits {
                sges: parts.max_sges,
                inline: parts.max_inline,
                header: LEAST_HEADER,
                lacks: 0,
                umr: UmrRules::STRICT,
            },
            copy: match parts.blueflame {
                BlueFlame::Always => [copied, copied],
                BlueFlame::Inline => [CopyLimit::NONE, copied],
                BlueFlame::Never => [CopyLimit::NONE; 2],
            },
            record: Record::new(&parts.record, offset_of!(hot::QpDoorbellRecord, qp_record_send)),
            doorbell: parts.doorbell,
            done_closed: 0,
            service: PhantomData,
            ring,
        })
    }

    /// Starts over, as the device does when the queue pair goes to RESET. What was posted is
    /// forgotten. Only for a queue pair that is in RESET: see [`super::QueuePair::reset`].
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.flags &= !BEHIND_KEY_CHANGE;
        (self.limit, self.done_closed) = (self.wqebbs, 0);
        self.slots.fill(Slot::empty(self.qpn()));
        self.record.store(0);
    }

    /// Refuses requests ([`PostError::NotConnected`]) until [`SendQueue::open`], because the queue
    /// pair cannot send yet. This costs posting nothing: a closed queue has no room.
    ///
    /// What was posted before can still be completed. Close the queue only before its queue pair is
    /// first taken to RTS, or after 2RST_QP.
    pub fn close(&mut self) {
        if self.wqebbs != 0 {
            self.done_closed = self.done();
            (self.wqebbs, self.no_room) = (0, PostError::NotConnected);
            self.limit = self.producer;
        }
    }

    /// Takes requests, as a queue does that was never closed. Open it only once its queue pair is
    /// in RTS, or in ERR, where the device flushes what is posted: a device need not notice a
    /// doorbell that it got before, and then nothing posted ever completes.
    pub fn open(&mut self) {
        if self.wqebbs == 0 {
            self.limit = self.done_closed.wrapping_add(self.ring.wqebbs());
            (self.wqebbs, self.no_room) = (self.ring.wqebbs(), PostError::Full);
        }
    }

    /// Closes the queue, and clears the doorbell record.
    pub(super) fn stop(&mut self) {
        self.close();
        self.record.store(0);
    }

    /// Wqebbs completed so far, modulo 2^32.
    fn done(&self) -> u32 {
        match self.wqebbs {
            0 => self.done_closed,
            wqebbs => self.limit.wrapping_sub(wqebbs),
        }
    }

    /// The number of the QP or SQ.
    pub fn qpn(&self) -> Qpn {
        Qpn(u32::from_be(self.request))
    }

    /// Wqebbs in the ring.
    pub fn capacity(&self) -> u32 {
        self.ring.wqebbs()
    }

    /// Wqebbs that are free. A request takes one for each 64 bytes of its WQE.
    pub fn free(&self) -> u32 {
        self.limit.wrapping_sub(self.producer)
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
        let Some(ds) = request.usual_ds(&self.limits) else {
            return self.post_unusual(*request, cookie);
        };
        self.post_ds(request, cookie, ds)
    }

    #[cold]
    #[inline(never)]
    fn post_unusual<W: WorkRequest<S>>(
        &mut self,
        request: W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let ds = request.ds(&self.limits)?;
        self.post_ds(&request, cookie, ds)
    }

    #[inline(always)]
    fn post_ds<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
        ds: u32,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.enqueue(request, cookie, ds)?;
        self.publish();
        if let Some(copied) = self.copies(ds, W::INLINE) {
            // With the result of this function, so that nothing has to be kept for after the call.
            return self.ring_by_copy(posted.index, copied);
        }
        self.ring_doorbell(posted.word);
        Ok(WqeIndex(posted.index as u16))
    }

    /// Whether this queue, once it is connected, takes requests of this operation with one SGE:
    /// `queue.supports(&Read::<Sge>::INFO)`, or each of [`OPERATIONS`](crate::wr::OPERATIONS).
    ///
    /// # Errors
    /// The service does not carry it, the device lacks what it needs
    /// ([`SendQueue::set_capabilities`]), or the ring is shorter than its WQE.
    pub fn supports(&self, operation: &OperationInfo) -> Result<(), Unsupported> {
        operation.supported(&S::INFO, |needs| self.limits.has(needs))?;
        let (wqebbs, capacity) = (operation.wqebbs(), self.capacity());
        if wqebbs > capacity {
            return Err(Unsupported::Ring { operation: operation.name, wqebbs, capacity });
        }
        Ok(())
    }

    /// Sets the device's capabilities: requests that need another one are refused from now on
    /// ([`PostError::Unsupported`]). Until then the device is taken to have all of them.
    pub fn set_capabilities(&mut self, has: impl Fn(Capability) -> bool) {
        let lacking = Capability::ALL.into_iter().filter(|&capability| !has(capability));
        self.limits.lacks = lacking.fold(0, |lacks, capability| lacks | 1 << capability as u32);
    }

    /// Sets what the device asks of requests that change keys; [`UmrRules::STRICT`] until then.
    pub fn set_umr_rules(&mut self, rules: UmrRules) {
        self.limits.umr = rules;
    }

    /// Starts a batch: several requests with one doorbell.
    #[inline(always)]
    pub fn batch(&mut self) -> SendBatch<'_, S> {
        SendBatch { first: self.producer, last: self.producer.into(), queue: self }
    }

    /// Completes the request that the CQE reports; frees its slot and those of all requests before
    /// it.
    #[inline(always)]
    pub fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        if cqe.is_plain_request() {
            match self.succeed(cqe.request(), || cqe.outcome()) {
                Some(completion) => Ok(completion),
                None => self.misfit(&cqe.apart()),
            }
        } else {
            self.complete_other(&cqe.apart())
        }
    }

    /// Completes the newest request that a collapsed completion queue reports, and with it all that
    /// were posted before, whose completions are not reported one by one; frees their slots.
    /// `None`: nothing has completed since the last call. A completion says nothing of bytes.
    ///
    /// # Errors
    /// The newest request failed, or was flushed; [`CompletionError::OtherQueue`] if `queue` is
    /// another queue pair's. A device cannot complete what was not posted without being taken for
    /// one that completes nothing.
    pub fn poll_newest(
        &mut self,
        queue: &CollapsedQueue,
    ) -> Option<Result<Completion, CompletionError>> {
        let newest = queue.newest()?;
        let opcode_qpn = newest.opcode_qpn;
        if Qpn(OpcodeQpn::from_bits(opcode_qpn.get()).qpn()) != self.qpn() {
            let cqe = Cqe::of_newest(opcode_qpn, newest);
            return Some(Err(CompletionError::OtherQueue(cqe)));
        }
        // The entry stays when its request has completed. Later requests come to the same slot, so
        // all 16 bits of the index have to be in the window of what is outstanding: at most a ring
        // of 32768.
        let index = CqeTail::from_bits(newest.tail).wqe_counter.get();
        let done = self.done() as u16;
        if index.wrapping_sub(done) >= (self.producer as u16).wrapping_sub(done) {
            return None;
        }
        let slot = self.find(WqeIndex(index))?;
        Some(self.complete(Cqe::of_newest(slot.request, newest)))
    }

    /// Completes the request that a successful CQE reports, and frees all slots up to it. `None` if
    /// it completes no outstanding request: [`SendQueue::misfit`] then tells why.
    ///
    /// One comparison tells that queue and opcode are those of the request; the window tells that
    /// it is outstanding. The index counts modulo the ring: that finds the request, and is all that
    /// Linux's drivers read out of it.
    #[inline(always)]
    pub(crate) fn succeed(
        &mut self,
        request: RequestId,
        outcome: impl FnOnce() -> Outcome,
    ) -> Option<Completion> {
        let slot = self.slots.get_upper(request.counter());
        if slot.request != request.opcode_qpn || !self.is_outstanding(slot) {
            return None;
        }
        let cookie = slot.cookie;
        self.limit = slot.limit;
        Some(Completion::sent(cookie, request, outcome()))
    }

    /// Like [`Self::succeed`], but only if the request has this cookie; otherwise returns false and
    /// changes nothing.
    #[inline(always)]
    pub(crate) fn succeed_with(&mut self, request: RequestId, cookie: u64) -> bool {
        let slot = self.slots.get_upper(request.counter());
        if slot.cookie != cookie || slot.request != request.opcode_qpn || !self.is_outstanding(slot)
        {
            return false;
        }
        self.limit = slot.limit;
        true
    }

    /// Whether a request that was posted has not completed: whether its completion lets more be
    /// posted than may be, at most by a ring. A request that was taken back is forgotten. False
    /// while the queue is closed: its requests complete in [`SendQueue::misfit`].
    ///
    /// Counts wrap, so that a slot at which no WQE began while 2^32 wqebbs were posted, give or
    /// take a ring, looks outstanding again. It shows only if the device completes what was not
    /// posted there: of such a CQE the program gets the old cookie, as it does of one that wrongly
    /// names a request which is outstanding. Neither leads out of the ring.
    #[inline(always)]
    fn is_outstanding(&self, slot: &Slot) -> bool {
        slot.limit.wrapping_sub(1).wrapping_sub(self.limit) < self.wqebbs
    }

    /// Why a good CQE cannot be; the completion of a request of a closed queue.
    #[cold]
    #[inline(never)]
    pub(super) fn misfit(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn() {
            return Err(CompletionError::OtherQueue(cqe.apart()));
        }
        let request = cqe.request();
        match self.find(cqe.wqe_index()) {
            Some(slot) if slot.request == request.opcode_qpn => {
                self.free_to(&slot);
                Ok(Completion::sent(slot.cookie, request, cqe.outcome()))
            }
            Some(_) => {
                let opcode_qpn = OpcodeQpn::from_bits(request.opcode_qpn.get());
                Err(malformed(Malformed::WorkRequest(opcode_qpn.wqe_opcode())))
            }
            None => Err(malformed(Malformed::Index(cqe.wqe_index()))),
        }
    }

    /// Completes a CQE that is no plain success: a success with inline data, an error, or a
    /// malformed one.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_other(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn() {
            return Err(CompletionError::OtherQueue(cqe.apart()));
        }
        match (cqe.opcode(), cqe.format()) {
            (cqe_opcode::REQUESTER, cqe_format::COMPRESSED) => {
                Err(malformed(Malformed::Format(cqe.format())))
            }
            (cqe_opcode::REQUESTER, _) => match self.succeed(cqe.request(), || cqe.outcome()) {
                Some(completion) => Ok(completion),
                None => self.misfit(cqe),
            },
            (cqe_opcode::REQUESTER_ERROR, _) => {
                let index = cqe.wqe_index();
                let Some(slot) = self.find(index) else {
                    return Err(malformed(Malformed::Index(index)));
                };
                self.free_to(&slot);
                Err(CompletionError::Failed(Failure::new(slot.cookie, cqe)))
            }
            (other, _) => Err(malformed(Malformed::Opcode(other))),
        }
    }

    /// The outstanding request whose first wqebb has this index, modulo the ring; of a closed queue
    /// too.
    fn find(&self, WqeIndex(index): WqeIndex) -> Option<Slot> {
        let slot = *self.slots.get(index.into());
        let posted = slot.request != Slot::empty(self.qpn()).request;
        let wqebbs = self.ring.wqebbs();
        let limit = self.done().wrapping_add(wqebbs);
        // As in `is_outstanding`.
        let outstanding = slot.limit.wrapping_sub(1).wrapping_sub(limit) < wqebbs;
        (posted && outstanding).then_some(slot)
    }

    /// Frees all slots up to this one of an outstanding request.
    fn free_to(&mut self, slot: &Slot) {
        match self.wqebbs {
            0 => self.done_closed = slot.limit.wrapping_sub(self.ring.wqebbs()),
            _ => self.limit = slot.limit,
        }
    }

    /// Takes back what was posted from `first` on, which the device has not been told of.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, first: u32) {
        let empty = Slot::empty(self.qpn());
        while self.producer != first {
            self.producer = self.producer.wrapping_sub(1);
            self.slots.set(self.producer, empty);
        }
    }

    /// Writes a WQE into the ring and remembers it. On an error nothing has changed.
    #[inline(always)]
    fn enqueue<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
        ds: u32,
    ) -> Result<Posted, PostError> {
        if let Some(needs) = W::INFO.needs
            && !self.limits.has(needs)
        {
            return Err(PostError::Unsupported);
        }
        // Not `div_ceil`, which guards against an overflow that cannot be.
        let wqebbs = (ds + 3) >> 2;
        let index = self.producer;
        if self.limit.wrapping_sub(index) < wqebbs {
            return Err(self.no_room(wqebbs));
        }
        debug_assert!(ds < 64, "a WQE has at most 63 ds");
        let wqe = self.ring.wqe(index);
        let opcode = W::INFO.operation as u8;
        // The control segment comes last: what the rest is made of then need not be kept beside it.
        request.write(&wqe, 1, &self.limits);
        let constant = CtrlWord::new().with_opmod(W::INFO.op_mod).with_opcode(opcode);
        // What varies is added in the host's order, which is swapped once: setters would swap each.
        let varying = u64::from(index as u16) << WQE_INDEX | u64::from(ds as u8) << DS;
        let control = self.control | constant.into_bits() | varying;
        let options = request.options();
        let own = if W::REMAPS { self.limits.umr.fence } else { Fence::None };
        let fence = options.fence.and(own);
        let common = self.flags & !fence.instead_of_small().to_raw();
        let flags = options.flags(fence, request.control()).to_raw();
        let word = control.to_be();
        wqe.store(0, [word, common | flags]);
        if matches!(W::INFO.operation, Operation::Umr) {
            self.flags |= BEHIND_KEY_CHANGE;
        }
        let end = index.wrapping_add(wqebbs);
        self.producer = end;
        let opcode_of_cqe = OpcodeQpn::new().with_wqe_opcode(opcode).to_raw();
        self.slots.set(
            index,
            Slot {
                cookie,
                request: Be32::as_it_stands(self.request | opcode_of_cqe),
                limit: end.wrapping_add(self.wqebbs),
            },
        );
        Ok(Posted { index, word })
    }

    /// Why there is no room for a WQE of `wqebbs` WQEBBs.
    #[cold]
    fn no_room(&self, wqebbs: u32) -> PostError {
        match self.no_room {
            PostError::Full if wqebbs > self.wqebbs => PostError::TooLong,
            why => why,
        }
    }

    /// Writes the producer count to the doorbell record.
    #[inline(always)]
    fn publish(&mut self) {
        // Read here: behind the barrier it would be read from memory again.
        let producer = self.producer;
        event(Event::Barrier("before_doorbell_record"));
        barrier::before_doorbell_record();
        self.record.store(producer & 0xffff);
    }

    /// Whether a lone request of `ds` segments is copied to the device by BlueFlame.
    #[inline(always)]
    fn copies(&self, ds: u32, inline: bool) -> Option<Copied> {
        self.copy[inline as usize].admit(ds)
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

    /// Rings by BlueFlame for the request at `index`; returns its index.
    #[inline(never)]
    fn ring_by_copy(&mut self, index: u32, copied: Copied) -> Result<WqeIndex, PostError> {
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        self.doorbell.copy(&self.ring.wqe(index), copied);
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
        Ok(WqeIndex(index as u16))
    }
}

impl SendQueue<Eth> {
    /// Bytes that a [`Frame`](crate::wr::Frame) has inline at least: [`LEAST_HEADER`] unless
    /// [`SendQueue::set_least_header`] said otherwise.
    pub fn least_header(&self) -> u32 {
        self.limits.header
    }

    /// Polls a completion queue that is this queue's alone.
    #[inline(always)]
    pub fn poll(
        &mut self,
        cq: &mut CompletionQueue,
    ) -> Option<Result<Completion, CompletionError>> {
        cq.poll().map(|cqe| self.complete(cqe))
    }

    /// Starts over, as the device does when the SQ goes to RST. Call it after that and at no other
    /// time: see [`QueuePair::reset`](crate::QueuePair::reset).
    pub fn start_over(&mut self) {
        self.reset();
    }

    /// Sets how many bytes of each frame the device needs inline, according to
    /// `min_wqe_inline_mode` of its context: none, [`LEAST_HEADER`] for the Ethernet header, or
    /// more.
    ///
    /// # Errors
    /// More than the queue takes inline.
    pub fn set_least_header(&mut self, bytes: u32) -> Result<(), LayoutError> {
        if bytes > self.limits.inline {
            let why = "is longer than the inline data that the queue was made for";
            return Err(LayoutError::new("the least inline header", why, bytes.into()));
        }
        self.limits.header = bytes;
        Ok(())
    }
}

impl<S: Service> core::fmt::Debug for SendQueue<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &self.qpn())
            .field("wqebbs", &self.wqebbs)
            .field("producer", &self.producer)
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

/// Requests in the ring that will be posted together, by one doorbell.
///
/// If it is dropped without [`SendBatch::ring`], its requests are removed: nothing was posted.
pub struct SendBatch<'q, S: Service = Rc> {
    queue: &'q mut SendQueue<S>,
    /// Index of the first request.
    first: u32,
    /// Index of the last request, and in bit 32 whether it has inline data: one store each time.
    last: u64,
}

impl<S: Service> SendBatch<'_, S> {
    /// Adds a request. On an error, what the batch already has stays in it.
    #[inline(always)]
    pub fn post<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        match request.usual_ds(&self.queue.limits) {
            Some(ds) => self.post_ds(request, cookie, ds),
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
        let ds = request.ds(&self.queue.limits)?;
        self.post_ds(&request, cookie, ds)
    }

    #[inline(always)]
    fn post_ds<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
        ds: u32,
    ) -> Result<WqeIndex, PostError> {
        let posted = self.queue.enqueue(request, cookie, ds)?;
        self.last = u64::from(posted.index) | u64::from(W::INLINE) << 32;
        Ok(WqeIndex(posted.index as u16))
    }

    /// Rings one doorbell for the whole batch. A batch of one request is copied by BlueFlame like a
    /// lone request; an empty one rings nothing.
    #[inline(always)]
    pub fn ring(mut self) {
        if self.queue.producer == self.first {
            return;
        }
        let (last, inline) = (self.last as u32, self.last >> 32 != 0);
        let alone = last == self.first;
        self.first = self.queue.producer;
        self.queue.publish();
        let word = self.queue.ring.wqe(last).load_word(0);
        let ds = CtrlWord::from_raw(word).ds().into();
        if alone && let Some(copied) = self.queue.copies(ds, inline) {
            let _ = self.queue.ring_by_copy(last, copied);
        } else {
            self.queue.ring_doorbell(word);
        }
    }

    /// Counts the batch in the doorbell record, but does not ring: the next doorbell covers it. An
    /// idle device does not notice until then.
    pub fn hold(mut self) {
        if self.queue.producer == self.first {
            return;
        }
        self.first = self.queue.producer;
        self.queue.publish();
    }
}

impl<S: Service> Drop for SendBatch<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.queue.producer != self.first {
            self.queue.take_back(self.first);
        }
    }
}
