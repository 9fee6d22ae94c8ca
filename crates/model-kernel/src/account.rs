//! Accounts of the resources that this process keeps for clients, with a bound per client.
//!
//! Clients share the descriptors, the memory mappings and the memory of the process that serves
//! them. A resource that is kept for a client is charged to the client's account until the charge
//! is dropped, even after the client's end. A seccomp filter of the supervisor has an account, and
//! each process behind the filter has an account below it. A charge counts against both. An account
//! holds at most as much as is left for the others on its level, so one account never exhausts a
//! resource. While no other account on its level holds any of a resource, an account may hold all
//! but a [`reserve`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::resource::{Resource as Limit, getrlimit};

/// A resource of this process that is kept for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Open descriptors.
    Descriptors,
    /// Memory mappings (`vm.max_map_count`).
    Mappings,
    /// Bytes of records in channels, and of objects that the device does not know.
    Bytes,
    /// Numbers of processes in DMA addresses.
    DmaNumbers,
}

const RESOURCES: usize = 4;

/// [`Resource::Bytes`] of all clients.
const MAX_BYTES: usize = 256 << 20;
/// 16-bit numbers without 0 and the highest two.
const MAX_DMA_NUMBERS: usize = 65_533;
/// Default of `vm.max_map_count`.
const DEFAULT_MAPPINGS: usize = 65_530;
/// The smallest reserve. The only process of another filter gets a third of it: enough descriptors
/// for a few devices.
const MIN_RESERVE: usize = 64;

/// How much of `capacity` the only account that holds any of it leaves for others.
fn reserve(capacity: usize) -> usize {
    (capacity / 4).max(MIN_RESERVE)
}

impl Resource {
    /// The errno of Linux when the resource is exhausted.
    fn shortage(self) -> Errno {
        match self {
            Self::Descriptors => Errno::ENFILE,
            Self::Mappings | Self::Bytes => Errno::ENOMEM,
            Self::DmaNumbers => Errno::EUSERS,
        }
    }
}

/// The resources of a process, and all charges against them.
#[derive(Debug)]
pub struct ResourcePool {
    most: [usize; RESOURCES],
    /// Also guards `taken` of every account.
    taken: Mutex<[usize; RESOURCES]>,
}

