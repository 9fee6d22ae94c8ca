//! Which thread takes the calls of a filter, and what happens when one does not come back.
//!
//! A call's path and arguments are in the program's memory, and that may never arrive: a page of a
//! userfaultfd, or of a file whose server (FUSE, NFS) does not answer. Linux lets only a fatal
//! signal end such an access, and who waits is a thread of ours. So a thread that takes long is
//! replaced by another, which takes the filter's next calls; the first ends when its access does.
//!
//! There are [`MOST`] such threads for a filter at a time. If all have waited for [`PATIENCE`], the
//! processes for which they wait are killed: nothing else would let the others behind the filter go
//! on. The same is done if no other thread can be started for as long.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sys::Notification;

/// How long a thread may be at one call before another takes the next.
pub(super) const TURN: Duration = Duration::from_millis(100);
/// Threads of a filter that may be at calls at one time.
const MOST: usize = 64;
/// How long they may be there, if there are so many.
const PATIENCE: Duration = Duration::from_secs(5);

/// A call that is being answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Busy {
    pub call: Notification,
    since: Instant,
}

/// What is to be done about threads that are at a call for long.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing: the thread that takes calls waits for one, or has just received it.
    Nothing,
    /// Another thread is to take calls: [`Turns::replace`].
    Replace,
    /// The processes that made these calls are to be killed.
    Kill(Vec<Busy>),
}

/// The threads that answer one filter's calls.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// The number of the thread that takes calls.
    current: u64,
    /// What each thread is at that is at a call.
    busy: BTreeMap<u64, Busy>,
    /// What is not counted, as its process was killed.
    lost: BTreeMap<u64, Busy>,
    /// The last attempt to start a thread failed.
    refused: bool,
}

impl Turns {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thread `number` has received a call.
    pub(super) fn begin(&self, number: u64, call: Notification) {
        self.taken().busy.insert(number, Busy { call, since: Instant::now() });
    }

    /// Thread `number` is done with it; whether it is to take the next.
    pub(super) fn end(&self, number: u64) -> bool {
        let mut taken = self.taken();
        taken.busy.remove(&number);
        taken.lost.remove(&number);
        taken.current == number
    }

    /// What is to be done now.
    pub(super) fn look(&self, now: Instant) -> Step {
        let mut taken = self.taken();
        let is_long = |busy: &Busy, limit| now.saturating_duration_since(busy.since) >= limit;
        let current = taken.current;
        if taken.lost.contains_key(&current) {
            return Step::Replace;
        }
        let Some(taking) = taken.busy.get(&current).filter(|busy| is_long(busy, TURN)) else {
            return Step::Nothing;
        };
        // Without another thread, only the end of a call's process lets a thread come back.
        let alone = taken.refused && is_long(taking, PATIENCE);
        if taken.busy.len() < MOST && !alone {
            return Step::Replace;
        }
        if !alone && !taken.busy.values().all(|busy| is_long(busy, PATIENCE)) {
            return Step::Nothing;
        }
        let busy = std::mem::take(&mut taken.busy);
        let (lost, kept) = busy.into_iter().partition(|(_, busy)| is_long(busy, PATIENCE));
        taken.busy = kept;
        let calls = BTreeMap::values(&lost).copied().collect();
        taken.lost.extend(lost);
        Step::Kill(calls)
    }

    /// Starts the thread that takes calls from now on. If it cannot be started, the thread that
    /// took them goes on with it when it comes back, and the next [`Turns::look`] says what to do.
    pub(super) fn replace(&self, start: impl FnOnce(u64) -> io::Result<()>) -> io::Result<()> {
        // Locked meanwhile: neither thread learns of it before it is known who takes calls.
        let mut taken = self.taken();
        let started = start(taken.current + 1);
        taken.refused = started.is_err();
        if started.is_ok() {
            taken.current += 1;
        }
        started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Notification {
        Notification::of(1, 0, [0; 6])
    }

    fn started(_: u64) -> io::Result<()> {
        Ok(())
    }

    fn refused(_: u64) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    #[test]
    fn slow_thread_is_replaced_once() {
        let turns = Turns::default();
        let soon = Instant::now();
        assert!(matches!(turns.look(soon + PATIENCE), Step::Nothing), "it waits for a call");
        turns.begin(0, call());
        assert!(matches!(turns.look(soon), Step::Nothing), "it has just begun");
        let later = Instant::now() + TURN;
        assert!(matches!(turns.look(later), Step::Replace));
        turns.replace(started).expect("it starts");
        assert!(matches!(turns.look(later), Step::Nothing), "the next one waits for a call");
        turns.begin(1, call());
        assert!(turns.end(1), "it goes on");
        assert!(!turns.end(0), "it was replaced");
    }

    #[test]
    fn full_turns_kill_after_patience() {
        let turns = Turns::default();
        let start = Instant::now();
        for number in 0..MOST as u64 {
            turns.begin(number, call());
            let last = number as usize + 1 == MOST;
            let step = turns.look(Instant::now() + TURN);
            assert_eq!(matches!(step, Step::Replace), !last, "{number}: {step:?}");
            if !last {
                turns.replace(started).expect("it starts");
            }
        }
        assert!(matches!(turns.look(start + TURN), Step::Nothing), "they may come back");
        let Step::Kill(calls) = turns.look(Instant::now() + PATIENCE) else { panic!("too many") };
        assert_eq!(calls.len(), MOST);
        turns.replace(started).expect("it starts");
        turns.begin(MOST as u64, call());
        assert!(turns.end(MOST as u64) && !turns.end(3));
        turns.begin(MOST as u64, call());
        assert!(matches!(turns.look(Instant::now() + TURN), Step::Replace), "there is room");
    }

    #[test]
    fn refused_thread_changes_no_turn() {
        let turns = Turns::default();
        turns.begin(0, call());
        let (soon, late) = (Instant::now() + TURN, Instant::now() + PATIENCE);
        for _ in 0..3 {
            assert!(matches!(turns.look(soon), Step::Replace));
            turns.replace(refused).expect_err("no thread");
        }
        assert!(turns.end(0), "it takes the next calls");
        turns.begin(0, call());
        assert!(matches!(turns.look(late + TURN), Step::Kill(calls) if calls.len() == 1));
        turns.replace(refused).expect_err("no thread");
        assert!(matches!(turns.look(late), Step::Replace), "once there is room for a thread");
        turns.replace(started).expect("it starts");
        assert!(!turns.end(0), "it was replaced");
    }
}
