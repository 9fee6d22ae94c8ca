//! The receive ring: WQEs of a fixed stride, each a list of data segments.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbless_prm::hot::OCTOWORD;

use super::exclusive::RingMemory;
use super::layout::LayoutError;
use crate::trace::{Event, event};

/// A ring of receive WQEs, a power of two of them, at most 32768.
pub(crate) struct ReceiveRing {
    base: NonNull<u8>,
    /// Bytes of the ring, minus 1.
    mask: u32,
    /// log2 of the bytes of a WQE.
    log_stride: u32,
    _memory: RingMemory,
}

// SAFETY: atomics in memory that is itself `Send`.
unsafe impl Send for ReceiveRing {}

impl ReceiveRing {
    /// `stride` is the bytes of a WQE: a power of two from 16 to 512.
    pub(crate) fn new(memory: RingMemory, stride: usize) -> Result<Self, LayoutError> {
        if !stride.is_power_of_two() || !(OCTOWORD..=512).contains(&stride) {
            return Err(LayoutError::new(
                "receive stride",
                "is not a power of two from 16 to 512",
                stride as u64,
            ));
        }
        let bytes = memory.len();
        if !bytes.is_power_of_two() || !(stride..=stride << 15).contains(&bytes) {
            return Err(LayoutError::new(
                "receive ring",
                "is not 2^0 to 2^15 strides",
                bytes as u64,
            ));
        }
        if !memory.address().is_multiple_of(OCTOWORD as u64) {
            return Err(LayoutError::new(
                "receive ring",
                "is not aligned to 16 bytes",
                memory.address(),
            ));
        }
        let log_stride = stride.trailing_zeros();
        Ok(Self { base: memory.base(), mask: bytes as u32 - 1, log_stride, _memory: memory })
    }

    /// WQEs in the ring.
    pub(crate) fn count(&self) -> u32 {
        (self.mask >> self.log_stride) + 1
    }

    /// Data segments per WQE.
    pub(crate) fn segments(&self) -> u32 {
        1 << (self.log_stride - 4)
    }

    /// Stores data segment `segment` of WQE `index`, as words in memory order. The segment is taken
    /// modulo [`segments`](Self::segments), the index modulo [`count`](Self::count).
    #[inline(always)]
    pub(crate) fn store(&self, index: u32, segment: u32, words: [u64; 2]) {
        let segment = segment & (self.segments() - 1);
        let offset = ((index << self.log_stride) & self.mask) + 16 * segment;
        for (i, word) in words.into_iter().enumerate() {
            let offset = offset + 8 * i as u32;
            event(Event::Ring(offset));
            // SAFETY: the masked index and segment are inside the ring, aligned to 16 bytes; the
            // ring lives as long as `self`.
            unsafe { AtomicU64::from_ptr(self.base.add(offset as usize).cast().as_ptr()) }
                .store(word, Relaxed);
        }
    }
}