impl ResourcePool {
    /// A pool with these maxima, in the order of [`Resource`].
    pub fn of(most: [usize; RESOURCES]) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// The pool of this process. A quarter of the descriptors and half of the mappings remain for
    /// calls in progress, threads and the model itself.
    fn of_this_process() -> Arc<Self> {
        static OURS: LazyLock<Arc<ResourcePool>> = LazyLock::new(|| {
            let descriptors = getrlimit(Limit::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
            let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
            let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
            let mappings = mappings.ok().and_then(|text| text.trim().parse::<usize>().ok());
            let mappings = mappings.unwrap_or(DEFAULT_MAPPINGS);
            ResourcePool::of([descriptors / 4 * 3, mappings / 2, MAX_BYTES, MAX_DMA_NUMBERS])
        });
        OURS.clone()
    }

    fn taken(&self) -> MutexGuard<'_, [usize; RESOURCES]> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The account of the programs behind one filter, or of one of their processes.
#[derive(Debug)]
pub struct Account {
    pool: Arc<ResourcePool>,
    /// The filter's account.
    above: Option<Arc<Account>>,
    /// Changes only while `pool` is locked.
    taken: [AtomicUsize; RESOURCES],
    /// The part of `taken` that the accounts of its processes hold.
    below: [AtomicUsize; RESOURCES],
}

impl Default for Account {
    /// The account of a filter, in the resources of this process.
    fn default() -> Self {
        Self::with(ResourcePool::of_this_process())
    }
}

impl Account {
    /// The account of a filter.
    pub fn with(pool: Arc<ResourcePool>) -> Self {
        Self { pool, above: None, taken: Default::default(), below: Default::default() }
    }

    /// The account of a process behind this filter.
    pub fn of_process(self: &Arc<Self>) -> Self {
        Self { above: Some(self.clone()), ..Self::with(self.pool.clone()) }
    }

    /// The account of clients in this process, which has no bound.
    pub(crate) fn unbounded() -> &'static Arc<Self> {
        static OWN: LazyLock<Arc<Account>> =
            LazyLock::new(|| Arc::new(Account::with(ResourcePool::of([usize::MAX; RESOURCES]))));
        &OWN
    }

    /// Charges `count` more. ENFILE, ENOMEM, EUSERS: the account would exceed its share.
    pub fn charge(self: &Arc<Self>, resource: Resource, count: usize) -> Result<Charge, Errno> {
        self.charge_up_to(usize::MAX, resource, count)
    }

    /// As [`Account::charge`]. EMFILE: the account would hold more than `most`.
    pub fn charge_up_to(
        self: &Arc<Self>,
        most: usize,
        resource: Resource,
        count: usize,
    ) -> Result<Charge, Errno> {
        let mut charge = self.empty_charge(resource);
        charge.grow_up_to(most, count).map(|()| charge)
    }

    /// An empty charge.
    pub(crate) fn empty_charge(self: &Arc<Self>, resource: Resource) -> Charge {
        Charge { account: self.clone(), resource, count: 0 }
    }

    /// How much the account holds.
    pub fn taken(&self, resource: Resource) -> usize {
        self.taken[resource as usize].load(Ordering::Relaxed)
    }

    /// The account of its filter, which may be this one.
    pub(crate) fn filter(&self) -> &Self {
        self.above.as_deref().unwrap_or(self)
    }

    /// Amount that the account may hold. In general this is the amount that no account on its level
    /// holds; while no other account on the level holds any, it is at least all but the reserve.
    /// The processes of a sole filter share only the amount that is free for other filters, because
    /// the filter loses the rest as soon as another filter holds any.
    fn share(&self, resource: Resource, all: &[usize; RESOURCES]) -> usize {
        let left = self.pool.most[resource as usize].saturating_sub(all[resource as usize]);
        let (capacity, taken) = match &self.above {
            Some(above) => {
                let below = above.below[resource as usize].load(Ordering::Relaxed);
                let own = above.taken(resource) - below;
                (left.saturating_sub(own), below)
            }
            None => (self.pool.most[resource as usize], all[resource as usize]),
        };
        let left = capacity.saturating_sub(taken);
        if self.taken(resource) < taken {
            return left;
        }
        left.max(capacity.saturating_sub(reserve(capacity)))
    }

    /// Changes the count of this account and of the one above it.
    fn change(
        &self,
        resource: Resource,
        all: &mut [usize; RESOURCES],
        change: impl Fn(usize) -> usize,
    ) {
        let index = resource as usize;
        let set = |counts: &[AtomicUsize; RESOURCES]| {
            counts[index].store(change(counts[index].load(Ordering::Relaxed)), Ordering::Relaxed);
        };
        set(&self.taken);
        if let Some(above) = &self.above {
            set(&above.taken);
            set(&above.below);
        }
        all[index] = change(all[index]);
    }
}

/// Counts against an account until it is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    resource: Resource,
    count: usize,
}

impl Charge {
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn grow_up_to(&mut self, most: usize, count: usize) -> Result<(), Errno> {
        let Self { account, resource, .. } = self;
        let mut all = account.pool.taken();
        let with = account.taken(*resource).saturating_add(count);
        if with > most {
            return Err(Errno::EMFILE);
        }
        if with > account.share(*resource, &all) {
            return Err(resource.shortage());
        }
        account.change(*resource, &mut all, |taken| taken + count);
        self.count += count;
        Ok(())
    }

    /// Sets the charge to `count`, even beyond the account's share.
    pub(crate) fn set(&mut self, count: usize) {
        if self.count != count {
            let (before, mut all) = (self.count, self.account.pool.taken());
            self.account.change(self.resource, &mut all, |taken| taken - before + count);
            self.count = count;
        }
    }

