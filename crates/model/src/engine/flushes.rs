//! Which queues of a function have a flush pending, and when it begins (`flush` flushes them).

use std::collections::{BTreeSet, VecDeque};

/// Delay between the request for a flush and its start, in nanoseconds. The number is the model's
/// own; a driver that resets a queue without waiting loses completions every time.
const DELAY: u64 = 50_000;
/// The queues of a function that have a flush pending, each once.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Whether flushes wait for a step instead of a time: in a stepped model no time passes.
    pub without_delay: bool,
    /// Queues whose flush is not due yet, in the order of their due times.
    waiting: VecDeque<(u64, u32)>,
    /// Queues that have begun, in the order of their turns.
    begun: VecDeque<u32>,
    numbers: BTreeSet<u32>,
}

impl Flushes {
    /// Schedules the flush of a queue.
    pub(super) fn add(&mut self, number: u32, now: u64) {
        if !self.numbers.insert(number) {
            return;
        }
        match self.without_delay {
            true => self.begun.push_back(number),
            false => self.waiting.push_back((now.saturating_add(DELAY), number)),
        }
    }

    /// Cancels the flush of a queue; true if one was pending.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        if !self.numbers.remove(&number) {
            return false;
        }
        self.waiting.retain(|&(_, waiting)| waiting != number);
        self.begun.retain(|&begun| begun != number);
        true
    }

    pub(super) fn clear(&mut self) {
        (self.waiting, self.begun, self.numbers) = Default::default();
    }

    /// Whether a queue flushes now.
    pub(super) fn is_busy(&self) -> bool {
        !self.begun.is_empty()
    }

    /// When the next queue begins to flush.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.waiting.front().map(|&(due, _)| due)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Whether a queue has a flush pending.
    pub(super) fn has(&self, number: u32) -> bool {
        self.numbers.contains(&number)
    }

    /// The queue that flushes next; [`Self::end_turn`] ends its turn.
    pub(super) fn next(&mut self, now: u64) -> Option<u32> {
        while let Some((_, number)) = self.waiting.pop_front_if(|&mut (due, _)| due <= now) {
            self.begun.push_back(number);
        }
        self.begun.pop_front()
    }

    /// Ends a queue's turn; `more`: it has not flushed all.
    pub(super) fn end_turn(&mut self, number: u32, more: bool) {
        match more {
            true => self.begun.push_back(number),
            false => {
                self.numbers.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_wait_for_their_time_and_take_turns() {
        let mut flushes = Flushes::default();
        flushes.add(7, 100);
        flushes.add(8, 100);
        flushes.add(7, 200);
        assert_eq!((flushes.next_due(), flushes.is_busy()), (Some(100 + DELAY), false));
        assert_eq!(flushes.next(99 + DELAY), None);
        assert_eq!(flushes.next(100 + DELAY), Some(7));
        assert!(flushes.is_busy());
        assert!(flushes.remove(8) && !flushes.remove(8));
        assert_eq!((flushes.next(u64::MAX), flushes.next_due()), (None, None));
    }
}
