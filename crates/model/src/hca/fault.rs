//! Faults at chosen occurrences of an operation.

/// The future occurrences of an operation at which a fault happens: `count` in a row, from the nth
/// on. A plain number (`From<u32>`) is one occurrence; 1 is the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The first occurrence, from 1.
    nth: u32,
    /// How many; `None`: all later ones.
    count: Option<u32>,
}

impl Times {
    /// This occurrence and the following ones, `count` in all.
    pub fn count(self, count: u32) -> Self {
        Self { count: Some(count), ..self }
    }

    /// This occurrence and all later ones.
    pub fn always(self) -> Self {
        Self { count: None, ..self }
    }
}

impl From<u32> for Times {
    fn from(nth: u32) -> Self {
        Self { nth, count: Some(1) }
    }
}

/// Faults of type `T`, each at future occurrences of the operations that its `S` selects.
#[derive(Debug)]
pub(crate) struct Countdowns<S, T> {
    all: Vec<Countdown<S, T>>,
}

#[derive(Debug)]
struct Countdown<S, T> {
    of: S,
    /// Occurrences to skip first.
    skip: u32,
    /// Occurrences to fail after that; `None`: all.
    left: Option<u32>,
    what: T,
}

impl<S, T> Default for Countdowns<S, T> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

impl<S, T: Copy> Countdowns<S, T> {
    /// Schedules the fault `what` for these occurrences.
    pub(crate) fn add(&mut self, of: S, when: impl Into<Times>, what: T) {
        let Times { nth, count } = when.into();
        if count != Some(0) {
            self.all.push(Countdown { of, skip: nth.saturating_sub(1), left: count, what });
        }
    }

    /// Counts an occurrence for each `S` that satisfies `matches`; returns at most one fault that
    /// is due.
    pub(crate) fn hit(&mut self, mut matches: impl FnMut(&S) -> bool) -> Option<T> {
        let mut hit = None;
        self.all.retain_mut(|it| {
            if !matches(&it.of) {
                return true;
            }
            if it.skip == 0 && hit.is_none() {
                hit = Some(it.what);
                it.left = it.left.map(|left| left - 1);
                return it.left != Some(0);
            }
            it.skip = it.skip.saturating_sub(1);
            true
        });
        hit
    }

    /// Keeps the faults for which `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        self.all.retain(|it| keep(&it.of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_hits_its_requested_count() {
        let mut faults = Countdowns::default();
        faults.add(0, Times::from(2).count(2), 'a');
        faults.add(1, Times::from(2).always(), 'b');
        faults.add(0, Times::from(1).count(0), 'c');
        let mut hit = |of| faults.hit(|&it| it == of);
        assert_eq!([0; 5].map(&mut hit), [None, Some('a'), Some('a'), None, None]);
        assert_eq!([1; 4].map(&mut hit), [None, Some('b'), Some('b'), Some('b')]);
    }

    #[test]
    fn each_fault_hits_once_at_its_occurrence() {
        let mut faults = Countdowns::default();
        faults.add(0x400, 2, 'a');
        faults.add(0x500, 1, 'b');
        faults.add(0x400, 2, 'c');
        let mut hit = |of| faults.hit(|&it| it == of);
        let hits = [0x400, 0x500, 0x400, 0x500, 0x400, 0x400].map(&mut hit);
        assert_eq!(hits, [None, Some('b'), Some('a'), None, Some('c'), None]);
        faults.add(0x400, 1, 'd');
        faults.retain(|&it| it != 0x400);
        assert_eq!(faults.hit(|_| true), None);
    }
}
