//! Everything that exists in one model: the functions, the fabric between them, the clock; all behind one lock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::Clock;
use crate::fabric::Fabric;
use crate::hca::Hca;
use crate::memory::Interrupts;

/// Index of a function in [`World::hcas`].
pub(crate) type HcaId = usize;

/// The state of a model. Commands, doorbells and the data path all run on it, one at a time.
pub(crate) struct World {
    pub hcas: Vec<Hca>,
    pub fabric: Fabric,
    pub clock: Clock,
}

/// A world behind its lock, as front ends and the engine's thread share it.
pub(crate) struct Shared {
    world: Mutex<World>,
    /// Wakes the engine's thread: a doorbell may have been rung, a queue changed, or the model ends.
    pub wake: Condvar,
    /// Nothing moves until [`crate::Model::step`] says so.
    pub stepped: bool,
}

impl Shared {
    pub(crate) fn new(world: World, stepped: bool) -> Arc<Self> {
        Arc::new(Self { world: Mutex::new(world), wake: Condvar::new(), stepped })
    }

    /// Runs `f` on the world, then delivers the interrupts that it caused, with the lock released.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
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
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
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
