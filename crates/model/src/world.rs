//! Everything that exists in one model: the functions, each with a lock of its own, the fabric
//! between them, the clock.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::bell::Bell;
use crate::clock::Clock;
use crate::directory::{Directory, Entry};
use crate::engine::function::Function;
use crate::engine::scratch::Scratch;
use crate::fabric::{Fabric, SharedFabric, Vport};
use crate::functions::{Functions, Slot};
use crate::hca::Refused;
use crate::memory::{Held, Interrupts, Space, Spaces};
use crate::profile::Link;
use crate::watch::{Outbox, Queue};

/// What one thread works with: the functions that it has, and what all threads share.
pub(crate) struct World {
    pub functions: Functions,
    pub clock: Clock,
    /// Whom addresses reach.
    pub directory: Arc<Directory>,
    /// Which state of the addresses that is.
    version: u64,
    /// Every message goes in packets, also where nobody could tell.
    pub in_packets: bool,
    /// Buffers of this thread's.
    pub scratch: Scratch,
    /// A function that the turn at hand needs and another thread has: who has this world begins
    /// again with both.
    pub wanted: Option<usize>,
    /// What all threads share.
    pub common: Arc<ModelCommon>,
}

/// What all threads share.
pub(crate) struct ModelCommon {
    slots: Box<[Slot]>,
    pub fabric: SharedFabric,
    directory: Mutex<Arc<Directory>>,
    version: AtomicU64,
    /// The model has failed.
    dead: AtomicBool,
    /// What those who watch are told once the locks are released.
    pub outbox: Arc<Outbox>,
}

/// A model as front ends and the engine's threads share it.
pub(crate) struct SharedWorld {
    pub common: Arc<ModelCommon>,
    /// Wakes the engine's threads: a doorbell may have been rung, a queue changed, or the model
    /// ends.
    pub bell: Arc<Bell>,
    /// When the model began; `None`: its clock stands at `now`.
    began: Option<Instant>,
    now: AtomicU64,
    /// Buffers of those who have all functions.
    scratch: Mutex<Scratch>,
    in_packets: AtomicBool,
    /// Nothing moves until [`crate::Model::step`] says so.
    pub stepped: bool,
}

/// Which functions something is done with.
#[derive(Clone, Copy)]
enum Which {
    All,
    One(usize),
    /// Both, the lower one first.
    Two(usize, usize),
}

impl SharedWorld {
    pub(crate) fn new(mut world: World, stepped: bool) -> Arc<Self> {
        let shared = Self {
            common: world.common.clone(),
            bell: Arc::default(),
            began: (!stepped).then(Instant::now),
            now: AtomicU64::new(world.clock.now),
            scratch: Mutex::new(std::mem::take(&mut world.scratch)),
            in_packets: AtomicBool::new(world.in_packets),
            stepped,
        };
        drop(world);
        Arc::new(shared)
    }

    /// How many functions there are.
    pub(crate) fn count(&self) -> usize {
        self.common.slots.len()
    }

    /// The slot of a function.
    pub(crate) fn slot(&self, id: usize) -> &Slot {
        &self.common.slots[id]
    }

