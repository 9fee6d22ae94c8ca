//! Allocates object numbers: the lowest free one, as on the device, so that a stale number soon
//! names another object.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::hca::kinds::kinds;
use crate::profile::Profile;

/// Number of values of the number fields in commands.
const BYTE: u32 = 1 << 8;
const HALF: u32 = 1 << 16;
const THREE_BYTES: u32 = 1 << 24;

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

    /// Takes the lowest free number, if any.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.lowest()?;
        self.take_this(number);
        Some(number)
    }

    /// Takes a number that [`NumberAllocator::lowest`] returned.
    pub(crate) fn take_this(&mut self, number: u32) {
        if number == self.next {
            self.next += 1;
        } else {
            let was_free = self.free.remove(&number);
            debug_assert!(was_free, "a number that was taken before");
        }
    }

    /// Returns a number.
    pub(crate) fn give(&mut self, number: u32) {
        debug_assert!(number < self.next, "a number that was never taken");
        let new = self.free.insert(number);
        debug_assert!(new, "a number that was given back before");
    }
}

macro_rules! all_numbers {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
        numbers: [$($name:ident: $range:expr),*],
        $($rest:tt)*
    })*) => {
        /// The number allocators of a function's objects.
        #[derive(Debug)]
        pub(crate) struct NumberAllocators {
            $($(pub $name: NumberAllocator,)*)*
        }

        impl NumberAllocators {
            pub(crate) fn new(profile: &Profile) -> Self {
                fn of(
                    profile: &Profile,
                    range: impl Fn(&Profile) -> Range<u32>,
                ) -> NumberAllocator {
                    NumberAllocator::new(range(profile))
                }
                Self { $($($name: of(profile, $range),)*)* }
            }
        }
    };
}

kinds!(all_numbers);
