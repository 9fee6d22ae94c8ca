//! The CQE ring: the device writes it, we read it, and trust nothing in it.

use alloc::sync::Arc;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

use verbless_prm::hot::{self, Cqe, OpOwn, cqe_opcode};

use super::exclusive::RingMemory;
use super::layout::LayoutError;
use crate::trace::{Event, event};

/// A ring of CQEs, a power of two of them, of 64 or 128 bytes each.
pub(crate) struct CqRing {
    /// The CQE proper, the last 64 bytes, of the first entry.
    first: NonNull<u8>,
    /// Entries, and entries less one.
    entries: u32,
    mask: u32,
    /// Bytes of an entry: 64 or 128.
    stride: usize,
    /// Shared with the handles of cleaners.
    _memory: Arc<RingMemory>,
}

// SAFETY: atomics in memory that is itself `Send`.
unsafe impl Send for CqRing {}

impl CqRing {
    /// Marks every entry as not yet written. The device must not know of the ring yet.
    pub(crate) fn new(memory: RingMemory, entry_size: usize) -> Result<Self, LayoutError> {
        if entry_size != 64 && entry_size != 128 {
            return Err(LayoutError::new("CQE size", "is neither 64 nor 128", entry_size as u64));
        }
        let bytes = memory.len();
        if !bytes.is_power_of_two() || !(entry_size..=entry_size << 23).contains(&bytes) {
            return Err(LayoutError::new("CQ ring", "is not 2^0 to 2^23 entries", bytes as u64));
        }
        if !memory.address().is_multiple_of(64) {
            return Err(LayoutError::new(
                "CQ ring",
                "is not aligned to 64 bytes",
                memory.address(),
            ));
        }
        let ring = Self {
            // SAFETY: the memory is at least one entry long.
            first: unsafe { memory.base().add(entry_size - Cqe::BYTES) },
            entries: (bytes / entry_size) as u32,
            mask: (bytes / entry_size) as u32 - 1,
            stride: entry_size,
            _memory: Arc::new(memory),
        };
        ring.empty();
        Ok(ring)
    }

    /// Marks every entry as not yet written. The device writes none meanwhile.
    pub(crate) fn empty(&self) {
        let invalid = OpOwn::new().with_opcode(cqe_opcode::INVALID).with_owner(true).into_bits();
        for index in 0..=self.mask {
            let slot = self.slot(index);
            // SAFETY: a slot is 64 bytes inside the ring.
            unsafe { AtomicU8::from_ptr(slot.cqe.add(CqeSlot::LAST).as_ptr()) }
                .store(invalid, Relaxed);
        }
    }

    /// Another handle to the same ring.
    pub(crate) fn handle(&self) -> Self {
        Self { _memory: self._memory.clone(), ..*self }
    }

    /// Entries.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Looks at the entry of `index` (modulo the ring): reads its last byte, and nothing else.
    pub(crate) fn view(&self, index: u32) -> CqeView<'_> {
        // In odd passes through the ring the owner bit of a software-owned entry is 1.
        let owner = u8::from(index & self.entries != 0);
        CqeView::new(self.slot(index), owner)
    }

    /// Looks at the entry that the cursor is at, which is one of this ring.
    #[inline(always)]
    pub(crate) fn view_at(&self, cursor: &Cursor) -> CqeView<'_> {
        CqeView::new(CqeSlot { cqe: cursor.next, ring: PhantomData }, cursor.owner)
    }

    /// The first entry in the first pass through the ring.
    pub(crate) fn start(&self) -> Cursor {
        Cursor { next: self.first, last: self.slot(self.mask).cqe, owner: 0, index: 0 }
    }

    /// Moves the cursor to the next entry.
    #[inline(always)]
    pub(crate) fn step(&self, cursor: &mut Cursor) {
        cursor.index += 1;
        if cursor.next == cursor.last {
            core::hint::cold_path();
            cursor.next = self.first;
            cursor.owner ^= 1;
            // 2^24 is a whole number of passes.
            cursor.index &= 0xff_ffff;
        } else {
            // SAFETY: another entry follows every entry but the last.
            cursor.next = unsafe { cursor.next.add(self.stride) };
        }
    }

    /// The inline data of the entry of `index`: the CQE's own first 32 bytes, or the 64 before it,
    /// which only long entries have.
    pub(crate) fn inline_data(&self, index: u32, long: bool) -> Option<[u64; 8]> {
        let cqe = self.slot(index).cqe;
        let (start, words) = match (long, self.stride) {
            (false, _) => (cqe, 4),
            // SAFETY: the CQE is the second half of its entry.
            (true, 128) => (unsafe { cqe.sub(Cqe::BYTES) }, 8),
            (true, _) => return None,
        };
        let mut data = [0; 8];
        for (i, word) in data.iter_mut().take(words).enumerate() {
            // SAFETY: `words` words from `start` are in the entry, and aligned.
            *word = unsafe { AtomicU64::from_ptr(start.add(8 * i).cast().as_ptr()) }.load(Relaxed);
        }
        Some(data)
    }

    /// The entry of `index` (modulo the ring).
    #[inline(always)]
    fn slot(&self, index: u32) -> CqeSlot<'_> {
        let offset = (index & self.mask) as usize * self.stride;
        // SAFETY: the masked index is inside the ring, and `first` is the CQE of an entry.
        CqeSlot { cqe: unsafe { self.first.add(offset) }, ring: PhantomData }
    }
}

