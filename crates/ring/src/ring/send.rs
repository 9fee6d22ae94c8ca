//! The send ring: WQEs of one or more WQEBBs (64 bytes), which we write and the device reads.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbless_prm::hot::WQEBB;

use super::exclusive::RingMemory;
use super::layout::LayoutError;
use crate::trace::{Event, event};

/// A ring of WQEBBs, a power of two of them, at most 32768.
pub(crate) struct SendRing {
    base: NonNull<u8>,
    /// Bytes of the ring less one.
    mask: u32,
    _memory: RingMemory,
}

// SAFETY: atomics in memory that is itself `Send`.
unsafe impl Send for SendRing {}

impl SendRing {
    pub(crate) fn new(memory: RingMemory) -> Result<Self, LayoutError> {
        let bytes = memory.len();
        if !bytes.is_power_of_two() || !(WQEBB..=WQEBB << 15).contains(&bytes) {
            return Err(LayoutError::new(
                "send ring",
                "is not 2^0 to 2^15 wqebbs of 64 bytes",
                bytes as u64,
            ));
        }
        if !memory.address().is_multiple_of(WQEBB as u64) {
            return Err(LayoutError::new(
                "send ring",
                "is not aligned to 64 bytes",
                memory.address(),
            ));
        }
        Ok(Self { base: memory.base(), mask: bytes as u32 - 1, _memory: memory })
    }

    /// Wqebbs in the ring.
    pub(crate) fn wqebbs(&self) -> u32 {
        self.mask / WQEBB as u32 + 1
    }

    /// The WQE whose first wqebb has this index (modulo the ring).
    #[inline(always)]
    pub(crate) fn wqe(&self, index: u32) -> Wqe<'_> {
        let start = (index << 6) & self.mask;
        // SAFETY: the masked offset is inside the ring.
        Wqe { ring: self, first: unsafe { self.base.add(start as usize) }, start }
    }
}

/// A WQE in the ring. It may wrap to the start of the ring.
#[derive(Clone, Copy)]
pub struct Wqe<'r> {
    ring: &'r SendRing,
    /// The first wqebb of the WQE.
    first: NonNull<u8>,
    /// Byte offset in the ring: at most its mask, and a multiple of 64.
    start: u32,
}

impl Wqe<'_> {
    /// Stores 16-byte segment number `index` of the WQE, in memory order.
    #[inline(always)]
    pub(crate) fn store(&self, index: usize, segment: [u64; 2]) {
        self.store_word(2 * index, segment[0]);
        self.store_word(2 * index + 1, segment[1]);
    }

    /// Stores 8-byte word number `index` of the WQE, in memory order.
    #[inline(always)]
    pub(crate) fn store_word(&self, index: usize, word: u64) {
        event(Event::Ring(self.offset(index)));
        // SAFETY: the word is inside the ring, which outlives us.
        unsafe { AtomicU64::from_ptr(self.word(index).as_ptr()) }.store(word, Relaxed);
    }

    /// 8-byte word number `index` of the WQE, in memory order. Only the driver writes it.
    #[inline(always)]
    pub(crate) fn load_word(&self, index: usize) -> u64 {
        // SAFETY: as in `store_word`.
        unsafe { AtomicU64::from_ptr(self.word(index).as_ptr()) }.load(Relaxed)
    }

    /// Pointer to 8-byte word number `index` in the ring, aligned.
    ///
    /// Within the first wqebb it needs no wrapping at the ring's end, because the wqebb is aligned
    /// to its size.
    #[inline(always)]
    fn word(&self, index: usize) -> NonNull<u64> {
        let (from, offset) = if index < WQEBB / 8 {
            (self.first, 8 * index)
        } else {
            (self.ring.base, self.offset(index) as usize)
        };
        // SAFETY: within the first wqebb, or a masked offset in the ring.
        unsafe { from.add(offset) }.cast()
    }

    /// Byte offset in the ring of 8-byte word number `index`: a multiple of 8.
    #[inline(always)]
    fn offset(&self, index: usize) -> u32 {
        (self.start + 8 * index as u32) & self.ring.mask
    }
}
