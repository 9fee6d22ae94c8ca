//! The threads that receive a filter's notifications, and the replacement of one that hangs.
//!
//! A call's path and arguments are in the program's memory, which may never arrive: a page of a
//! userfaultfd, or of a file whose server (FUSE, NFS) does not answer. The wait cannot be
//! interrupted, not even by a fatal signal once a FUSE server has taken the request. So a thread
//! that takes long is replaced by another, which receives the next notifications; the first ends
//! when its access does. While notifications are pending, the replacement takes
//! [`REPLACE_AFTER_PENDING`].
//!
//! A filter has at most [`MAX_BUSY`] busy threads. If all are busy and notifications are pending, a
//! process that occupies a quarter of them is killed. If no process occupies so many, all processes
//! whose calls have taken [`STALL_TIMEOUT`] are killed: nothing else would unblock the other calls
//! of the filter. They are also killed if no thread could be started for that long. Only waits for
//! the program ([`in_program`]) count, and calls that wait for one of these on the same open device
//! ([`CallLock`]). A call that waits for another lock of the supervisor is delayed by another
//! program.
//!
//! A thread whose call's process was killed is lost: it is not counted, and comes back when its
//! access ends, if ever. With [`MAX_LOST`] lost threads, the filter gets no new one and its calls
//! wait; other filters are unaffected.
//!
//! The kernel queues a filter's notifications in order, so a call behind N hanging ones waits about
//! N times [`REPLACE_AFTER_PENDING`], whichever processes made them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sys::Notification;

/// Time at one call after which another thread replaces the thread.
pub(super) const REPLACE_AFTER: Duration = Duration::from_millis(100);
/// As [`REPLACE_AFTER`], while notifications are pending.
pub(super) const REPLACE_AFTER_PENDING: Duration = Duration::from_millis(2);
/// Limit of busy threads per filter.
const MAX_BUSY: usize = 512;
/// Threads that one process may occupy.
const MAX_OF_PROCESS: usize = MAX_BUSY / 4;
/// Limit of lost threads per filter.
const MAX_LOST: usize = 1024;
/// Time after which hanging calls are killed.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// A call being answered.
#[derive(Debug, Clone)]
pub(super) struct RunningCall {
    pub call: Notification,
    since: Instant,
    wait: Arc<ThreadWait>,
}

/// A thread's current wait.
#[derive(Debug, Clone, Default)]
enum WaitTarget {
    /// Not for the program whose call it answers.
    #[default]
    None,
    /// For the program, since this time.
    Program(Instant),
    /// For a lock. It counts as a wait for the program while the lock's holder waits for its
    /// program.
    CallLock(Arc<CallLock>),
}

/// A thread's wait, visible to other threads.
#[derive(Debug, Default)]
struct ThreadWait {
    target: Mutex<WaitTarget>,
    /// The call being answered, if any.
    call: Option<Notification>,
}

impl ThreadWait {
    fn of(call: Notification) -> Self {
        Self { target: Mutex::default(), call: Some(call) }
    }

    /// Sets the wait; returns the previous one.
    fn replace(&self, wait: WaitTarget) -> WaitTarget {
        std::mem::replace(&mut self.target.lock().unwrap_or_else(PoisonError::into_inner), wait)
    }

    /// The call that delays this thread: its own, or that of the lock's holder.
    fn delayed_by(&self) -> Option<Notification> {
        match &*self.target.lock().unwrap_or_else(PoisonError::into_inner) {
            WaitTarget::CallLock(queue) => queue.first()?.call,
            _ => self.call,
        }
    }

    /// Whether the wait for the program has lasted at least `limit`.
    fn is_long(&self, now: Instant, limit: Duration) -> bool {
        let wait = self.target.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match wait {
            WaitTarget::None => false,
            WaitTarget::Program(since) => now.saturating_duration_since(since) >= limit,
            // The holder of one lock waits for no other lock.
            WaitTarget::CallLock(queue) => {
                queue.first().is_some_and(|first| first.is_long(now, limit))
            }
        }
    }
}

