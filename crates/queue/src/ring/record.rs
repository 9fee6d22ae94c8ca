//! Doorbell records: words that we write and the device reads.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{LayoutError, SharedMemory};
use crate::trace::{Event, event};

/// One big-endian word of a doorbell record.
pub(crate) struct Record {
    word: NonNull<AtomicU32>,
    _memory: SharedMemory,
}

// SAFETY: an atomic in memory that is itself `Send`.
unsafe impl Send for Record {}

impl Record {
    /// The word at byte `offset` of the record in `memory`.
    pub(crate) fn new(memory: &SharedMemory, offset: usize) -> Result<Self, LayoutError> {
        memory.load32(offset).map_err(|_| {
            LayoutError::new("doorbell record", "is not two aligned words", memory.len() as u64)
        })?;
        // SAFETY: `load32` found an aligned word there.
        let word = unsafe { memory.base().add(offset) }.cast();
        Ok(Self { word, _memory: memory.clone() })
    }

    /// What the device was told last.
    pub(crate) fn load(&self) -> u32 {
        // SAFETY: checked in `new`; the memory lives as long as we do.
        u32::from_be(unsafe { self.word.as_ref() }.load(Relaxed))
    }

    /// Tells the device `value`.
    #[inline(always)]
    pub(crate) fn store(&self, value: u32) {
        event(Event::Record(value));
        // SAFETY: checked in `new`; the memory lives as long as we do.
        unsafe { self.word.as_ref() }.store(value.to_be(), Relaxed);
    }
}
