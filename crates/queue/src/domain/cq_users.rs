//! The queues that complete in a completion queue, and how many CQEs each can have outstanding
//! there.
//!
//! An overrun breaks a CQ permanently: the device writes no more CQEs, and its queues fail. So the
//! creation of a queue counts the requests that its rings hold against the entries of its CQ. A
//! failed queue flushes every request that it holds, signaled or not.
//!
//! The CQE of a frame has a flow tag instead of the queue's number; only its user index identifies
//! the queue. So frame receivers on one completion queue need different user indexes. Queue pairs
//! complete elsewhere, because their CQEs are removed by QPN.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbless_command::{Error, ErrorKind};
use verbless_ring::cq::{Retired, SpareEntries};

/// The queues that complete in a completion queue.
pub(super) struct CqUsers {
    users: Mutex<CqUserCounts>,
    /// Entries of the CQ; `None` with [`CqConfig::overcommit`](super::CqConfig::overcommit).
    entries: Option<u32>,
    /// The CQ has one entry, for the send queue of one queue pair.
    collapsed: bool,
    /// Receives the number of entries that no request needs.
    spare: SpareEntries,
    /// The consumer index that the device has.
    consumed: Box<dyn Fn() -> u32 + Send + Sync>,
}

#[derive(Debug, Default)]
struct CqUserCounts {
    pairs: usize,
    /// User indexes of the frame receive queues.
    receivers: BTreeSet<u32>,
    /// Requests that the rings hold, those of SRQs included.
    requests: u64,
    /// SRQs by their RMP numbers: how many queue pairs draw from each.
    srqs: BTreeMap<u32, usize>,
    /// Removed CQEs of queues that were reset or dropped. They keep their entries until the CQ is
    /// polled past them.
    retired: Vec<Retired>,
}

/// A queue's entry among the users of a completion queue; removed when this is dropped.
#[derive(Debug)]
pub(super) struct CqUse {
    users: Arc<CqUsers>,
    user: CqUser,
    requests: u32,
}

#[derive(Debug, Clone, Copy)]
enum CqUser {
    Pair,
    /// A queue pair that draws from the SRQ of this RMP number.
    SrqPair(u32),
    Sender,
    Receiver(u32),
}

impl CqUsers {
    /// The users of a CQ with this many entries; `None`: they are not counted. `consumed` returns
    /// the consumer index that the device has.
    pub(super) fn new(
        entries: Option<u32>,
        spare: SpareEntries,
        consumed: impl Fn() -> u32 + Send + Sync + 'static,
    ) -> Arc<Self> {
        spare.set(entries.unwrap_or(0));
        let (users, consumed) = (Mutex::default(), Box::new(consumed));
        Arc::new(Self { users, entries, collapsed: false, spare, consumed })
    }

    /// The users of a collapsed CQ.
    pub(super) fn of_collapsed() -> Arc<Self> {
        let (users, spare) = (Mutex::default(), SpareEntries::default());
        let consumed = Box::new(|| 0);
        Arc::new(Self { users, entries: None, collapsed: true, spare, consumed })
    }

    /// Refuses a receive queue in a collapsed CQ.
    pub(super) fn takes_receives(&self, attempted: &'static str) -> Result<(), Error> {
        if !self.collapsed {
            return Ok(());
        }
        let hint = "a collapsed completion queue is for the send queue of one queue pair: let \
                    receives complete in another one, made by Domain::completion_queue";
        Err(Error::new(ErrorKind::InvalidInput, attempted, hint))
    }

    /// Refuses all but the first queue in a collapsed CQ.
    fn takes_another(&self, attempted: &'static str, users: &CqUserCounts) -> Result<(), Error> {
        if !self.collapsed || users.pairs == 0 {
            return Ok(());
        }
        let hint = "another queue pair completes in this collapsed completion queue, whose one \
                    entry says how far one send queue is: make one for each";
        Err(Error::new(ErrorKind::InvalidInput, attempted, hint))
    }

    /// Updates the number of entries that no request needs.
    fn update_spare(&self, users: &mut CqUserCounts) {
        if let Some(entries) = self.entries {
            let needed = users.requests + self.retired(users);
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            self.spare.set(entries.saturating_sub(needed));
        }
    }

    /// Counts CQEs that were removed.
    fn retire(&self, retired: Retired) {
        if self.entries.is_some() && retired.count > 0 {
            let mut users = self.lock();
            users.retired.push(retired);
            self.update_spare(&mut users);
        }
    }

