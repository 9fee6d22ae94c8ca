//! Completion queues: polling, arming, and removing the CQEs of destroyed queues.
//!
//! A queue that is reset or destroyed leaves CQEs behind, and another queue may soon get its
//! number. So the code that resets or destroys it cleans the completion queues ([`CqCleaner`]):
//! this retires those CQEs in place, from any thread, and polling skips them.

mod cleaner;
mod collapsed;

use alloc::sync::Arc;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use verbless_prm::IntoBytes;

use verbless_prm::hot::{
    self, CqArm, CqArmDoorbell, CqePath, CqeSourceLid, CqeSourceQp, CqeSyndromes, CqeTail,
    CqeUserIndex, OpOwn, OpcodeQpn, cqe_format, cqe_opcode,
};

use crate::address::Source;
use crate::ring::{
    CqRing, CqeView, Cursor, LayoutError, RETIRED, Record, RecordMemory, RingMemory,
};
use crate::trace::{Event, event};
use crate::types::{Be32, Cqn, Qpn, WqeIndex};
use crate::uar::{UarPage, barrier};

use cleaner::is_receive;

pub use cleaner::{CqCleaner, Retired};
pub use collapsed::CollapsedCompletionQueue;
pub(crate) use collapsed::CollapsedCqe;

/// Parts of a completion queue.
#[derive(Debug)]
pub struct CompletionQueueParts {
    /// The number of the completion queue.
    pub cqn: Cqn,
    /// The ring, a power of two of entries. The device must not have written there yet.
    pub ring: RingMemory,
    /// Bytes of an entry, 64 or 128.
    pub entry_size: usize,
    /// The doorbell record.
    pub record: RecordMemory,
    /// The UAR page in the queue's context, for arming.
    pub uar: UarPage,
}

/// Which completion triggers the event that an armed CQ reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion of any kind.
    Next,
    /// The next solicited completion, or the next error.
    Solicited,
}

/// A completion queue: a ring that the device fills and we empty.
pub struct CompletionQueue {
    ring: CqRing,
    /// The position after the last CQE taken.
    cursor: Cursor,
    consumer_record: Record,
    arm_record: Record,
    arm_sequence: u8,
    /// Whether the queue is armed with this sequence number, without an event since.
    armed: bool,
    cqn: Cqn,
    uar: UarPage,
    inline: Inline,
    /// The memory of `consumer_record`, for a cleaner's own handle.
    record: RecordMemory,
    /// Whether SRQ receives complete here. Each of their CQEs is claimed, so its WQE is returned
    /// only once: when the CQE is taken, or when it is cleaned.
    claims: Arc<AtomicBool>,
    spare: SpareEntries,
}

/// The number of CQ entries beyond one for each request of its queues, if the owner counts them. A
/// [`Drain`] returns entries to the device before it holds back more than this number. Clones share
/// the number.
#[derive(Clone, Debug)]
pub struct SpareEntries(Arc<AtomicU32>);

impl Default for SpareEntries {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(u32::MAX)))
    }
}

impl SpareEntries {
    /// Sets the number; [`u32::MAX`], the initial value, means that it is not counted.
    pub fn set(&self, entries: u32) {
        self.0.store(entries, Ordering::Relaxed);
    }
}

/// Inline data of the last CQE.
struct Inline {
    words: [u64; 8],
    length: usize,
}

impl CompletionQueue {
    /// A queue over this memory; marks its entries empty.
    pub fn new(parts: CompletionQueueParts) -> Result<Self, LayoutError> {
        check_number(parts.cqn)?;
        let ring = CqRing::new(parts.ring, parts.entry_size)?;
        Ok(Self {
            cursor: ring.start(),
            ring,
            consumer_record: Record::new(
                &parts.record,
                offset_of!(hot::CqDoorbellRecord, cq_record_consumer),
            ),
            arm_record: Record::new(
                &parts.record,
                offset_of!(hot::CqDoorbellRecord, cq_record_arm),
            ),
            arm_sequence: 0,
            armed: false,
            cqn: parts.cqn,
            uar: parts.uar,
            inline: Inline { words: [0; 8], length: 0 },
            record: parts.record,
            claims: Arc::default(),
            spare: SpareEntries::default(),
        })
    }

