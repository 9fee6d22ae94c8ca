//! The execution units (EUs) of a card, which its functions share: the owner of each EU, and the
//! queue for EUs. EUs are granted first come first served over all functions, within the limits of
//! [`EuSharing`].
//!
//! A thread that holds the state of a function's DPA may lock the EUs of its card, but not the
//! other way round, and no thread holds the states of two functions. So a function that returns a
//! EU cannot start another function's run on it: the EU is granted, and the next thread that gives
//! turns collects it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::partitions::EuSharing;
use super::runner::Affinity;

/// A place in the queue for EUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The EUs of a card.
pub struct Units(Mutex<Shares>);

/// The EUs of runs, and the runs that wait for one.
pub(super) struct Shares {
    pub(super) sharing: EuSharing,
    taken: Vec<bool>,
    free: usize,
    tickets: u64,
    /// The function that waits, and the EUs that it accepts.
    waiting: BTreeMap<Ticket, (u16, Affinity)>,
    /// By function, EUs that are granted and not collected yet.
    granted: BTreeMap<u16, Vec<(Ticket, u16)>>,
}

impl Units {
    /// Creates EUs that functions can join.
    pub fn new(sharing: EuSharing) -> Arc<Self> {
        let count = usize::from(sharing.count());
        Arc::new(Self(Mutex::new(Shares {
            sharing,
            taken: vec![false; count],
            free: count,
            tickets: 0,
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the sharing of the EUs, and then grants the EUs that became free to use.
    pub fn with<R>(&self, each: impl FnOnce(&mut EuSharing) -> R) -> R {
        let mut shares = self.lock();
        let result = each(&mut shares.sharing);
        shares.serve();
        result
    }
}

impl Shares {
    /// Requests an EU for a function. The EU may be granted when this returns.
    pub(super) fn request(&mut self, member: u16, affinity: Affinity) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.insert(ticket, (member, affinity));
        self.serve();
        ticket
    }

    /// The EUs that were granted to a function since its last call.
    pub(super) fn collect(&mut self, member: u16) -> Vec<(Ticket, u16)> {
        self.granted.remove(&member).unwrap_or_default()
    }

    /// Whether a function has an EU to collect.
    pub(super) fn has_granted(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Returns an EU.
    pub(super) fn release(&mut self, unit: u16) {
        self.set_free(unit);
        self.serve();
    }

    /// Cancels a function's request for an EU that it has not collected.
    pub(super) fn cancel(&mut self, member: u16, ticket: Ticket) {
        self.waiting.remove(&ticket);
        if let Some(units) = self.granted.get_mut(&member) {
            let unit = units.iter().position(|it| it.0 == ticket).map(|at| units.remove(at).1);
            if units.is_empty() {
                self.granted.remove(&member);
            }
            if let Some(unit) = unit {
                self.release(unit);
            }
        }
    }

    fn set_free(&mut self, unit: u16) {
        let taken = &mut self.taken[usize::from(unit)];
        debug_assert!(*taken, "EU {unit} is released twice");
        *taken = false;
        self.free += 1;
    }

    /// Grants free EUs to the waiting runners, in their order.
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
            granted.entry(member).or_default().push((ticket, unit));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::partitions::Rights;
    use super::*;

    /// Two EUs that two functions share.
    fn two() -> Arc<Units> {
        let mut sharing = EuSharing::new(2, 4, 4);
        for member in [1, 2] {
            sharing.join(member, Rights { by_default: true, manages: member == 1 });
        }
        Units::new(sharing)
    }

    #[test]
    fn units_are_granted_fifo_across_functions() {
        let units = two();
        let mut shares = units.lock();
        let [a, b] = [1, 1].map(|member| shares.request(member, Affinity::Any));
        assert_eq!(shares.collect(1), [(a, 0), (b, 1)]);
        let (other, again) = (shares.request(2, Affinity::Any), shares.request(1, Affinity::Any));
        assert!(!shares.has_granted());
        // The function that returns the EU requests it again, and comes after the other function.
        shares.release(1);
        assert_eq!((shares.collect(1), shares.collect(2)), (vec![], vec![(other, 1)]));
        shares.release(0);
        assert_eq!(shares.collect(1), [(again, 0)]);
    }

    #[test]
    fn strict_affinity_does_not_block_other_requests() {
        let units = two();
        let mut shares = units.lock();
        let first = shares.request(1, Affinity::Unit(0));
        let strict = shares.request(2, Affinity::Unit(0));
        let any = shares.request(2, Affinity::Any);
        assert_eq!(shares.collect(2), [(any, 1)]);
        assert_eq!(shares.collect(1), [(first, 0)]);
        shares.release(0);
        assert_eq!(shares.collect(2), [(strict, 0)]);
    }

    #[test]
    fn cancelled_request_frees_its_unit() {
        let units = two();
        let mut shares = units.lock();
        let tickets: Vec<_> = (0..4).map(|_| shares.request(1, Affinity::Any)).collect();
        let other = shares.request(2, Affinity::Any);
        // One EU is granted and not collected; one ticket waits.
        shares.cancel(1, tickets[0]);
        shares.cancel(1, tickets[3]);
        assert_eq!(shares.collect(1), [(tickets[1], 1), (tickets[2], 0)]);
        shares.release(0);
        assert_eq!(shares.collect(2), [(other, 0)]);
        shares.cancel(2, other);
        assert!(shares.taken[0], "only its owner releases a collected EU");
    }
}
