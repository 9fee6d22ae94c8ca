//! The fabric as several threads share it: behind a lock, with what they ask before every turn
//! beside it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Fabric;
use crate::watch::Outbox;

/// A fabric that several threads use.
pub(crate) struct SharedFabric {
    fabric: Mutex<Fabric>,
    hints: Hints,
    outbox: Arc<Outbox>,
}

/// Facts about a fabric that can be read without its lock. They are written when the lock is
/// released.
#[derive(Default)]
struct Hints {
    /// When something arrives on a link; `u64::MAX`: nothing is on its way.
    due: AtomicU64,
    /// Messages are to travel in packets, whether or not somebody watches.
    disturbed: AtomicBool,
    /// How many frames wait for each function.
    waiting: Box<[AtomicUsize]>,
}

/// The fabric, exclusively.
pub(crate) struct FabricGuard<'a> {
    fabric: MutexGuard<'a, Fabric>,
    hints: &'a Hints,
}

impl SharedFabric {
    /// Shares a fabric of `functions` functions.
    pub(crate) fn new(fabric: Fabric, functions: usize, outbox: Arc<Outbox>) -> Self {
        let waiting = (0..functions).map(|_| AtomicUsize::new(0)).collect();
        let hints = Hints { waiting, ..Hints::default() };
        let shared = Self { fabric: Mutex::new(fabric), hints, outbox };
        drop(shared.lock());
        shared
    }

    pub(crate) fn lock(&self) -> FabricGuard<'_> {
        let fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        FabricGuard { fabric, hints: &self.hints }
    }

    /// Whether a frame waits for a function, or may by a time.
    pub(crate) fn has_for(&self, function: usize, now: u64) -> bool {
        self.hints.waiting[function].load(Ordering::Relaxed) > 0
            || self.hints.due.load(Ordering::Relaxed) <= now
    }

    /// When the next frame arrives on a link; `u64::MAX`: none is on its way.
    pub(crate) fn due(&self) -> u64 {
        self.hints.due.load(Ordering::Relaxed)
    }

    /// Whether messages of connections may be carried whole: nothing can happen to any frame, none
    /// is under way on a link, nobody watches, and nobody is outside.
    pub(crate) fn is_undisturbed(&self) -> bool {
        !self.hints.disturbed.load(Ordering::Relaxed) && !self.outbox.frames.is_watched()
    }
}

impl Deref for FabricGuard<'_> {
    type Target = Fabric;

    fn deref(&self) -> &Fabric {
        &self.fabric
    }
}

impl DerefMut for FabricGuard<'_> {
    fn deref_mut(&mut self) -> &mut Fabric {
        &mut self.fabric
    }
}

impl Drop for FabricGuard<'_> {
    fn drop(&mut self) {
        let Hints { due, disturbed, waiting } = self.hints;
        due.store(self.fabric.next_crossing().unwrap_or(u64::MAX), Ordering::Relaxed);
        disturbed.store(self.fabric.is_disturbed(), Ordering::Relaxed);
        for (count, queue) in waiting.iter().zip(&self.fabric.arrived) {
            count.store(queue.len(), Ordering::Relaxed);
        }
    }
}
