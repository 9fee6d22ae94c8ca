//! Bounds the memory of page lists that registrations are about to pass to the device; all clients
//! share the bounds.
//!
//! Long lists and short lists have separate bounds, so a short list never waits for a long one. A
//! list over the bound waits for a limited time, with only its open device locked. Waiting lists
//! are granted in this order: the filter that was served longest ago first; within a filter, the
//! client that was served longest ago; within a client, the oldest list. Clients of one filter that
//! register in a loop therefore do not starve other filters.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::Client;

/// Maximum number of entries of all long lists: 64 GiB in 4 KiB pages, lists of 128 MiB.
pub(super) const MAX_PAGES: usize = 1 << 24;
/// Maximum number of entries of a short list: 256 MiB in 4 KiB pages.
const MAX_SHORT_ENTRIES: usize = 1 << 16;
/// Maximum number of entries of all short lists: 32 MiB.
const MAX_OF_SHORT: usize = 1 << 22;
/// Limit of the wait.
const PAGES_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of waiting lists: each blocks an answering thread.
const MAX_WAITING: usize = 128;
/// Clients and filters without waiting lists whose last turn is remembered.
const MAX_SERVED: u64 = 256;
/// Limit of waiting lists per client.
const MAX_OF_CLIENT: usize = 4;

/// A shared bound on entries.
#[derive(Debug)]
struct PagePool {
    capacity: usize,
    queue: Mutex<PageQueue>,
    changed: Condvar,
}

/// Granted and waiting lists.
#[derive(Debug)]
struct PageQueue {
    taken: usize,
    waiting: Vec<Waiter>,
    /// Number of the last waiter.
    last: u64,
    /// `count` when a client was last served, for each client that has a waiting list or is among
    /// the [`MAX_SERVED`] served last.
    served: BTreeMap<usize, u64>,
    /// `count` when a filter was last served, for each filter that waits or was served recently.
    served_filters: BTreeMap<usize, u64>,
    /// Lists granted so far.
    count: u64,
}

/// A client and its filter, each identified by the address of an object that only it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClientId {
    filter: usize,
    client: usize,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    number: u64,
    of: ClientId,
}

static LONG_LISTS: PagePool = PagePool::new(MAX_PAGES);
static SHORT_LISTS: PagePool = PagePool::new(MAX_OF_SHORT);

/// The entries of a list, counted until this is dropped.
#[derive(Debug)]
pub(super) struct ListedPages {
    pub count: usize,
    pool: &'static PagePool,
}

impl ListedPages {
    /// Waits for room for a client's list. `None`: the list is too long, no room came free in time,
    /// or too many lists wait.
    pub(super) fn of(pages: u64, client: &dyn Client) -> Option<Self> {
        let count = usize::try_from(pages).ok()?;
        let filter = ptr::from_ref(client.account().filter()).addr();
        let of = ClientId { filter, client: ptr::from_ref(client.pinned()).addr() };
        pool_of(count).take(count, of, PAGES_TIMEOUT)
    }
}

/// The bound for lists of this length.
fn pool_of(count: usize) -> &'static PagePool {
    if count <= MAX_SHORT_ENTRIES { &SHORT_LISTS } else { &LONG_LISTS }
}

impl Drop for ListedPages {
    fn drop(&mut self) {
        self.pool.queue().taken -= self.count;
        self.pool.changed.notify_all();
    }
}

