//! The send queue.

#[cfg(test)]
mod tests;

use core::marker::PhantomData;
use core::mem::offset_of;

use verbless_prm::hot::{
    self, CqeTail, CtrlFlags, CtrlWord, OpcodeQpn, completion, cqe_format, cqe_opcode,
};

use crate::completion::{
    Completion, CompletionError, FailedRequest, InvalidCqe, WcOpcode, invalid_cqe,
};
use crate::cq::{CollapsedCompletionQueue, CompletionQueue, Cqe, Outcome, RequestId};
use crate::ring::{LayoutError, Record, RecordMemory, RingMemory, SendRing, Slots};
use crate::service::{Eth, Rc, Service};
use crate::trace::{Event, event};
use crate::types::{Be32, Qpn, WqeIndex};
use crate::uar::{BlueFlameLen, BlueFlameLimit, SendDoorbell, barrier};
use crate::wr::{
    Capability, Fence, Limits, MIN_INLINE_HEADER, OperationInfo, PostError, UmrRules, Unsupported,
    WorkRequest,
};

/// Which requests are copied to the device with the doorbell, if the queue has a BlueFlame
/// register: a copy saves the device a read of the ring, and costs the CPU some stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlueFlame {
    /// BlueFlame copies each request of 2 to 16 `ds` that is posted with its own doorbell.
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
    /// doorbell, and execute the requests that it counts.
    pub record: RecordMemory,
    /// The doorbell register of the queue.
    pub doorbell: SendDoorbell,
    /// Maximum SGEs of a request, up to 59.
    pub max_sges: u32,
    /// Maximum bytes of inline data of a request, up to 940.
    pub max_inline: u32,
    /// Every request gets a completion, signaled or not.
    pub signal_all: bool,
    /// When to use BlueFlame, if `doorbell` has it.
    pub blueflame: BlueFlame,
}

/// The send queue of a QP: a ring that we fill and the device empties.
///
/// Aligned so that no other queue is in its cache lines, or in lines that are prefetched with them.
#[repr(align(128))]
pub struct SendQueue<S: Service = Rc> {
    ring: SendRing,
    slots: Slots<SendSlot>,
    /// Wqebbs posted so far, modulo 2^32.
    producer: u32,
    /// The value that `producer` must not exceed: wqebbs of the ring plus those completed, modulo
    /// 2^32; `producer` while the queue is closed.
    limit: u32,
    /// Wqebbs that may be used: all of the ring, or none while the queue is closed.
    wqebbs: u32,
    /// The error when there is no room: the queue is full, or closed.
    no_room: PostError,
    /// The constant parts of the control segment: the queue number, and the completion mode. After
    /// a request that changes an mkey, `flags` has the small fence for the next request, which then
    /// waits for the change. Later requests need no fence, because requests begin in order. `flags`
    /// is in the byte order of the ring.
    control: u64,
    flags: u64,
    /// The constant part of [`SendSlot::request`]: the QPN, in the byte order of the CQE.
    request: u32,
    limits: Limits,
    /// Which WQEs BlueFlame copies when they are posted alone: with SGEs, with inline data.
    copy: [BlueFlameLimit; 2],
    record: Record,
    doorbell: SendDoorbell,
    /// While the queue is closed, wqebbs completed so far, modulo 2^32.
    done_closed: u32,
    service: PhantomData<S>,
}

/// Software state of a posted request, at the index of its first wqebb.
#[derive(Clone, Copy, Default)]
struct SendSlot {
    cookie: u64,
    /// Opcode and queue in the request's CQE: an [`OpcodeQpn`].
    request: Be32,
    /// The value of [`SendQueue::limit`] after the request has completed.
    limit: u32,
}

