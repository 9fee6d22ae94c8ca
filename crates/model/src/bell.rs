//! Wakes the engine's threads.
//!
//! One thread looks for work all the time and sleeps between looks; whoever gives it work rings.
//! The others sleep until they are called for help.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A bell for one thread that looks, and others that help.
#[derive(Default)]
pub(crate) struct Bell {
    rings: AtomicU64,
    /// The thread that looks sleeps, or is about to.
    asleep: AtomicBool,
    /// How many helpers sleep.
    resting: AtomicU64,
    state: Mutex<BellState>,
    rung: Condvar,
    called: Condvar,
}

#[derive(Default)]
struct BellState {
    /// Helpers that are called and have not yet come.
    calls: u64,
    closed: bool,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it was rung. Whoever is about to look for work asks before.
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

    /// Sleeps for so long at most, unless the bell was rung since it had been rung so often.
    pub(crate) fn sleep(&self, rings: u64, longest: Duration) {
        let state = self.state();
        self.asleep.store(true, Ordering::SeqCst);
        if self.rings() == rings && !state.closed {
            let _ = self.rung.wait_timeout(state, longest);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Wakes one more thread to help, if one sleeps.
    pub(crate) fn call_help(&self) {
        if self.resting.load(Ordering::Relaxed) > 0 {
            self.state().calls = 1;
            self.called.notify_one();
        }
    }

    /// Rests until help is called for; false: there is nothing to help with any more.
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

    /// Lets all go.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.rung.notify_all();
        self.called.notify_all();
    }
}