impl PagePool {
    const fn new(capacity: usize) -> Self {
        let served = BTreeMap::new();
        let served_filters = BTreeMap::new();
        let waiting = Vec::new();
        let queue = PageQueue { taken: 0, waiting, last: 0, served, served_filters, count: 0 };
        Self { capacity, queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, PageQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `count` entries fit and it is this list's turn.
    fn take(&'static self, count: usize, of: ClientId, timeout: Duration) -> Option<ListedPages> {
        let mut queue = self.queue();
        if count > self.capacity || !queue.may_wait(of) {
            return None;
        }
        queue.last += 1;
        let own = Waiter { number: queue.last, of };
        queue.waiting.push(own);
        let must_wait = |queue: &mut PageQueue| {
            queue.next() != Some(own.number) || queue.taken + count > self.capacity
        };
        let waited = self.changed.wait_timeout_while(queue, timeout, must_wait);
        let (mut queue, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let listed = (!waited.timed_out()).then(|| ListedPages { count, pool: self });
        queue.leave(own, listed.as_ref().map(|listed| listed.count));
        drop(queue);
        // There may be room for the next waiter too.
        self.changed.notify_all();
        listed
    }
}

impl PageQueue {
    fn may_wait(&self, of: ClientId) -> bool {
        let own = self.waiting.iter().filter(|it| it.of == of).count();
        let of_filter = self.waiting.iter().filter(|it| it.of.filter == of.filter).count();
        // A filter may have at most as many waiting lists as remain for all other filters.
        of_filter < MAX_WAITING - self.waiting.len() && own < MAX_OF_CLIENT
    }

    /// Number of the next waiter.
    fn next(&self) -> Option<u64> {
        let last = |served: &BTreeMap<usize, u64>, who| served.get(&who).copied().unwrap_or(0);
        let turn = |it: &&Waiter| {
            let filter = last(&self.served_filters, it.of.filter);
            (filter, last(&self.served, it.of.client), it.number)
        };
        self.waiting.iter().min_by_key(turn).map(|it| it.number)
    }

    /// Ends a wait; `count`: the entries granted.
    fn leave(&mut self, waiter: Waiter, count: Option<usize>) {
        self.waiting.retain(|it| it.number != waiter.number);
        if let Some(count) = count {
            self.taken += count;
            self.count += 1;
            self.served.insert(waiter.of.client, self.count);
            self.served_filters.insert(waiter.of.filter, self.count);
        }
        let Self { waiting, served, served_filters, count, .. } = self;
        let recent = |at: u64| at + MAX_SERVED > *count;
        let waits = |is_its: &dyn Fn(ClientId) -> bool| waiting.iter().any(|it| is_its(it.of));
        served.retain(|&id, at| recent(*at) || waits(&|of| of.client == id));
        served_filters.retain(|&id, at| recent(*at) || waits(&|of| of.filter == id));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    /// A pool of 100 pages, of one test.
    macro_rules! pool {
        () => {{
            static POOL: PagePool = PagePool::new(100);
            &POOL
        }};
    }

    /// The only client of its filter.
    fn alone(client: usize) -> ClientId {
        ClientId { filter: client, client }
    }

    /// Blocks until `count` lists wait.
    fn waits(pool: &PagePool, count: usize) {
        let start = Instant::now();
        while pool.queue().waiting.len() != count {
            assert!(start.elapsed() < TEST_TIMEOUT, "{:?}", pool.queue().waiting);
            thread::yield_now();
        }
    }

    #[test]
    fn long_page_list_waits_for_room() {
        let pool = pool!();
        assert!(pool.take(101, alone(1), TEST_TIMEOUT).is_none(), "101 entries never fit");
        let first = pool.take(60, alone(1), TEST_TIMEOUT).expect("room");
        let second = pool.take(40, alone(1), TEST_TIMEOUT).expect("the rest");
        assert!(pool.take(1, alone(2), Duration::from_millis(10)).is_none(), "none came free");
        let third =
            thread::spawn(|| pool.take(50, alone(2), TEST_TIMEOUT).map(|listed| listed.count));
        waits(pool, 1);
        drop(second);
        waits(pool, 1);
        drop(first);
        assert_eq!(third.join().expect("no panic"), Some(50));
        let queue = pool.queue();
        assert_eq!((queue.taken, queue.served.len()), (0, 2));
    }

    /// The order in which these clients are served. They arrive one after the other, and each waits
    /// for all pages.
    fn order_of(pool: &'static PagePool, clients: &[ClientId]) -> Vec<usize> {
        let (got, order) = channel();
        let first = pool.take(100, alone(0), TEST_TIMEOUT).expect("room");
        let waiters: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(before, &of)| {
                let got = got.clone();
                let waiter = thread::spawn(move || {
                    let listed = pool.take(100, of, TEST_TIMEOUT).expect("room");
                    got.send(of.client).expect("the test waits");
                    drop(listed);
                });
                waits(pool, before + 1);
                waiter
            })
            .collect();
        drop(first);
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        order.try_iter().collect()
    }

    #[test]
    fn page_list_room_is_fair_among_clients_and_filters() {
        let of = |filter, client| ClientId { filter, client };
        assert_eq!(order_of(pool!(), &[1, 1, 2, 1, 3].map(alone)), [1, 2, 3, 1, 1]);
        let one_filter = [1, 1, 2, 1, 3].map(|client| of(9, client));
        assert_eq!(order_of(pool!(), &one_filter), [1, 2, 3, 1, 1], "of one filter");
        let two_filters = [of(8, 1), of(8, 2), of(8, 3), of(9, 4), of(9, 4)];
        assert_eq!(order_of(pool!(), &two_filters), [1, 4, 2, 4, 3], "of two filters");
    }

    #[test]
    fn waiting_page_lists_of_a_filter_leave_as_many_to_others() {
        let pool = pool!();
        let first = pool.take(100, alone(0), TEST_TIMEOUT).expect("room");
        let mut waiters = Vec::new();
        for (filter, capacity) in [(7, 64), (8, 32), (9, 16)] {
            let of = |client| ClientId { filter, client };
            for client in 0..capacity {
                let of = of(client);
                waiters.push(thread::spawn(move || pool.take(1, of, TEST_TIMEOUT).is_some()));
                waits(pool, waiters.len());
            }
            let start = Instant::now();
            assert!(pool.take(1, of(capacity), TEST_TIMEOUT).is_none());
            assert!(start.elapsed() < TEST_TIMEOUT / 2, "the call does not wait");
        }
        drop(first);
        assert!(waiters.into_iter().all(|waiter| waiter.join().expect("no panic")));
    }

    /// A client that never has more than one list comes after clients that were served before it.
    #[test]
    fn page_list_of_looping_client_comes_last() {
        let (pool, (got, order)) = (pool!(), channel());
        drop(pool.take(100, alone(2), TEST_TIMEOUT).expect("room"));
        drop(pool.take(100, alone(1), TEST_TIMEOUT).expect("room"));
        let held = pool.take(100, alone(1), TEST_TIMEOUT).expect("room");
        let waiters = [1, 2].map(|client| {
            let (got, before) = (got.clone(), pool.queue().waiting.len());
            let waiter = thread::spawn(move || {
                let listed = pool.take(100, alone(client), TEST_TIMEOUT).expect("room");
                got.send(client).expect("the test waits");
                drop(listed);
            });
            waits(pool, before + 1);
            waiter
        });
        drop(held);
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn waiting_page_lists_are_bounded() {
        let pool = pool!();
        let first = pool.take(100, alone(0), TEST_TIMEOUT).expect("room");
        let mut waiters = Vec::new();
        let mut wait_as = |client| {
            waiters
                .push(thread::spawn(move || pool.take(1, alone(client), TEST_TIMEOUT).is_some()));
            waits(pool, waiters.len());
        };
        let last = MAX_WAITING / MAX_OF_CLIENT - 1;
        for client in 0..last {
            (0..MAX_OF_CLIENT).for_each(|_| wait_as(client));
            assert!(
                pool.take(1, alone(client), TEST_TIMEOUT).is_none(),
                "client {client} has as many"
            );
        }
        (last..last + MAX_OF_CLIENT).for_each(wait_as);
        let start = Instant::now();
        assert!(pool.take(1, alone(MAX_WAITING), TEST_TIMEOUT).is_none());
        assert!(start.elapsed() < TEST_TIMEOUT / 2, "the call does not wait");
        drop(first);
        assert!(waiters.into_iter().all(|waiter| waiter.join().expect("no panic")));
    }

    #[test]
    fn short_page_list_waits_for_no_long_one() {
        let limits = [1, MAX_SHORT_ENTRIES, MAX_SHORT_ENTRIES + 1, MAX_PAGES]
            .map(|count| pool_of(count).capacity);
        assert_eq!(limits, [MAX_OF_SHORT, MAX_OF_SHORT, MAX_PAGES, MAX_PAGES]);
    }
}
