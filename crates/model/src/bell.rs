//! Wakes the engine's threads.
//!
//! One thread, the looker, looks for work all the time and sleeps between looks; a thread with new
//! work rings the bell. Helpers sleep until the looker calls them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A bell for one looker thread and its helpers.
#[derive(Default)]
pub(crate) struct Bell {
    rings: AtomicU64,
    /// The looker sleeps, or is about to.
    asleep: AtomicBool,
    /// Number of sleeping helpers.
    resting: AtomicU64,
    state: Mutex<BellState>,
    rung: Condvar,
    called: Condvar,
}

#[derive(Default)]
struct BellState {
    /// Calls for help that no helper has answered.
    calls: u64,
    closed: bool,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the bell was rung. The looker reads this before it looks for work.
    pub(crate) fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Notifies the engine that there may be work.
    pub(crate) fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            drop(self.state());
            self.rung.notify_one();
        }
    }

    /// Sleeps for `longest` at most; returns at once if the bell was rung after `rings` was read.
    pub(crate) fn sleep(&self, rings: u64, longest: Duration) {
        let state = self.state();
        self.asleep.store(true, Ordering::SeqCst);
        if self.rings() == rings && !state.closed {
            let _ = self.rung.wait_timeout(state, longest);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Wakes one helper, if one sleeps.
    pub(crate) fn call_help(&self) {
        if self.resting.load(Ordering::Relaxed) > 0 {
            self.state().calls = 1;
            self.called.notify_one();
        }
    }

    /// Sleeps until a call for help; false: the bell is closed.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.state();
        self.resting.fetch_add(1, Ordering::Relaxed);
        while state.calls == 0 && !state.closed {
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.resting.fetch_sub(1, Ordering::Relaxed);
        state.calls = 0;
        !state.closed
    }

    /// Wakes all threads for the last time.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.rung.notify_all();
        self.called.notify_all();
    }
}
