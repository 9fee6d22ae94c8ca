//! A queue of events for watchers, with a limit.
//!
//! Any thread may push, and any thread may deliver; one delivers at a time, without a lock, so that
//! a watcher may call the model. A thread that pushed an event can wait until the watchers have it
//! ([`Queue::deliver`]). The queue counts the events that do not fit.
//!
//! Senders wait for a watcher that only records its events, as a capture does: with nothing locked,
//! before they send more ([`Queue::wait_for_room`]).
//!
//! A thread inside a watcher, of this queue or another, never waits for another thread's delivery,
//! which may wait for it: it leaves its goal to the delivering thread.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::numbered::Numbered;

/// Maximum bytes of the events in one queue.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Queued bytes above which senders wait; the rest is room for the events until they do.
const WAIT_ABOVE_BYTES: usize = 4 << 20;
/// How long a sender waits while the watchers get no event.
const SENDER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

thread_local! {
    /// Whether this thread is inside a watcher, its destructor, or the log on its behalf.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs code that may call the model while this thread delivers.
fn inside(f: impl FnOnce()) -> thread::Result<()> {
    let before = INSIDE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(f));
    INSIDE.set(before);
    outcome
}

struct Watcher<T> {
    id: u64,
    /// The number of the first event that the watcher gets.
    since: u64,
    call: Box<dyn FnMut(&T) + Send>,
}

/// The undelivered events, and the watchers.
pub(crate) struct Queue<T> {
    /// Whether there are watchers.
    watched: AtomicBool,
    state: Mutex<QueueState<T>>,
    /// The number of events that did not fit since the start.
    lost: Arc<AtomicU64>,
    /// Woken when an event was delivered, or the delivering thread has stopped.
    delivered: Condvar,
    /// Woken when an event arrives, or a watcher ends.
    work: Condvar,
}

struct QueueState<T> {
    waiting: VecDeque<(T, usize)>,
    /// Bytes of the waiting events.
    bytes: usize,
    /// The numbers of pushed and of delivered events since the start.
    pushed: u64,
    delivered: u64,
    /// The number of events that did not fit since the last report in the log.
    lost: u64,
    watchers: Vec<Watcher<T>>,
    /// The number of delivered events after which each ended watcher is dropped; `u64::MAX` for one
    /// that is not ended.
    ends: Numbered<u64, u64>,
    next_id: u64,
    /// Whether a thread delivers. It takes the watchers out of `watchers` while it calls them, and
    /// only it drops them.
    delivering: bool,
    /// The number of events that the delivering thread must reach.
    goal: u64,
    /// Whether a thread waits for `work`.
    sleeps: bool,
    /// The watchers that senders wait for.
    awaited: Vec<u64>,
    /// The number of delivered events when a sender's wait timed out.
    stalled: Option<u64>,
}

impl<T> QueueState<T> {
    /// Whether a sender must wait for a watcher.
    fn must_senders_wait(&self) -> bool {
        let lasts = |id| self.ends.get(id) == Some(&u64::MAX);
        self.bytes > WAIT_ABOVE_BYTES
            && self.stalled != Some(self.delivered)
            && self.awaited.iter().any(lasts)
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = QueueState {
            waiting: VecDeque::new(),
            bytes: 0,
            pushed: 0,
            delivered: 0,
            lost: 0,
            watchers: Vec::new(),
            ends: Numbered::new(),
            next_id: 0,
            delivering: false,
            goal: 0,
            sleeps: false,
            awaited: Vec::new(),
            stalled: None,
        };
        Self {
            watched: AtomicBool::new(false),
            state: Mutex::new(state),
            lost: Arc::default(),
            delivered: Condvar::new(),
            work: Condvar::new(),
        }
    }
}

impl<T> Queue<T> {
    /// Whether there is a watcher.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher of the events that are pushed from now on; returns its number.
    pub(crate) fn add(&self, watcher: impl FnMut(&T) + Send + 'static) -> u64 {
        let mut state = self.state();
        let (id, since) = (state.next_id, state.pushed);
        state.next_id += 1;
        state.watchers.push(Watcher { id, since, call: Box::new(watcher) });
        state.ends.insert(id, u64::MAX);
        self.watched.store(true, Ordering::Release);
        id
    }

    /// Adds a watcher that senders wait for; it must not wait for them.
    pub(crate) fn add_awaited(&self, watcher: impl FnMut(&T) + Send + 'static) -> u64 {
        let id = self.add(watcher);
        let mut state = self.state();
        let QueueState { awaited, ends, .. } = &mut *state;
        awaited.retain(|other| ends.contains_key(other));
        awaited.push(id);
        id
    }

