//! The CQE ring: written by the device, read by us, and trusted in nothing.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use verbless_prm::hot::{Cqe, OpOwn, cqe_opcode};

use super::{LayoutError, SharedMemory};
use crate::trace::{Event, event};

/// A ring of CQEs, a power of two of them, of 64 or 128 bytes each.
pub(crate) struct CqRing {
    base: NonNull<u8>,
    log_entries: u32,
    /// log2 of the bytes of an entry: 6 or 7.
    log_stride: u32,
    _memory: SharedMemory,
}

// SAFETY: atomics in memory that is itself `Send`.
unsafe impl Send for CqRing {}

impl CqRing {
    /// Marks every entry as not yet written. The device must not know of the ring yet.
    pub(crate) fn new(memory: &SharedMemory, entry_size: usize) -> Result<Self, LayoutError> {
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
            base: memory.base(),
            log_entries: (bytes / entry_size).trailing_zeros(),
            log_stride: entry_size.trailing_zeros(),
            _memory: memory.clone(),
        };
        let invalid = OpOwn::new().with_opcode(cqe_opcode::INVALID).with_owner(true).into_bits();
        for index in 0..1 << ring.log_entries {
            let slot = ring.slot(index);
            // SAFETY: a slot is 64 bytes inside the ring.
            unsafe { AtomicU8::from_ptr(slot.cqe.add(Slot::LAST).as_ptr()) }
                .store(invalid, Relaxed);
        }
        Ok(ring)
    }

    /// log2 of the number of entries.
    #[inline(always)]
    pub(crate) fn log_entries(&self) -> u32 {
        self.log_entries
    }

    /// The inline data of the entry of `index`: the CQE's own first 32 bytes, or the 64 before it, which only long
    /// entries have.
    pub(crate) fn inline_data(&self, index: u32, long: bool) -> Option<[u64; 8]> {
        let cqe = self.slot(index).cqe;
        let (start, words) = match (long, self.log_stride) {
            (false, _) => (cqe, 4),
            // SAFETY: the CQE is the second half of its entry.
            (true, 7) => (unsafe { cqe.sub(Cqe::BYTES) }, 8),
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
    pub(crate) fn slot(&self, index: u32) -> Slot<'_> {
        let index = index as usize & ((1 << self.log_entries) - 1);
        // The CQE proper is the last 64 bytes of an entry.
        let offset = ((index + 1) << self.log_stride) - Cqe::BYTES;
        // SAFETY: the masked index is inside the ring.
        Slot { cqe: unsafe { self.base.add(offset) }, ring: PhantomData }
    }
}

/// A place for one CQE in the ring.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'r> {
    /// 64 bytes inside the ring, aligned to 64.
    cqe: NonNull<u8>,
    ring: PhantomData<&'r CqRing>,
}

impl Slot<'_> {
    const LAST: usize = std::mem::offset_of!(Cqe, op_own);

    /// The last byte: the first to read. Everything else is read after
    /// [`after_owner_bit`](crate::uar::barrier::after_owner_bit).
    #[inline(always)]
    pub(crate) fn op_own(&self) -> u8 {
        event(Event::Owner);
        // SAFETY: a slot is 64 bytes inside the ring.
        unsafe { AtomicU8::from_ptr(self.cqe.add(Self::LAST).as_ptr()) }.load(Relaxed)
    }

    /// The big-endian 8-byte word at byte `OFFSET` of the CQE.
    #[inline(always)]
    pub(crate) fn word<const OFFSET: usize>(&self) -> u64 {
        const { assert!(OFFSET + 8 <= Cqe::BYTES && OFFSET.is_multiple_of(8)) };
        event(Event::Cqe(OFFSET as u32));
        // SAFETY: a slot is 64 bytes inside the ring, aligned to 64.
        u64::from_be(
            unsafe { AtomicU64::from_ptr(self.cqe.add(OFFSET).cast().as_ptr()) }.load(Relaxed),
        )
    }
}
