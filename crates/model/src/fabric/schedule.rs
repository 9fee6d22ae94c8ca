//! A queue of events ordered by time, then by number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Future events in order of time; events of the same time, in the order in which they were added.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    next: u64,
    /// Entries that were added at the end, as most are.
    in_order: VecDeque<ScheduleEntry<T>>,
    /// All other entries.
    others: BinaryHeap<Reverse<ScheduleEntry<T>>>,
}

#[derive(Debug)]
struct ScheduleEntry<T> {
    /// Time and number.
    key: (u64, u64),
    what: T,
}

impl<T> PartialEq for ScheduleEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for ScheduleEntry<T> {}

impl<T> PartialOrd for ScheduleEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for ScheduleEntry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { next: 0, in_order: VecDeque::new(), others: BinaryHeap::new() }
    }
}

impl<T> Schedule<T> {
    pub(super) fn add(&mut self, due: u64, what: T) {
        let entry = ScheduleEntry { key: (due, self.next), what };
        self.next += 1;
        match self.in_order.back() {
            Some(last) if last.key.0 > due => self.others.push(Reverse(entry)),
            _ => self.in_order.push_back(entry),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    /// Time and number of the next event.
    fn first(&self) -> Option<(u64, u64)> {
        let in_order = self.in_order.front().map(|entry| entry.key);
        let other = self.others.peek().map(|Reverse(entry)| entry.key);
        in_order.into_iter().chain(other).min()
    }

    /// When the next event is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.first().map(|(due, _)| due)
    }

    /// Takes the next event if it is due, with its time.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<(u64, T)> {
        let key = self.first().filter(|&(due, _)| due <= now)?;
        let entry = match self.in_order.pop_front_if(|entry| entry.key == key) {
            Some(entry) => entry,
            None => self.others.pop()?.0,
        };
        Some((entry.key.0, entry.what))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_are_due_by_time_then_number(
            times in prop::collection::vec(0_u64..9, 0..99),
        ) {
            let mut schedule = Schedule::default();
            for (number, &due) in times.iter().enumerate() {
                schedule.add(due, number);
            }
            let mut sorted: Vec<_> = times.iter().copied().zip(0..).collect();
            sorted.sort();
            for expected in sorted {
                prop_assert_eq!(schedule.next_due(), Some(expected.0));
                if let Some(before) = expected.0.checked_sub(1) {
                    prop_assert_eq!(schedule.pop_due(before), None);
                }
                prop_assert_eq!(schedule.pop_due(8), Some(expected));
            }
            prop_assert_eq!(schedule.pop_due(u64::MAX), None);
        }
    }
}