    /// The count of events that did not fit.
    pub(crate) fn lost_count(&self) -> &Arc<AtomicU64> {
        &self.lost
    }

    /// Waits for the watchers that senders wait for, until few bytes are queued. The caller holds
    /// no lock. Another watcher may wait for the caller, so this returns when no event was
    /// delivered for [`SENDER_TIMEOUT`], and does not wait again until one is.
    pub(crate) fn wait_for_room(&self) {
        if !self.is_watched() || INSIDE.get() {
            return;
        }
        let mut state = self.state();
        while state.must_senders_wait() {
            let delivered = state.delivered;
            let waited = self.delivered.wait_timeout(state, SENDER_TIMEOUT);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            if timeout.timed_out() && state.delivered == delivered {
                state.stalled = Some(delivered);
            }
        }
    }

    /// Ends a watcher: when this returns, the watcher has every event that was pushed before, and
    /// is dropped. Inside a watcher, this leaves both to the delivering thread.
    ///
    /// # Panics
    /// If a watcher panics; the watcher has ended all the same.
    pub(crate) fn remove(&self, id: u64) {
        let mut state = self.state();
        let pushed = state.pushed;
        if let Some(end) = state.ends.get_mut(&id) {
            *end = pushed;
        }
        self.work.notify_all();
        self.deliver_until(state, pushed, |state| !state.ends.contains_key(&id));
    }

