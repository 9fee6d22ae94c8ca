//! Host memory of a queue, doorbell record or translation table.

use crate::hca::budget::ChargedList;

/// Pages of one size, and a range of bytes in them.
#[derive(Debug, Clone)]
pub(crate) struct QueueMemory {
    /// DMA addresses of the pages, in order.
    pub pages: ChargedList<u64>,
    /// log2 of the page size in bytes.
    pub log_page_size: u32,
    /// Offset of the first byte from the start of page 0; a slice may begin in a later page.
    pub offset: u64,
    /// Length in bytes; callers must stay within it.
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