    /// Sets the number that the device assigned. The ring must be ready before the device creates
    /// the queue, so the number comes later.
    ///
    /// # Errors
    /// A number of more than 24 bits.
    pub fn with_cqn(self, cqn: Cqn) -> Result<Self, LayoutError> {
        check_number(cqn)?;
        Ok(Self { cqn, ..self })
    }

    /// A handle that removes the CQEs of reset or destroyed queues.
    pub fn cleaner(&self) -> CqCleaner {
        CqCleaner {
            ring: self.ring.handle(),
            consumer: Record::new(
                &self.record,
                offset_of!(hot::CqDoorbellRecord, cq_record_consumer),
            ),
            overwrites: false,
            collapsed: false,
            claims: self.claims.clone(),
        }
    }

    /// The number of the completion queue.
    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// The number of entries: how many CQEs fit.
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// CQEs taken since the queue was made, modulo 2^24.
    pub fn consumer_index(&self) -> u32 {
        self.cursor.index()
    }

    /// Takes the next CQE, if there is one, and returns its slot to the device.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.take()?;
        self.publish();
        Some(cqe)
    }

    /// Takes up to `max` CQEs; their entries return to the device together, when the iterator is
    /// dropped, or in parts.
    ///
    /// A loop over it may complete requests and post others, whose CQEs need entries while the
    /// iterator holds some back. So it holds back at most the
    /// [spare entries](CompletionQueue::spare_entries). If they are not counted (a queue without
    /// `verbless_queue::Cq`), it holds back all: post after the loop, or give the queue `max` more
    /// entries than requests. While it runs, do not reset or create a queue pair of this CQ: both
    /// use up spare entries.
    #[inline(always)]
    pub fn drain(&mut self, max: usize) -> Drain<'_> {
        let spare = self.spare.0.load(Ordering::Relaxed) as usize;
        self.drain_holding(max, spare)
    }

    #[inline(always)]
    fn drain_holding(&mut self, max: usize, spare: usize) -> Drain<'_> {
        let left = max.min(spare);
        Drain { first: self.consumer_index(), left, later: max - left, spare, queue: self }
    }

    /// The handle that sets how many entries a [`Drain`] may hold back.
    pub fn spare_entries(&self) -> SpareEntries {
        self.spare.clone()
    }

    /// Takes up to `into.len()` CQEs; returns their number. One consumer index returns their
    /// entries to the device. The queue of [`Cqe::qpn`] or [`Cqe::user_index`] completes the
    /// request of each CQE.
    pub fn poll_into(&mut self, into: &mut [Option<Cqe>]) -> usize {
        let mut polled = 0;
        for (place, cqe) in into.iter_mut().zip(self.drain_holding(usize::MAX, usize::MAX)) {
            *place = Some(cqe);
            polled += 1;
        }
        polled
    }

    /// The inline data of the last polled CQE: as many bytes as it counts, at most 64. Call it
    /// right after polling a CQE whose [`Cqe::format`] is inline.
    pub fn inline_data(&self) -> &[u8] {
        self.inline.words.as_bytes().get(..self.inline.length).unwrap_or(&[])
    }

    /// Requests one event for the next completion that is not polled yet.
    ///
    /// A completion that is already there when the device sees the request also causes an event,
    /// but one that arrived before the last poll does not: arm, poll once more, then wait. After
    /// the event, call [`CompletionQueue::event_received`].
    pub fn arm(&mut self, notify: Notify) {
        let arm = CqArm::new()
            .with_arm_sn(self.arm_sequence & 3)
            .with_arm_solicited_only(notify == Notify::Solicited)
            .with_arm_consumer_index(self.consumer_index());
        self.armed = true;
        self.arm_record.store(arm.into_bits());
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        self.uar.arm_cq(u64::from_be_bytes(*CqArmDoorbell::new(arm, self.cqn.0).as_bytes()));
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
    }

    /// Counts an event, so the next [`CompletionQueue::arm`] has another sequence number than the
    /// request that caused the event. A second event for the same request, or an event of a queue
    /// that was not armed, does not count: the next sequence number could repeat an answered one.
    pub fn event_received(&mut self) {
        if core::mem::take(&mut self.armed) {
            self.arm_sequence = self.arm_sequence.wrapping_add(1);
        }
    }

    /// Whether there is nothing to poll. CQEs of a destroyed queue count until a poll skips them.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.view().is_device_owned()
    }

    /// Whether SRQ receives complete here.
    #[inline(always)]
    pub(crate) fn claims_receives(&self) -> bool {
        self.claims.load(Ordering::Relaxed)
    }

    /// Looks at the next entry.
    #[inline(always)]
    pub(crate) fn view(&self) -> CqeView<'_> {
        self.ring.view_at(&self.cursor)
    }

    /// Steps over a CQE, without telling the device.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        self.ring.step(&mut self.cursor);
    }

    /// Takes the next CQE without writing the doorbell record.
    #[inline(always)]
    fn take(&mut self) -> Option<Cqe> {
        let view = self.view();
        if view.is_plain_request() {
            let cqe = Cqe::read(&view);
            self.step();
            if cqe.is_retired() { self.take_after_retired() } else { Some(cqe) }
        } else if view.is_device_owned() {
            None
        } else {
            self.take_slow()
        }
    }

    /// The next CQE after retired ones, if there is one. The consumer index is written in either
    /// case, because the device may have had no free entry.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_after_retired(&mut self) -> Option<Cqe> {
        loop {
            let view = self.view();
            if view.is_device_owned() {
                self.publish();
                return None;
            }
            if let Some(cqe) = self.read_unless_retired() {
                return Some(cqe);
            }
        }
    }

    /// Takes a software-owned CQE that has more fields: a receive, an error, inline data.
    #[inline(never)]
    pub(crate) fn take_slow(&mut self) -> Option<Cqe> {
        match self.read_unless_retired() {
            Some(cqe) => Some(cqe),
            None => self.take_after_retired(),
        }
    }

    /// Reads any software-owned CQE, and steps over it; `None` if it is retired.
    pub(crate) fn read_unless_retired(&mut self) -> Option<Cqe> {
        let cqe = self.read_full();
        (!cqe.is_retired() && !cqe.is_retired_eth()).then_some(cqe)
    }

    /// Reads any software-owned CQE, and steps over it.
    fn read_full(&mut self) -> Cqe {
        let view = self.view();
        let mut cqe = Cqe::read(&view);
        if cqe.is_receive() && self.claims_receives() {
            cqe.request.opcode_qpn = Be32::from_raw(view.claim());
        }
        match cqe.opcode() {
            cqe_opcode::REQUESTER_ERROR | cqe_opcode::RESPONDER_ERROR => {
                cqe.syndromes_or_source =
                    u32::from_be(view.dword::<{ offset_of!(hot::CqeError, cqe_syndromes) }>());
            }
            _ => {
                cqe.syndromes_or_source =
                    u32::from_be(view.dword::<{ offset_of!(hot::Cqe, cqe_source_qp) }>());
                cqe.lid = CqeSourceLid::from_raw(
                    view.dword::<{ offset_of!(hot::Cqe, cqe_source_lid) }>(),
                )
                .slid();
                cqe.path_bits =
                    CqePath::from_raw(view.dword::<{ offset_of!(hot::Cqe, cqe_path) }>()).ml_path();
            }
        }
        self.inline.length = 0;
        if cqe.format() != cqe_format::PLAIN {
            self.take_inline(&cqe);
        }
        self.step();
        cqe
    }

    /// Keeps the inline data of the CQE at the cursor. The format bounds its length, whatever the
    /// device counts.
    #[cold]
    fn take_inline(&mut self, cqe: &Cqe) {
        let (long, place) = match cqe.format() {
            cqe_format::INLINE_32 => (false, 32),
            cqe_format::INLINE_64 => (true, 64),
            _ => (false, 0),
        };
        let data = self.ring.inline_data(self.consumer_index(), long);
        self.inline = match data {
            Some(words) => Inline { words, length: place.min(cqe.byte_count() as usize) },
            None => Inline { words: [0; 8], length: 0 },
        };
    }

    /// Writes the consumer index to the doorbell record.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        // Read before the barrier: after it, the compiler would load the value again.
        let consumer = self.consumer_index();
        event(Event::Barrier("before_consumer_record"));
        barrier::before_consumer_record();
        self.consumer_record.store(consumer);
    }
}

