//! Which cases a failed link blocks.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::chain::Link;
use crate::{Case, Need};

/// The cases that a link blocks when it fails.
#[derive(Clone, Copy)]
enum Blocks {
    /// Every case needs it.
    Every,
    /// These cases need it; the others run.
    Some(fn(&Case) -> bool),
    /// Cases do not say whether they send: a case runs, and is blocked if it fails. The rest of its
    /// group is then blocked without a run, because each such case may wait for seconds.
    Failing,
}

impl Link {
    /// The reason of a case that it blocks.
    pub fn blocked(self) -> String {
        format!("blocked by {self}")
    }

    /// Whether it blocks every case, so that none needs a device.
    pub fn blocks_all(self) -> bool {
        matches!(self.blocks(), Blocks::Every)
    }

    fn blocks(self) -> Blocks {
        match self {
            Self::Port | Self::Message => Blocks::Failing,
            Self::LargeMr => Blocks::Some(registers_large_regions),
            Self::Event => Blocks::Some(waits_for_events),
            _ => Blocks::Every,
        }
    }
}

/// Whether a case registers large regions.
fn registers_large_regions(case: &Case) -> bool {
    case.needs.iter().any(|need| matches!(need, Need::Memlock(_)))
}

/// Whether a case belongs to the groups that sleep until an event.
fn waits_for_events(case: &Case) -> bool {
    ["events", "sleep", "doca_async_event"].contains(&case.group)
}

/// A link that failed before a run, and the groups that it has blocked.
#[derive(Debug)]
pub(crate) struct Blockage {
    link: Link,
    groups: Mutex<BTreeSet<&'static str>>,
}

impl Blockage {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, groups: Mutex::default() }
    }

    /// Why the case is blocked without a run, if it is.
    pub(crate) fn before(&self, case: &Case) -> Option<String> {
        let blocked = match self.link.blocks() {
            Blocks::Every => true,
            Blocks::Some(needs) => needs(case),
            Blocks::Failing => self.groups().contains(case.group),
        };
        blocked.then(|| self.reason())
    }

    /// Why a case that ran and failed is blocked, if it is.
    pub(crate) fn after(&self, case: &Case) -> Option<String> {
        match self.link.blocks() {
            Blocks::Failing => {
                self.groups().insert(case.group);
                Some(self.reason())
            }
            _ => None,
        }
    }

    /// The reason in a case's row.
    fn reason(&self) -> String {
        self.link.blocked()
    }

    fn groups(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;

    fn case(id: &str) -> &'static Case {
        cases().find(|case| case.id() == id).unwrap_or_else(|| panic!("no case {id}"))
    }

    #[test]
    fn partial_blockage_names_some_cases_and_not_all() {
        for link in [Link::LargeMr, Link::Event] {
            let blockage = Blockage::new(link);
            let blocked = cases().filter(|case| blockage.before(case).is_some()).count();
            assert!(blocked > 0 && blocked < cases().count() / 2, "{link}: {blocked}");
            assert_eq!(blockage.after(case("open::device_opens_100_times")), None);
        }
    }

    #[test]
    fn early_link_blocks_every_case() {
        for link in [Link::Driver, Link::Permission, Link::Devx, Link::Firmware, Link::Qp] {
            let blockage = Blockage::new(link);
            assert!(cases().all(|case| blockage.before(case).is_some()), "{link}");
        }
    }

    #[test]
    fn port_blocks_a_group_after_its_first_failure() {
        let blockage = Blockage::new(Link::Port);
        let (first, other) = (case("open::first_port_is_active"), case("qp::qp_works_after_reset"));
        assert_eq!(blockage.before(first), None);
        assert_eq!(blockage.after(first).as_deref(), Some("blocked by port"));
        assert!(blockage.before(case("open::device_opens_100_times")).is_some());
        assert_eq!(blockage.before(other), None, "of another group");
    }
}
