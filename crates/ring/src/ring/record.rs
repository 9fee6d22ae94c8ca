//! Doorbell records: words that we write and the device reads.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::exclusive::RecordMemory;
use crate::trace::{Event, event};

/// One big-endian word of a doorbell record.
#[derive(Clone)]
pub(crate) struct Record {
    word: NonNull<AtomicU32>,
    _memory: RecordMemory,
}

// SAFETY: an atomic in memory that is itself `Send`.
unsafe impl Send for Record {}

impl Record {
    /// The word at byte `at` of the record in `memory`: the offset of its member in a
    /// `…DoorbellRecord` of `verbless_prm`.
    pub(crate) fn new(memory: &RecordMemory, at: usize) -> Self {
        let word = &memory.words()[at / size_of::<AtomicU32>()];
        Self { word: NonNull::from(word), _memory: memory.clone() }
    }

    /// The value that was last stored for the device.
    pub(crate) fn load(&self) -> u32 {
        // SAFETY: a word of the memory, which lives as long as `self`.
        u32::from_be(unsafe { self.word.as_ref() }.load(Relaxed))
    }

    /// Stores `value` for the device.
    #[inline(always)]
    pub(crate) fn store(&self, value: u32) {
        event(Event::Record(value));
        // SAFETY: as in `load`.
        unsafe { self.word.as_ref() }.store(value.to_be(), Relaxed);
    }
}
