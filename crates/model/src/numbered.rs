//! Things by their numbers, in ascending order.
//!
//! A model has a map for each kind of object, and a standard one would be compiled anew for each of
//! them, which was a third of what this crate took to compile. Here the order is kept by one map
//! from numbers to places, which is the same for all, and only a list of the things is of their
//! type.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::{Bound, Index, RangeBounds};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The type of a number.
pub(crate) trait Number: Copy + Ord + fmt::Debug {
    /// The number itself: of two, the greater one stays the greater.
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
    places: Places,
    entries: Vec<Option<(K, V)>>,
    last: Last,
}

/// The place of what was looked for last: who looks for it again, as the data path does, does not
/// search. It may be out of date, so that the number there is compared.
#[derive(Default)]
struct Last(AtomicUsize);

impl Clone for Last {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Where the value of each number is, and which places are free.
#[derive(Clone, Default)]
struct Places {
    of: BTreeMap<u64, usize>,
    free: Vec<usize>,
}

impl Places {
    fn get(&self, number: u64) -> Option<usize> {
        self.of.get(&number).copied()
    }

    /// The place of a number: if it has none yet, one that is free, or `end`.
    fn of_number(&mut self, number: u64, end: usize) -> usize {
        let Self { of, free } = self;
        *of.entry(number).or_insert_with(|| free.pop().unwrap_or(end))
    }

    fn remove(&mut self, number: u64) -> Option<usize> {
        let place = self.of.remove(&number)?;
        self.free.push(place);
        Some(place)
    }

    fn range(&self, start: Bound<u64>, end: Bound<u64>) -> btree_map::Range<'_, u64, usize> {
        self.of.range((start, end))
    }

    fn retain(&mut self, stays: &mut dyn FnMut(usize) -> bool) {
        let Self { of, free } = self;
        of.retain(|_, &mut place| {
            let stays = stays(place);
            if !stays {
                free.push(place);
            }
            stays
        });
    }
}

impl<K, V> Default for Numbered<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Numbered<K, V> {
    pub(crate) const fn new() -> Self {
        let places = Places { of: BTreeMap::new(), free: Vec::new() };
        Self { places, entries: Vec::new(), last: Last(AtomicUsize::new(0)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.of.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.of.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.at(self.places.range(Bound::Unbounded, Bound::Unbounded))
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(number, _)| number)
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let mut entries: Vec<_> = self.entries.iter_mut().map(Option::as_mut).collect();
        let entries = self.places.of.values().filter_map(move |&place| entries[place].take());
        entries.map(|(number, value)| (&*number, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    fn at<'a>(
        &'a self,
        places: btree_map::Range<'a, u64, usize>,
    ) -> impl DoubleEndedIterator<Item = (&'a K, &'a V)> {
        let entries = places.filter_map(|(_, &place)| self.entries[place].as_ref());
        entries.map(|(number, value)| (number, value))
    }
}

impl<K: Number, V> Numbered<K, V> {
    #[inline]
    pub(crate) fn get(&self, number: &K) -> Option<&V> {
        match self.entries.get(self.last.0.load(Relaxed)) {
            Some(Some((there, value))) if there == number => Some(value),
            _ => self.entries[self.find(*number)?].as_ref().map(|(_, value)| value),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: &K) -> Option<&mut V> {
        let last = *self.last.0.get_mut();
        let place = match self.entries.get(last) {
            Some(Some((there, _))) if there == number => last,
            _ => self.find(*number)?,
        };
        self.entries[place].as_mut().map(|(_, value)| value)
    }

    /// Searches for the place of a number, for the next one who looks for it, too.
    #[cold]
    fn find(&self, number: K) -> Option<usize> {
        let place = self.places.get(number.widen())?;
        self.last.0.store(place, Relaxed);
        Some(place)
    }

    pub(crate) fn contains_key(&self, number: &K) -> bool {
        self.places.of.contains_key(&number.widen())
    }

    /// Puts a value in the place of a number; what was there.
    pub(crate) fn insert(&mut self, number: K, value: V) -> Option<V> {
        Some(self.slot(number).replace((number, value))?.1)
    }

    pub(crate) fn remove(&mut self, number: &K) -> Option<V> {
        let place = self.places.remove(number.widen())?;
        Some(self.entries[place].take()?.1)
    }

    /// The value of a number, made first if there is none.
    pub(crate) fn get_or_insert_with(&mut self, number: K, make: impl FnOnce() -> V) -> &mut V {
        &mut self.slot(number).get_or_insert_with(|| (number, make())).1
    }

    /// Where the value of a number is or will be.
    fn slot(&mut self, number: K) -> &mut Option<(K, V)> {
        let place = self.places.of_number(number.widen(), self.entries.len());
        if place == self.entries.len() {
            self.entries.push(None);
        }
        &mut self.entries[place]
    }

    pub(crate) fn range(
        &self,
        range: impl RangeBounds<K>,
    ) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let wide = |bound: Bound<&K>| bound.map(|number| number.widen());
        self.at(self.places.range(wide(range.start_bound()), wide(range.end_bound())))
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = K> {
        let Self { places, mut entries, .. } = self;
        places.of.into_values().filter_map(move |place| Some(entries[place].take()?.0))
    }

    /// Removes what does not pass.
    pub(crate) fn retain(&mut self, mut pass: impl FnMut(&K, &mut V) -> bool) {
        let Self { places, entries, .. } = self;
        places.retain(&mut |place| {
            let entry = &mut entries[place];
            let stays = entry.as_mut().is_some_and(|(number, value)| pass(number, value));
            if !stays {
                *entry = None;
            }
            stays
        });
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
        fn whatever_is_done_it_holds_what_a_map_of_the_standard_library_holds(
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
                    Step::Retain(least) => {
                        map.retain(|number, _| *number >= least);
                        numbered.retain(|number, _| *number >= least);
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
                // Places of what was removed are used again.
                prop_assert!(numbered.entries.len() <= 12);
            }
            prop_assert!(map.into_keys().eq(numbered.into_keys()));
        }
    }
}
