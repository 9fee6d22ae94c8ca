//! Everything that exists in one model: the functions, the fabric between them, the clock; all
//! behind one lock.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::clock::Clock;
use crate::engine::function::Function;
use crate::engine::scratch::Scratch;
use crate::fabric::{Fabric, Vport};
use crate::hca::Refused;
use crate::memory::{Held, Interrupts};
use crate::profile::Link;
use crate::watch::{Outbox, Queue};

/// The state of a model. Commands, doorbells and the data path all run on it, one at a time.
pub(crate) struct World {
    pub functions: Vec<Function>,
    /// What those who watch are told once the lock is released.
    pub outbox: Arc<Outbox>,
    pub clock: Clock,
    /// What joins the ports of the functions.
    pub fabric: Fabric,
    /// Every message goes in packets, also where nobody could tell.
    pub in_packets: bool,
    /// The engine's buffers.
    pub scratch: Scratch,
}

/// A world behind its lock, as front ends and the engine's thread share it.
pub(crate) struct SharedWorld {
    world: Mutex<World>,
    pub outbox: Arc<Outbox>,
    /// How many threads wait for the lock, or are about to: the engine's thread lets them in
    /// between two batches.
    waiting: AtomicU32,
    /// Wakes the engine's thread: a doorbell may have been rung, a queue changed, or the model
    /// ends.
    pub wake: Condvar,
    /// Nothing moves until [`crate::Model::step`] says so.
    pub stepped: bool,
}

impl SharedWorld {
    pub(crate) fn new(world: World, stepped: bool) -> Arc<Self> {
        Arc::new(Self {
            outbox: world.outbox.clone(),
            world: Mutex::new(world),
            waiting: AtomicU32::new(0),
            wake: Condvar::new(),
            stepped,
        })
    }

