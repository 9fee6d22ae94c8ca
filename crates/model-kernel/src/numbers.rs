//! Numbers for handles and pages: the lowest free one, as Linux's IDAs return them. A stale number
//! soon names another object.

use std::collections::BTreeSet;

/// The numbers of one kind.
#[derive(Debug, Clone)]
pub(crate) struct IdAllocator {
    next: u32,
    end: u32,
    free: BTreeSet<u32>,
}

impl IdAllocator {
    /// Numbers from `first` to below `end`.
    pub(crate) fn new(first: u32, end: u32) -> Self {
        Self { next: first, end, free: BTreeSet::new() }
    }

    /// The lowest free number, if any.
    pub(crate) fn lowest(&self) -> Option<u32> {
        let new = (self.next < self.end).then_some(self.next);
        self.free.first().copied().or(new)
    }

    /// Allocates a number that [`IdAllocator::lowest`] returned.
    pub(crate) fn allocate_this(&mut self, number: u32) {
        if number == self.next {
            self.next += 1;
        } else {
            let was_free = self.free.remove(&number);
            debug_assert!(was_free, "a number that is allocated already");
        }
    }

    /// Frees a number.
    pub(crate) fn release(&mut self, number: u32) {
        debug_assert!(number < self.next, "a number that was never allocated");
        let new = self.free.insert(number);
        debug_assert!(new, "a number that is free already");
    }
}
