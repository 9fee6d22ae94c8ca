//! Types that objects of several families share: an owner, and host memory.

use crate::hca::budget::ChargedList;

/// A run of host memory of a queue, record or translation table: pages of one size and an offset
/// into the first.
#[derive(Debug, Clone)]
pub(crate) struct QueueMemory {
    /// DMA addresses of the pages, in order.
    pub pages: ChargedList<u64>,
    /// log2 of the page size in bytes.
    pub log_page_size: u32,
    /// Byte offset of the first byte from the first page; it may lie in a later page.
    pub offset: u64,
    /// Length in bytes; an access past it is a bug of the model.
    pub length: u64,
}

impl QueueMemory {
    /// DMA address of byte `at`. The caller stays within a naturally aligned unit of at most 64
    /// bytes, which never crosses a page.
    pub(crate) fn address(&self, at: u64) -> u64 {
        debug_assert!(at < self.length);
        let at = at + self.offset;
        self.pages[(at >> self.log_page_size) as usize] + (at & ((1 << self.log_page_size) - 1))
    }

    /// The `length` bytes from byte `at`, if they lie within.
    pub(crate) fn slice(&self, at: u64, length: u64) -> Option<Self> {
        at.checked_add(length).filter(|&end| end <= self.length)?;
        Some(Self { offset: self.offset.checked_add(at)?, length, ..self.clone() })
    }
}

/// The owner of an object: 0 is the kernel, others are user contexts (CREATE_UCTX).
pub(crate) type Uid = u16;

/// The uid of event queues that every user context may name in its CQs; a driver stamps it.
pub(crate) const SHARED_UID: Uid = 0xffff;