/// A consumer's position in a [`CqRing`].
pub(crate) struct Cursor {
    /// The CQE proper of the next entry, and that of the last one of the ring.
    next: NonNull<u8>,
    last: NonNull<u8>,
    /// Owner bit of the entries of this pass through the ring.
    owner: u8,
    /// Entries passed so far, modulo 2^24: the consumer index in the doorbell record.
    index: u32,
}

// SAFETY: a position in a ring that is itself `Send`, used only with that ring.
unsafe impl Send for Cursor {}

impl Cursor {
    /// Entries passed so far, modulo 2^24.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

/// An entry whose last byte has been read.
#[derive(Clone, Copy)]
pub(crate) struct CqeView<'r> {
    slot: CqeSlot<'r>,
    /// The last byte (opcode, format, solicited and owner bit), XORed with the owner bit of a
    /// software-owned entry.
    difference: u8,
    owner: u8,
}

impl<'r> CqeView<'r> {
    #[inline(always)]
    fn new(slot: CqeSlot<'r>, owner: u8) -> Self {
        Self { slot, difference: slot.op_own() ^ owner, owner }
    }
}

impl CqeView<'_> {
    /// Whether the entry is software-owned, of a successful request, and without inline data.
    /// The solicited bit may be set.
    #[inline(always)]
    pub(crate) fn is_plain_request(&self) -> bool {
        self.difference & 0xfd == 0
    }

    /// Whether the entry is software-owned, of a successful receive, without inline data and
    /// immediate. The solicited bit may be set.
    #[inline(always)]
    pub(crate) fn is_plain_receive(&self) -> bool {
        self.difference & 0xfd == cqe_opcode::RESPONDER_SEND << 4
    }

    /// The opcode of a software-owned CQE without inline data; an invalid opcode for others. The
    /// solicited bit may be set.
    #[inline(always)]
    pub(crate) fn plain_opcode(&self) -> u8 {
        if self.difference & 0x0d == 0 { self.difference >> 4 } else { u8::MAX }
    }

    /// Whether the device has not written the entry yet.
    #[inline(always)]
    pub(crate) fn is_device_owned(&self) -> bool {
        self.difference & 1 != 0 || self.difference >> 4 == cqe_opcode::INVALID
    }

    /// The last byte.
    #[inline(always)]
    pub(crate) fn op_own(&self) -> u8 {
        self.difference ^ self.owner
    }

    /// User index and immediate, in memory order.
    #[inline(always)]
    pub(crate) fn user_index_and_immediate(&self) -> [u32; 2] {
        zerocopy::transmute!(self.slot.qword::<{ offset_of!(hot::Cqe, cqe_user_index) }>())
    }

    /// The dword at byte `OFFSET` of the CQE, in memory order: big-endian. Only after
    /// [`after_owner_bit`](crate::uar::barrier::after_owner_bit).
    #[inline(always)]
    pub(crate) fn dword<const OFFSET: usize>(&self) -> u32 {
        self.slot.dword::<OFFSET>()
    }

    /// Marks the CQE as [`RETIRED`] if its queue number and opcode still are `opcode_qpn`, in
    /// memory order.
    ///
    /// The device writes no more CQEs of a queue that is reset or destroyed, so the word shows
    /// whether this is still the same CQE, however often the ring wrapped.
    pub(crate) fn retire(&self, opcode_qpn: u32) -> bool {
        self.slot.opcode_qpn().compare_exchange(opcode_qpn, RETIRED, AcqRel, Relaxed).is_ok()
    }

    /// Marks a frame's CQE as [`RETIRED`] if its user index word still is `user_index`, in memory
    /// order. The word that [`CqeView::retire`] compares does not identify a receiver: another
    /// queue's CQE in this entry may have the same one.
    pub(crate) fn retire_eth(&self, user_index: u32) -> bool {
        self.slot.user_index().compare_exchange(user_index, RETIRED, AcqRel, Relaxed).is_ok()
    }

    /// Replaces the word of queue number and opcode by [`RETIRED`]; returns the old word, in memory
    /// order. Of several callers, only one gets a word other than [`RETIRED`].
    pub(crate) fn claim(&self) -> u32 {
        self.slot.opcode_qpn().swap(RETIRED, AcqRel)
    }
}

