//! Room for the page lists of registrations on their way to the device, which all clients share.
//!
//! Long lists and short ones have rooms of their own, so that no short list waits for a long one. A
//! list that finds no room waits for a limited time, with nothing locked but its open device. The
//! next is the one whose client got room longest ago, then the one that came first: a client that
//! registers in a loop, in however many threads, comes after the others.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::Client;

/// Most entries of all long lists at a time: 64 GiB in pages of 4 KiB, in lists of 128 MiB.
pub(super) const MOST_PAGES: usize = 1 << 24;
/// Most entries of a short list: 256 MiB in pages of 4 KiB.
const SHORT: usize = 1 << 16;
/// Most entries of all short lists at a time, in 32 MiB.
const MOST_OF_SHORT: usize = 1 << 22;
/// How long a list waits for room.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most lists that wait for one room: each holds up a thread of those who answer calls.
const MOST_WAITING: usize = 64;
/// Most of these of one client.
const MOST_OF_CLIENT: usize = 4;

/// Room for so many entries.
#[derive(Debug)]
struct Room {
    most: usize,
    line: Mutex<Line>,
    changed: Condvar,
}

/// Which lists have room, and which wait.
#[derive(Debug)]
struct Line {
    taken: usize,
    waiting: Vec<Waiter>,
    /// The number of the waiter that came last.
    last: u64,
    /// When clients that have a list waiting got room last, counted in lists.
    served: BTreeMap<usize, u64>,
    /// Lists that got room.
    count: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    number: u64,
    client: usize,
}

static LONG_LISTS: Room = Room::new(MOST_PAGES);
static SHORT_LISTS: Room = Room::new(MOST_OF_SHORT);

/// Entries of a list on its way, until this is dropped.
#[derive(Debug)]
pub(super) struct ListedPages {
    pub count: usize,
    room: &'static Room,
}

impl ListedPages {
    /// Room for a list of a client; `None`: there is none for so long a list, or none was free in
    /// time, or too many lists wait.
    pub(super) fn of(pages: u64, client: &dyn Client) -> Option<Self> {
        let count = usize::try_from(pages).ok()?;
        // A client has one count of pinned pages, over all its calls.
        let client = ptr::from_ref(client.pinned()).addr();
        room_of(count).take(count, client, PATIENCE)
    }
}

/// The room of lists of so many entries.
fn room_of(count: usize) -> &'static Room {
    if count <= SHORT { &SHORT_LISTS } else { &LONG_LISTS }
}

impl Drop for ListedPages {
    fn drop(&mut self) {
        self.room.line().taken -= self.count;
        self.room.changed.notify_all();
    }
}

impl Room {
    const fn new(most: usize) -> Self {
        let served = BTreeMap::new();
        let line = Line { taken: 0, waiting: Vec::new(), last: 0, served, count: 0 };
        Self { most, line: Mutex::new(line), changed: Condvar::new() }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for `count` entries once it is this list's turn.
    fn take(&'static self, count: usize, client: usize, patience: Duration) -> Option<ListedPages> {
        let mut line = self.line();
        if count > self.most || !line.may_wait(client) {
            return None;
        }
        line.last += 1;
        let own = Waiter { number: line.last, client };
        line.waiting.push(own);
        let must_wait =
            |line: &mut Line| line.next() != Some(own.number) || line.taken + count > self.most;
        let waited = self.changed.wait_timeout_while(line, patience, must_wait);
        let (mut line, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let listed = (!waited.timed_out()).then(|| ListedPages { count, room: self });
        line.leave(own, listed.as_ref().map(|listed| listed.count));
        drop(line);
        // It may be another's turn by now.
        self.changed.notify_all();
        listed
    }
}

impl Line {
    fn may_wait(&self, client: usize) -> bool {
        let own = self.waiting.iter().filter(|it| it.client == client).count();
        self.waiting.len() < MOST_WAITING && own < MOST_OF_CLIENT
    }

    /// The number of the waiter whose turn it is.
    fn next(&self) -> Option<u64> {
        let turn = |it: &&Waiter| (self.served.get(&it.client).copied().unwrap_or(0), it.number);
        self.waiting.iter().min_by_key(turn).map(|it| it.number)
    }

    /// Ends a wait; `count`: with room for so many entries.
    fn leave(&mut self, waiter: Waiter, count: Option<usize>) {
        self.waiting.retain(|it| it.number != waiter.number);
        if let Some(count) = count {
            self.taken += count;
            self.count += 1;
            self.served.insert(waiter.client, self.count);
        }
        let Self { waiting, served, .. } = self;
        served.retain(|client, _| waiting.iter().any(|it| it.client == *client));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn room() -> &'static Room {
        Box::leak(Box::new(Room::new(100)))
    }

    /// Waits until so many lists wait.
    fn waits(room: &Room, count: usize) {
        let start = Instant::now();
        while room.line().waiting.len() != count {
            assert!(start.elapsed() < LONG, "{:?}", room.line().waiting);
            thread::yield_now();
        }
    }

    #[test]
    fn long_page_list_waits_for_room() {
        let room = room();
        assert!(room.take(101, 1, LONG).is_none(), "it never has room");
        let first = room.take(60, 1, LONG).expect("room");
        let second = room.take(40, 1, LONG).expect("the rest");
        assert!(room.take(1, 2, Duration::from_millis(10)).is_none(), "none came free");
        let third = thread::spawn(|| room.take(50, 2, LONG).map(|listed| listed.count));
        waits(room, 1);
        drop(second);
        waits(room, 1);
        drop(first);
        assert_eq!(third.join().expect("no panic"), Some(50));
        let line = room.line();
        assert_eq!((line.taken, line.served.len()), (0, 0));
    }

    #[test]
    fn page_list_room_is_fair_among_clients() {
        let (room, (got, order)) = (room(), channel());
        let first = room.take(100, 1, LONG).expect("room");
        let waiters: Vec<_> = [1, 1, 2, 1, 3]
            .into_iter()
            .enumerate()
            .map(|(before, client)| {
                let got = got.clone();
                let waiter = thread::spawn(move || {
                    let listed = room.take(100, client, LONG).expect("room");
                    got.send(client).expect("the test waits");
                    drop(listed);
                });
                waits(room, before + 1);
                waiter
            })
            .collect();
        drop(first);
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2, 3, 1, 1]);
    }

    #[test]
    fn waiting_page_lists_are_bounded() {
        let room = room();
        let first = room.take(100, 0, LONG).expect("room");
        let mut waiters = Vec::new();
        for client in 0..MOST_WAITING / MOST_OF_CLIENT {
            for _ in 0..MOST_OF_CLIENT {
                waiters.push(thread::spawn(move || room.take(1, client, LONG).is_some()));
                waits(room, waiters.len());
            }
            assert!(room.take(1, client, LONG).is_none(), "client {client} has as many");
        }
        let start = Instant::now();
        assert!(room.take(1, MOST_WAITING, LONG).is_none());
        assert!(start.elapsed() < LONG / 2, "it does not wait");
        drop(first);
        assert!(waiters.into_iter().all(|waiter| waiter.join().expect("no panic")));
    }

    #[test]
    fn short_page_list_waits_for_no_long_one() {
        let rooms = [1, SHORT, SHORT + 1, MOST_PAGES].map(|count| room_of(count).most);
        assert_eq!(rooms, [MOST_OF_SHORT, MOST_OF_SHORT, MOST_PAGES, MOST_PAGES]);
    }
}
