//! Which thread receives a filter's notifications, and what happens if it does not come back.
//!
//! A call's path and arguments are in the program's memory, which may never arrive: a page of a
//! userfaultfd, or of a file whose server (FUSE, NFS) does not answer. The wait cannot be
//! interrupted, not even by a fatal signal once a FUSE server has taken the request. So a thread
//! that takes long is replaced by another, which receives the next notifications; the first ends
//! when its access does. While notifications are pending, the replacement takes [`SHORT`].
//!
//! A filter has at most [`MOST`] such threads. If all are busy and notifications are pending, a
//! process that occupies a quarter of them is killed. If there is none, all processes whose calls
//! have taken [`PATIENCE`] are killed: nothing else would unblock the others behind the filter. The
//! same happens if no thread could be started for that long. Only waits for the program
//! ([`in_program`]) count, and calls queued behind such a call on the same open device ([`Queue`]).
//! A call that waits for another lock of the supervisor is delayed by another program.
//!
//! A thread whose call's process was killed is lost: it is not counted, and comes back when its
//! access ends, if ever. With [`MOST_LOST`] lost threads, the filter gets no new one and its calls
//! wait; other filters are unaffected.
//!
//! The kernel queues a filter's notifications in order, so a call behind N hanging ones waits about
//! N times [`SHORT`], whichever processes made them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sys::Notification;

/// Time at one call after which another thread takes over.
pub(super) const TURN: Duration = Duration::from_millis(100);
/// The same, while notifications are pending.
pub(super) const SHORT: Duration = Duration::from_millis(2);
/// Limit of busy threads per filter.
const MOST: usize = 512;
/// Threads that one process may occupy.
const MOST_OF_ONE: usize = MOST / 4;
/// Limit of lost threads per filter.
const MOST_LOST: usize = 1024;
/// Time after which hanging calls are killed.
const PATIENCE: Duration = Duration::from_secs(1);

/// A call being answered.
#[derive(Debug, Clone)]
pub(super) struct Busy {
    pub call: Notification,
    since: Instant,
    stay: Arc<Stay>,
}

/// A thread's current wait.
#[derive(Debug, Clone, Default)]
enum Wait {
    /// Not for the program whose call it answers.
    #[default]
    None,
    /// For the program, since this time.
    Program(Instant),
    /// In a queue, which waits for a program while its leader does.
    Queue(Arc<Queue>),
}

/// A thread's wait, visible to other threads.
#[derive(Debug, Default)]
struct Stay {
    wait: Mutex<Wait>,
    /// The call being answered, if any.
    call: Option<Notification>,
}

impl Stay {
    fn of(call: Notification) -> Self {
        Self { wait: Mutex::default(), call: Some(call) }
    }

    /// Sets the wait; returns the previous one.
    fn replace(&self, wait: Wait) -> Wait {
        std::mem::replace(&mut self.wait.lock().unwrap_or_else(PoisonError::into_inner), wait)
    }

    /// The call that delays this thread: its own, or that of its queue's leader.
    fn held_up_by(&self) -> Option<Notification> {
        match &*self.wait.lock().unwrap_or_else(PoisonError::into_inner) {
            Wait::Queue(queue) => queue.first()?.call,
            _ => self.call,
        }
    }

    /// Whether the wait for the program has lasted this long.
    fn is_long(&self, now: Instant, limit: Duration) -> bool {
        let wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match wait {
            Wait::None => false,
            Wait::Program(since) => now.saturating_duration_since(since) >= limit,
            // A queue's leader is in no other queue.
            Wait::Queue(queue) => queue.first().is_some_and(|first| first.is_long(now, limit)),
        }
    }
}

/// Serializes calls, such as those on one open device. While the leader waits for its program, all
/// members count as waiting for theirs, not as delayed by another program.
#[derive(Debug, Default)]
pub(super) struct Queue {
    alone: Mutex<()>,
    first: Mutex<Option<Arc<Stay>>>,
}

impl Queue {
    fn first(&self) -> Option<Arc<Stay>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_first(&self, stay: Option<Arc<Stay>>) {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = stay;
    }

    /// Runs `work` when it is this thread's turn.
    pub(super) fn alone<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        struct First<'a>(&'a Queue);
        impl Drop for First<'_> {
            fn drop(&mut self) {
                self.0.set_first(None);
            }
        }
        let stay = STAY.with_borrow(Clone::clone).unwrap_or_default();
        let before = stay.replace(Wait::Queue(self.clone()));
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        stay.replace(before);
        self.set_first(Some(stay));
        let _first = First(self);
        work()
    }
}