fn check_number(Cqn(cqn): Cqn) -> Result<(), LayoutError> {
    if cqn >> 24 != 0 {
        return Err(LayoutError::new("CQ number", "has more than 24 bits", cqn.into()));
    }
    Ok(())
}

impl core::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("cqn", &self.cqn)
            .field("entries", &self.ring.entries())
            .field("consumer", &self.consumer_index())
            .finish_non_exhaustive()
    }
}

/// An iterator that takes CQEs: see [`CompletionQueue::drain`].
pub struct Drain<'q> {
    queue: &'q mut CompletionQueue,
    first: u32,
    /// CQEs that it may take before it publishes.
    left: usize,
    /// CQEs that it may take after that.
    later: usize,
    spare: usize,
}

impl Drain<'_> {
    /// [`CompletionQueue::inline_data`] of the last CQE.
    pub fn inline_data(&self) -> &[u8] {
        self.queue.inline_data()
    }

    /// Returns the taken entries, and takes the next CQE.
    #[cold]
    #[inline(never)]
    fn next_part(&mut self) -> Option<Cqe> {
        self.publish();
        if self.later == 0 {
            return None;
        }
        let part = self.later.min(self.spare.max(1));
        let cqe = self.queue.take()?;
        (self.left, self.later) = (part - 1, self.later - part);
        if self.spare == 0 {
            self.publish();
        }
        Some(cqe)
    }

    #[inline(always)]
    fn publish(&mut self) {
        if self.queue.consumer_index() != self.first {
            self.queue.publish();
            self.first = self.queue.consumer_index();
        }
    }
}

