//! Allocates object numbers: the lowest free one, as on the device, so that a stale number soon
//! names another object.

use std::collections::BTreeSet;
use std::ops::Range;

/// The numbers of one kind of object.
#[derive(Debug, Clone)]
pub(crate) struct NumberAllocator {
    next: u32,
    end: u32,
    free: BTreeSet<u32>,
}

impl NumberAllocator {
    /// The numbers of a range.
    pub(crate) fn new(range: Range<u32>) -> Self {
        Self { next: range.start, end: range.end, free: BTreeSet::new() }
    }

    /// The lowest free number, if any.
    pub(crate) fn lowest(&self) -> Option<u32> {
        let new = (self.next < self.end).then_some(self.next);
        self.free.first().copied().or(new)
    }

    /// Allocates the lowest free number, if any.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let number = self.lowest()?;
        self.allocate_this(number);
        Some(number)
    }

    /// Allocates a number that [`NumberAllocator::lowest`] returned.
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
