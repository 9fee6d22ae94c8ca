//! A spin lock between threads of a process: one word, 0 when it is free.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering};

/// A spin lock; `spinlock_s` of the C headers.
///
/// A thread of a DPA runs to completion: if it ends without dropping its guard, the lock stays
/// locked.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SpinLock(AtomicU32);

impl SpinLock {
    /// An unlocked lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits until the lock is free and takes it; the drop of the guard frees it.
    pub fn lock(&self) -> SpinGuard<'_> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            // Loads only, so that waiting threads leave the word's cache line shared.
            while self.0.load(Ordering::Relaxed) != 0 {
                spin_loop();
            }
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<SpinGuard<'_>> {
        // `then_some` would always create a guard, whose drop would free another thread's lock.
        (self.0.swap(1, Ordering::Acquire) == 0).then(|| SpinGuard(self))
    }
}

/// Holds the lock until the drop.
#[derive(Debug)]
#[must_use = "the lock is free again when its guard is dropped"]
pub struct SpinGuard<'a>(&'a SpinLock);

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_lock_is_not_taken_until_guard_drop() {
        let lock = SpinLock::new();
        let guard = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "a failed attempt has freed the lock");
        drop(guard);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn concurrent_lockers_lose_no_update() {
        const ROUNDS: u32 = 20_000;
        let lock = SpinLock::new();
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let _held = lock.lock();
                        // Two steps on purpose: without the lock, one of two increments is lost.
                        let seen = count.load(Ordering::Relaxed);
                        if seen.is_multiple_of(64) {
                            std::thread::yield_now();
                        }
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 2 * ROUNDS);
    }
}