/// Marks a CQE as invalid, in place of queue number and opcode, or of a frame's user index. Its
/// lower 24 bits are the QPN of multicast, which no queue has; no receiver of frames has this user
/// index.
pub(crate) const RETIRED: u32 = u32::MAX;

/// The memory of one CQE in the ring.
#[derive(Clone, Copy)]
struct CqeSlot<'r> {
    /// 64 bytes inside the ring, aligned to 64.
    cqe: NonNull<u8>,
    ring: PhantomData<&'r CqRing>,
}

impl CqeSlot<'_> {
    const LAST: usize = offset_of!(hot::Cqe, cqe_tail.op_own);

    /// The last byte: the first to read.
    #[inline(always)]
    fn op_own(&self) -> u8 {
        event(Event::Owner);
        // SAFETY: a slot is 64 bytes inside the ring.
        unsafe { AtomicU8::from_ptr(self.cqe.add(Self::LAST).as_ptr()) }.load(Relaxed)
    }

    #[inline(always)]
    fn dword<const OFFSET: usize>(&self) -> u32 {
        const { assert!(OFFSET + 4 <= Cqe::BYTES && OFFSET.is_multiple_of(4)) };
        event(Event::Cqe(OFFSET as u32));
        // SAFETY: a slot is 64 bytes inside the ring, aligned to 64.
        unsafe { AtomicU32::from_ptr(self.cqe.add(OFFSET).cast().as_ptr()) }.load(Relaxed)
    }

    #[inline(always)]
    fn qword<const OFFSET: usize>(&self) -> u64 {
        const { assert!(OFFSET + 8 <= Cqe::BYTES && OFFSET.is_multiple_of(8)) };
        event(Event::Cqe(OFFSET as u32));
        // SAFETY: a slot is 64 bytes inside the ring, aligned to 64.
        unsafe { AtomicU64::from_ptr(self.cqe.add(OFFSET).cast().as_ptr()) }.load(Relaxed)
    }

    fn user_index(&self) -> &AtomicU32 {
        // SAFETY: a slot is 64 bytes inside the ring, aligned to 64, and the ring outlives us.
        unsafe {
            AtomicU32::from_ptr(self.cqe.add(offset_of!(hot::Cqe, cqe_user_index)).cast().as_ptr())
        }
    }

    fn opcode_qpn(&self) -> &AtomicU32 {
        // SAFETY: a slot is 64 bytes inside the ring, aligned to 64, and the ring outlives us.
        unsafe {
            AtomicU32::from_ptr(self.cqe.add(offset_of!(hot::Cqe, opcode_qpn)).cast().as_ptr())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Entry([u8; Cqe::BYTES]);

    #[test]
    fn cqe_last_byte_decides_ownership_and_kind() {
        for (owner, last) in (0..2).flat_map(|owner| (0..=u8::MAX).map(move |last| (owner, last))) {
            let mut entry = Entry([0; Cqe::BYTES]);
            entry.0[CqeSlot::LAST] = last;
            let slot = CqeSlot { cqe: NonNull::from(&mut entry).cast(), ring: PhantomData };
            let view = CqeView::new(slot, owner);
            let (opcode, format) = (last >> 4, last >> 2 & 3);
            let turned = last & 1 == owner;
            let ours = turned && opcode != cqe_opcode::INVALID;
            let plain = |of| ours && opcode == of && format == 0;
            assert_eq!(view.is_device_owned(), !ours, "{last:#x} with owner bit {owner}");
            assert_eq!(view.is_plain_request(), plain(cqe_opcode::REQUESTER), "{last:#x}");
            assert_eq!(view.is_plain_receive(), plain(cqe_opcode::RESPONDER_SEND), "{last:#x}");
            let expected = if turned && format == 0 { opcode } else { u8::MAX };
            assert_eq!(
                (view.plain_opcode(), view.op_own()),
                (expected, last),
                "with owner bit {owner}"
            );
        }
    }
}
