//! Memory that only a queue and the device use: rings and doorbell records.
//!
//! The words of a ring are atomics of their own sizes; a copy that races with one of them, or an
//! access of another size, is undefined. So safe code cannot have a second handle to a queue's
//! memory: [`RingMemory`] is not `Clone`, and the queue takes it. [`RingMemory::new`] states the
//! one promise.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;

use super::layout::LayoutError;
use super::memory::{OutOfBounds, SharedMemory};

/// Memory for one ring or one doorbell record, which only its queue and the device access.
pub struct RingMemory {
    memory: SharedMemory,
}

impl RingMemory {
    /// The memory of `memory`, for one queue.
    ///
    /// # Safety
    /// While the `RingMemory`, a part of it or a queue over it lives (cleaners of a completion
    /// queue included), no other handle, pointer or `RingMemory` accesses its bytes at the same
    /// time as they do: code that accesses ordinary memory in the device's place runs on the thread
    /// that uses the queue, or synchronizes with it. A device may read and write the bytes at any
    /// time; it moves each aligned word as a whole. The owner of `memory` keeps the bytes mapped as
    /// [`SharedMemory::from_raw`] requires.
    ///
    /// Size and alignment need no promise: every queue checks them when it is built.
    pub unsafe fn new(memory: SharedMemory) -> Self {
        Self { memory }
    }

    /// The first `bytes` bytes, and the rest.
    ///
    /// # Errors
    /// The memory is shorter.
    pub fn split_at(self, bytes: usize) -> Result<(Self, Self), OutOfBounds> {
        let first = self.memory.slice(0, bytes)?;
        let rest = self.memory.slice(bytes, self.memory.len() - bytes)?;
        Ok((Self { memory: first }, Self { memory: rest }))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    /// The owner of the mapping.
    pub(super) fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.memory.owner()
    }
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingMemory({:#x} bytes at {:#x})", self.len(), self.address())
    }
}

/// A doorbell record: two aligned 32-bit words, each accessed only as an atomic. Clones refer to
/// the same record: the send queue and the receive queue of a queue pair have one each.
#[derive(Clone)]
pub struct RecordMemory {
    words: NonNull<[AtomicU32; 2]>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the two words are only accessed as atomics, and the owner keeps them mapped from any
// thread.
unsafe impl Send for RecordMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for RecordMemory {}

impl RecordMemory {
    /// The record at the beginning of `memory`.
    ///
    /// # Errors
    /// The memory has fewer than 8 bytes, or does not begin at a multiple of 4.
    pub fn new(memory: RingMemory) -> Result<Self, LayoutError> {
        let words = memory.base().cast::<[AtomicU32; 2]>();
        if memory.len() < size_of::<[AtomicU32; 2]>() || !words.is_aligned() {
            let length = memory.len() as u64;
            return Err(LayoutError::new("doorbell record", "is not two aligned words", length));
        }
        Ok(Self { words, _owner: memory.owner() })
    }

    /// The words.
    #[inline(always)]
    pub(super) fn words(&self) -> &[AtomicU32; 2] {
        // SAFETY: `new` checked size and alignment, and the owner keeps the words mapped. By the
        // promise of `RingMemory`, they are accessed only as these atomics.
        unsafe { self.words.as_ref() }
    }
}

impl fmt::Debug for RecordMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordMemory({:p})", self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(offset: usize, length: usize) -> RingMemory {
        let memory = SharedMemory::zeroed(4096).slice(offset, length).unwrap();
        // SAFETY: no other handle to it is used.
        unsafe { RingMemory::new(memory) }
    }

    #[test]
    fn split_ring_memory_parts_are_adjacent() {
        let whole = memory(64, 256);
        let start = whole.address();
        let (first, rest) = whole.split_at(192).unwrap();
        assert_eq!((first.address(), first.len()), (start, 192));
        assert_eq!((rest.address(), rest.len()), (start + 192, 64));
        assert!(rest.split_at(65).is_err());
        let (all, nothing) = memory(0, 8).split_at(8).unwrap();
        assert!(!all.is_empty() && nothing.is_empty());
    }

    #[test]
    fn doorbell_record_must_be_two_aligned_words() {
        for (offset, length) in [(0, 0), (0, 4), (0, 7), (1, 8), (2, 8), (4093, 3)] {
            let error = RecordMemory::new(memory(offset, length)).unwrap_err();
            assert_eq!(error.what, "doorbell record", "{offset} {length}");
        }
        for (offset, length) in [(0, 8), (4, 8), (8, 64), (4088, 8)] {
            assert!(RecordMemory::new(memory(offset, length)).is_ok(), "{offset} {length}");
        }
    }
}
