//! A map from numbers to objects, iterated in ascending order of the numbers.
//!
//! The model has such a map for each kind of object. A `BTreeMap` would be compiled anew for each
//! kind, which was a third of this crate's unoptimised code. Here all kinds share one type of tree,
//! from numbers to indexes; only the vector of objects is specific to a kind.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::{Bound, Index, RangeBounds};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A number that is a key of [`Numbered`].
pub(crate) trait Number: Copy + Ord + fmt::Debug {
    /// The number as 64 bits, in the same order.
    fn widen(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn widen(self) -> u64 {
                self as u64
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64 usize);

/// A map from numbers to values, iterated in ascending order of the numbers.
#[derive(Clone)]
pub(crate) struct Numbered<K, V> {
    /// The index of each number in `entries`.
    slots: BTreeMap<u64, usize>,
    /// Unordered, without holes.
    entries: Vec<(K, V)>,
    last: Last,
}

/// The index of the last lookup: a repeated lookup, as in the data path, needs no search. It may be
/// stale, so the number there is compared.
#[derive(Default)]
struct Last(AtomicUsize);

impl Clone for Last {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<K, V> Default for Numbered<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Numbered<K, V> {
    /// Approximate bytes of an entry, without memory that its value owns: the entry, and a
    /// half-full node of the tree.
    pub(crate) const ENTRY_BYTES: usize = size_of::<(K, V)>() + 2 * size_of::<(u64, usize)>();

    pub(crate) const fn new() -> Self {
        Self { slots: BTreeMap::new(), entries: Vec::new(), last: Last(AtomicUsize::new(0)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter { slots: self.slots.range(..), entries: &self.entries }
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(number, _)| number)
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let mut entries: Vec<_> = self.entries.iter_mut().map(Some).collect();
        let entries = self.slots.values().filter_map(move |&slot| entries[slot].take());
        entries.map(|(number, value)| (&*number, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// How many values satisfy `pass`.
    pub(crate) fn count(&self, pass: fn(&V) -> bool) -> usize {
        let mut count = 0;
        for (_, value) in &self.entries {
            count += usize::from(pass(value));
        }
        count
    }
}

/// The numbers and values in a range. It is a type of its own instead of a chain of closures,
/// because each closure is compiled for each kind of object and for each use.
pub(crate) struct Iter<'a, K, V> {
    slots: btree_map::Range<'a, u64, usize>,
    entries: &'a [(K, V)],
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let (number, value) = &self.entries[*self.slots.next()?.1];
        Some((number, value))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (number, value) = &self.entries[*self.slots.next_back()?.1];
        Some((number, value))
    }
}

impl<K: Number, V> Numbered<K, V> {
    #[inline]
    pub(crate) fn get(&self, number: &K) -> Option<&V> {
        match self.entries.get(self.last.0.load(Relaxed)) {
            Some((there, value)) if there == number => Some(value),
            _ => Some(&self.entries[self.find(*number)?].1),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: &K) -> Option<&mut V> {
        let last = *self.last.0.get_mut();
        let slot = match self.entries.get(last) {
            Some((there, _)) if there == number => last,
            _ => self.find(*number)?,
        };
        Some(&mut self.entries[slot].1)
    }

    /// Finds the index of a number, and caches it for the next lookup.
    #[cold]
    fn find(&self, number: K) -> Option<usize> {
        let slot = *self.slots.get(&number.widen())?;
        self.last.0.store(slot, Relaxed);
        Some(slot)
    }

    pub(crate) fn contains_key(&self, number: &K) -> bool {
        self.slots.contains_key(&number.widen())
    }

    /// Inserts a value under a number; returns the old value.
    pub(crate) fn insert(&mut self, number: K, value: V) -> Option<V> {
        if let Some(known) = self.get_mut(&number) {
            return Some(std::mem::replace(known, value));
        }
        self.slots.insert(number.widen(), self.entries.len());
        self.entries.push((number, value));
        None
    }

    /// Removes a value; the last entry moves to its index.
    pub(crate) fn remove(&mut self, number: &K) -> Option<V> {
        let slot = self.slots.remove(&number.widen())?;
        let (_, value) = self.entries.swap_remove(slot);
        if let Some((moved, _)) = self.entries.get(slot) {
            self.slots.insert(moved.widen(), slot);
        }
        // A map that shrank returns its memory.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.capacity() / 2);
        }
        Some(value)
    }

    /// The value of a number; `make` creates it if there is none.
    pub(crate) fn get_or_insert_with(&mut self, number: K, make: impl FnOnce() -> V) -> &mut V {
        let slot = match self.find(number) {
            Some(slot) => slot,
            None => {
                let value = make();
                self.insert(number, value);
                self.entries.len() - 1
            }
        };
        &mut self.entries[slot].1
    }

    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> Iter<'_, K, V> {
        let wide = |bound: Bound<&K>| bound.map(|number| number.widen());
        let slots = self.slots.range((wide(range.start_bound()), wide(range.end_bound())));
        Iter { slots, entries: &self.entries }
    }

    /// The numbers of the values that satisfy `pass`, in ascending order.
    pub(crate) fn numbers_of(&self, pass: &dyn Fn(&V) -> bool) -> Vec<K> {
        let mut numbers = Vec::new();
        for (number, value) in self.iter() {
            if pass(value) {
                numbers.push(*number);
            }
        }
        numbers
    }

    /// Removes the values that do not satisfy `pass`.
    pub(crate) fn retain(&mut self, mut pass: impl FnMut(&K, &mut V) -> bool) {
        let fails = self.iter_mut().filter_map(|(number, value)| {
            let stays = pass(number, value);
            (!stays).then_some(*number)
        });
        for number in fails.collect::<Vec<_>>() {
            self.remove(&number);
        }
    }
}

impl<K: Number, V> Index<&K> for Numbered<K, V> {
    type Output = V;

    fn index(&self, number: &K) -> &V {
        self.get(number).expect("there is something of this number")
    }
}

impl<K: Number, V> FromIterator<(K, V)> for Numbered<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut numbered = Self::new();
        for (number, value) in all {
            numbered.insert(number, value);
        }
        numbered
    }
}

impl<K: Number, V, const N: usize> From<[(K, V); N]> for Numbered<K, V> {
    fn from(all: [(K, V); N]) -> Self {
        all.into_iter().collect()
    }
}

impl<K: Number, V: fmt::Debug> fmt::Debug for Numbered<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::Numbered;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16),
        Remove(u16),
        Change(u16),
        Make(u16),
        Retain(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = 0_u16..12;
        prop_oneof![
            4 => number.clone().prop_map(Step::Insert),
            3 => number.clone().prop_map(Step::Remove),
            1 => number.clone().prop_map(Step::Change),
            1 => number.clone().prop_map(Step::Make),
            1 => number.prop_map(Step::Retain),
        ]
    }

