//! Completion queues: polling, arming.

use verbless_prm::hot::{CqArm, CqDoorbell, OpOwn, OpcodeQpn, cqe_format, cqe_opcode};

use crate::ring::{CqRing, LayoutError, Record, SharedMemory};
use crate::trace::{Event, event};
use crate::types::{Cqn, Qpn, WqeIndex};
use crate::uar::{UarPage, barrier};

/// What a completion queue is built from.
#[derive(Clone, Debug)]
pub struct CompletionQueueParts {
    /// Its number.
    pub cqn: Cqn,
    /// The entries, a power of two of them. The device must not have written there yet.
    pub ring: SharedMemory,
    /// Bytes of an entry, 64 or 128.
    pub entry_size: usize,
    /// Its doorbell record: 8 bytes.
    pub record: SharedMemory,
    /// The page to arm it through: the one that its context names.
    pub uar: UarPage,
}

/// Which completion makes the event that an armed queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next one.
    Next,
    /// The next one that the peer asked to be solicited, or that is an error.
    Solicited,
}

/// A completion queue: a ring that the device fills and we empty.
pub struct CompletionQueue {
    ring: CqRing,
    /// CQEs taken so far.
    consumer: u32,
    consumer_record: Record,
    arm_record: Record,
    arm_sequence: u8,
    cqn: Cqn,
    uar: UarPage,
    inline: Inline,
}

/// The data that came inside the last CQE.
struct Inline {
    words: [u64; 8],
    length: usize,
}

impl CompletionQueue {
    /// A queue over this memory; marks its entries empty.
    pub fn new(parts: CompletionQueueParts) -> Result<Self, LayoutError> {
        if parts.cqn.0 >> 24 != 0 {
            return Err(LayoutError::new("CQ number", "has more than 24 bits", parts.cqn.0.into()));
        }
        Ok(Self {
            ring: CqRing::new(&parts.ring, parts.entry_size)?,
            consumer: 0,
            consumer_record: Record::new(&parts.record, 0)?,
            arm_record: Record::new(&parts.record, 4)?,
            arm_sequence: 0,
            cqn: parts.cqn,
            uar: parts.uar,
            inline: Inline { words: [0; 8], length: 0 },
        })
    }

    /// Its number.
    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// CQEs taken since it was made, modulo 2^32.
    pub fn consumer_index(&self) -> u32 {
        self.consumer
    }

    /// Takes the next CQE, if there is one, and gives its place back to the device.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.take()?;
        self.publish();
        Some(cqe)
    }

    /// Takes up to `max` CQEs, and gives their places back in one go: when the iterator is dropped.
    #[inline]
    pub fn drain(&mut self, max: usize) -> Drain<'_> {
        Drain { first: self.consumer, left: max, queue: self }
    }

    /// The data of the CQE polled last, if the device put it there rather than into the receive's memory; as many
    /// bytes as the CQE counts, at most 64.
    pub fn inline_data(&self) -> &[u8] {
        zerocopy::IntoBytes::as_bytes(&self.inline.words).get(..self.inline.length).unwrap_or(&[])
    }

    /// Asks for one event when a completion arrives that has not been polled by now.
    ///
    /// A completion that was already there when the device sees this makes an event too, but one that arrived before
    /// the last poll does not: arm, poll once more, then wait. After the event, call
    /// [`CompletionQueue::event_received`].
    pub fn arm(&mut self, notify: Notify) {
        let arm = CqArm::new()
            .with_sequence(self.arm_sequence & 3)
            .with_solicited(notify == Notify::Solicited)
            .with_consumer(self.consumer & 0xff_ffff);
        self.arm_record.store(arm.into_bits());
        event(Event::Barrier("before_doorbell"));
        barrier::before_doorbell();
        self.uar.arm_cq(CqDoorbell::new(arm, self.cqn.0).word.get());
        event(Event::Barrier("after_doorbell"));
        barrier::after_doorbell();
    }

    /// Counts an event, so that the next [`CompletionQueue::arm`] is told from the one that the event answered.
    pub fn event_received(&mut self) {
        self.arm_sequence = self.arm_sequence.wrapping_add(1);
    }

    /// Reads the next CQE and steps over it, without telling the device.
    #[inline(always)]
    fn take(&mut self) -> Option<Cqe> {
        let slot = self.ring.slot(self.consumer);
        let op_own = slot.op_own();
        let lap = (self.consumer >> self.ring.log_entries()) as u8;
        if (op_own ^ lap) & 1 != 0 || op_own >> 4 == cqe_opcode::INVALID {
            return None;
        }
        event(Event::Barrier("after_owner_bit"));
        barrier::after_owner_bit();
        let cqe = Cqe {
            op_own: OpOwn::from_bits(op_own),
            peer: slot.word::<0x18>(),
            index: slot.word::<0x20>(),
            count: slot.word::<0x28>(),
            time: slot.word::<0x30>(),
            queue: slot.word::<0x38>(),
        };
        if op_own & 0xc != 0 {
            self.take_inline(&cqe);
        }
        self.consumer = self.consumer.wrapping_add(1);
        Some(cqe)
    }

    /// Keeps the data of the CQE at `consumer`. Its length is bounded by its place, whatever the device says.
    #[cold]
    fn take_inline(&mut self, cqe: &Cqe) {
        let (long, place) = match cqe.op_own.format() {
            cqe_format::INLINE_32 => (false, 32),
            cqe_format::INLINE_64 => (true, 64),
            _ => (false, 0),
        };
        let data = self.ring.inline_data(self.consumer, long);
        self.inline = match data {
            Some(words) => Inline { words, length: place.min(cqe.byte_count() as usize) },
            None => Inline { words: [0; 8], length: 0 },
        };
    }

    /// Tells the device how far we are.
    #[inline(always)]
    fn publish(&mut self) {
        event(Event::Barrier("before_consumer_record"));
        barrier::before_consumer_record();
        self.consumer_record.store(self.consumer & 0xff_ffff);
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("cqn", &self.cqn)
            .field("log_entries", &self.ring.log_entries())
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

/// CQEs as they come, up to a number: see [`CompletionQueue::drain`].
pub struct Drain<'q> {
    queue: &'q mut CompletionQueue,
    first: u32,
    left: usize,
}