impl Iterator for Drain<'_> {
    type Item = Cqe;

    #[inline(always)]
    fn next(&mut self) -> Option<Cqe> {
        if self.left == 0 {
            return self.next_part();
        }
        let cqe = self.queue.take()?;
        self.left -= 1;
        Some(cqe)
    }
}

impl Drop for Drain<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.publish();
    }
}

/// A CQE, copied from the ring. Its fields are unchecked.
///
/// It is not `Clone`: a CQE completes its request once.
#[derive(PartialEq, Eq)]
pub struct Cqe {
    request: RequestId,
    outcome: Outcome,
    /// [`CqeSyndromes`] of an error, [`CqeSourceQp`] of a receive.
    syndromes_or_source: u32,
    /// LID and path bits of a receive.
    lid: u16,
    path_bits: u8,
    op_own: u8,
}

/// The fields of a CQE that identify its request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    /// An [`OpcodeQpn`] in the byte order of the CQE: one comparison with the posted value checks
    /// opcode and queue.
    pub(crate) opcode_qpn: Be32,
    /// A [`CqeTail`], whose upper half is the index of the WQE.
    counter: u32,
}

/// Result fields of a CQE, still big-endian; converted when read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) byte_count: Be32,
    pub(crate) user_index: Be32,
    pub(crate) immediate: Be32,
}

impl Outcome {
    /// Reads the outcome from the ring, after [`RequestId::read`].
    #[inline(always)]
    pub(crate) fn read(view: &CqeView<'_>) -> Self {
        let byte_count = Be32::from_raw(view.dword::<{ offset_of!(hot::Cqe, byte_cnt) }>());
        let [user_index, immediate] = view.user_index_and_immediate().map(Be32::from_raw);
        Self { byte_count, user_index, immediate }
    }
}

