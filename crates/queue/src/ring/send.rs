//! The send ring: WQEs of 64-byte blocks, written by us and read by the device.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbless_prm::hot::WQEBB;

use super::{LayoutError, SharedMemory};
use crate::trace::{Event, event};

/// A ring of WQEBBs, a power of two of them, at most 32768.
pub(crate) struct SendRing {
    base: NonNull<u8>,
    /// Bytes of the ring less one.
    mask: u32,
    _memory: SharedMemory,
}

// SAFETY: atomics in memory that is itself `Send`.
unsafe impl Send for SendRing {}

impl SendRing {
    pub(crate) fn new(memory: &SharedMemory) -> Result<Self, LayoutError> {
        let bytes = memory.len();
        if !bytes.is_power_of_two() || !(WQEBB..=WQEBB << 15).contains(&bytes) {
            return Err(LayoutError::new(
                "send ring",
                "is not 2^0 to 2^15 blocks of 64 bytes",
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
        Ok(Self { base: memory.base(), mask: bytes as u32 - 1, _memory: memory.clone() })
    }

    /// Blocks in the ring.
    pub(crate) fn blocks(&self) -> u32 {
        self.mask / WQEBB as u32 + 1
    }

    /// The WQE whose first block has this index (modulo the ring).
    #[inline(always)]
    pub(crate) fn wqe(&self, index: u32) -> Wqe<'_> {
        Wqe { ring: self, base: self.base, start: (index << 6) & self.mask }
    }
}

/// A WQE in the ring. It may go on at the start of the ring.
#[derive(Clone, Copy)]
pub struct Wqe<'r> {
    ring: &'r SendRing,
    /// The ring's, here because a store makes the compiler read it again where it is behind a reference.
    base: NonNull<u8>,
    /// Byte offset in the ring: at most its mask, and a multiple of 64.
    start: u32,
}

impl<'r> Wqe<'r> {
    /// The ring, and the byte offset in it: what [`Wqe::at`] makes the WQE of again.
    #[inline(always)]
    pub(crate) fn place(&self) -> (&'r SendRing, u32) {
        (self.ring, self.start)
    }

    /// The WQE whose first block is at this byte offset (rounded down to a block, modulo the ring).
    #[inline(always)]
    pub(crate) fn at((ring, offset): (&'r SendRing, u32)) -> Self {
        ring.wqe(offset >> 6)
    }

    /// Stores 16-byte segment number `index` of the WQE, as it is to stand in memory.
    #[inline(always)]
    pub(crate) fn store(&self, index: usize, segment: [u64; 2]) {
        self.store_word(2 * index, segment[0]);
        self.store_word(2 * index + 1, segment[1]);
    }

    /// Stores 8-byte word number `index` of the WQE, as it is to stand in memory.
    #[inline(always)]
    pub(crate) fn store_word(&self, index: usize, word: u64) {
        let offset = self.offset(index);
        event(Event::Ring(offset));
        // SAFETY: `offset` is inside the ring and a multiple of 8; the ring outlives us.
        unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast().as_ptr()) }
            .store(word, Relaxed);
    }

    /// 8-byte word number `index` of the WQE, as it stands in memory. We wrote it; the device does not.
    #[inline(always)]
    pub(crate) fn load_word(&self, index: usize) -> u64 {
        let offset = self.offset(index);
        // SAFETY: as in `store_word`.
        unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast().as_ptr()) }.load(Relaxed)
    }

    /// Byte offset in the ring of 8-byte word number `index`.
    ///
    /// The first block never meets the end of the ring, being aligned to its size: no mask, no instruction.
    #[inline(always)]
    fn offset(&self, index: usize) -> u32 {
        let offset = self.start + 8 * index as u32;
        if index < WQEBB / 8 { offset } else { offset & self.ring.mask }
    }
}