    /// CQEs that were removed and still have their entries.
    fn retired(&self, users: &mut CqUserCounts) -> u64 {
        let consumed = (self.consumed)();
        // Indexes have 24 bits, and an unread CQE is at most one queue length ahead. An entry that
        // was not checked for 2^24 CQEs seems to be ahead again, until more are polled.
        let entries = self.entries.unwrap_or(0);
        users.retired.retain(|it| {
            let ahead = it.end.wrapping_sub(consumed) & 0xff_ffff;
            (1..=entries).contains(&ahead)
        });
        users.retired.iter().map(|it| u64::from(it.count)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, CqUserCounts> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue pair's ring of `requests`.
    pub(super) fn pair(self: &Arc<Self>, requests: u32) -> Result<CqUse, Error> {
        const WHAT: &str = "making a queue pair";
        let mut users = self.lock();
        self.takes_another(WHAT, &users)?;
        users.refuse_pair_beside_frames(WHAT)?;
        self.take(&mut users, WHAT, requests)?;
        users.pairs += 1;
        Ok(CqUse { users: self.clone(), user: CqUser::Pair, requests })
    }

    /// Adds a queue pair that draws from an SRQ of `receives`. All queue pairs here that draw from
    /// the SRQ count its receives once.
    pub(super) fn srq_pair(self: &Arc<Self>, rmpn: u32, receives: u32) -> Result<CqUse, Error> {
        const WHAT: &str = "making a queue pair with an SRQ";
        self.takes_receives(WHAT)?;
        let mut users = self.lock();
        users.refuse_pair_beside_frames(WHAT)?;
        if !users.srqs.contains_key(&rmpn) {
            self.take(&mut users, WHAT, receives)?;
        }
        *users.srqs.entry(rmpn).or_default() += 1;
        users.pairs += 1;
        Ok(CqUse { users: self.clone(), user: CqUser::SrqPair(rmpn), requests: receives })
    }

    /// Adds a frame send queue.
    pub(super) fn sender(self: &Arc<Self>, requests: u32) -> Result<CqUse, Error> {
        self.take(&mut self.lock(), "making a send queue of frames", requests)?;
        Ok(CqUse { users: self.clone(), user: CqUser::Sender, requests })
    }

    /// Adds a frame receive queue.
    pub(super) fn receiver(
        self: &Arc<Self>,
        user_index: u32,
        requests: u32,
    ) -> Result<CqUse, Error> {
        const WHAT: &str = "making a receive queue of frames";
        let mut users = self.lock();
        if users.pairs != 0 {
            let hint = "queue pairs complete in this completion queue: give the frames another one";
            return Err(Error::new(ErrorKind::InvalidInput, WHAT, hint));
        }
        if users.receivers.contains(&user_index) {
            let hint = format!(
                "another receive queue with the user index {user_index:#x} completes in this CQ: \
                 set another `user_index`, by which a CQE names its queue"
            );
            return Err(Error::new(ErrorKind::InvalidInput, WHAT, hint));
        }
        self.take(&mut users, WHAT, requests)?;
        users.receivers.insert(user_index);
        Ok(CqUse { users: self.clone(), user: CqUser::Receiver(user_index), requests })
    }

    /// Takes entries for `requests` more.
    fn take(
        &self,
        users: &mut CqUserCounts,
        attempted: &'static str,
        requests: u32,
    ) -> Result<(), Error> {
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
            return Err(Error::new(ErrorKind::InvalidInput, attempted, hint));
        }
        users.requests = all;
        self.update_spare(users);
        Ok(())
    }
}

/// The error for a queue that has no room beside CQEs of dropped queues.
fn full_of_retired(attempted: &'static str, retired: u64, entries: u32) -> Error {
    let hint = format!(
        "the completion queue of {entries} entries still has {retired} CQEs of queues that were \
         reset or dropped: poll it until it is empty, which gives their entries back"
    );
    Error::new(ErrorKind::InvalidInput, attempted, hint)
}

impl CqUse {
    /// Counts removed CQEs of the queue.
    pub(super) fn retire(&self, retired: Retired) {
        self.users.retire(retired);
    }

    /// Fails if the requests of all queues may not fit beside the removed CQEs. Called before a
    /// queue that was reset leaves RESET.
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

impl CqUserCounts {
    fn refuse_pair_beside_frames(&self, attempted: &'static str) -> Result<(), Error> {
        if self.receivers.is_empty() {
            return Ok(());
        }
        let hint = "frames are received into this completion queue: give queue pairs another one";
        Err(Error::new(ErrorKind::InvalidInput, attempted, hint))
    }
}

impl Drop for CqUse {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        self.users.retired(&mut users);
        let mut requests = self.requests;
        match self.user {
            CqUser::Pair => users.pairs -= 1,
            CqUser::SrqPair(rmpn) => {
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
            CqUser::Sender => {}
            CqUser::Receiver(user_index) => {
                users.receivers.remove(&user_index);
            }
        }
        users.requests -= u64::from(requests);
        self.users.update_spare(&mut users);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn users(entries: impl Into<Option<u32>>) -> Arc<CqUsers> {
        CqUsers::new(entries.into(), SpareEntries::default(), || 0)
    }

    #[test]
    fn retired_cqes_keep_their_entries_until_polled() {
        let consumed = Arc::new(AtomicU32::new(0xff_fff0));
        let read = consumed.clone();
        let users =
            CqUsers::new(Some(64), SpareEntries::default(), move || read.load(Ordering::Relaxed));
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
        // The CQE stays before the index, even half the index's range later.
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
    fn cq_rejects_rings_beyond_its_entries() {
        let users = users(64);
        let first = users.pair(32).unwrap();
        let refused = users.pair(33).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
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
        assert!(
            CqUsers::new(None, SpareEntries::default(), || 0).pair(u32::MAX).is_ok(),
            "overcommitted"
        );
    }

    #[test]
    fn srq_counts_once_for_all_its_qps() {
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
