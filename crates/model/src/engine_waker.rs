//! Wakes the engine's threads.
//!
//! One thread, the scanner, scans for work all the time and sleeps between scans; a thread with new
//! work wakes it. Helpers sleep until the scanner calls them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Wakes one scanner thread and its helpers.
#[derive(Default)]
pub(crate) struct EngineWaker {
    wakes: AtomicU64,
    /// The scanner sleeps, or does so after one more check of `wakes`.
    asleep: AtomicBool,
    /// Number of sleeping helpers.
    sleeping_helpers: AtomicU64,
    state: Mutex<WakerState>,
    woken: Condvar,
    helper_called: Condvar,
}

#[derive(Default)]
struct WakerState {
    /// Calls of [`EngineWaker::wake_helper`] that no helper has answered.
    calls: u64,
    closed: bool,
}

impl EngineWaker {
    fn state(&self) -> MutexGuard<'_, WakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of calls of [`Self::wake`]. The scanner reads it before it scans for work.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::SeqCst)
    }

    /// Notifies the engine that there may be work.
    pub(crate) fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            drop(self.state());
            self.woken.notify_one();
        }
    }

    /// Sleeps for `longest` at most; returns at once if [`Self::wake`] was called after
    /// `wakes` was read.
    pub(crate) fn sleep(&self, wakes: u64, longest: Duration) {
        let state = self.state();
        self.asleep.store(true, Ordering::SeqCst);
        if self.wakes() == wakes && !state.closed {
            let _ = self.woken.wait_timeout(state, longest);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Wakes one helper, if one sleeps.
    pub(crate) fn wake_helper(&self) {
        if self.sleeping_helpers.load(Ordering::Relaxed) > 0 {
            self.state().calls = 1;
            self.helper_called.notify_one();
        }
    }

    /// Sleeps until a call for help; false: the waker is closed.
    pub(crate) fn wait_for_call(&self) -> bool {
        let mut state = self.state();
        self.sleeping_helpers.fetch_add(1, Ordering::Relaxed);
        while state.calls == 0 && !state.closed {
            state = self.helper_called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping_helpers.fetch_sub(1, Ordering::Relaxed);
        state.calls = 0;
        !state.closed
    }

    /// Wakes all threads for the last time.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.woken.notify_all();
        self.helper_called.notify_all();
    }
}