    /// Runs `f` with all functions at hand, then delivers the interrupts that it caused and tells
    /// watchers what they are to see, with nothing locked; the engine's threads wake up if they
    /// sleep, since there may be work for them now.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        self.front_end(Which::All, |world| {
            let scratch = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut world.scratch, &mut scratch());
            let result = f(world);
            std::mem::swap(&mut world.scratch, &mut scratch());
            result
        })
    }

    /// The same with one function at hand.
    pub(crate) fn with_function<R>(&self, id: usize, f: impl FnOnce(&mut World) -> R) -> R {
        self.front_end(Which::One(id), f)
    }

    fn front_end<R>(&self, which: Which, f: impl FnOnce(&mut World) -> R) -> R {
        let result = self.run(self.world(which), f, true);
        if !self.stepped {
            self.bell.ring();
        }
        result
    }

    /// Something has come from outside: wakes the engine's threads, or tells those who watch.
    pub(crate) fn heard(&self) {
        match self.stepped {
            true => self.tell(|outbox| outbox.frames.tell()),
            false => self.bell.ring(),
        }
    }

    /// Looks at a function, or changes what neither the engine nor a watcher hears of.
    pub(crate) fn look<R>(&self, id: usize, look: impl FnOnce(&mut Function) -> R) -> R {
        look(&mut self.world(Which::One(id)).functions[id])
    }

    /// All functions, which nobody else has meanwhile.
    pub(crate) fn all(&self) -> World {
        self.world(Which::All)
    }

    /// Lets the engine work with function `id`, if no other thread has it: without a word to
    /// watchers, for whom its thread does not wait. Gives what `work` gives; where that needs a
    /// function that another thread has, it is done again with both.
    pub(crate) fn work<R>(
        &self,
        id: usize,
        scratch: &mut Scratch,
        mut work: impl FnMut(&mut World) -> R,
    ) -> Option<R> {
        let mut world = self.common.world(self.clock(), self.in_packets.load(Ordering::Relaxed));
        let slot = self.slot(id);
        // Those who wait have it for a moment each, and then it is this thread's turn.
        let function = match slot.try_take() {
            None if slot.is_wanted() => slot.take(),
            function => function?,
        };
        world.put(id, function);
        loop {
            std::mem::swap(&mut world.scratch, scratch);
            let (result, wanted) = self.run(
                world,
                |world| {
                    let result = work(world);
                    std::mem::swap(&mut world.scratch, scratch);
                    (result, world.wanted)
                },
                false,
            );
            let Some(other) = wanted else { return Some(result) };
            world = self.world(Which::Two(id.min(other), id.max(other)));
        }
    }

    /// Waits for functions, and for no other while it has a higher one.
    fn world(&self, which: Which) -> World {
        let mut world = self.common.world(self.clock(), self.in_packets.load(Ordering::Relaxed));
        let mut take = |id: usize| world.put(id, self.common.slots[id].take());
        match which {
            Which::All => (0..self.count()).for_each(take),
            Which::One(id) => take(id),
            Which::Two(low, high) => [low, high].into_iter().for_each(take),
        }
        // Who had them before may have moved the clock.
        world.clock = self.clock();
        world
    }

    /// The time, as all see it.
    pub(crate) fn clock(&self) -> Clock {
        let mut clock = Clock { now: self.now.load(Ordering::Relaxed), began: self.began };
        clock.tick();
        clock
    }

    /// A panic of `f` is a mistake of the model's and leaves what it had in no known state, so that
    /// every function is dead from then on, as after a fatal error of hardware: no command is
    /// answered as if nothing had happened while no data moves. A panic of a watcher has the same
    /// consequences, so that an assertion in a watcher does not pass unnoticed.
    fn run<R>(&self, mut world: World, f: impl FnOnce(&mut World) -> R, heard: bool) -> R {
        let mut result = catch_unwind(AssertUnwindSafe(|| f(&mut world)));
        if result.is_err() {
            // Whoever takes them next finds them dead, and nothing of theirs waits to be written.
            self.common.dead.store(true, Ordering::Release);
            for function in world.functions.iter_mut() {
                function.hca.fatal = true;
                function.hca.memory.let_go();
            }
        }
        let raised = world.take_interrupts();
        let refused = world.take_refused();
        if self.stepped && world.functions.has_all() {
            self.now.store(world.clock.now, Ordering::Relaxed);
        }
        drop(world);
        let dead = if result.is_err() { self.die() } else { Vec::new() };
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
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| tell(&self.common.outbox))) else {
            return;
        };
        tracing::error!(
            "whoever watches the model or writes its log has panicked: every device is dead from \
             now on; correct the watcher and start the model anew"
        );
        let dead = self.die();
        dead.iter().for_each(|interrupts| interrupts.fatal());
        resume_unwind(panic)
    }

    /// Every function dies; who is to hear of it.
    fn die(&self) -> Vec<Arc<dyn Interrupts>> {
        self.common.dead.store(true, Ordering::Release);
        let world = self.all();
        world.functions.iter().filter_map(|function| function.hca.interrupts.clone()).collect()
    }

    /// Starts the thread that tells of what is in a queue, so that the engine's does not wait for
    /// those who watch it. It ends when that watcher does.
    pub(crate) fn start_teller<T: 'static>(
        self: &Arc<Self>,
        id: u64,
        queue: fn(&Outbox) -> &Queue<T>,
    ) {
        let (outbox, shared) = (self.common.outbox.clone(), Arc::downgrade(self));
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

    /// Whether no thread has any function.
    #[cfg(test)]
    fn is_free(&self) -> bool {
        self.common.slots.iter().all(Slot::is_free)
    }
}

