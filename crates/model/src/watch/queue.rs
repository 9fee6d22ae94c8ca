//! A queue of what watchers are to be told, with a limit.
//!
//! Any thread may push and any thread may tell; one tells at a time, with nothing locked, so that a
//! watcher may call the model. Who pushed and wants its entry to be heard waits for that
//! ([`Queue::tell`]); what does not fit is counted.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Bytes that may wait in one queue.
const MOST_BYTES: usize = 16 << 20;

type Watcher<T> = Box<dyn FnMut(&T) + Send>;

/// What waits, and who is told.
pub(crate) struct Queue<T> {
    /// Whether there are watchers.
    watched: AtomicBool,
    state: Mutex<State<T>>,
    /// Somebody was told, or whoever tells has stopped.
    told: Condvar,
    /// There is something to tell, or nobody watches any more.
    work: Condvar,
}

struct State<T> {
    waiting: VecDeque<(T, usize)>,
    /// Bytes that wait.
    bytes: usize,
    /// How many were ever pushed, and how many of them are done with.
    pushed: u64,
    told: u64,
    /// How many did not fit since the log last heard of it.
    lost: u64,
    watchers: Vec<(u64, Watcher<T>)>,
    /// The numbers of the watchers that have not ended.
    live: Vec<u64>,
    next_id: u64,
    /// Who tells. It has the watchers out of `watchers` while it calls them.
    telling: Option<ThreadId>,
    /// Up to where whoever tells has to go: watchers of its own called the model.
    goal: u64,
    /// A thread of its own waits for `work`.
    sleeps: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            bytes: 0,
            pushed: 0,
            told: 0,
            lost: 0,
            watchers: Vec::new(),
            live: Vec::new(),
            next_id: 0,
            telling: None,
            goal: 0,
            sleeps: false,
        };
        Self {
            watched: AtomicBool::new(false),
            state: Mutex::new(state),
            told: Condvar::new(),
            work: Condvar::new(),
        }
    }
}

impl<T> Queue<T> {
    /// Whether somebody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher, and gives its number.
    pub(crate) fn add(&self, watcher: impl FnMut(&T) + Send + 'static) -> u64 {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.watchers.push((id, Box::new(watcher)));
        state.live.push(id);
        self.watched.store(true, Ordering::Release);
        id
    }

    /// Ends a watcher. One that is being called at the time is dropped when it returns.
    pub(crate) fn remove(&self, id: u64) {
        self.retain(|live| *live != id);
    }

    /// Ends every watcher.
    pub(crate) fn close(&self) {
        self.retain(|_| false);
    }

    fn retain(&self, stays: impl Fn(&u64) -> bool) {
        let mut state = self.state();
        state.live.retain(stays);
        self.work.notify_all();
        if state.telling.is_none() {
            drop(self.settle(state));
        }
    }

    /// Drops the watchers that have ended, with the lock released: they may own what calls the
    /// model.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        loop {
            let State { watchers, live, .. } = &mut *state;
            let gone: Vec<_> = watchers.extract_if(.., |(id, _)| !live.contains(id)).collect();
            if live.is_empty() {
                self.watched.store(false, Ordering::Release);
                state.told = state.pushed;
                state.bytes = 0;
                state.waiting.clear();
            }
            if gone.is_empty() {
                return state;
            }
            drop(state);
            drop(gone);
            state = self.state();
        }
    }

    /// Takes something to tell, or counts it as lost when too much waits.
    pub(crate) fn push(&self, entry: T, bytes: usize) {
        let mut state = self.state();
        if state.bytes + bytes > MOST_BYTES {
            state.lost += 1;
            return;
        }
        state.bytes += bytes;
        state.pushed += 1;
        state.waiting.push_back((entry, bytes));
        if std::mem::take(&mut state.sleeps) {
            self.work.notify_all();
        }
    }

    /// Returns when the watchers were told what was pushed before: tells them, or waits for whoever
    /// does. A watcher's own thread does not wait for itself: it hears of it next.
    ///
    /// # Panics
    /// When a watcher does; it is told nothing any more.
    pub(crate) fn tell(&self) {
        if !self.is_watched() {
            return;
        }
        let mut state = self.state();
        let goal = state.pushed;
        let me = thread::current().id();
        while state.told < goal {
            match state.telling {
                None => {
                    state.telling = Some(me);
                    state.goal = goal;
                    let told;
                    (state, told) = self.tell_all(state);
                    if let Err(panic) = told {
                        drop(state);
                        resume_unwind(panic);
                    }
                }
                Some(teller) if teller == me => {
                    state.goal = state.goal.max(goal);
                    return;
                }
                Some(_) => {
                    state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        drop(state);
    }

    /// Tells what there is up to the goal.
    fn tell_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<T>>,
    ) -> (MutexGuard<'a, State<T>>, thread::Result<()>) {
        let mut outcome = Ok(());
        while state.told < state.goal
            && outcome.is_ok()
            && let Some((entry, bytes)) = state.waiting.pop_front()
        {
            state.bytes -= bytes;
            let lost = std::mem::take(&mut state.lost);
            let mut watchers = std::mem::take(&mut state.watchers);
            drop(state);
            if lost > 0 {
                tracing::warn!(
                    lost,
                    "those who watch the model are too slow, and so many {} were not told: \
                     {MOST_BYTES} bytes may wait",
                    std::any::type_name::<T>().rsplit("::").next().unwrap_or_default()
                );
            }
            let mut failed = None;
            for (id, watcher) in &mut watchers {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| watcher(&entry))) {
                    failed = Some(*id);
                    outcome = Err(panic);
                    break;
                }
            }
            state = self.state();
            state.told += 1;
            watchers.append(&mut state.watchers);
            state.watchers = watchers;
            state.live.retain(|id| Some(*id) != failed);
            state = self.settle(state);
            self.told.notify_all();
        }
        state.telling = None;
        self.told.notify_all();
        (state, outcome)
    }

    /// How many did not fit, of which the log has not heard.
    #[cfg(test)]
    pub(crate) fn lost(&self) -> usize {
        self.state().lost as usize
    }

    /// Waits until there is something to tell; false: that watcher has ended.
    pub(crate) fn wait_for_work(&self, id: u64) -> bool {
        let mut state = self.state();
        while state.live.contains(&id) && state.waiting.is_empty() {
            state.sleeps = true;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.live.contains(&id)
    }
}
