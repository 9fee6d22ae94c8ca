//! Everything that exists in one model: the functions, the fabric between them, the clock; all behind one lock.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::{Bench, Clock};
use crate::hca::{Hca, Refused};
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
        let refused = world.take_refused();
        drop(world);
        refused.iter().for_each(Refused::log);
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

    /// Whether nobody holds the lock.
    #[cfg(test)]
    fn is_free(&self) -> bool {
        !matches!(self.world.try_lock(), Err(std::sync::TryLockError::WouldBlock))
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

    /// Takes the refusals that the log has yet to hear of.
    fn take_refused(&mut self) -> Vec<Refused> {
        self.hcas.iter_mut().flat_map(|hca| std::mem::take(&mut hca.refused)).collect()
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
    fn a_wrong_device_or_port_is_the_callers_mistake_and_leaves_the_model_alive() {
        type Mistake = fn(&Model);
        let mistakes: [(&str, Mistake); 10] = [
            ("device 2", |model| model.inject(2, crate::Fault::LoseMessage, 0, 1)),
            ("device 2", |model| model.set_port(2, 1, false)),
            ("port 0", |model| model.set_port(0, 0, false)),
            ("port 9", |model| model.set_port(0, 9, false)),
            ("device 2", |model| model.kill(2)),
            ("device 2", |model| model.remove(2)),
            ("device 2", |model| model.fail_command(2, 0x100, 1, 1, 0)),
            ("device 2", |model| assert_eq!(model.side(2), model.side(0))),
            ("device 2", |model| assert_eq!(model.counts(2), model.counts(0))),
            ("device 18446744073709551615", |model| assert_eq!(model.pages(usize::MAX), 0)),
        ];
        let model = model().stepped().build();
        let contexts = open(&model);
        for (number, (named, mistake)) in mistakes.iter().enumerate() {
            let panic = catch_unwind(AssertUnwindSafe(|| mistake(&model)));
            let panic = panic.expect_err("there is no such device or port");
            let text = panic.downcast_ref::<String>().expect("words");
            assert!(text.contains(named) && text.contains("from "), "mistake {number}: {text}");
        }
        for context in &contexts {
            context.alloc_pd().expect("the device lives");
        }
    }

    #[test]
    fn a_refused_command_is_logged_when_the_model_is_free_again() {
        /// Asks the model something with every line, as one that writes the state of the world beside it.
        struct Curious(Model, std::sync::mpsc::Sender<usize>);
        impl tracing::Subscriber for Curious {
            fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
                metadata.file().is_some_and(|file| file.ends_with("hca/execute.rs"))
            }
            fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
                tracing::span::Id::from_u64(1)
            }
            fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
            fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
            fn event(&self, _: &tracing::Event<'_>) {
                let free = self.0.shared.is_free();
                let _ = self.1.send(if free { self.0.devices() } else { 0 });
            }
            fn enter(&self, _: &tracing::span::Id) {}
            fn exit(&self, _: &tracing::span::Id) {}
        }
        let model = model().stepped().build();
        let (sender, told) = std::sync::mpsc::channel();
        tracing::subscriber::with_default(Curious(model.clone(), sender), || {
            // One that is unknown, one that is not modelled, one of a bad op_mod.
            for command in [[0xff, 0xf0], [0x09, 0x08], [0x01, 0x0d]] {
                let mut input = [0; 64];
                input[..2].copy_from_slice(&command);
                input[7] = 0x77;
                let mut output = [0; 64];
                model.shared.with(|world| crate::hca::execute(world, 0, &input, &mut output));
                assert_ne!(output[0], 0);
                assert_eq!(told.try_recv(), Ok(2), "{command:x?}: told once, and the lock is free");
                assert!(told.try_recv().is_err());
            }
        });
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
