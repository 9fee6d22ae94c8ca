//! Which queues report to a completion queue, and how many CQEs they can have outstanding there.
//!
//! A CQ that overruns is lost: the device writes no more CQEs, and its queues fail. So the requests
//! that the rings of its queues hold are counted against its entries when a queue is made. A failed
//! queue flushes every request that it holds, signaled or not.
//!
//! The CQE of a frame has a flow tag in the place of the queue's number, and the user index tells
//! whose it is. So receivers of frames on one completion queue need different ones, and queue
//! pairs, whose CQEs are cleaned away by their numbers, complete elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbless_command::{Error, ErrorKind};
use verbless_ring::cq::Retired;

/// The queues that report to a completion queue.
pub(super) struct CqUsers {
    users: Mutex<Users>,
    /// CQEs that fit; `None` where the program keeps within the entries by itself.
    entries: Option<u32>,
    /// The consumer index that the device knows of.
    consumed: Box<dyn Fn() -> u32 + Send + Sync>,
}

#[derive(Debug, Default)]
struct Users {
    pairs: usize,
    /// User indexes.
    receivers: BTreeSet<u32>,
    /// Requests that the rings hold, those of SRQs included.
    requests: u64,
    /// SRQs by their RMP numbers: how many queue pairs draw from each.
    srqs: BTreeMap<u32, usize>,
    /// CQEs of queues that were reset or are gone, which keep their entries until they are polled
    /// past.
    retired: Vec<Retired>,
}

/// A queue's entry among the users of a completion queue; removed when this is dropped.
#[derive(Debug)]
pub(super) struct CqUse {
    users: Arc<CqUsers>,
    user: User,
    requests: u32,
}

#[derive(Debug, Clone, Copy)]
enum User {
    Pair,
    /// A queue pair that draws from the SRQ of this RMP number.
    SrqPair(u32),
    Sender,
    Receiver(u32),
}