impl Drain<'_> {
    /// [`CompletionQueue::inline_data`] of the CQE that came last.
    pub fn inline_data(&self) -> &[u8] {
        self.queue.inline_data()
    }
}

impl Iterator for Drain<'_> {
    type Item = Cqe;

    #[inline(always)]
    fn next(&mut self) -> Option<Cqe> {
        if self.left == 0 {
            return None;
        }
        let cqe = self.queue.take()?;
        self.left -= 1;
        Some(cqe)
    }
}

impl Drop for Drain<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.queue.consumer != self.first {
            self.queue.publish();
        }
    }
}

/// A CQE, copied out of the ring. What it says is the device's word: nothing here has been checked.
///
/// It is not `Clone`: a CQE completes its request once.
#[derive(PartialEq, Eq)]
pub struct Cqe {
    op_own: OpOwn,
    /// Bytes 0x18..0x20 and so on, in host order.
    peer: u64,
    index: u64,
    count: u64,
    time: u64,
    queue: u64,
}

impl Cqe {
    /// What it reports, one of [`verbless_prm::hot::cqe_opcode`].
    #[inline(always)]
    pub const fn opcode(&self) -> u8 {
        self.op_own.opcode()
    }

    /// Where its data is, one of [`verbless_prm::hot::cqe_format`].
    #[inline(always)]
    pub const fn format(&self) -> u8 {
        self.op_own.format()
    }

    /// Whether it was solicited.
    pub const fn is_solicited(&self) -> bool {
        self.op_own.se()
    }

    /// The QP that the work request was posted to.
    #[inline(always)]
    pub const fn qpn(&self) -> Qpn {
        Qpn(self.opcode_qpn().qpn())
    }

    /// The opcode of the send request, one of [`verbless_prm::hot::opcode`]; of a requester's CQE.
    #[inline(always)]
    pub const fn wqe_opcode(&self) -> u8 {
        self.opcode_qpn().wqe_opcode()
    }

    const fn opcode_qpn(&self) -> OpcodeQpn {
        OpcodeQpn::from_bits((self.queue >> 32) as u32)
    }

    /// The work request.
    #[inline(always)]
    pub const fn wqe_index(&self) -> WqeIndex {
        WqeIndex((self.queue >> 16) as u16)
    }

    /// The user index that the queue was created with, 24 bits.
    pub const fn user_index(&self) -> u32 {
        (self.index >> 32) as u32 & 0xff_ffff
    }

    /// Immediate, or the key that was invalidated.
    #[inline(always)]
    pub const fn immediate(&self) -> u32 {
        self.index as u32
    }

    /// Bytes received, or read.
    #[inline(always)]
    pub const fn byte_count(&self) -> u32 {
        self.count as u32
    }

    /// The device's clock; of a CQE that is no error.
    pub const fn timestamp(&self) -> u64 {
        self.time
    }

    /// Why it failed, one of [`verbless_prm::hot::cqe_syndrome`]; of an error CQE.
    #[inline(always)]
    pub const fn syndrome(&self) -> u8 {
        self.time as u8
    }

    /// The vendor's finer reason; of an error CQE.
    #[inline(always)]
    pub const fn vendor_syndrome(&self) -> u8 {
        (self.time >> 8) as u8
    }

    /// The peer's QP, where the transport tells it; of a receive.
    pub const fn peer_qpn(&self) -> Qpn {
        Qpn((self.peer >> 32) as u32 & 0xff_ffff)
    }
}

impl std::fmt::Debug for Cqe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cqe")
            .field("op_own", &self.op_own)
            .field("qpn", &self.qpn())
            .field("wqe_opcode", &self.wqe_opcode())
            .field("wqe_index", &self.wqe_index())
            .field("user_index", &self.user_index())
            .field("immediate", &self.immediate())
            .field("byte_count", &self.byte_count())
            .field("time_or_syndromes", &self.time)
            .finish()
    }
}
