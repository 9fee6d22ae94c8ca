//! Numbers for objects: the lowest free one, as on the device, so that a stale number soon means something else.

use std::collections::BTreeSet;

/// The numbers of one kind of object.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    next: u32,
    end: u32,
    free: BTreeSet<u32>,
}

impl Numbers {
    /// Numbers from `first` to below `end`.
    pub(crate) fn new(first: u32, end: u32) -> Self {
        Self { next: first, end, free: BTreeSet::new() }
    }

    /// Takes the lowest free number, if there is one.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop_first() {
            return Some(number);
        }
        let number = self.next;
        (number < self.end).then(|| {
            self.next += 1;
            number
        })
    }

    /// Gives a number back.
    pub(crate) fn give(&mut self, number: u32) {
        debug_assert!(number < self.next, "a number that was never taken");
        let new = self.free.insert(number);
        debug_assert!(new, "a number that was given back before");
    }
}
