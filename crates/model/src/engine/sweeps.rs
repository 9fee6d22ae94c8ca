//! The UAR pages of a function that have a sweep pending (`sweep` sweeps them).

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::hca::doorbell::PageDoorbell;

/// The pages of a function that have a sweep pending.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    pages: BTreeSet<(u32, PageDoorbell)>,
    /// The page that was begun last.
    last: Option<(u32, PageDoorbell)>,
    /// The next queue of that page; `None`: it is done.
    next: Option<u32>,
}

impl Sweeps {
    /// Schedules a sweep of a page.
    pub(super) fn add(&mut self, page: u32, doorbell: PageDoorbell) {
        self.pages.insert((page, doorbell));
    }

    pub(super) fn is_busy(&self) -> bool {
        self.next.is_some() || !self.pages.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The next page to sweep, and the first of its queues to read. Pages take turns.
    pub(super) fn begin(&mut self) -> Option<((u32, PageDoorbell), u32)> {
        if let (Some(last), Some(next)) = (self.last, self.next.take()) {
            return Some((last, next));
        }
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.pages.range((after, Bound::Unbounded)).next();
        let page = next.or_else(|| self.pages.first()).copied()?;
        self.pages.remove(&page);
        self.last = Some(page);
        Some((page, 0))
    }

    /// Ends the turn of the page that was begun last; it continues with queue `next`, if one is
    /// left.
    pub(super) fn stop_before(&mut self, next: Option<u32>) {
        self.next = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_take_turns_and_are_swept_once() {
        use PageDoorbell::{Arm, Send};
        let mut sweeps = Sweeps::default();
        for page in [(3, Send), (1, Arm), (1, Send), (3, Send)] {
            sweeps.add(page.0, page.1);
        }
        let mut order = vec![];
        while let Some((page, first)) = sweeps.begin() {
            assert_eq!(first, 0);
            order.push(page);
            // The lowest page rings all the time.
            if order.len() < 3 {
                sweeps.add(1, Send);
            }
        }
        assert_eq!(order, [(1, Send), (1, Arm), (3, Send), (1, Send)]);
        assert!(!sweeps.is_busy());
    }
}