    /// Runs `f` on the world, then delivers the interrupts that it caused and tells watchers what
    /// they are to see, with the lock released; the engine's thread wakes up if it sleeps, since
    /// there may be work for it now.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        let result = self.run(f, true);
        if !self.stepped {
            self.wake.notify_one();
        }
        result
    }

    /// As [`SharedWorld::with`], without a word to watchers or the engine's thread: for that thread
    /// itself, which does not wait for those who watch.
    pub(crate) fn with_unheard<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        self.run(f, false)
    }

    /// A panic of `f` is a mistake of the model's and leaves the world in no known state, so that
    /// every function is dead from then on, as after a fatal error of hardware: no command is
    /// answered as if nothing had happened while no data moves. A panic of a watcher has the same
    /// consequences, so that an assertion in a watcher does not pass unnoticed.
    fn run<R>(&self, f: impl FnOnce(&mut World) -> R, heard: bool) -> R {
        let mut world = self.lock();
        let mut result = catch_unwind(AssertUnwindSafe(|| f(&mut world)));
        let dead = if result.is_err() { world.die() } else { Vec::new() };
        let raised = world.take_interrupts();
        let refused = world.take_refused();
        drop(world);
        // Drivers do not wait for those who watch.
        for (interrupts, vector) in raised {
            interrupts.raise(vector);
        }
        if result.is_err() {
            tracing::error!(
                "the model has failed, which is a mistake of its own: every device is dead from \
                 now on, commands fail and nothing moves; start it anew, and report the panic"
            );
            dead.iter().for_each(|interrupts| interrupts.fatal());
        }
        let told = catch_unwind(AssertUnwindSafe(|| {
            self.tell(|outbox| {
                refused.iter().for_each(Refused::log);
                if heard {
                    outbox.commands.tell();
                }
                if heard && self.stepped {
                    outbox.requests.tell();
                    outbox.frames.tell();
                }
            });
        }));
        if let Err(panic) = told
            && result.is_ok()
        {
            result = Err(panic);
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Tells watchers or the log what they have not heard; if they panic, every device dies.
    pub(crate) fn tell(&self, tell: impl FnOnce(&Outbox)) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| tell(&self.outbox))) else { return };
        tracing::error!(
            "whoever watches the model or writes its log has panicked: every device is dead from \
             now on; correct the watcher and start the model anew"
        );
        let dead = self.lock().die();
        dead.iter().for_each(|interrupts| interrupts.fatal());
        resume_unwind(panic)
    }

    /// Starts the thread that tells of what is in a queue, so that the engine's does not wait for
    /// those who watch it. It ends when that watcher does.
    pub(crate) fn start_teller<T: 'static>(
        self: &Arc<Self>,
        id: u64,
        queue: fn(&Outbox) -> &Queue<T>,
    ) {
        let (outbox, shared) = (self.outbox.clone(), Arc::downgrade(self));
        std::thread::Builder::new()
            .name("verbless-watch".into())
            .spawn(move || {
                while queue(&outbox).wait_for_work(id) {
                    let told = catch_unwind(AssertUnwindSafe(|| queue(&outbox).tell()));
                    if let Err(panic) = told
                        && let Some(shared) = shared.upgrade()
                    {
                        // The other watchers are still to be told.
                        let _ = catch_unwind(AssertUnwindSafe(|| {
                            shared.tell(|_| resume_unwind(panic));
                        }));
                    }
                }
            })
            .expect("a thread for who watches the model");
    }

    /// The world itself, for the engine's thread, which waits on [`SharedWorld::wake`] with it.
    /// Interrupts are the caller's to deliver.
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

    /// Lets those in who wait for the lock: a mutex that is released and taken again at once would
    /// starve them.
    pub(crate) fn give_way(&self) {
        for _ in 0..100 {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for SharedWorld {
    fn drop(&mut self) {
        let closed = [
            catch_unwind(AssertUnwindSafe(|| self.outbox.commands.close())),
            catch_unwind(AssertUnwindSafe(|| self.outbox.requests.close())),
            catch_unwind(AssertUnwindSafe(|| self.outbox.frames.close())),
        ];
        // A second panic would abort the process.
        if let Some(panic) = closed.into_iter().find_map(Result::err)
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl World {
    pub(crate) fn new(mut functions: Vec<Function>, stepped: bool) -> Self {
        let (clock, scratch) = (Clock::new(stepped), Scratch::default());
        let outbox = Arc::<Outbox>::default();
        for (number, function) in functions.iter_mut().enumerate() {
            function.engine.outbox = Some((number, outbox.clone()));
        }
        let mut fabric = Fabric::default();
        fabric.show(outbox.clone());
        let mut cards: Vec<(Link, u8, Vec<usize>)> = Vec::new();
        for (number, Function { hca, .. }) in functions.iter().enumerate() {
            match cards.last_mut().filter(|_| hca.shares_card) {
                Some((.., functions)) => functions.push(number),
                None => cards.push((hca.profile.link(), hca.ports.len() as u8, vec![number])),
            }
        }
        for (kind, ports, functions) in cards {
            fabric.add_card(kind, ports, functions);
        }
        let in_packets = false;
        let mut world = Self { functions, outbox, clock, fabric, in_packets, scratch };
        (0..world.functions.len()).for_each(|number| world.tell_addresses(number));
        world
    }

    /// Tells the fabric what the ports of a function are called.
    pub(crate) fn tell_addresses(&mut self, function: usize) {
        let hca = &self.functions[function].hca;
        for port in 1..=hca.ports.len() as u8 {
            self.fabric.set_addresses(Vport { function, port }, hca.addresses(port));
        }
    }

    /// Shows that nothing moves as long as it lives.
    pub(crate) fn held(&mut self) -> Held<'_> {
        Held::new(self)
    }

    /// Every function dies; who is to hear of it, once the lock is released.
    fn die(&mut self) -> Vec<Arc<dyn Interrupts>> {
        self.functions.iter_mut().for_each(|function| function.hca.fatal = true);
        self.functions.iter().filter_map(|function| function.hca.interrupts.clone()).collect()
    }

    /// Takes the refusals that the log has yet to hear of.
    fn take_refused(&mut self) -> Vec<Refused> {
        let functions = self.functions.iter_mut();
        functions.flat_map(|function| std::mem::take(&mut function.hca.refused)).collect()
    }

    /// Takes the interrupts that were raised under the lock and are yet to be delivered.
    pub(crate) fn take_interrupts(&mut self) -> Vec<(Arc<dyn Interrupts>, u32)> {
        let mut raised = Vec::new();
        for Function { hca, .. } in &mut self.functions {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use crate::memory::Interrupts;
    use crate::watch::Request;
    use crate::{Model, Profile};

    fn model() -> crate::model::Builder {
        let profile = || Profile::load("bluefield3").unwrap();
        Model::builder().device(profile()).device(profile())
    }

    fn request(qpn: u32) -> Request {
        let (at, operation) = (Duration::ZERO, "NOP");
        Request { function: 0, at, qpn, index: 0, operation, bytes: 0, syndrome: None }
    }

    /// Whether a device answers ENABLE_HCA and DISABLE_HCA.
    fn answers(model: &Model, device: usize) -> bool {
        let device = model.device(device);
        [0x104_u16, 0x105].iter().all(|opcode| {
            let (mut input, mut output) = ([0; 16], [0xff; 16]);
            input[..2].copy_from_slice(&opcode.to_be_bytes());
            device.execute(&input, &mut output);
            output[0] == 0
        })
    }

    #[derive(Default)]
    struct Heard(AtomicBool);

    impl Interrupts for Heard {
        fn raise(&self, _: u32) {}

        fn fatal(&self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn a_panic_of_the_engine_is_a_fatal_error_of_every_device() {
        let model = model().threaded().build();
        assert!(answers(&model, 0) && answers(&model, 1));
        let drivers: [Arc<Heard>; 2] = Default::default();
        for (device, driver) in drivers.iter().enumerate() {
            model.device(device).set_interrupts(Some(driver.clone()));
        }
        model.shared.with(|world| world.functions[1].engine.faults.panic = true);
        let start = Instant::now();
        while !drivers.iter().all(|driver| driver.0.load(Ordering::Acquire)) {
            assert!(start.elapsed() < Duration::from_secs(20), "the drivers hear nothing");
            std::thread::yield_now();
        }
        for device in 0..2 {
            assert!(!model.device(device).is_alive());
            assert!(!answers(&model, device));
        }
    }

    #[test]
    fn a_panic_of_a_watcher_is_a_fatal_error_of_every_device_and_ends_the_watcher() {
        let model = model().stepped().build();
        let drivers: [Arc<Heard>; 2] = Default::default();
        for (device, driver) in drivers.iter().enumerate() {
            model.device(device).set_interrupts(Some(driver.clone()));
        }
        let _watch = model.watch_commands(|_| panic!("a mistake of the watcher's"));
        assert!(catch_unwind(AssertUnwindSafe(|| answers(&model, 0))).is_err());
        assert!(drivers.iter().all(|driver| driver.0.load(Ordering::Acquire)));
        assert!(!answers(&model, 0) && !answers(&model, 1), "and nobody watches any more");
    }

    #[test]
    fn the_thread_of_a_watcher_goes_on_after_another_watcher_has_panicked() {
        let model = model().threaded().build();
        let (sender, heard) = std::sync::mpsc::channel();
        let _watch = model.watch_requests(move |request| sender.send(request.qpn).unwrap());
        let _bad = model.watch_requests(|_| panic!("a mistake of the watcher's"));
        for qpn in [1, 2] {
            model.shared.outbox.request(request(qpn));
            assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(qpn));
        }
    }

    #[test]
    fn the_last_handle_tells_what_was_executed_before_though_a_watcher_panics() {
        let model = model().stepped().build();
        let (sender, heard) = std::sync::mpsc::channel();
        let _watch = model.watch_requests(move |request| sender.send(request.qpn).unwrap());
        let _bad = model.watch_commands(|_| panic!("a mistake of the watcher's"));
        model.shared.outbox.request(request(7));
        model.shared.outbox.command(0, 0, &[0; 16], &[0; 16]);
        let panic = catch_unwind(AssertUnwindSafe(|| drop(model))).expect_err("it panics");
        assert_eq!(panic.downcast_ref(), Some(&"a mistake of the watcher's"));
        assert_eq!(heard.iter().collect::<Vec<_>>(), [7], "and the watching ends");
    }

    #[test]
    fn a_driver_hears_of_a_fatal_error_though_a_watcher_panics_as_well() {
        let model = model().stepped().build();
        let driver = Arc::new(Heard::default());
        model.device(0).set_interrupts(Some(driver.clone()));
        let _watch = model.watch_commands(|_| panic!("a mistake of the watcher's"));
        let command = || {
            model.shared.with(|world| {
                world.outbox.command(0, 0, &[0; 16], &[0; 16]);
                panic!("a mistake in a command")
            })
        };
        let panic = catch_unwind(AssertUnwindSafe(command)).expect_err("it panics");
        assert_eq!(panic.downcast_ref(), Some(&"a mistake in a command"));
        assert!(driver.0.load(Ordering::Acquire));
    }

    #[test]
    fn an_interrupt_is_raised_before_watchers_are_told() {
        struct Raised(Arc<AtomicBool>);
        impl Interrupts for Raised {
            fn raise(&self, _: u32) {
                self.0.store(true, Ordering::Release);
            }
            fn fatal(&self) {}
        }
        let model = model().stepped().build();
        let (raised, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        model.device(0).set_interrupts(Some(Arc::new(Raised(raised.clone()))));
        let heard = told.clone();
        let _watch = model.watch_commands(move |_| {
            heard.store(raised.load(Ordering::Acquire), Ordering::Release);
        });
        model.shared.with(|world| {
            world.outbox.command(0, 0, &[0; 16], &[0; 16]);
            world.functions[0].hca.raised.push(0);
        });
        assert!(told.load(Ordering::Acquire));
    }

    #[test]
    fn a_wrong_device_or_port_is_the_callers_mistake_and_leaves_the_model_alive() {
        type Mistake = fn(&Model);
        let mistakes: [(&str, Mistake); 12] = [
            ("device 2", |model| model.fail_request(2, None, 1, 0x13)),
            ("device 2", |model| model.lose_messages(2, 0x80, 0, 1)),
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
        for (number, (named, mistake)) in mistakes.iter().enumerate() {
            let panic = catch_unwind(AssertUnwindSafe(|| mistake(&model)));
            let panic = panic.expect_err("there is no such device or port");
            let text = panic.downcast_ref::<String>().expect("words");
            assert!(text.contains(named) && text.contains("from "), "mistake {number}: {text}");
        }
        assert!(answers(&model, 0) && answers(&model, 1), "the devices live");
    }

    #[test]
    fn a_refused_command_is_logged_when_the_model_is_free_again() {
        /// Asks the model something with every line, as one that writes the state of the world
        /// beside it.
        struct Curious(Model, std::sync::mpsc::Sender<usize>);
        impl tracing::Subscriber for Curious {
            fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
                metadata.file().is_some_and(|file| file.contains("src/hca/"))
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
            // One that is unknown, one that is not modelled, one of a bad op_mod, and ENABLE_HCA
            // with a reserved field set, which has more to say than its reason.
            for (command, at) in
                [([0xff, 0xf0], 7), ([0x09, 0x08], 7), ([0x01, 0x0d], 7), ([0x01, 0x04], 4)]
            {
                let mut input = [0; 64];
                input[..2].copy_from_slice(&command);
                input[at] = 0x77;
                let mut output = [0; 64];
                model.shared.with(|world| crate::engine::execute(world, 0, &input, &mut output));
                assert_ne!(output[0], 0);
                assert_eq!(told.try_recv(), Ok(2), "{command:x?}: told once, and the lock is free");
                assert!(told.try_recv().is_err());
            }
        });
    }

    #[test]
    fn a_panic_within_a_command_is_one_as_well_and_reaches_who_sent_it() {
        let model = model().stepped().build();
        let command = || model.shared.with(|_| panic!("a mistake in a command"));
        assert!(catch_unwind(AssertUnwindSafe(command)).is_err());
        assert!(!answers(&model, 0) && !answers(&model, 1));
    }
}
