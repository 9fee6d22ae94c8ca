//! The execution units of a card, which its functions share: who has one, and who waits for one.
//! Units are given first come first served over all functions, of those that [`Sharing`] allows.
//!
//! Whoever has the state of a function's DPA may lock the units of its card, and not the other way
//! round; nobody has the states of two. So a function that gives a unit back cannot start the run
//! of another function that it goes to: the unit is granted, and whoever gives turns next collects
//! it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::partitions::Sharing;
use super::runner::Affinity;
use crate::numbered::{Number, Numbered};

/// A place in the queue for units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

impl Number for Ticket {
    fn widen(self) -> u64 {
        self.0
    }
}

/// The units of a card.
pub(crate) struct Units(Mutex<Shares>);

/// The units that runs have, and the runs that wait for one.
pub(super) struct Shares {
    pub(super) sharing: Sharing,
    taken: Vec<bool>,
    free: usize,
    tickets: u64,
    /// Which function waits, and for which units.
    waiting: Numbered<Ticket, (u16, Affinity)>,
    /// By function, units that were granted and not collected yet.
    granted: Numbered<u16, Vec<(Ticket, u16)>>,
}

impl Units {
    /// Makes units that functions can join.
    pub(crate) fn new(sharing: Sharing) -> Arc<Self> {
        let count = usize::from(sharing.count());
        Arc::new(Self(Mutex::new(Shares {
            sharing,
            taken: vec![false; count],
            free: count,
            tickets: 0,
            waiting: Numbered::new(),
            granted: Numbered::new(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes how the units are shared, and then grants those that have become free to
    /// use.
    pub(crate) fn with<R>(&self, each: impl FnOnce(&mut Sharing) -> R) -> R {
        let mut shares = self.lock();
        let result = each(&mut shares.sharing);
        shares.serve();
        result
    }
}

impl Shares {
    /// Asks for a unit for a function. It may have been granted when this returns.
    pub(super) fn ask(&mut self, member: u16, affinity: Affinity) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.insert(ticket, (member, affinity));
        self.serve();
        ticket
    }

    /// The units that a function has been granted since it last asked.
    pub(super) fn collect(&mut self, member: u16) -> Vec<(Ticket, u16)> {
        self.granted.remove(&member).unwrap_or_default()
    }

    /// Whether some function has a unit to collect.
    pub(super) fn owes(&self) -> bool {
        !self.granted.is_empty()
    }

    /// A unit is free again.
    pub(super) fn give(&mut self, unit: u16) {
        self.set_free(unit);
        self.serve();
    }

    /// Takes back a function's wish for a unit that it has not collected.
    pub(super) fn cancel(&mut self, member: u16, ticket: Ticket) {
        self.waiting.remove(&ticket);
        if let Some(units) = self.granted.get_mut(&member) {
            let unit = units.iter().position(|it| it.0 == ticket).map(|at| units.remove(at).1);
            if units.is_empty() {
                self.granted.remove(&member);
            }
            if let Some(unit) = unit {
                self.give(unit);
            }
        }
    }

    fn set_free(&mut self, unit: u16) {
        let taken = &mut self.taken[usize::from(unit)];
        debug_assert!(*taken, "unit {unit} is given back twice");
        *taken = false;
        self.free += 1;
    }

    /// Grants free units to the runners that wait, in their order.
    fn serve(&mut self) {
        let Self { sharing, taken, free, waiting, granted, .. } = self;
        waiting.retain(|&ticket, &mut (member, affinity)| {
            if *free == 0 {
                return true;
            }
            let is_free = |unit: u16| !taken[usize::from(unit)];
            let Some(unit) = sharing.find(member, affinity, is_free) else { return true };
            taken[usize::from(unit)] = true;
            *free -= 1;
            granted.get_or_insert_with(member, Vec::new).push((ticket, unit));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::partitions::Rights;
    use super::*;

    /// Two units that two functions share.
    fn two() -> Arc<Units> {
        let mut sharing = Sharing::new(2, 4, 4);
        for member in [1, 2] {
            sharing.join(member, Rights { by_default: true, manages: member == 1 });
        }
        Units::new(sharing)
    }

    #[test]
    fn a_unit_goes_to_whoever_has_waited_longest_of_whatever_function() {
        let units = two();
        let mut shares = units.lock();
        let [a, b] = [1, 1].map(|member| shares.ask(member, Affinity::Any));
        assert_eq!(shares.collect(1), [(a, 0), (b, 1)]);
        let (other, again) = (shares.ask(2, Affinity::Any), shares.ask(1, Affinity::Any));
        assert!(!shares.owes());
        // The function that gives it back wants it again, and comes after the other.
        shares.give(1);
        assert_eq!((shares.collect(1), shares.collect(2)), (vec![], vec![(other, 1)]));
        shares.give(0);
        assert_eq!(shares.collect(1), [(again, 0)]);
    }

    #[test]
    fn who_waits_for_one_unit_holds_up_nobody_who_can_have_another() {
        let units = two();
        let mut shares = units.lock();
        let first = shares.ask(1, Affinity::Unit(0));
        let strict = shares.ask(2, Affinity::Unit(0));
        let any = shares.ask(2, Affinity::Any);
        assert_eq!(shares.collect(2), [(any, 1)]);
        assert_eq!(shares.collect(1), [(first, 0)]);
        shares.give(0);
        assert_eq!(shares.collect(2), [(strict, 0)]);
    }

    #[test]
    fn who_does_not_want_a_unit_any_more_keeps_it_from_nobody() {
        let units = two();
        let mut shares = units.lock();
        let tickets: Vec<_> = (0..4).map(|_| shares.ask(1, Affinity::Any)).collect();
        let other = shares.ask(2, Affinity::Any);
        // One that was granted and not collected; one that waits.
        shares.cancel(1, tickets[0]);
        shares.cancel(1, tickets[3]);
        assert_eq!(shares.collect(1), [(tickets[1], 1), (tickets[2], 0)]);
        shares.give(0);
        assert_eq!(shares.collect(2), [(other, 0)]);
        shares.cancel(2, other);
        assert!(shares.taken[0], "what was collected is given back by its owner alone");
    }
}