    /// Whether the account holds more than its share.
    pub(crate) fn exceeds_share(&self) -> bool {
        let Self { account, resource, .. } = self;
        let all = account.pool.taken();
        account.taken(*resource) > account.share(*resource, &all)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charges(account: &Arc<Account>, resource: Resource) -> Vec<Charge> {
        std::iter::from_fn(|| account.charge(resource, 1).ok()).collect()
    }

    #[test]
    fn filter_leaves_as_much_to_others_as_it_takes() {
        let pool = ResourcePool::of([12; RESOURCES]);
        let [first, second] = [(); 2].map(|()| Arc::new(Account::with(pool.clone())));
        let held = charges(&first, Resource::Mappings);
        assert_eq!(held.len(), 6);
        assert_eq!(first.charge(Resource::Mappings, 1).map(drop), Err(Errno::ENOMEM));
        let others = charges(&second, Resource::Mappings);
        assert_eq!(others.len(), 3);
        assert_eq!(charges(&second, Resource::Descriptors).len(), 6, "another resource");
        drop((held, others));
        assert_eq!((first.taken(Resource::Mappings), *pool.taken()), (0, [0; RESOURCES]));
    }

    #[test]
    fn process_leaves_as_much_to_others_of_its_filter() {
        let filter = Arc::new(Account::with(ResourcePool::of([12; RESOURCES])));
        let [first, second] = [(); 2].map(|()| Arc::new(filter.of_process()));
        let held = charges(&first, Resource::Descriptors);
        assert_eq!((held.len(), filter.taken(Resource::Descriptors)), (4, 4));
        assert_eq!(first.charge(Resource::Descriptors, 1).map(drop), Err(Errno::ENFILE));
        assert_eq!(charges(&second, Resource::Descriptors).len(), 2);
        let limited = second.charge_up_to(0, Resource::Descriptors, 1);
        assert_eq!(limited.map(drop), Err(Errno::EMFILE));
    }

    #[test]
    fn sole_filter_leaves_a_reserve() {
        let pool = ResourcePool::of([768; RESOURCES]);
        let [first, second, third] = [(); 3].map(|()| Arc::new(Account::with(pool.clone())));
        let fill = |account: &Arc<Account>| charges(account, Resource::Descriptors);
        let mut held = fill(&first);
        assert_eq!(held.len(), 576);
        let (others, last) = (fill(&second), fill(&third));
        assert_eq!((others.len(), last.len()), (96, 48));
        // It is not the sole filter now: it gets nothing until it holds no more than the amount
        // left for others.
        held.truncate(577 - 24);
        assert_eq!(fill(&first).len(), 0);
        drop((others, last));
        assert_eq!(fill(&first).len(), 23);
        drop(held);
        // A quarter of a small capacity is less than the minimum reserve.
        for (most, sole) in [(48, 24), (127, 64), (128, 64), (160, 96), (256, 192), (260, 195)] {
            let filter = Arc::new(Account::with(ResourcePool::of([most; RESOURCES])));
            assert_eq!(fill(&filter).len(), sole, "{most}");
        }
    }

    #[test]
    fn sole_process_leaves_a_reserve_to_its_filter() {
        let pool = ResourcePool::of([768; RESOURCES]);
        let [filter, other] = [(); 2].map(|()| Arc::new(Account::with(pool.clone())));
        let [first, second] = [(); 2].map(|()| Arc::new(filter.of_process()));
        let fill = |account: &Arc<Account>| charges(account, Resource::Descriptors).len();
        // No process gets what the filter itself holds.
        let _own = filter.charge(Resource::Descriptors, 76).expect("there is room");
        let held = charges(&first, Resource::Descriptors);
        assert_eq!((held.len(), fill(&second), fill(&other)), (264, 30, 214));
        // Another filter takes nothing from it that a process of this filter needs.
        let _of_other = other.charge(Resource::Descriptors, 1).expect("there is room");
        assert_eq!(fill(&second), 29);
        let _of_second = second.charge(Resource::Descriptors, 1).expect("of the reserve");
        assert_eq!(first.charge(Resource::Descriptors, 1).map(drop), Err(Errno::ENFILE));
    }

    #[test]
    fn least_reserve_serves_processes_of_two_filters() {
        let pool = ResourcePool::of([160; RESOURCES]);
        let _held = charges(&Arc::new(Account::with(pool.clone())), Resource::Descriptors);
        let filters = [(); 2].map(|()| Arc::new(Account::with(pool.clone())));
        let [first, second] = filters.each_ref().map(|filter| Arc::new(filter.of_process()));
        let of_first = charges(&first, Resource::Descriptors);
        let of_second = charges(&second, Resource::Descriptors);
        assert_eq!((of_first.len(), of_second.len()), (22, 14));
    }

    #[test]
    fn charge_beyond_the_share_exceeds_it() {
        let filter = Arc::new(Account::with(ResourcePool::of([12; RESOURCES])));
        let mut charge = filter.empty_charge(Resource::Bytes);
        for (count, exceeds) in [(6, false), (7, true), (13, true), (5, false)] {
            charge.set(count);
            assert_eq!(charge.exceeds_share(), exceeds, "{count}");
            assert_eq!(filter.taken(Resource::Bytes), count);
        }
        drop(charge);
        assert_eq!(filter.taken(Resource::Bytes), 0);
    }
}
