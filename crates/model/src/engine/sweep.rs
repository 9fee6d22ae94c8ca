//! Sweeps: a doorbell that is stored into a mapped page may be overwritten by another queue's
//! before the engine takes it. So after a doorbell the records of the page's other queues are
//! looked at, in turns of their own: a few records each, so that what a sweep costs depends on the
//! queues of the page and not on how often they ring.
//!
//! A page that is rung on during its sweep is swept once more.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::doorbell;
use super::function::Function;
use crate::hca::doorbell::PageDoorbell;

/// Records that are looked at in one turn.
const BATCH: usize = 32;

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
    fn begin(&mut self) -> Option<((u32, PageDoorbell), u32)> {
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
}

/// Looks at the records of a few queues of a page that is to be swept; false if there is none.
#[inline]
pub(super) fn turn(function: &mut Function, now: u64) -> bool {
    function.engine.sweeps.is_busy() && turn_of_next(function, now)
}

#[cold]
fn turn_of_next(function: &mut Function, now: u64) -> bool {
    let Some(((page, doorbell), first)) = function.engine.sweeps.begin() else { return false };
    let index = std::mem::take(&mut function.hca.objects.by_page);
    let queues = index.by(doorbell).of(page);
    let mut rest = queues.into_iter().flat_map(|queues| queues.range(first..));
    for &number in rest.by_ref().take(BATCH) {
        match doorbell {
            PageDoorbell::Send => doorbell::look(function, number),
            PageDoorbell::Arm => doorbell::look_at_arm(function, number, now),
        }
    }
    function.engine.sweeps.next = rest.next().copied();
    function.hca.objects.by_page = index;
    true
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