impl RequestId {
    /// Reads the fields from the ring, after the barrier that follows the owner bit.
    #[inline(always)]
    pub(crate) fn read(view: &CqeView<'_>) -> Self {
        event(Event::Barrier("after_owner_bit"));
        barrier::after_owner_bit();
        let opcode_qpn = Be32::from_raw(view.dword::<{ offset_of!(hot::Cqe, opcode_qpn) }>());
        let counter = u32::from_be(view.dword::<{ offset_of!(hot::Cqe, cqe_tail) }>());
        Self { opcode_qpn, counter }
    }

    /// A value that a device could report.
    #[cfg(test)]
    pub(crate) fn of(opcode_qpn: OpcodeQpn, WqeIndex(index): WqeIndex) -> Self {
        let counter = u32::from(index) << 16;
        Self { opcode_qpn: Be32::new(opcode_qpn.into_bits()), counter }
    }

    /// The word whose upper half is the index of the WQE.
    #[inline(always)]
    pub(crate) const fn counter(self) -> u32 {
        self.counter
    }

    /// The WQE.
    #[inline(always)]
    pub(crate) const fn index(self) -> WqeIndex {
        WqeIndex(CqeTail::from_bits(self.counter).wqe_counter.get())
    }

    /// Opcode of the send request, and queue.
    #[inline(always)]
    pub(crate) const fn opcode_qpn(self) -> OpcodeQpn {
        OpcodeQpn::from_bits(self.opcode_qpn.get())
    }
}

impl Cqe {
    /// Reads a software-owned entry.
    #[inline(always)]
    fn read(view: &CqeView<'_>) -> Self {
        let request = RequestId::read(view);
        let outcome = Outcome::read(view);
        let op_own = view.op_own();
        Self { request, outcome, syndromes_or_source: 0, lid: 0, path_bits: 0, op_own }
    }

    /// The CQE of a send request in a collapsed queue, with the fields that are read there.
    pub(crate) const fn of_collapsed(opcode_qpn: Be32, newest: CollapsedCqe) -> Self {
        let CollapsedCqe { tail, syndromes, .. } = newest;
        let none = Be32::new(0);
        Self {
            request: RequestId { opcode_qpn, counter: tail },
            outcome: Outcome { byte_count: none, user_index: none, immediate: none },
            syndromes_or_source: syndromes,
            lid: 0,
            path_bits: 0,
            op_own: tail as u8,
        }
    }

    /// The fields that identify the request.
    #[inline(always)]
    pub(crate) const fn request(&self) -> RequestId {
        self.request
    }

    /// The result fields.
    #[inline(always)]
    pub(crate) const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The CQE's opcode, one of [`verbless_prm::hot::cqe_opcode`].
    #[inline(always)]
    pub const fn opcode(&self) -> u8 {
        OpOwn::from_bits(self.op_own).opcode()
    }

    /// The place of the received data, one of [`verbless_prm::hot::cqe_format`].
    #[inline(always)]
    pub const fn format(&self) -> u8 {
        OpOwn::from_bits(self.op_own).format()
    }

    /// Whether the CQE is retired because its queue was reset or destroyed.
    #[inline(always)]
    const fn is_retired(&self) -> bool {
        self.request.opcode_qpn.get() == RETIRED
    }

    /// Whether the CQE of a frame is retired because its queue was reset or destroyed.
    const fn is_retired_eth(&self) -> bool {
        self.is_receive() && self.outcome.user_index.get() == RETIRED
    }

    /// Whether the CQE is a successful requester CQE without inline data.
    #[inline(always)]
    pub(crate) const fn is_plain_request(&self) -> bool {
        const OPCODE_AND_FORMAT: u8 =
            OpOwn::from_bits(!0).with_se(false).with_owner(false).into_bits();
        self.op_own & OPCODE_AND_FORMAT == 0
    }

    /// Whether the CQE completes a receive, successful or not; otherwise it completes a send
    /// request.
    pub const fn is_receive(&self) -> bool {
        !self.is_request()
    }