impl CqUsers {
    /// The users of a CQ with this many entries; `None`: they are not counted. `consumed` yields
    /// the consumer index that the device knows of.
    pub(super) fn new(
        entries: Option<u32>,
        consumed: impl Fn() -> u32 + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { users: Mutex::default(), entries, consumed: Box::new(consumed) })
    }

    /// Counts CQEs that were removed.
    fn retire(&self, retired: Retired) {
        if self.entries.is_some() && retired.count > 0 {
            self.lock().retired.push(retired);
        }
    }

    /// CQEs that were removed and still have their entries.
    fn retired(&self, users: &mut Users) -> u64 {
        let consumed = (self.consumed)();
        // Indexes have 24 bits, and no unread CQE is further ahead than the queue is long. An
        // entry that was not looked at for 2^24 CQEs seems ahead again, until more are polled.
        let entries = self.entries.unwrap_or(0);
        users.retired.retain(|it| {
            let ahead = it.end.wrapping_sub(consumed) & 0xff_ffff;
            (1..=entries).contains(&ahead)
        });
        users.retired.iter().map(|it| u64::from(it.count)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue pair's ring of `requests`.
    pub(super) fn pair(self: &Arc<Self>, requests: u32) -> Result<CqUse, Error> {
        const WHAT: &str = "making a queue pair";
        let mut users = self.lock();
        users.refuse_pair_beside_frames(WHAT)?;
        self.take(&mut users, WHAT, requests)?;
        users.pairs += 1;
        Ok(CqUse { users: self.clone(), user: User::Pair, requests })
    }

    /// Adds a queue pair that draws from an SRQ of `receives`, which count once for all queue pairs
    /// here that draw from it.
    pub(super) fn srq_pair(self: &Arc<Self>, rmpn: u32, receives: u32) -> Result<CqUse, Error> {
        const WHAT: &str = "making a queue pair with an SRQ";
        let mut users = self.lock();
        users.refuse_pair_beside_frames(WHAT)?;
        if !users.srqs.contains_key(&rmpn) {
            self.take(&mut users, WHAT, receives)?;
        }
        *users.srqs.entry(rmpn).or_default() += 1;
        users.pairs += 1;
        Ok(CqUse { users: self.clone(), user: User::SrqPair(rmpn), requests: receives })
    }

    /// Adds a send queue of frames.
    pub(super) fn sender(self: &Arc<Self>, requests: u32) -> Result<CqUse, Error> {
        self.take(&mut self.lock(), "making a send queue of frames", requests)?;
        Ok(CqUse { users: self.clone(), user: User::Sender, requests })
    }

    /// Adds a receive queue of frames.
    pub(super) fn receiver(
        self: &Arc<Self>,
        user_index: u32,
        requests: u32,
    ) -> Result<CqUse, Error> {
        const WHAT: &str = "making a receive queue of frames";
        let mut users = self.lock();
        if users.pairs != 0 {
            let hint = "queue pairs complete in this completion queue: give the frames another one";
            return Err(Error::new(ErrorKind::Input, WHAT, hint));
        }
        if users.receivers.contains(&user_index) {
            let hint = format!(
                "another one with the user index {user_index:#x} completes in this completion \
                 queue: set `user_index`, by which their CQEs are told apart"
            );
            return Err(Error::new(ErrorKind::Input, WHAT, hint));
        }
        self.take(&mut users, WHAT, requests)?;
        users.receivers.insert(user_index);
        Ok(CqUse { users: self.clone(), user: User::Receiver(user_index), requests })
    }

    /// Takes entries for `requests` more.
    fn take(&self, users: &mut Users, attempted: &'static str, requests: u32) -> Result<(), Error> {
        let (others, retired) = (users.requests, self.retired(users));
        let all = others + u64::from(requests);
        if let Some(entries) = self.entries.filter(|&entries| all + retired > entries.into()) {
            if all <= entries.into() {
                return Err(full_of_retired(attempted, retired, entries));
            }
            let beside = match others {
                0 => String::new(),
                _ => format!(", beside the {others} of others"),
            };
            let hint = format!(
                "{requests} requests fit into its rings{beside}, each of which may complete, and \
                 the completion queue has {entries} entries: it could overrun, which stops it and \
                 its queues; make it with CqConfig::new({all}), or set CqConfig::overcommit where \
                 the program has never more than {entries} requests outstanding"
            );
            return Err(Error::new(ErrorKind::Input, attempted, hint));
        }
        users.requests = all;
        Ok(())
    }
}

/// The error for a queue that has no room beside CQEs of queues that are gone.
fn full_of_retired(attempted: &'static str, retired: u64, entries: u32) -> Error {
    let hint = format!(
        "the completion queue of {entries} entries still has {retired} CQEs of queues that were \
         reset or dropped: poll it until it is empty, which gives their entries back"
    );
    Error::new(ErrorKind::Input, attempted, hint)
}

impl CqUse {
    /// Counts CQEs of the queue that were removed.
    pub(super) fn retire(&self, retired: Retired) {
        self.users.retire(retired);
    }

    /// Fails if the requests of all queues may not fit beside CQEs that were removed: before a
    /// queue that was reset is used again.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut users = self.users.lock();
        let retired = self.users.retired(&mut users);
        match self.users.entries {
            Some(entries) if retired > 0 && users.requests + retired > entries.into() => {
                Err(full_of_retired("starting a queue pair again", retired, entries))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for CqUsers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqUsers").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Users {
    fn refuse_pair_beside_frames(&self, attempted: &'static str) -> Result<(), Error> {
        if self.receivers.is_empty() {
            return Ok(());
        }
        let hint = "frames are received into this completion queue: give queue pairs another one";
        Err(Error::new(ErrorKind::Input, attempted, hint))
    }
}

impl Drop for CqUse {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        self.users.retired(&mut users);
        let mut requests = self.requests;
        match self.user {
            User::Pair => users.pairs -= 1,
            User::SrqPair(rmpn) => {
                users.pairs -= 1;
                match users.srqs.get_mut(&rmpn) {
                    Some(pairs @ 2..) => {
                        *pairs -= 1;
                        requests = 0;
                    }
                    _ => {
                        users.srqs.remove(&rmpn);
                    }
                }
            }
            User::Sender => {}
            User::Receiver(user_index) => {
                users.receivers.remove(&user_index);
            }
        }
        users.requests -= u64::from(requests);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn users(entries: impl Into<Option<u32>>) -> Arc<CqUsers> {
        CqUsers::new(entries.into(), || 0)
    }

    #[test]
    fn retired_cqes_keep_their_entries_until_they_are_polled() {
        let consumed = Arc::new(AtomicU32::new(0xff_fff0));
        let read = consumed.clone();
        let users = CqUsers::new(Some(64), move || read.load(Ordering::Relaxed));
        let pair = users.pair(32).unwrap();
        pair.check().unwrap();
        pair.retire(Retired { count: 20, end: 0x00_0004 });
        pair.check().unwrap();
        pair.retire(Retired { count: 20, end: 0x00_0018 });
        let refused = pair.check().unwrap_err().to_string();
        assert!(refused.contains("40 CQEs") && refused.contains("poll it"), "{refused}");
        drop(pair);
        let refused = users.pair(32).unwrap_err().to_string();
        assert!(refused.contains("40 CQEs"), "{refused}");
        consumed.store(0x00_0004, Ordering::Relaxed);
        let pair = users.pair(32).expect("20 are past");
        assert!(users.pair(32).is_err());
        // Behind it for good: also when the index is half its range on.
        for passed in [0x00_0020, 0x80_0019, 0xff_ff00] {
            consumed.store(passed, Ordering::Relaxed);
            pair.check().expect("all are past");
        }
        consumed.store(0x00_0020, Ordering::Relaxed);
        users.pair(32).expect("all are past");
        pair.check().unwrap();
    }

    #[test]
    fn frame_receivers_need_distinct_user_indexes() {
        let users = users(None);
        let pairs = [users.pair(1).unwrap(), users.pair(1).unwrap()];
        let refused = users.receiver(1, 1).unwrap_err().to_string();
        assert!(refused.contains("give the frames another one"));
        drop(pairs);
        let one = users.receiver(1, 1).unwrap();
        let _two = users.receiver(2, 1).unwrap();
        assert!(users.receiver(1, 1).unwrap_err().to_string().contains("user index 0x1"));
        assert!(users.pair(1).is_err() && users.srq_pair(5, 1).is_err());
        drop(one);
        assert!(users.receiver(1, 1).is_ok(), "the index is free again");
    }

    #[test]
    fn cq_refuses_rings_beyond_its_entries() {
        let users = users(64);
        let first = users.pair(32).unwrap();
        let refused = users.pair(33).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Input);
        let text = refused.to_string();
        for part in ["33 requests", "32 of others", "64 entries", "CqConfig::new(65)"] {
            assert!(text.contains(part), "{text:?} lacks {part}");
        }
        let second = users.pair(32).unwrap();
        assert!(users.sender(1).is_err());
        drop(first);
        assert!(users.sender(32).is_ok() && users.receiver(1, 1).is_err());
        drop(second);
        assert!(users.receiver(1, 64).is_ok());
        assert!(CqUsers::new(None, || 0).pair(u32::MAX).is_ok(), "overcommitted");
    }

    #[test]
    fn srq_counts_once_for_all_its_pairs() {
        let users = users(64);
        let pairs = [7, 7, 7].map(|rmpn| users.srq_pair(rmpn, 40).unwrap());
        assert!(users.srq_pair(8, 40).is_err());
        let [first, second, last] = pairs;
        drop((first, second));
        assert!(users.srq_pair(8, 40).is_err(), "the last one still draws from it");
        drop(last);
        assert!(users.srq_pair(8, 40).is_ok());
    }
}