impl SendSlot {
    /// A slot of this queue without a request. When the count nears 2^32, its limit of 0 lies in
    /// the outstanding window, so no CQE may match the slot: it has this queue's number, which no
    /// CQE of another queue has, and an opcode that is never posted.
    const fn empty(Qpn(qpn): Qpn) -> Self {
        let request = OpcodeQpn::new().with_wqe_opcode(NOT_POSTED).with_qpn(qpn);
        Self { cookie: 0, request: Be32::new(request.into_bits()), limit: 0 }
    }
}

/// The fence after a change of a key, in [`SendQueue::flags`].
const AFTER_KEY_CHANGE: u64 = CtrlFlags::new().with_fm(Fence::Small as u8).to_raw();

/// The lowest bit of the WQE index in a [`CtrlWord`].
const WQE_INDEX: u32 = CtrlWord::new().with_wqe_index(1).into_bits().trailing_zeros();

/// The lowest bit of `ds` in a [`CtrlWord`].
const DS: u32 = CtrlWord::new().with_ds(1).into_bits().trailing_zeros();

/// An opcode that no operation has.
const NOT_POSTED: u8 = 0xff;

/// A request in the ring whose doorbell has not been rung.
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
        // Control, remote address and an atomic's operands leave 59 of the 63 that `ds` counts.
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
            slots: Slots::filled(ring.wqebbs(), SendSlot::empty(parts.qpn)),
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
                header: MIN_INLINE_HEADER,
                lacks: 0,
                umr: UmrRules::STRICT,
            },
            copy: match parts.blueflame {
                BlueFlame::Always => [copied, copied],
                BlueFlame::Inline => [BlueFlameLimit::NONE, copied],
                BlueFlame::Never => [BlueFlameLimit::NONE; 2],
            },
            record: Record::new(&parts.record, offset_of!(hot::QpDoorbellRecord, qp_record_send)),
            doorbell: parts.doorbell,
            done_closed: 0,
            service: PhantomData,
            ring,
        })
    }

    /// Restarts at index 0, as the device does when the queue pair goes to RESET, and forgets the
    /// posted requests. Only for a queue pair in RESET: see [`super::QueuePair::reset`].
    pub(crate) fn reset(&mut self) {
        self.producer = 0;
        self.flags &= !AFTER_KEY_CHANGE;
        (self.limit, self.done_closed) = (self.wqebbs, 0);
        self.slots.fill(SendSlot::empty(self.qpn()));
        self.record.store(0);
    }

    /// Refuses requests ([`PostError::NotConnected`]) until [`SendQueue::open`], because the queue
    /// pair cannot send yet. This adds no check to posting: a closed queue has no room.
    ///
    /// Earlier requests can still complete. Close the queue only before its queue pair first goes
    /// to RTS, or after 2RST_QP.
    pub fn close(&mut self) {
        if self.wqebbs != 0 {
            self.done_closed = self.done();
            (self.wqebbs, self.no_room) = (0, PostError::NotConnected);
            self.limit = self.producer;
        }
    }

    /// Accepts requests again. Open the queue only when its queue pair is in RTS, or in ERR, where
    /// the device flushes requests: a device may miss an earlier doorbell, and then nothing posted
    /// ever completes.
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
    /// The next completion after an unsignaled request frees its slots.
    #[inline(always)]
    pub fn post<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        let Some(ds) = request.fast_ds(&self.limits) else {
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
            // A tail call keeps no registers alive across it.
            return self.ring_by_copy(posted.index, copied);
        }
        self.ring_doorbell(posted.word);
        Ok(WqeIndex(posted.index as u16))
    }

    /// Whether this queue, once connected, accepts requests of this operation with one SGE:
    /// `queue.supports(&Read::<Sge>::INFO)`, or each of [`OPERATIONS`](crate::wr::OPERATIONS).
    ///
    /// # Errors
    /// The service does not carry it, the device lacks its capability
    /// ([`SendQueue::set_capabilities`]), or the ring is shorter than its WQE.
    pub fn supports(&self, operation: &OperationInfo) -> Result<(), Unsupported> {
        operation.supported(&S::INFO, |needs| self.limits.has(needs))?;
        let (wqebbs, capacity) = (operation.wqebbs(), self.capacity());
        if wqebbs > capacity {
            return Err(Unsupported::Ring { operation: operation.name, wqebbs, capacity });
        }
        Ok(())
    }

    /// Sets the device's capabilities: posting refuses requests that need others
    /// ([`PostError::Unsupported`]). By default the queue assumes all capabilities.
    pub fn set_capabilities(&mut self, has: impl Fn(Capability) -> bool) {
        let lacking = Capability::ALL.into_iter().filter(|&capability| !has(capability));
        self.limits.lacks = lacking.fold(0, |lacks, capability| lacks | 1 << capability as u32);
    }

    /// Sets the device's rules for requests that change keys; the default is [`UmrRules::STRICT`].
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
            match self.complete_success(cqe.request(), || cqe.outcome()) {
                Some(completion) => Ok(completion),
                None => self.complete_unmatched(&cqe.copied_out()),
            }
        } else {
            self.complete_other(&cqe.copied_out())
        }
    }

    /// Completes the newest request that a collapsed completion queue reports, and all requests
    /// before it, which are not reported one by one; frees their slots. `None` if nothing has
    /// completed since the last call. A completion has no byte count.
    ///
    /// # Errors
    /// The newest request failed, or was flushed; [`CompletionError::OtherQueue`] if `queue` is
    /// another queue pair's. A CQE of a request that was not posted counts as no completion.
    pub fn poll_collapsed(
        &mut self,
        queue: &CollapsedCompletionQueue,
    ) -> Option<Result<Completion, CompletionError>> {
        let newest = queue.newest()?;
        let opcode_qpn = newest.opcode_qpn;
        if Qpn(OpcodeQpn::from_bits(opcode_qpn.get()).qpn()) != self.qpn() {
            let cqe = Cqe::of_collapsed(opcode_qpn, newest);
            return Some(Err(CompletionError::OtherQueue(cqe)));
        }
        // The entry stays after its request has completed, and later requests reuse the slot. So
        // all 16 bits of the index must be in the outstanding window: at most a ring of 32768.
        let index = CqeTail::from_bits(newest.tail).wqe_counter.get();
        let done = self.done() as u16;
        if index.wrapping_sub(done) >= (self.producer as u16).wrapping_sub(done) {
            return None;
        }
        let slot = self.find(WqeIndex(index))?;
        Some(self.complete(Cqe::of_collapsed(slot.request, newest)))
    }

    /// Completes the request that a successful CQE reports, and frees all slots up to it. `None` if
    /// it completes no outstanding request: [`SendQueue::complete_unmatched`] finds the reason.
    ///
    /// One comparison checks queue and opcode; the window checks that the request is outstanding.
    /// The index modulo the ring finds the request: Linux's drivers use no more of it.
    #[inline(always)]
    pub(crate) fn complete_success(
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

    /// Like [`Self::complete_success`], but only if the request has this cookie; otherwise returns
    /// false and changes nothing.
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

    /// Whether a posted request has not completed: its limit exceeds the queue's by at most a ring.
    /// A request that was taken back is forgotten. False while the queue is closed: its requests
    /// complete in [`SendQueue::complete_unmatched`].
    ///
    /// Counts wrap: if no WQE begins at a slot while about 2^32 wqebbs are posted (give or take a
    /// ring), the slot looks outstanding again. This matters only if the device completes a request
    /// that was not posted there: the program gets the old cookie, as for a CQE with the index of a
    /// wrong outstanding request. In both cases accesses stay within the ring.
    #[inline(always)]
    fn is_outstanding(&self, slot: &SendSlot) -> bool {
        slot.limit.wrapping_sub(1).wrapping_sub(self.limit) < self.wqebbs
    }

    /// Handles a successful CQE that [`SendQueue::complete_success`] did not match: completes a
    /// request of a closed queue, or returns why the CQE is invalid.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_unmatched(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn() {
            return Err(CompletionError::OtherQueue(cqe.copied_out()));
        }
        let request = cqe.request();
        match self.find(cqe.wqe_index()) {
            Some(slot) if slot.request == request.opcode_qpn => {
                self.free_to(&slot);
                Ok(Completion::sent(slot.cookie, request, cqe.outcome()))
            }
            Some(_) => {
                let opcode_qpn = OpcodeQpn::from_bits(request.opcode_qpn.get());
                Err(invalid_cqe(InvalidCqe::WorkRequest(opcode_qpn.wqe_opcode())))
            }
            None => Err(invalid_cqe(InvalidCqe::Index(cqe.wqe_index()))),
        }
    }

    /// Completes any other CQE: a success with inline data, an error, or a malformed CQE.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_other(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        if cqe.qpn() != self.qpn() {
            return Err(CompletionError::OtherQueue(cqe.copied_out()));
        }
        match (cqe.opcode(), cqe.format()) {
            (cqe_opcode::REQUESTER, cqe_format::COMPRESSED) => {
                Err(invalid_cqe(InvalidCqe::Format(cqe.format())))
            }
            (cqe_opcode::REQUESTER, _) => {
                match self.complete_success(cqe.request(), || cqe.outcome()) {
                    Some(completion) => Ok(completion),
                    None => self.complete_unmatched(cqe),
                }
            }
            (cqe_opcode::REQUESTER_ERROR, _) => {
                let index = cqe.wqe_index();
                let Some(slot) = self.find(index) else {
                    return Err(invalid_cqe(InvalidCqe::Index(index)));
                };
                self.free_to(&slot);
                Err(CompletionError::Failed(FailedRequest::new(slot.cookie, cqe)))
            }
            (other, _) => Err(invalid_cqe(InvalidCqe::Opcode(other))),
        }
    }

    /// The outstanding request whose first wqebb has this index, modulo the ring; the queue may be
    /// closed.
    fn find(&self, WqeIndex(index): WqeIndex) -> Option<SendSlot> {
        let slot = *self.slots.get(index.into());
        let posted = slot.request != SendSlot::empty(self.qpn()).request;
        let wqebbs = self.ring.wqebbs();
        let limit = self.done().wrapping_add(wqebbs);
        // As in `is_outstanding`.
        let outstanding = slot.limit.wrapping_sub(1).wrapping_sub(limit) < wqebbs;
        (posted && outstanding).then_some(slot)
    }

    /// Frees all slots up to this one of an outstanding request.
    fn free_to(&mut self, slot: &SendSlot) {
        match self.wqebbs {
            0 => self.done_closed = slot.limit.wrapping_sub(self.ring.wqebbs()),
            _ => self.limit = slot.limit,
        }
    }

    /// Takes back the requests from `first` on, which the device does not know.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, first: u32) {
        let empty = SendSlot::empty(self.qpn());
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
        // Not `div_ceil`, which guards against an impossible overflow.
        let wqebbs = (ds + 3) >> 2;
        let index = self.producer;
        if self.limit.wrapping_sub(index) < wqebbs {
            return Err(self.no_room(wqebbs));
        }
        debug_assert!(ds < 64, "a WQE has at most 63 ds");
        let wqe = self.ring.wqe(index);
        let opcode = W::INFO.operation as u8;
        // The control segment is written last, so that its parts and those of the other segments
        // are not in registers at the same time.
        request.write(&wqe, 1, &self.limits);
        let constant = CtrlWord::new().with_opmod(W::INFO.op_mod).with_opcode(opcode);
        // The varying fields are added in host order and swapped once: setters would swap each.
        let varying = u64::from(index as u16) << WQE_INDEX | u64::from(ds as u8) << DS;
        let control = self.control | constant.into_bits() | varying;
        let options = request.options();
        let own = if W::CHANGES_MKEY { self.limits.umr.fence } else { Fence::None };
        let fence = options.fence.and(own);
        let common = self.flags & !fence.cleared_small_bits().to_raw();
        let flags = options.flags(fence, request.ctrl_imm()).to_raw();
        let word = control.to_be();
        wqe.store(0, [word, common | flags]);
        if matches!(W::INFO.operation, WcOpcode::Umr) {
            self.flags |= AFTER_KEY_CHANGE;
        }
        let end = index.wrapping_add(wqebbs);
        self.producer = end;
        let opcode_of_cqe = OpcodeQpn::new().with_wqe_opcode(opcode).to_raw();
        self.slots.set(
            index,
            SendSlot {
                cookie,
                request: Be32::from_raw(self.request | opcode_of_cqe),
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
        // Read before the barrier: after it, the compiler would load the value again.
        let producer = self.producer;
        event(Event::Barrier("before_doorbell_record"));
        barrier::before_doorbell_record();
        self.record.store(producer & 0xffff);
    }

    /// Whether a lone request of `ds` segments is copied to the device by BlueFlame.
    #[inline(always)]
    fn copies(&self, ds: u32, inline: bool) -> Option<BlueFlameLen> {
        self.copy[inline as usize].admit(ds)
    }

    /// Rings: writes `word`, the first 8 bytes of the last request in ring byte order.
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
    fn ring_by_copy(&mut self, index: u32, copied: BlueFlameLen) -> Result<WqeIndex, PostError> {
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        self.doorbell.copy(&self.ring.wqe(index), copied);
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
        Ok(WqeIndex(index as u16))
    }
}