/// Serializes calls, such as those on one open device. While the holder waits for its program, all
/// waiters count as waiting for theirs, not as delayed by another program.
#[derive(Debug, Default)]
pub(super) struct CallLock {
    alone: Mutex<()>,
    first: Mutex<Option<Arc<ThreadWait>>>,
}

impl CallLock {
    fn first(&self) -> Option<Arc<ThreadWait>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_first(&self, wait: Option<Arc<ThreadWait>>) {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    /// Runs `work` while no other member of the lock runs.
    pub(super) fn alone<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        struct FirstCall<'a>(&'a CallLock);
        impl Drop for FirstCall<'_> {
            fn drop(&mut self) {
                self.0.set_first(None);
            }
        }
        let wait = CURRENT_WAIT.with_borrow(Clone::clone).unwrap_or_default();
        let before = wait.replace(WaitTarget::CallLock(self.clone()));
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        wait.replace(before);
        self.set_first(Some(wait));
        let _first = FirstCall(self);
        work()
    }
}

thread_local! {
    /// The wait of this thread's current call.
    static CURRENT_WAIT: RefCell<Option<Arc<ThreadWait>>> = const { RefCell::new(None) };
}

/// Runs work whose duration the caller's program controls: it waits for the program's memory,
/// threads or locks in the kernel.
pub(super) fn in_program<T>(work: impl FnOnce() -> T) -> T {
    struct InProgram(Option<(Arc<ThreadWait>, WaitTarget)>);
    impl Drop for InProgram {
        fn drop(&mut self) {
            if let Some((wait, before)) = self.0.take() {
                wait.replace(before);
            }
        }
    }
    let wait = CURRENT_WAIT.with_borrow(Clone::clone);
    let _inside = InProgram(wait.map(|wait| {
        let before = wait.replace(WaitTarget::Program(Instant::now()));
        (wait, before)
    }));
    work()
}

/// The next step about slow threads.
#[derive(Debug)]
pub(super) enum StallAction {
    /// None: the receiving thread waits for a notification, or has just received one.
    Nothing,
    /// Start another receiving thread: [`CallThreads::replace`].
    Replace,
    /// Another thread is needed, but too many are lost.
    Exhausted,
    /// Kill the processes that made these calls.
    Kill(Vec<RunningCall>),
}

/// The threads that answer one filter's calls.
#[derive(Debug, Default)]
pub(super) struct CallThreads(Mutex<ThreadTable>);

#[derive(Debug, Default)]
struct ThreadTable {
    /// Number of the receiving thread.
    current: u64,
    /// Busy threads and their calls.
    busy: BTreeMap<u64, RunningCall>,
    /// Lost threads and their calls.
    lost: BTreeMap<u64, RunningCall>,
    /// The last attempt to start a thread failed.
    refused: bool,
}

impl ThreadTable {
    /// Marks a thread as lost: its call's process is gone, or about to be.
    fn lose(&mut self, number: u64) -> Option<RunningCall> {
        let busy = self.busy.remove(&number)?;
        self.lost.insert(number, busy.clone());
        Some(busy)
    }
}

impl CallThreads {
    fn table(&self) -> MutexGuard<'_, ThreadTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thread `number`, the current one, has received a call.
    pub(super) fn begin(&self, number: u64, call: Notification) {
        let wait = Arc::new(ThreadWait::of(call));
        CURRENT_WAIT.set(Some(wait.clone()));
        self.table().busy.insert(number, RunningCall { call, since: Instant::now(), wait });
    }

    /// Thread `number` has answered its call; returns whether it receives the next.
    pub(super) fn end(&self, number: u64) -> bool {
        let mut table = self.table();
        table.busy.remove(&number);
        table.lost.remove(&number);
        table.current == number
    }