thread_local! {
    /// The wait of this thread's current call.
    static STAY: RefCell<Option<Arc<Stay>>> = const { RefCell::new(None) };
}

/// Runs work whose duration the caller's program controls: it waits for the program's memory,
/// threads or locks in the kernel.
pub(super) fn in_program<T>(work: impl FnOnce() -> T) -> T {
    struct Inside(Option<(Arc<Stay>, Wait)>);
    impl Drop for Inside {
        fn drop(&mut self) {
            if let Some((stay, before)) = self.0.take() {
                stay.replace(before);
            }
        }
    }
    let stay = STAY.with_borrow(Clone::clone);
    let _inside = Inside(stay.map(|stay| {
        let before = stay.replace(Wait::Program(Instant::now()));
        (stay, before)
    }));
    work()
}

/// The next step about slow threads.
#[derive(Debug)]
pub(super) enum Step {
    /// None: the receiving thread waits for a notification, or has just received one.
    Nothing,
    /// Start another receiving thread: [`Turns::replace`].
    Replace,
    /// Another thread is needed, but too many are lost.
    Exhausted,
    /// Kill the processes that made these calls.
    Kill(Vec<Busy>),
}

/// The threads that answer one filter's calls.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// Number of the receiving thread.
    current: u64,
    /// Busy threads and their calls.
    busy: BTreeMap<u64, Busy>,
    /// Lost threads and their calls.
    lost: BTreeMap<u64, Busy>,
    /// The last attempt to start a thread failed.
    refused: bool,
}

impl Taken {
    /// Marks a thread as lost: its call's process is gone, or about to be.
    fn lose(&mut self, number: u64) -> Option<Busy> {
        let busy = self.busy.remove(&number)?;
        self.lost.insert(number, busy.clone());
        Some(busy)
    }
}

impl Turns {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thread `number`, the current one, has received a call.
    pub(super) fn begin(&self, number: u64, call: Notification) {
        let stay = Arc::new(Stay::of(call));
        STAY.set(Some(stay.clone()));
        self.taken().busy.insert(number, Busy { call, since: Instant::now(), stay });
    }

    /// Thread `number` has answered its call; returns whether it receives the next.
    pub(super) fn end(&self, number: u64) -> bool {
        let mut taken = self.taken();
        taken.busy.remove(&number);
        taken.lost.remove(&number);
        taken.current == number
    }

    /// The next step. `waits`: a notification is pending. `maker`: the process of a call, if the
    /// call still waits.
    pub(super) fn look<P: Ord>(
        &self,
        now: Instant,
        waits: bool,
        maker: impl Fn(&Notification) -> Option<P>,
    ) -> Step {
        let mut taken = self.taken();
        let is_long = |busy: &Busy, limit| now.saturating_duration_since(busy.since) >= limit;
        let current = taken.current;
        let replace = match taken.lost.len() {
            MOST_LOST.. => Step::Exhausted,
            _ => Step::Replace,
        };
        if taken.lost.contains_key(&current) {
            return replace;
        }
        let turn = if waits { SHORT } else { TURN };
        let Some(taking) = taken.busy.get(&current).filter(|busy| is_long(busy, turn)) else {
            return Step::Nothing;
        };
        // Without another thread, only the end of a process brings a thread back.
        let alone = taken.refused && is_long(taking, PATIENCE);
        if taken.busy.len() < MOST && !alone {
            return replace;
        }
        if !waits {
            return Step::Nothing;
        }
        // Per process: its calls, and the number of calls that it delays, including its own.
        let mut made = BTreeMap::<P, (Vec<u64>, usize)>::new();
        let mut without_maker = Vec::new();
        for (&number, busy) in taken.busy.iter().filter(|(_, busy)| is_long(busy, TURN)) {
            let Some(process) = maker(&busy.call) else {
                without_maker.push(number);
                continue;
            };
            if !busy.stay.is_long(now, TURN) {
                continue;
            }
            let blamed = busy.stay.held_up_by().and_then(|call| maker(&call));
            if let Some(blamed) = blamed {
                made.entry(blamed).or_default().1 += 1;
            }
            made.entry(process).or_default().0.push(number);
        }
        let most = made.values().max_by_key(|(_, holds)| *holds);
        let killed: Vec<u64> = match most.filter(|(_, holds)| *holds >= MOST_OF_ONE) {
            Some((numbers, _)) => numbers.clone(),
            None => {
                let is_old = |number: &u64| {
                    taken.busy.get(number).is_some_and(|busy| {
                        busy.stay.is_long(now, PATIENCE)
                            && busy.stay.held_up_by().is_some_and(|by| by.id == busy.call.id)
                    })
                };
                let calls = made.into_values().map(|(numbers, _)| numbers);
                calls.filter(|numbers| numbers.iter().any(is_old)).flatten().collect()
            }
        };
        for number in without_maker {
            taken.lose(number);
        }
        let calls: Vec<Busy> = killed.into_iter().filter_map(|it| taken.lose(it)).collect();
        if calls.is_empty() { Step::Nothing } else { Step::Kill(calls) }
    }

