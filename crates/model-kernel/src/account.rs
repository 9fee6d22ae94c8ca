//! Accounts of the resources that this process keeps for clients, with a bound per client.
//!
//! Clients share the descriptors, the memory mappings and the memory of the process that serves
//! them. A resource that is kept for a client is charged to the client's account until the charge
//! is dropped, even after the client's end. A filter has an account, and each process behind the
//! filter has an account below it. A charge counts against both. An account holds at most as much
//! as is left for the others on its level, so one account never uses up a resource.

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
    /// Bytes of unread records.
    Bytes,
    /// Numbers in DMA addresses.
    DmaNumbers,
}

const RESOURCES: usize = 4;

/// Bytes of unread records of all clients.
const MAX_BYTES: usize = 256 << 20;
/// 16-bit numbers without 0 and the highest two.
const MAX_DMA_NUMBERS: usize = 65_533;
/// Default of `vm.max_map_count`.
const DEFAULT_MAPPINGS: usize = 65_530;

impl Resource {
    /// The errno of Linux when the resource is used up.
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
        Self { pool, above: None, taken: Default::default() }
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
        let mut charge = self.nothing(resource);
        charge.grow_up_to(most, count).map(|()| charge)
    }

    /// An empty charge.
    pub(crate) fn nothing(self: &Arc<Self>, resource: Resource) -> Charge {
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

    /// How much the account may hold: what is left for all others on its level.
    fn share(&self, resource: Resource, all: &[usize; RESOURCES]) -> usize {
        match &self.above {
            Some(above) => above.share(resource, all).saturating_sub(above.taken(resource)),
            None => self.pool.most[resource as usize].saturating_sub(all[resource as usize]),
        }
    }

    /// Changes the count of this account and of those above it.
    fn change(
        &self,
        resource: Resource,
        all: &mut [usize; RESOURCES],
        change: impl Fn(usize) -> usize,
    ) {
        let index = resource as usize;
        let levels = std::iter::successors(Some(self), |it| it.above.as_deref());
        levels.for_each(|it| {
            it.taken[index].store(change(it.taken(resource)), Ordering::Relaxed);
        });
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
    fn charge_beyond_the_share_exceeds_it() {
        let filter = Arc::new(Account::with(ResourcePool::of([12; RESOURCES])));
        let mut charge = filter.nothing(Resource::Bytes);
        for (count, exceeds) in [(6, false), (7, true), (13, true), (5, false)] {
            charge.set(count);
            assert_eq!(charge.exceeds_share(), exceeds, "{count}");
            assert_eq!(filter.taken(Resource::Bytes), count);
        }
        drop(charge);
        assert_eq!(filter.taken(Resource::Bytes), 0);
    }
}