    /// The next step. `waits`: a notification is pending. `process_of` returns the process that
    /// made a call, if the call still waits.
    pub(super) fn next_step<P: Ord>(
        &self,
        now: Instant,
        waits: bool,
        process_of: impl Fn(&Notification) -> Option<P>,
    ) -> StallAction {
        let mut table = self.table();
        let is_long =
            |busy: &RunningCall, limit| now.saturating_duration_since(busy.since) >= limit;
        let current = table.current;
        let replace = match table.lost.len() {
            MAX_LOST.. => StallAction::Exhausted,
            _ => StallAction::Replace,
        };
        if table.lost.contains_key(&current) {
            return replace;
        }
        let limit = if waits { REPLACE_AFTER_PENDING } else { REPLACE_AFTER };
        let Some(receiving) = table.busy.get(&current).filter(|busy| is_long(busy, limit)) else {
            return StallAction::Nothing;
        };
        // Without another thread, only the end of a process brings a thread back.
        let alone = table.refused && is_long(receiving, STALL_TIMEOUT);
        if table.busy.len() < MAX_BUSY && !alone {
            return replace;
        }
        if !waits {
            return StallAction::Nothing;
        }
        // Per process: its calls, and the number of calls that it delays, including its own.
        let mut calls_by_process = BTreeMap::<P, (Vec<u64>, usize)>::new();
        let mut ended = Vec::new();
        for (&number, busy) in table.busy.iter().filter(|(_, busy)| is_long(busy, REPLACE_AFTER)) {
            let Some(process) = process_of(&busy.call) else {
                ended.push(number);
                continue;
            };
            if !busy.wait.is_long(now, REPLACE_AFTER) {
                continue;
            }
            let delaying_process = busy.wait.delayed_by().and_then(|call| process_of(&call));
            if let Some(delaying_process) = delaying_process {
                calls_by_process.entry(delaying_process).or_default().1 += 1;
            }
            calls_by_process.entry(process).or_default().0.push(number);
        }
        let most = calls_by_process.values().max_by_key(|(_, holds)| *holds);
        let killed: Vec<u64> = match most.filter(|(_, holds)| *holds >= MAX_OF_PROCESS) {
            Some((numbers, _)) => numbers.clone(),
            None => {
                let is_old = |number: &u64| {
                    table.busy.get(number).is_some_and(|busy| {
                        busy.wait.is_long(now, STALL_TIMEOUT)
                            && busy.wait.delayed_by().is_some_and(|by| by.id == busy.call.id)
                    })
                };
                let calls = calls_by_process.into_values().map(|(numbers, _)| numbers);
                calls.filter(|numbers| numbers.iter().any(is_old)).flatten().collect()
            }
        };
        for number in ended {
            table.lose(number);
        }
        let calls: Vec<RunningCall> = killed.into_iter().filter_map(|it| table.lose(it)).collect();
        if calls.is_empty() { StallAction::Nothing } else { StallAction::Kill(calls) }
    }