    /// Starts the next receiving thread. If that fails, the current one continues when it comes
    /// back, and the next [`Turns::look`] decides.
    pub(super) fn replace(&self, start: impl FnOnce(u64) -> io::Result<()>) -> io::Result<()> {
        // Locked until both threads can see which one receives.
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

    fn call(process: u32) -> Notification {
        Notification::of(process, 0, [0; 6])
    }

    fn maker(call: &Notification) -> Option<u32> {
        Some(call.tid).filter(|&process| process != GONE)
    }

    /// A process that has ended.
    const GONE: u32 = 0;

    impl Turns {
        /// Begins a call that waits for its program.
        fn begin_in_program(&self, number: u64, call: Notification) {
            self.begin(number, call);
            self.taken().busy[&number].stay.replace(Wait::Program(Instant::now()));
        }
    }

    fn started(_: u64) -> io::Result<()> {
        Ok(())
    }

    fn refused(_: u64) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Turns that are all taken, by calls of the processes that `process` returns.
    fn full(process: impl Fn(u32) -> u32) -> Turns {
        let turns = Turns::default();
        for number in 0..MOST as u64 {
            if number != 0 {
                let step = turns.look(Instant::now() + SHORT, true, maker);
                assert!(matches!(step, Step::Replace), "{number}: {step:?}");
                turns.replace(started).expect("it starts");
            }
            turns.begin_in_program(number, call(process(number as u32)));
        }
        turns
    }

    fn killed(step: Step) -> Vec<u32> {
        match step {
            Step::Kill(calls) => calls.iter().map(|busy| busy.call.tid).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn slow_thread_is_replaced_once() {
        let turns = Turns::default();
        let soon = Instant::now();
        let look = |now, waits| turns.look(now, waits, maker);
        assert!(matches!(look(soon + PATIENCE, true), Step::Nothing), "it waits for a call");
        turns.begin(0, call(1));
        assert!(matches!(look(soon, true), Step::Nothing), "it has just begun");
        let later = Instant::now();
        assert!(matches!(look(later + SHORT, false), Step::Nothing), "no other call waits");
        assert!(matches!(look(later + SHORT, true), Step::Replace));
        assert!(matches!(look(later + TURN, false), Step::Replace));
        turns.replace(started).expect("it starts");
        assert!(matches!(look(later + TURN, true), Step::Nothing), "the next waits for a call");
        turns.begin(1, call(1));
        assert!(turns.end(1), "it goes on");
        assert!(!turns.end(0), "it was replaced");
    }

    #[test]
    fn full_turns_kill_after_patience() {
        let turns = full(|number| number + 1);
        let start = Instant::now();
        let look = |now, waits| turns.look(now, waits, maker);
        assert!(matches!(look(start + TURN, true), Step::Nothing), "they may come back");
        assert!(matches!(look(start + PATIENCE, false), Step::Nothing), "no other call waits");
        assert_eq!(killed(look(start + PATIENCE, true)).len(), MOST);
        assert!(matches!(look(start + PATIENCE, true), Step::Replace), "the last one is lost");
        turns.replace(started).expect("it starts");
        turns.begin(MOST as u64, call(1));
        assert!(turns.end(MOST as u64) && !turns.end(3));
        turns.begin(MOST as u64, call(1));
        let step = look(Instant::now() + TURN, true);
        assert!(matches!(step, Step::Replace), "there is room: {step:?}");
    }

    #[test]
    fn process_with_quarter_of_turns_is_killed_alone() {
        let turns = full(|number| if (number as usize) < MOST_OF_ONE { 7 } else { 8 + number });
        let calls = killed(turns.look(Instant::now() + TURN, true, maker));
        assert_eq!(calls, [7; MOST_OF_ONE]);
        let step = turns.look(Instant::now() + PATIENCE, true, maker);
        assert!(matches!(step, Step::Replace), "there is room: {step:?}");
    }

    #[test]
    fn call_waiting_for_model_is_not_killed() {
        let turns = full(|number| if (number as usize) < MOST_OF_ONE { 7 } else { 8 + number });
        let wait_for_us = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                turns.taken().busy[&number].stay.replace(Wait::None);
            }
        };
        let late = Instant::now() + PATIENCE;
        wait_for_us(0..1);
        wait_for_us(MOST_OF_ONE as u64 + 1..MOST as u64);
        let step = turns.look(late - PATIENCE / 2, true, maker);
        assert!(matches!(step, Step::Nothing), "process 7 has not a quarter: {step:?}");
        wait_for_us(0..MOST_OF_ONE as u64);
        assert_eq!(killed(turns.look(late, true, maker)), [8 + MOST_OF_ONE as u32]);
        turns.replace(started).expect("it starts");
        turns.begin(MOST as u64, call(1));
        let step = turns.look(late + PATIENCE, true, maker);
        assert!(matches!(step, Step::Nothing), "none waits for its program: {step:?}");
    }

    #[test]
    fn queued_call_waits_for_program_with_its_leader() {
        let (queue, held) = (Arc::<Queue>::default(), std::sync::Barrier::new(2));
        let waits = |stay: &Stay| stay.is_long(Instant::now(), Duration::ZERO);
        std::thread::scope(|scope| {
            let stay = Arc::<Stay>::default();
            scope.spawn(|| {
                STAY.set(Some(Arc::default()));
                queue.alone(|| {
                    held.wait();
                    held.wait();
                    in_program(|| {
                        held.wait();
                        held.wait();
                    });
                });
            });
            held.wait();
            let (queue, of_second) = (queue.clone(), stay.clone());
            let second = scope.spawn(move || {
                STAY.set(Some(of_second.clone()));
                queue.alone(|| waits(&of_second))
            });
            while !matches!(*stay.wait.lock().unwrap(), Wait::Queue(_)) {
                std::thread::yield_now();
            }
            assert!(!waits(&stay), "the first thread works");
            held.wait();
            held.wait();
            assert!(waits(&stay), "the first thread waits for its program");
            held.wait();
            assert!(!second.join().expect("it ends"), "it is first now, and works");
        });
    }

    #[test]
    fn program_wait_ends_with_its_closure() {
        let turns = Turns::default();
        let stays = |limit| turns.taken().busy[&0].stay.is_long(Instant::now(), limit);
        turns.begin(0, call(1));
        assert!(!stays(Duration::ZERO));
        in_program(|| {
            in_program(|| assert!(stays(Duration::ZERO)));
            assert!(stays(Duration::ZERO), "the outer work goes on");
        });
        assert!(!stays(Duration::ZERO));
        let panics = std::panic::AssertUnwindSafe(|| in_program(|| panic!("a bug")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!stays(Duration::ZERO));
    }

    #[test]
    fn turns_of_ended_processes_are_free() {
        let turns = full(|number| if number == 3 { GONE } else { number });
        let soon = Instant::now() + TURN;
        assert!(matches!(turns.look(soon, true, maker), Step::Nothing));
        assert!(matches!(turns.look(soon, true, maker), Step::Replace), "one is free");
    }

    #[test]
    fn lost_threads_are_bounded() {
        let turns = Turns::default();
        for number in 0..MOST_LOST as u64 {
            turns.begin(number, call(GONE));
            turns.taken().lose(number);
            turns.taken().current = number;
        }
        let look = || turns.look(Instant::now(), true, maker);
        assert!(matches!(look(), Step::Exhausted));
        assert!(!turns.end(3), "it comes back");
        assert!(matches!(look(), Step::Replace));
    }

    #[test]
    fn refused_thread_changes_no_turn() {
        let turns = Turns::default();
        turns.begin(0, call(1));
        let (soon, late) = (Instant::now() + TURN, Instant::now() + PATIENCE);
        for _ in 0..3 {
            assert!(matches!(turns.look(soon, true, maker), Step::Replace));
            turns.replace(refused).expect_err("no thread");
        }
        assert!(turns.end(0), "it takes the next calls");
        turns.begin_in_program(0, call(1));
        assert_eq!(killed(turns.look(late + TURN, true, maker)), [1]);
        turns.replace(refused).expect_err("no thread");
        let step = turns.look(late, true, maker);
        assert!(matches!(step, Step::Replace), "once a thread can be started");
        turns.replace(started).expect("it starts");
        assert!(!turns.end(0), "it was replaced");
    }
}
