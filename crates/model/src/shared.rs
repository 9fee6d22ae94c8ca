//! A model as front ends and the engine's threads share it: it lends out functions, calls watchers,
//! and handles panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::bell::Bell;
use crate::clock::Clock;
use crate::dpa::Waker;
use crate::engine::function::Function;
use crate::engine::scratch::Scratch;
use crate::functions::Slot;
use crate::hca::Refused;
use crate::memory::Interrupts;
use crate::watch::{Outbox, Queue};
use crate::world::{ModelCommon, World};

/// A model as front ends and the engine's threads share it.
pub(crate) struct SharedWorld {
    pub common: Arc<ModelCommon>,
    /// Wakes the engine's threads: a doorbell may have been rung, a queue changed, or the model
    /// ends.
    pub bell: Arc<Bell>,
    /// Wakes the threads that run programs on DPAs.
    pub programs: Arc<Waker>,
    /// When the model began; `None`: its clock does not run and is at `now`.
    began: Option<Instant>,
    now: AtomicU64,
    /// Buffers for a thread that holds all functions.
    scratch: Mutex<Scratch>,
    in_packets: AtomicBool,
    /// Whether the devices work only when [`crate::Model::step`] is called.
    pub stepped: bool,
}

/// The functions that an operation needs.
enum Which {
    All,
    One(usize),
    /// These functions, in ascending order.
    These(Vec<usize>),
}

impl SharedWorld {
    pub(crate) fn new(mut world: World, stepped: bool) -> Arc<Self> {
        let shared = Self {
            common: world.common.clone(),
            bell: Arc::default(),
            programs: Arc::default(),
            began: (!stepped).then(Instant::now),
            now: AtomicU64::new(world.clock.now),
            scratch: Mutex::new(std::mem::take(&mut world.scratch)),
            in_packets: AtomicBool::new(world.in_packets),
            stepped,
        };
        drop(world);
        Arc::new(shared)
    }

    /// Number of functions.
    pub(crate) fn count(&self) -> usize {
        self.common.slots.len()
    }

    /// The slot of a function.
    pub(crate) fn slot(&self, id: usize) -> &Slot {
        &self.common.slots[id]
    }