    /// Starts the next receiving thread. If that fails, the current one continues when it comes
    /// back, and the next [`CallThreads::next_step`] decides.
    pub(super) fn replace(&self, start: impl FnOnce(u64) -> io::Result<()>) -> io::Result<()> {
        // Locked until both threads can see which one receives.
        let mut table = self.table();
        let started = start(table.current + 1);
        table.refused = started.is_err();
        if started.is_ok() {
            table.current += 1;
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

    fn process_of(call: &Notification) -> Option<u32> {
        Some(call.tid).filter(|&process| process != ENDED)
    }

    /// A process that has ended.
    const ENDED: u32 = 0;

    impl CallThreads {
        /// Begins a call that waits for its program.
        fn begin_in_program(&self, number: u64, call: Notification) {
            self.begin(number, call);
            self.table().busy[&number].wait.replace(WaitTarget::Program(Instant::now()));
        }
    }

    fn started(_: u64) -> io::Result<()> {
        Ok(())
    }

    fn refused(_: u64) -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Threads that are all busy, with calls of the processes that `process` returns.
    fn full(process: impl Fn(u32) -> u32) -> CallThreads {
        let threads = CallThreads::default();
        for number in 0..MAX_BUSY as u64 {
            if number != 0 {
                let step =
                    threads.next_step(Instant::now() + REPLACE_AFTER_PENDING, true, process_of);
                assert!(matches!(step, StallAction::Replace), "{number}: {step:?}");
                threads.replace(started).expect("the thread starts");
            }
            threads.begin_in_program(number, call(process(number as u32)));
        }
        threads
    }

    fn killed(step: StallAction) -> Vec<u32> {
        match step {
            StallAction::Kill(calls) => calls.iter().map(|busy| busy.call.tid).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn slow_thread_is_replaced_once() {
        let threads = CallThreads::default();
        let soon = Instant::now();
        let look = |now, waits| threads.next_step(now, waits, process_of);
        assert!(
            matches!(look(soon + STALL_TIMEOUT, true), StallAction::Nothing),
            "the thread waits for a call"
        );
        threads.begin(0, call(1));
        assert!(matches!(look(soon, true), StallAction::Nothing), "the call has just begun");
        let later = Instant::now();
        assert!(
            matches!(look(later + REPLACE_AFTER_PENDING, false), StallAction::Nothing),
            "no other call waits"
        );
        assert!(matches!(look(later + REPLACE_AFTER_PENDING, true), StallAction::Replace));
        assert!(matches!(look(later + REPLACE_AFTER, false), StallAction::Replace));
        threads.replace(started).expect("the thread starts");
        assert!(
            matches!(look(later + REPLACE_AFTER, true), StallAction::Nothing),
            "the next waits for a call"
        );
        threads.begin(1, call(1));
        assert!(threads.end(1), "thread 1 was not replaced");
        assert!(!threads.end(0), "thread 0 was replaced");
    }

    #[test]
    fn full_filter_kills_after_stall_timeout() {
        let threads = full(|number| number + 1);
        let start = Instant::now();
        let look = |now, waits| threads.next_step(now, waits, process_of);
        assert!(
            matches!(look(start + REPLACE_AFTER, true), StallAction::Nothing),
            "the lost threads may come back"
        );
        assert!(
            matches!(look(start + STALL_TIMEOUT, false), StallAction::Nothing),
            "no other call waits"
        );
        assert_eq!(killed(look(start + STALL_TIMEOUT, true)).len(), MAX_BUSY);
        assert!(
            matches!(look(start + STALL_TIMEOUT, true), StallAction::Replace),
            "the last one is lost"
        );
        threads.replace(started).expect("the thread starts");
        threads.begin(MAX_BUSY as u64, call(1));
        assert!(threads.end(MAX_BUSY as u64) && !threads.end(3));
        threads.begin(MAX_BUSY as u64, call(1));
        let step = look(Instant::now() + REPLACE_AFTER, true);
        assert!(matches!(step, StallAction::Replace), "there is room: {step:?}");
    }

    #[test]
    fn only_process_with_quarter_of_threads_is_killed() {
        let threads =
            full(|number| if (number as usize) < MAX_OF_PROCESS { 7 } else { 8 + number });
        let calls = killed(threads.next_step(Instant::now() + REPLACE_AFTER, true, process_of));
        assert_eq!(calls, [7; MAX_OF_PROCESS]);
        let step = threads.next_step(Instant::now() + STALL_TIMEOUT, true, process_of);
        assert!(matches!(step, StallAction::Replace), "there is room: {step:?}");
    }

    #[test]
    fn call_waiting_for_model_is_not_killed() {
        let threads =
            full(|number| if (number as usize) < MAX_OF_PROCESS { 7 } else { 8 + number });
        let wait_for_us = |numbers: std::ops::Range<u64>| {
            for number in numbers {
                threads.table().busy[&number].wait.replace(WaitTarget::None);
            }
        };
        let late = Instant::now() + STALL_TIMEOUT;
        wait_for_us(0..1);
        wait_for_us(MAX_OF_PROCESS as u64 + 1..MAX_BUSY as u64);
        let step = threads.next_step(late - STALL_TIMEOUT / 2, true, process_of);
        assert!(matches!(step, StallAction::Nothing), "process 7 has not a quarter: {step:?}");
        wait_for_us(0..MAX_OF_PROCESS as u64);
        assert_eq!(killed(threads.next_step(late, true, process_of)), [8 + MAX_OF_PROCESS as u32]);
        threads.replace(started).expect("the thread starts");
        threads.begin(MAX_BUSY as u64, call(1));
        let step = threads.next_step(late + STALL_TIMEOUT, true, process_of);
        assert!(matches!(step, StallAction::Nothing), "no thread waits for its program: {step:?}");
    }

    #[test]
    fn waiter_for_call_lock_counts_as_waiting_for_program() {
        let (queue, held) = (Arc::<CallLock>::default(), std::sync::Barrier::new(2));
        let waits = |wait: &ThreadWait| wait.is_long(Instant::now(), Duration::ZERO);
        std::thread::scope(|scope| {
            let wait = Arc::<ThreadWait>::default();
            scope.spawn(|| {
                CURRENT_WAIT.set(Some(Arc::default()));
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
            let (queue, of_second) = (queue.clone(), wait.clone());
            let second = scope.spawn(move || {
                CURRENT_WAIT.set(Some(of_second.clone()));
                queue.alone(|| waits(&of_second))
            });
            while !matches!(*wait.target.lock().unwrap(), WaitTarget::CallLock(_)) {
                std::thread::yield_now();
            }
            assert!(!waits(&wait), "the first thread works");
            held.wait();
            held.wait();
            assert!(waits(&wait), "the first thread waits for its program");
            held.wait();
            assert!(!second.join().expect("the thread ends"), "the thread is first now, and works");
        });
    }

    #[test]
    fn program_wait_ends_with_its_closure() {
        let threads = CallThreads::default();
        let stays = |limit| threads.table().busy[&0].wait.is_long(Instant::now(), limit);
        threads.begin(0, call(1));
        assert!(!stays(Duration::ZERO));
        in_program(|| {
            in_program(|| assert!(stays(Duration::ZERO)));
            assert!(stays(Duration::ZERO), "the outer work continues");
        });
        assert!(!stays(Duration::ZERO));
        let panics = std::panic::AssertUnwindSafe(|| in_program(|| panic!("a bug")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!stays(Duration::ZERO));
    }

    #[test]
    fn threads_of_ended_processes_do_not_count() {
        let threads = full(|number| if number == 3 { ENDED } else { number });
        let soon = Instant::now() + REPLACE_AFTER;
        assert!(matches!(threads.next_step(soon, true, process_of), StallAction::Nothing));
        assert!(
            matches!(threads.next_step(soon, true, process_of), StallAction::Replace),
            "one is free"
        );
    }

    #[test]
    fn lost_threads_are_bounded() {
        let threads = CallThreads::default();
        for number in 0..MAX_LOST as u64 {
            threads.begin(number, call(ENDED));
            threads.table().lose(number);
            threads.table().current = number;
        }
        let look = || threads.next_step(Instant::now(), true, process_of);
        assert!(matches!(look(), StallAction::Exhausted));
        assert!(!threads.end(3), "thread 3 comes back");
        assert!(matches!(look(), StallAction::Replace));
    }

    #[test]
    fn failed_thread_start_keeps_current_thread() {
        let threads = CallThreads::default();
        threads.begin(0, call(1));
        let (soon, late) = (Instant::now() + REPLACE_AFTER, Instant::now() + STALL_TIMEOUT);
        for _ in 0..3 {
            assert!(matches!(threads.next_step(soon, true, process_of), StallAction::Replace));
            threads.replace(refused).expect_err("no thread");
        }
        assert!(threads.end(0), "thread 0 takes the next calls");
        threads.begin_in_program(0, call(1));
        assert_eq!(killed(threads.next_step(late + REPLACE_AFTER, true, process_of)), [1]);
        threads.replace(refused).expect_err("no thread");
        let step = threads.next_step(late, true, process_of);
        assert!(matches!(step, StallAction::Replace), "once a thread can be started");
        threads.replace(started).expect("the thread starts");
        assert!(!threads.end(0), "thread 0 was replaced");
    }
}
