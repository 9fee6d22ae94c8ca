//! Index of queues by the UAR page of their doorbells.

use std::collections::BTreeSet;

use super::doorbell::PageDoorbell;
use crate::numbered::Numbered;

/// The queues of each UAR page. Creating, destroying or moving a queue changes only its own entry,
/// so that the cost of a command does not depend on the number of queues.
#[derive(Debug, Default)]
pub(crate) struct DoorbellIndex([ByPage; 2]);

impl DoorbellIndex {
    /// The queues of a doorbell by UAR page.
    pub(crate) fn by(&self, doorbell: PageDoorbell) -> &ByPage {
        &self.0[doorbell as usize]
    }

    /// The queues of a doorbell by UAR page, mutable.
    pub(crate) fn by_mut(&mut self, doorbell: PageDoorbell) -> &mut ByPage {
        &mut self.0[doorbell as usize]
    }
}

/// The queues of one doorbell kind, by UAR page.
#[derive(Debug, Default)]
pub(crate) struct ByPage {
    pages: Numbered<u32, BTreeSet<u32>>,
    /// The page of each queue.
    page_of: Numbered<u32, u32>,
}

impl ByPage {
    /// Sets the page of queue `number`, or removes the queue.
    pub(crate) fn set(&mut self, number: u32, page: Option<u32>) {
        let before = match page {
            Some(page) => self.page_of.insert(number, page),
            None => self.page_of.remove(&number),
        };
        if before == page {
            return;
        }
        if let Some(before) = before
            && let Some(queues) = self.pages.get_mut(&before)
        {
            queues.remove(&number);
            if queues.is_empty() {
                self.pages.remove(&before);
            }
        }
        if let Some(page) = page {
            self.pages.get_or_insert_with(page, BTreeSet::new).insert(number);
        }
    }

    /// Whether queue `number` is on `page`.
    pub(crate) fn is_of(&self, number: u32, page: u32) -> bool {
        self.page_of.get(&number) == Some(&page)
    }

    /// Whether exactly one queue is on `page`.
    pub(crate) fn has_one(&self, page: u32) -> bool {
        self.of(page).is_some_and(|queues| queues.len() == 1)
    }

    /// The queues on `page`.
    pub(crate) fn of(&self, page: u32) -> Option<&BTreeSet<u32>> {
        self.pages.get(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_is_found_under_its_last_page() {
        let mut queues = ByPage::default();
        for (number, page) in [(1, 7), (2, 7), (3, 8), (1, 8), (1, 8)] {
            queues.set(number, Some(page));
        }
        assert_eq!(queues.of(7), Some(&BTreeSet::from([2])));
        assert_eq!(queues.of(8), Some(&BTreeSet::from([1, 3])));
        for number in [1, 2, 2, 3, 4] {
            queues.set(number, None);
        }
        assert!(queues.pages.is_empty() && queues.page_of.is_empty());
    }
}