    /// Ends every watcher, as [`Queue::remove`] does.
    ///
    /// # Panics
    /// If a watcher panics; every watcher has ended all the same.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let pushed = state.pushed;
        state.ends.values_mut().for_each(|end| *end = pushed);
        self.work.notify_all();
        self.deliver_until(state, pushed, |state| state.ends.is_empty());
    }

    /// Queues an event; if it does not fit, counts it as lost and returns it.
    pub(crate) fn push(&self, entry: T, bytes: usize) -> Option<T> {
        let mut state = self.state();
        if state.bytes + bytes > MAX_QUEUED_BYTES {
            state.lost += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Some(entry);
        }
        state.bytes += bytes;
        state.pushed += 1;
        state.waiting.push_back((entry, bytes));
        if std::mem::take(&mut state.sleeps) {
            self.work.notify_all();
        }
        None
    }

    /// Returns when the watchers have every event that was pushed before: delivers them, or waits
    /// for the delivering thread. Inside a watcher, this does not wait: the delivering thread
    /// continues up to these events.
    ///
    /// # Panics
    /// If a watcher panics; that watcher gets no further event.
    pub(crate) fn deliver(&self) {
        if self.is_watched() {
            let state = self.state();
            let goal = state.pushed;
            self.deliver_until(state, goal, |state| state.delivered >= goal);
        }
    }

    /// Delivers the events up to `goal`, or waits for the delivering thread, until `done`.
    fn deliver_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState<T>>,
        goal: u64,
        done: impl Fn(&QueueState<T>) -> bool,
    ) {
        let mut outcome = Ok(());
        while !done(&state) {
            if !state.delivering {
                state.goal = goal;
                let delivered;
                (state, delivered) = self.deliver_all(state);
                outcome = outcome.and(delivered);
            } else if INSIDE.get() {
                state.goal = state.goal.max(goal);
                break;
            } else {
                state = self.delivered.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(state);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Delivers the events up to the goal, and drops the watchers that end on the way. Of several
    /// panics it returns the first.
    fn deliver_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState<T>>,
    ) -> (MutexGuard<'a, QueueState<T>>, thread::Result<()>) {
        let mut outcome = Ok(());
        state.delivering = true;
        loop {
            let dropped;
            (state, dropped) = self.drop_ended(state);
            outcome = outcome.and(dropped);
            if state.delivered >= state.goal {
                break;
            }
            let Some((entry, bytes)) = state.waiting.pop_front() else { break };
            state.bytes -= bytes;
            let number = state.delivered;
            let lost = std::mem::take(&mut state.lost);
            let mut watchers = std::mem::take(&mut state.watchers);
            drop(state);
            if lost > 0 {
                let logged = inside(|| {
                    tracing::warn!(
                        lost,
                        kind = std::any::type_name::<T>().rsplit("::").next(),
                        "events are missing in captures and at watchers, which are too slow: \
                         {MAX_QUEUED_BYTES} bytes of them may wait"
                    );
                });
                outcome = outcome.and(logged);
            }
            let mut failed = Vec::new();
            for Watcher { id, call, .. } in watchers.iter_mut().filter(|w| w.since <= number) {
                let delivered = inside(|| call(&entry));
                if delivered.is_err() {
                    failed.push(*id);
                }
                outcome = outcome.and(delivered);
            }
            state = self.state();
            state.delivered += 1;
            watchers.append(&mut state.watchers);
            state.watchers = watchers;
            for id in failed {
                state.ends.insert(id, 0);
            }
            self.delivered.notify_all();
        }
        state.delivering = false;
        self.delivered.notify_all();
        (state, outcome)
    }

    /// Drops the watchers that have ended, with the lock released: their destructors may call the
    /// model.
    fn drop_ended<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState<T>>,
    ) -> (MutexGuard<'a, QueueState<T>>, thread::Result<()>) {
        let mut outcome = Ok(());
        loop {
            let QueueState { watchers, ends, delivered, .. } = &mut *state;
            let ended = watchers.iter().position(|watcher| ends[&watcher.id] <= *delivered);
            let Some(watcher) = ended.map(|at| watchers.remove(at)) else { break };
            drop(state);
            let id = watcher.id;
            outcome = outcome.and(inside(|| drop(watcher)));
            state = self.state();
            state.ends.remove(&id);
        }
        if state.ends.is_empty() {
            self.watched.store(false, Ordering::Release);
            state.delivered = state.pushed;
            state.bytes = 0;
            state.lost = 0;
            state.waiting.clear();
        }
        (state, outcome)
    }

    /// The number of events that did not fit and that the log has not reported.
    #[cfg(test)]
    pub(crate) fn lost(&self) -> usize {
        self.state().lost as usize
    }

    /// Waits until an event is queued; false: the watcher ends.
    pub(crate) fn wait_for_work(&self, id: u64) -> bool {
        let mut state = self.state();
        loop {
            if state.ends.get(&id) != Some(&u64::MAX) {
                return false;
            }
            if !state.waiting.is_empty() {
                return true;
            }
            state.sleeps = true;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel, sync_channel};
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    use super::*;

    /// A watcher that forwards its events.
    fn listen(queue: &Queue<u32>) -> (u64, Receiver<u32>) {
        let (sender, received) = channel();
        (queue.add(move |entry| sender.send(*entry).unwrap_or_default()), received)
    }

    #[test]
    fn cross_notifying_queues_do_not_deadlock() {
        let queues: Arc<[Queue<u32>; 2]> = Arc::default();
        let both = Arc::new(Barrier::new(2));
        for mine in [0, 1] {
            let (weak, both) = (Arc::downgrade(&queues), both.clone());
            queues[mine].add(move |entry| {
                if *entry == 0 {
                    let queues = weak.upgrade().unwrap();
                    both.wait();
                    queues[1 - mine].push(1, 1);
                    queues[1 - mine].deliver();
                    both.wait();
                }
            });
        }
        let receivers = [0, 1].map(|queue: usize| listen(&queues[queue]).1);
        let (ended, end) = sync_channel(2);
        for mine in [0, 1] {
            let (queues, ended) = (queues.clone(), ended.clone());
            thread::spawn(move || {
                queues[mine].push(0, 1);
                queues[mine].deliver();
                ended.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            end.recv_timeout(Duration::from_secs(20)).expect("no deadlock");
        }
        for received in receivers {
            assert_eq!(received.try_iter().collect::<Vec<_>>(), [0, 1]);
        }
    }

    #[test]
    fn cross_queue_removal_does_not_deadlock() {
        let queues: Arc<[Queue<u32>; 2]> = Arc::default();
        let both = Arc::new(Barrier::new(2));
        let (ended, end) = sync_channel(2);
        let other = listen(&queues[1]);
        let watchers = [(0, Some(other.0)), (1, None)];
        for (mine, ends) in watchers {
            let (weak, both) = (Arc::downgrade(&queues), both.clone());
            queues[mine].add(move |_| {
                let queues = weak.upgrade().unwrap();
                both.wait();
                match ends {
                    Some(id) => queues[1].remove(id),
                    None => queues[0].deliver(),
                }
                both.wait();
            });
        }
        for mine in [0, 1] {
            let (queues, ended) = (queues.clone(), ended.clone());
            thread::spawn(move || {
                queues[mine].push(0, 1);
                queues[mine].deliver();
                ended.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            end.recv_timeout(Duration::from_secs(20)).expect("no deadlock");
        }
        assert_eq!(
            other.1.iter().collect::<Vec<_>>(),
            [0],
            "the watcher gets its events before it is dropped"
        );
    }

    #[test]
    fn sender_waits_for_a_slow_capture() {
        const BYTES: usize = 1 << 20;
        let queue = Arc::new(Queue::<u32>::default());
        let delivered = Arc::new(AtomicU64::new(0));
        let count = delivered.clone();
        let id = queue.add_awaited(move |_| {
            thread::sleep(Duration::from_millis(1));
            count.fetch_add(1, Ordering::Relaxed);
        });
        let mine = queue.clone();
        let deliverer = thread::spawn(move || {
            while mine.wait_for_work(id) {
                mine.deliver();
            }
        });
        for number in 0..50 {
            queue.wait_for_room();
            assert_eq!(queue.push(number, BYTES), None, "{number}");
        }
        queue.remove(id);
        deliverer.join().unwrap();
        assert_eq!(delivered.load(Ordering::Relaxed), 50);
        assert_eq!(queue.lost_count().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn sender_waits_once_for_a_stuck_capture() {
        let queue = Queue::<u32>::default();
        // No thread delivers it.
        let id = queue.add_awaited(|_| ());
        (0..16).for_each(|number| _ = queue.push(number, 1 << 20));
        assert_eq!(queue.push(16, 1), Some(16));
        let start = std::time::Instant::now();
        queue.wait_for_room();
        assert!(start.elapsed() >= SENDER_TIMEOUT);
        let start = std::time::Instant::now();
        queue.wait_for_room();
        assert!(
            start.elapsed() < SENDER_TIMEOUT,
            "senders do not wait until an event is delivered"
        );
        queue.deliver();
        queue.remove(id);
        assert_eq!(queue.lost_count().load(Ordering::Relaxed), 1);
    }

    #[test]
    fn sender_does_not_wait_for_other_watchers() {
        let queue = Queue::<u32>::default();
        let id = queue.add_awaited(|_| ());
        let _ = listen(&queue);
        queue.remove(id);
        (0..16).for_each(|number| _ = queue.push(number, 1 << 20));
        let start = std::time::Instant::now();
        queue.wait_for_room();
        assert!(start.elapsed() < SENDER_TIMEOUT);
    }

    #[test]
    fn remove_waits_until_no_other_thread_runs_the_watcher() {
        let queue = Arc::new(Queue::default());
        let (state, both) = (Arc::new(()), Arc::new(Barrier::new(2)));
        let (owned, called) = (state.clone(), both.clone());
        let id = queue.add(move |_: &u32| {
            let _ = &owned;
            called.wait();
            thread::sleep(Duration::from_millis(20));
        });
        let mine = queue.clone();
        let deliverer = thread::spawn(move || {
            mine.push(0, 1);
            mine.deliver();
        });
        both.wait();
        queue.remove(id);
        Arc::try_unwrap(state).expect("the watcher was dropped");
        deliverer.join().unwrap();
    }

    #[test]
    fn panic_of_one_watcher_spares_later_ones() {
        let queue = Queue::default();
        queue.add(|_| panic!("the first"));
        let (_, received) = listen(&queue);
        queue.add(|_| panic!("the second"));
        queue.push(1, 1);
        queue.push(2, 1);
        let panic = catch_unwind(AssertUnwindSafe(|| queue.deliver()))
            .expect_err("the watcher's panic propagates");
        assert_eq!(panic.downcast_ref(), Some(&"the first"));
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [1, 2]);
        queue.push(3, 1);
        queue.deliver();
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn panic_in_watcher_destructor_spares_the_queue() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("in a destructor");
            }
        }
        let queue = Queue::default();
        let bad = Panics;
        let id = queue.add(move |_| {
            let _ = &bad;
        });
        let (_, received) = listen(&queue);
        assert!(catch_unwind(AssertUnwindSafe(|| queue.remove(id))).is_err());
        queue.push(1, 1);
        queue.deliver();
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn watcher_receives_only_entries_pushed_later() {
        let queue = Queue::default();
        let (_, before) = listen(&queue);
        queue.push(1, 1);
        let (_, after) = listen(&queue);
        queue.push(2, 1);
        queue.deliver();
        assert_eq!(before.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(after.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn lost_count_is_reset_with_last_watcher() {
        let queue = Queue::default();
        let (id, _) = listen(&queue);
        queue.push(1, MAX_QUEUED_BYTES + 1);
        assert_eq!(queue.lost(), 1);
        queue.remove(id);
        assert_eq!(queue.lost(), 0);
    }

    #[test]
    fn concurrent_watchers_leave_queue_consistent() {
        let queue = Queue::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (id, received) = listen(&queue);
                        queue.push(7, 1);
                        queue.deliver();
                        queue.remove(id);
                        assert!(received.iter().count() >= 1);
                    }
                });
            }
        });
        let state = queue.state();
        assert_eq!((state.delivered, state.bytes, state.waiting.len()), (state.pushed, 0, 0));
        assert!(state.watchers.is_empty() && state.ends.is_empty());
    }
}