impl SendQueue<Eth> {
    /// Minimum inline bytes of a [`EthSend`](crate::wr::EthSend): [`MIN_INLINE_HEADER`] unless
    /// [`SendQueue::set_min_inline_header`] changed it.
    pub fn min_inline_header(&self) -> u32 {
        self.limits.header
    }

    /// Polls a completion queue that only this queue uses.
    #[inline(always)]
    pub fn poll(
        &mut self,
        cq: &mut CompletionQueue,
    ) -> Option<Result<Completion, CompletionError>> {
        cq.poll().map(|cqe| self.complete(cqe))
    }

    /// Restarts at index 0, as the device does when the SQ goes to RST. Call it only after that:
    /// see [`QueuePair::reset`](crate::QueuePair::reset).
    pub fn start_over(&mut self) {
        self.reset();
    }

    /// Sets how many bytes of each frame the device needs inline, by `min_wqe_inline_mode` of its
    /// context: none, [`MIN_INLINE_HEADER`] for the Ethernet header, or more.
    ///
    /// # Errors
    /// More than the queue's inline limit.
    pub fn set_min_inline_header(&mut self, bytes: u32) -> Result<(), LayoutError> {
        if bytes > self.limits.inline {
            let why = "is longer than the inline data that the queue was made for";
            return Err(LayoutError::new("the minimum inline header", why, bytes.into()));
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

/// Requests in the ring that one doorbell posts.
///
/// Dropping it without [`SendBatch::ring`] removes its requests: nothing was posted.
pub struct SendBatch<'q, S: Service = Rc> {
    queue: &'q mut SendQueue<S>,
    /// Index of the first request.
    first: u32,
    /// Index of the last request, and in bit 32 whether it has inline data: one store each time.
    last: u64,
}

impl<S: Service> SendBatch<'_, S> {
    /// Adds a request. On an error, the batch keeps its requests.
    #[inline(always)]
    pub fn post<W: WorkRequest<S>>(
        &mut self,
        request: &W,
        cookie: u64,
    ) -> Result<WqeIndex, PostError> {
        match request.fast_ds(&self.queue.limits) {
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

    /// Counts the batch in the doorbell record without ringing: the next doorbell covers it. An
    /// idle device does not notice the batch until then.
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