    /// Whether the CQE is a requester's, successful or not.
    #[inline(always)]
    pub(crate) const fn is_request(&self) -> bool {
        self.is_plain_request() || !is_receive(self.opcode())
    }

    /// A copy to pass by reference to a function that is not inlined: the original can stay in
    /// registers on the fast path.
    #[inline(always)]
    pub(crate) const fn copied_out(&self) -> Self {
        let Self { request, outcome, syndromes_or_source, lid, path_bits, op_own } = *self;
        Self { request, outcome, syndromes_or_source, lid, path_bits, op_own }
    }

    /// Whether the peer asked for a solicited event.
    pub const fn is_solicited(&self) -> bool {
        OpOwn::from_bits(self.op_own).se()
    }

    /// The QP that the work request was posted to.
    #[inline(always)]
    pub const fn qpn(&self) -> Qpn {
        Qpn(self.request.opcode_qpn().qpn())
    }

    /// The opcode of the send request, one of [`verbless_prm::hot::opcode`]; only in a requester's
    /// CQE.
    #[inline(always)]
    pub const fn wqe_opcode(&self) -> u8 {
        self.request.opcode_qpn().wqe_opcode()
    }

    /// Index of the WQE that this CQE completes.
    #[inline(always)]
    pub const fn wqe_index(&self) -> WqeIndex {
        self.request.index()
    }

    /// The user index that the queue was created with, 24 bits.
    pub const fn user_index(&self) -> u32 {
        CqeUserIndex::from_bits(self.outcome.user_index.get()).srqn_uidx()
    }

    /// Immediate, or the key that was invalidated.
    #[inline(always)]
    pub const fn immediate(&self) -> u32 {
        self.outcome.immediate.get()
    }

    /// Bytes received, or read.
    #[inline(always)]
    pub const fn byte_count(&self) -> u32 {
        self.outcome.byte_count.get()
    }

    /// Reason of the failure, one of [`verbless_prm::hot::cqe_syndrome`]; only in an error CQE.
    #[inline(always)]
    pub const fn syndrome(&self) -> u8 {
        CqeSyndromes::from_bits(self.syndromes_or_source).syndrome()
    }

    /// The vendor's detailed reason; only in an error CQE.
    #[inline(always)]
    pub const fn vendor_syndrome(&self) -> u8 {
        CqeSyndromes::from_bits(self.syndromes_or_source).vendor_err_synd()
    }

    /// Source of a successfully received message, as far as the transport reports it: all fields
    /// for a datagram, only the QPN for connected services. `None` for other CQEs.
    pub const fn source(&self) -> Option<Source> {
        match self.opcode() {
            cqe_opcode::RESPONDER_WRITE_IMM
            | cqe_opcode::RESPONDER_SEND
            | cqe_opcode::RESPONDER_SEND_IMM
            | cqe_opcode::RESPONDER_SEND_INVALIDATE => {
                let qp = CqeSourceQp::from_bits(self.syndromes_or_source);
                Some(Source { qp, lid: self.lid, path_bits: self.path_bits })
            }
            _ => None,
        }
    }

    /// QPN of the sender of a successful receive, if the transport reports it; 0 for other CQEs.
    pub const fn peer_qpn(&self) -> Qpn {
        match self.opcode() {
            cqe_opcode::REQUESTER_ERROR | cqe_opcode::RESPONDER_ERROR => Qpn(0),
            _ => Qpn(CqeSourceQp::from_bits(self.syndromes_or_source).rqpn()),
        }
    }
}

impl core::fmt::Debug for Cqe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cqe")
            .field("op_own", &OpOwn::from_bits(self.op_own))
            .field("qpn", &self.qpn())
            .field("wqe_opcode", &self.wqe_opcode())
            .field("wqe_index", &self.wqe_index())
            .field("user_index", &self.user_index())
            .field("immediate", &self.immediate())
            .field("byte_count", &self.byte_count())
            .finish_non_exhaustive()
    }
}