    proptest! {
        #[test]
        fn numbered_behaves_like_a_btree_map(
            steps in proptest::collection::vec(step(), 0..60),
            from: u16,
            to in 0_u16..14,
        ) {
            let (mut map, mut numbered) = (BTreeMap::new(), Numbered::new());
            for (time, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(at) => {
                        prop_assert_eq!(map.insert(at, time), numbered.insert(at, time));
                    }
                    Step::Remove(at) => prop_assert_eq!(map.remove(&at), numbered.remove(&at)),
                    Step::Change(at) => {
                        prop_assert_eq!(map.get(&at), numbered.get(&at));
                        for value in map.get_mut(&at).into_iter().chain(numbered.get_mut(&at)) {
                            *value += 100;
                        }
                    }
                    Step::Make(at) => {
                        let made = *map.entry(at).or_insert(time);
                        prop_assert_eq!(made, *numbered.get_or_insert_with(at, || time));
                    }
                    Step::Retain(min) => {
                        map.retain(|number, _| *number >= min);
                        numbered.retain(|number, _| *number >= min);
                    }
                }
                prop_assert!(map.iter().eq(numbered.iter()));
                prop_assert!(map.iter().rev().eq(numbered.iter().rev()));
                prop_assert!(map.iter_mut().eq(numbered.iter_mut()));
                prop_assert_eq!((map.len(), map.is_empty()), (numbered.len(), numbered.is_empty()));
                let from = from % 14;
                prop_assert_eq!(map.contains_key(&from), numbered.contains_key(&from));
                prop_assert!(map.range(from..).eq(numbered.range(from..)));
                prop_assert!(map.range(..to).eq(numbered.range(..to)));
                prop_assert_eq!(numbered.entries.len(), map.len(), "without holes");
            }
        }
    }

    #[test]
    fn removal_releases_memory() {
        let mut numbered: Numbered<u32, [u64; 8]> = (0..4096).map(|it| (it, [0; 8])).collect();
        assert!(numbered.entries.capacity() >= 4096);
        (1..4096).for_each(|it| assert!(numbered.remove(&it).is_some()));
        assert!(numbered.entries.capacity() <= 8, "{}", numbered.entries.capacity());
        assert_eq!(numbered.keys().collect::<Vec<_>>(), [&0]);
    }
}