impl Drop for SharedWorld {
    fn drop(&mut self) {
        self.bell.close();
        let outbox = &self.common.outbox;
        let closed = [
            catch_unwind(AssertUnwindSafe(|| outbox.commands.close())),
            catch_unwind(AssertUnwindSafe(|| outbox.requests.close())),
            catch_unwind(AssertUnwindSafe(|| outbox.frames.close())),
        ];
        // A second panic would abort the process.
        if let Some(panic) = closed.into_iter().find_map(Result::err)
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl ModelCommon {
    /// A world with no function at hand.
    fn world(self: &Arc<Self>, clock: Clock, in_packets: bool) -> World {
        World {
            functions: Functions::none(self.slots.len()),
            clock,
            directory: Arc::default(),
            version: 0,
            in_packets,
            scratch: Scratch::default(),
            wanted: None,
            common: self.clone(),
        }
    }
}

impl World {
    /// A world of these functions, all of which are at hand.
    pub(crate) fn new(mut functions: Vec<Function>, stepped: bool) -> Self {
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
        let directory = Directory::new(functions.iter().map(|function| Entry::of(&function.hca)));
        let spaces: Spaces = functions.iter().map(|it| it.hca.memory.clone()).collect();
        for (number, function) in functions.iter_mut().enumerate() {
            function.space = Space::of(number);
            function.spaces = spaces.clone();
        }
        let common = Arc::new(ModelCommon {
            slots: functions.iter().map(|function| Slot::new(function.hca.bar.clone())).collect(),
            fabric: SharedFabric::new(fabric, functions.len(), outbox.clone()),
            directory: Mutex::new(Arc::new(directory)),
            version: AtomicU64::new(1),
            dead: AtomicBool::new(false),
            outbox,
        });
        let mut world = common.world(Clock::new(stepped), false);
        world.functions = Functions::all(functions);
        (0..world.functions.len()).for_each(|number| world.tell_addresses(number));
        world
    }

    /// The fabric that the functions share; nothing else of a world waits for it.
    pub(crate) fn fabric(&self) -> &SharedFabric {
        &self.common.fabric
    }

    /// What those who watch are told.
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.common.outbox
    }

    /// Tells the fabric and the directory what the ports of a function, which is at hand, are
    /// called.
    pub(crate) fn tell_addresses(&mut self, function: usize) {
        let hca = &self.functions[function].hca;
        let mut fabric = self.common.fabric.lock();
        for port in 1..=hca.ports.len() as u8 {
            fabric.set_addresses(Vport { function, port }, hca.addresses(port));
        }
        drop(fabric);
        let mut directory = self.common.directory.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::make_mut(&mut directory).set(function, Entry::of(hca)) {
            self.common.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Looks addresses up anew, if any has changed.
    pub(crate) fn renew_directory(&mut self) {
        let version = self.common.version.load(Ordering::Acquire);
        if self.version != version {
            let directory = self.common.directory.lock().unwrap_or_else(PoisonError::into_inner);
            self.directory = directory.clone();
            self.version = version;
        }
    }

    /// A function is at hand; it is dead if the model has failed.
    fn put(&mut self, id: usize, mut function: Box<Function>) {
        function.hca.fatal |= self.common.dead.load(Ordering::Acquire);
        self.functions.put(id, function);
    }

    /// Sees to it that another function is at hand. False: another thread has it, which may wait
    /// for one that is at hand here; then [`World::wanted`] says so.
    pub(crate) fn have(&mut self, id: usize) -> bool {
        if self.functions.has(id) {
            return true;
        }
        let slot = &self.common.slots[id];
        let function = match self.functions.last().is_none_or(|last| last < id) {
            true => Some(slot.take()),
            false => slot.try_take(),
        };
        match function {
            Some(function) => {
                function.hca.memory.hold();
                self.put(id, function);
                // It may have waited, and others may have been told of addresses meanwhile.
                self.clock.tick();
                self.renew_directory();
                true
            }
            None => {
                self.wanted = Some(id);
                false
            }
        }
    }

    /// Shows that nothing moves as long as it lives.
    ///
    /// # Panics
    /// Unless all functions are at hand.
    pub(crate) fn held(&mut self) -> Held<'_> {
        assert!(self.functions.has_all(), "a function that is elsewhere may move");
        Held::new(self)
    }

    /// Whether somebody is to hear of what was done: of interrupts, or by watching.
    pub(crate) fn has_news(&self) -> bool {
        let raised = self.functions.iter().any(|function| !function.hca.raised.is_empty());
        let Outbox { commands, requests, frames, arrivals: _ } = self.outbox();
        raised || commands.is_watched() || requests.is_watched() || frames.is_watched()
    }

    /// Takes the refusals that the log has yet to hear of.
    fn take_refused(&mut self) -> Vec<Refused> {
        let functions = self.functions.iter_mut();
        functions.flat_map(|function| std::mem::take(&mut function.hca.refused)).collect()
    }

    /// Takes the interrupts that were raised under the locks and are yet to be delivered.
    fn take_interrupts(&mut self) -> Vec<(Arc<dyn Interrupts>, u32)> {
        let mut raised = Vec::new();
        for Function { hca, .. } in self.functions.iter_mut() {
            let vectors = std::mem::take(&mut hca.raised);
            if let Some(interrupts) = &hca.interrupts {
                raised.extend(vectors.into_iter().map(|vector| (interrupts.clone(), vector)));
            }
        }
        raised
    }
}

impl Drop for World {
    /// Gives back the functions that are at hand.
    fn drop(&mut self) {
        for (id, slot) in self.common.slots.iter().enumerate().rev() {
            if let Some(function) = self.functions.take(id) {
                slot.put_back(function);
            }
        }
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
            model.shared.common.outbox.request(request(qpn));
            assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(qpn));
        }
    }

    #[test]
    fn the_last_handle_tells_what_was_executed_before_though_a_watcher_panics() {
        let model = model().stepped().build();
        let (sender, heard) = std::sync::mpsc::channel();
        let _watch = model.watch_requests(move |request| sender.send(request.qpn).unwrap());
        let _bad = model.watch_commands(|_| panic!("a mistake of the watcher's"));
        model.shared.common.outbox.request(request(7));
        model.shared.common.outbox.command(0, 0, &[0; 16], &[0; 16]);
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
                world.outbox().command(0, 0, &[0; 16], &[0; 16]);
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
            world.outbox().command(0, 0, &[0; 16], &[0; 16]);
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
