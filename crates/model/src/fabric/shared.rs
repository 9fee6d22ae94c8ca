//! The fabric under a lock, with hints that the engine's threads read without the lock before every
//! turn.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Fabric;
use crate::watch::Outbox;

/// A fabric that several threads use.
pub(crate) struct SharedFabric {
    fabric: Mutex<Fabric>,
    hints: FabricHints,
    outbox: Arc<Outbox>,
}

/// Facts about a fabric that can be read without its lock. They are written when the lock is
/// released.
#[derive(Default)]
struct FabricHints {
    /// When the next frame arrives on a link; `u64::MAX` if none is in flight.
    due: AtomicU64,
    /// Whether messages must travel in packets, even without observers.
    disturbed: AtomicBool,
    /// Number of frames that wait for each function.
    waiting: Box<[AtomicUsize]>,
}

/// The fabric, exclusively.
pub(crate) struct FabricGuard<'a> {
    fabric: MutexGuard<'a, Fabric>,
    hints: &'a FabricHints,
}

impl SharedFabric {
    /// Shares a fabric of `functions` functions.
    pub(crate) fn new(fabric: Fabric, functions: usize, outbox: Arc<Outbox>) -> Self {
        let waiting = (0..functions).map(|_| AtomicUsize::new(0)).collect();
        let hints = FabricHints { waiting, ..FabricHints::default() };
        let shared = Self { fabric: Mutex::new(fabric), hints, outbox };
        drop(shared.lock());
        shared
    }

    pub(crate) fn lock(&self) -> FabricGuard<'_> {
        let fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        FabricGuard { fabric, hints: &self.hints }
    }

    /// Whether a frame waits for a function, or may by time `now`.
    pub(crate) fn has_for(&self, function: usize, now: u64) -> bool {
        self.hints.waiting[function].load(Ordering::Relaxed) > 0
            || self.hints.due.load(Ordering::Relaxed) <= now
    }

    /// When the next frame arrives on a link; `u64::MAX` if none is in flight.
    pub(crate) fn due(&self) -> u64 {
        self.hints.due.load(Ordering::Relaxed)
    }

    /// Whether messages of connections may be carried whole: no fault can hit a frame, no frame is
    /// in flight on a link, no observer exists, and no link leads out of the model.
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
        let FabricHints { due, disturbed, waiting } = self.hints;
        due.store(self.fabric.next_crossing().unwrap_or(u64::MAX), Ordering::Relaxed);
        disturbed.store(self.fabric.is_disturbed(), Ordering::Relaxed);
        for (count, queue) in waiting.iter().zip(&self.fabric.arrived) {
            count.store(queue.len(), Ordering::Relaxed);
        }
    }
}
