//! Everything that exists in one model: the functions, the fabric between them, the clock; all behind one lock.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
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
    ///
    /// A panic of `f` is a mistake of the model's and leaves the world in no known state, so that every function is dead from then
    /// on, as after a fatal error of hardware: no command is answered as if nothing had happened while no data moves.
    pub(crate) fn with_unheard<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.lock();
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut world)));
        let dead = if result.is_err() { world.die() } else { Vec::new() };
        let raised = world.take_interrupts();
        drop(world);
        for (interrupts, vector) in raised {
            interrupts.raise(vector);
        }
        result.unwrap_or_else(|panic| {
            tracing::error!(
                "the model has failed, which is a mistake of its own: every device is dead from \
                 now on, commands fail and nothing moves; start it anew, and report the panic"
            );
            dead.iter().for_each(|interrupts| interrupts.fatal());
            resume_unwind(panic)
        })
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
    /// Every function dies; who is to hear of it, once the lock is released.
    fn die(&mut self) -> Vec<Arc<dyn Interrupts>> {
        self.hcas.iter_mut().for_each(|hca| hca.fatal = true);
        self.hcas.iter().filter_map(|hca| hca.interrupts.clone()).collect()
    }

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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::{Duration, Instant};

    use verbless_devx::{AsyncEvent, Backend, Context, ErrorKind};

    use crate::{Model, Profile};

    fn model() -> crate::model::Builder {
        let profile = || Profile::load("bluefield3").unwrap();
        Model::builder().device(profile()).device(profile())
    }

    fn open(model: &Model) -> Vec<Context> {
        let backend = model.backend();
        let devices = backend.enumerate().unwrap();
        devices.iter().map(|device| Context::open(&backend, device).unwrap()).collect()
    }

    #[test]
    fn a_panic_of_the_engine_is_a_fatal_error_of_every_device() {
        let model = model().threaded().build();
        let contexts = open(&model);
        let files: Vec<_> =
            contexts.iter().map(|context| context.async_event_alloc().unwrap()).collect();
        let channels: Vec<_> =
            contexts.iter().map(|context| context.event_channel(false).unwrap()).collect();
        model.shared.with(|world| world.hcas[1].engine.faults.panic = true);
        let start = Instant::now();
        while !model.shared.lock().hcas[0].fatal {
            assert!(start.elapsed() < Duration::from_secs(20), "the devices live on");
            std::thread::yield_now();
        }
        for channel in &channels {
            channel.wait(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(channel.read().unwrap_err().kind(), ErrorKind::DeviceGone);
        }
        for (context, file) in contexts.iter().zip(&files) {
            assert_eq!(file.read().unwrap(), Some(AsyncEvent::DeviceFatal));
            assert!(context.alloc_pd().is_err());
            assert!(context.devx_other(&[8, 13, 0, 0, 0, 0, 0, 0], &mut [0; 16]).is_err());
        }
    }

    #[test]
    fn a_panic_within_a_command_is_one_as_well_and_reaches_who_sent_it() {
        let model = model().stepped().build();
        let contexts = open(&model);
        let command = || model.shared.with(|_| panic!("a mistake in a command"));
        assert!(catch_unwind(AssertUnwindSafe(command)).is_err());
        for context in &contexts {
            assert!(context.alloc_pd().is_err());
        }
    }
}