    /// Runs `f` with all functions held. Then, with nothing locked, delivers its interrupts and
    /// calls watchers; wakes sleeping threads of the engine, since they may have work.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut World) -> R) -> R {
        self.front_end(Which::All, |world| {
            let scratch = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut world.scratch, &mut scratch());
            let result = f(world);
            std::mem::swap(&mut world.scratch, &mut scratch());
            result
        })
    }

    /// Calls `f` for a front end with one function held.
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

    /// Handles an event from outside: wakes the engine's threads, or calls watchers.
    pub(crate) fn heard(&self) {
        match self.stepped {
            true => self.tell(|outbox| outbox.frames.tell()),
            false => self.bell.ring(),
        }
    }

    /// Reads a function, or makes a change that neither the engine nor a watcher needs to see.
    pub(crate) fn look<R>(&self, id: usize, look: impl FnOnce(&mut Function) -> R) -> R {
        look(&mut self.world(Which::One(id)).functions[id])
    }

    /// Locks all functions.
    pub(crate) fn all(&self) -> World {
        self.world(Which::All)
    }

    /// Lets the engine work with function `id`, if no other thread has it. This calls no watcher:
    /// the engine's thread does not wait for them, except at first for captures. Gives what `work`
    /// gives; where that needs a function that another thread has, it is done again with all that
    /// it needs.
    pub(crate) fn work<R>(
        &self,
        id: usize,
        scratch: &mut Scratch,
        mut work: impl FnMut(&mut World) -> R,
    ) -> Option<R> {
        self.common.outbox.frames.wait_for_room();
        let mut world = self.common.world(self.clock(), self.in_packets.load(Ordering::Relaxed));
        let slot = self.slot(id);
        // Waiting threads hold it for a moment each; then it is this thread's turn.
        let function = match slot.try_take() {
            None if slot.is_wanted() => slot.take(),
            function => function?,
        };
        world.put(id, function);
        loop {
            std::mem::swap(&mut world.scratch, scratch);
            let (result, needed) = self.run(
                world,
                |world| {
                    let result = work(world);
                    std::mem::swap(&mut world.scratch, scratch);
                    (result, world.needed())
                },
                false,
            );
            let Some(needed) = needed else { return Some(result) };
            world = self.world(Which::These(needed));
        }
    }

    /// Waits for functions; while it waits for one, it holds no higher one.
    fn world(&self, which: Which) -> World {
        let mut world = self.common.world(self.clock(), self.in_packets.load(Ordering::Relaxed));
        let mut take = |id: usize| world.put(id, self.common.slots[id].take());
        match which {
            Which::All => (0..self.count()).for_each(take),
            Which::One(id) => take(id),
            Which::These(ids) => ids.into_iter().for_each(take),
        }
        // An earlier holder may have moved the clock.
        world.clock = self.clock();
        world
    }

    /// The time, the same for all threads.
    pub(crate) fn clock(&self) -> Clock {
        let mut clock = Clock { now: self.now.load(Ordering::Relaxed), began: self.began };
        clock.tick();
        clock
    }

    /// A panic of `f` is a bug of the model and leaves its functions in an unknown state. Every
    /// function is then dead, as after a fatal error of hardware: no command succeeds while data no
    /// longer moves. A panic of a watcher has the same consequences, so that an assertion in a
    /// watcher does not pass unnoticed.
    fn run<R>(&self, world: World, f: impl FnOnce(&mut World) -> R, heard: bool) -> R {
        let (mut f, mut answer) = (Some(f), None);
        // One function for all operations on a world: it is compiled once.
        self.run_whole(world, &mut |world| answer = f.take().map(|f| f(world)), heard);
        answer.expect("what is run is run once, or has panicked")
    }

    /// [`Self::run`] for a closure that stores its result itself.
    fn run_whole(&self, mut world: World, f: &mut dyn FnMut(&mut World), heard: bool) {
        let mut result = catch_unwind(AssertUnwindSafe(|| f(&mut world)));
        if result.is_err() {
            // The next holder of these functions finds them dead; their pending writes are dropped.
            self.common.dead.store(true, Ordering::Release);
            for function in world.functions.iter_mut() {
                function.hca.die();
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
        // Drivers do not wait for watchers.
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
        result.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Delivers pending events to watchers and to the log; if they panic, every device dies.
    pub(crate) fn tell(&self, tell: impl FnOnce(&Outbox)) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| tell(&self.common.outbox))) else {
            return;
        };
        tracing::error!(
            "a watcher of the model or of its log panicked: every device is dead; fix the watcher \
             and build the model again"
        );
        let dead = self.die();
        dead.iter().for_each(|interrupts| interrupts.fatal());
        resume_unwind(panic)
    }

    /// A program of the DPA could not be executed, which is a bug of the model: kills every device.
    #[cfg(feature = "dpa")]
    pub(crate) fn fail(&self) {
        tracing::error!(
            "the model has failed at executing a program of the DPA, which is a mistake of its \
             own: every device is dead from now on; start it anew, and report the panic"
        );
        self.die().iter().for_each(|interrupts| interrupts.fatal());
    }

    /// Kills every function; returns the interrupt receivers to notify.
    fn die(&self) -> Vec<Arc<dyn Interrupts>> {
        self.common.dead.store(true, Ordering::Release);
        let world = self.all();
        world.functions.iter().filter_map(|function| function.hca.interrupts.clone()).collect()
    }

    /// Starts the thread that calls a queue's watcher, so that the engine's thread does not wait
    /// for it. It ends with the watcher.
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
                        // The other watchers still get their events.
                        let _ = catch_unwind(AssertUnwindSafe(|| {
                            shared.tell(|_| resume_unwind(panic));
                        }));
                    }
                }
            })
            .expect("a thread for the watcher");
    }

    /// Whether no thread holds any function.
    #[cfg(test)]
    fn is_free(&self) -> bool {
        self.common.slots.iter().all(Slot::is_free)
    }
}

impl Drop for SharedWorld {
    fn drop(&mut self) {
        self.bell.close();
        self.programs.close();
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

#[cfg(test)]
mod tests;
