//! Which UAR pages of a function are to be swept (`sweep` sweeps them).

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::hca::doorbell::PageDoorbell;

/// The pages of a function that are to be swept.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    pages: BTreeSet<(u32, PageDoorbell)>,
    /// The page that was begun last.
    last: Option<(u32, PageDoorbell)>,
    /// The next queue of that page; `None`: it is done.
    next: Option<u32>,
}

impl Sweeps {
    /// A page is to be swept.
    pub(super) fn add(&mut self, page: u32, doorbell: PageDoorbell) {
        self.pages.insert((page, doorbell));
    }

    pub(super) fn is_busy(&self) -> bool {
        self.next.is_some() || !self.pages.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The page to go on with, and the first of its queues to look at. Pages take turns.
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

    /// The page that was begun last has had a turn, which goes on with queue `next`, if any is
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
            // The lowest page is rung on all the time.
            if order.len() < 3 {
                sweeps.add(1, Send);
            }
        }
        assert_eq!(order, [(1, Send), (1, Arm), (3, Send), (1, Send)]);
        assert!(!sweeps.is_busy());
    }
}
