//! What objects of several families have: an owner, and memory of the host's.

use crate::hca::budget::List;

/// A run of host memory that holds a queue, record or translation table: pages of one size and an
/// offset into the first.
#[derive(Debug, Clone)]
pub(crate) struct QueueMemory {
    /// DMA addresses of the pages, in order.
    pub pages: List<u64>,
    /// log2 of the page size in bytes.
    pub log_page_size: u32,
    /// Byte offset of the first byte, counted from the first page; it may lie in a later one.
    pub offset: u64,
    /// Length in bytes; an access past it is the model's bug.
    pub length: u64,
}

impl QueueMemory {
    /// DMA address of byte `at`; the caller keeps within a naturally aligned 64-byte (or smaller)
    /// unit, which never crosses a page.
    pub(crate) fn address(&self, at: u64) -> u64 {
        debug_assert!(at < self.length);
        let at = at + self.offset;
        self.pages[(at >> self.log_page_size) as usize] + (at & ((1 << self.log_page_size) - 1))
    }

    /// The part of `length` bytes from byte `at`, if it lies within.
    pub(crate) fn slice(&self, at: u64, length: u64) -> Option<Self> {
        at.checked_add(length).filter(|&end| end <= self.length)?;
        Some(Self { offset: self.offset.checked_add(at)?, length, ..self.clone() })
    }
}

/// The owner of an object: 0 is the kernel, others are user contexts (CREATE_UCTX).
pub(crate) type Uid = u16;

/// The uid that a driver stamps on an event queue which every user context may name in its CQs.
pub(crate) const SHARED_UID: Uid = 0xffff;
