//! Everything that exists in one model: the functions, the fabric between them, the clock; all behind one lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::{Bench, Clock};
use crate::hca::Hca;
use crate::memory::Interrupts;

/// Index of a function in [`World::hcas`].
pub(crate) type HcaId = usize;

/// The state of a model. Commands, doorbells and the data path all run on it, one at a time.
pub(crate) struct World {
    pub hcas: Vec<Hca>,
    pub clock: Clock,
    /// The engine's buffers.
    pub bench: Bench,
}

/// A world behind its lock, as front ends and the engine's thread share it.
pub(crate) struct Shared {
    world: Mutex<World>,
    /// How many threads wait for the lock, or are about to: the engine's thread lets them in between two batches.
    waiting: AtomicU32,
    /// Wakes the engine's thread: a doorbell may have been rung, a queue changed, or the model ends.
    pub wake: Condvar,
    /// Nothing moves until [`crate::Model::step`] says so.
    pub stepped: bool,
}

impl Shared {
    pub(crate) fn new(world: World, stepped: bool) -> Arc<Self> {
        Arc::new(Self {
            world: Mutex::new(world),
            waiting: AtomicU32::new(0),
            wake: Condvar::new(),
            stepped,
        })
    }

    /// Runs `f` on the world, then delivers the interrupts that it caused, with the lock released; the engine's thread
    /// wakes up if it sleeps, since there may be work for it now.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let result = self.with_unheard(f);
        if !self.stepped {
            self.wake.notify_one();
        }
        result
    }

    /// As [`Shared::with`], without a word to the engine's thread: for that thread itself.
    pub(crate) fn with_unheard<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.lock();
        let result = f(&mut world);
        let raised = world.take_interrupts();
        drop(world);
        for (interrupts, vector) in raised {
            interrupts.raise(vector);
        }
        result
    }

    /// The world itself, for the engine's thread, which waits on [`Shared::wake`] with it. Interrupts are the caller's to deliver.
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        world
    }

    /// Lets those in who wait for the lock: a mutex that is released and taken again at once would starve them.
    pub(crate) fn give_way(&self) {
        for _ in 0..100 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
    }
}

impl World {
    /// Takes the interrupts that were raised under the lock and are yet to be delivered.
    pub(crate) fn take_interrupts(&mut self) -> Vec<(Arc<dyn Interrupts>, u32)> {
        let mut raised = Vec::new();
        for hca in &mut self.hcas {
            let vectors = std::mem::take(&mut hca.raised);
            if let Some(interrupts) = &hca.interrupts {
                raised.extend(vectors.into_iter().map(|vector| (interrupts.clone(), vector)));
            }
        }
        raised
    }
}
