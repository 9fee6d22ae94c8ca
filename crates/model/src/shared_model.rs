//! A model as front ends and the engine's threads share it: it lends out functions, calls watchers,
//! and handles panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use verbless_dpa::Waker;

use crate::clock::Clock;
use crate::engine::function::FunctionEngine;
use crate::engine::scratch::Scratch;
use crate::engine_waker::EngineWaker;
use crate::functions::FunctionSlot;
use crate::hca::Refused;
use crate::locked::{LockedFunctions, SharedState};
use crate::memory::Interrupts;
use crate::watch::{Outbox, Queue};

/// A model as front ends and the engine's threads share it.
pub(crate) struct SharedModel {
    pub common: Arc<SharedState>,
    /// Wakes the engine's threads: a doorbell may have been rung, a queue changed, or the model
    /// ends.
    pub waker: Arc<EngineWaker>,
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
enum LockSet {
    All,
    One(usize),
    /// These functions, in ascending order.
    These(Vec<usize>),
}

impl SharedModel {
    pub(crate) fn new(mut locked: LockedFunctions, stepped: bool) -> Arc<Self> {
        let shared = Self {
            common: locked.common.clone(),
            waker: Arc::default(),
            programs: Arc::default(),
            began: (!stepped).then(Instant::now),
            now: AtomicU64::new(locked.clock.now),
            scratch: Mutex::new(std::mem::take(&mut locked.scratch)),
            in_packets: AtomicBool::new(locked.in_packets),
            stepped,
        };
        drop(locked);
        Arc::new(shared)
    }

    /// Number of functions.
    pub(crate) fn count(&self) -> usize {
        self.common.slots.len()
    }

    /// The slot of a function.
    pub(crate) fn slot(&self, id: usize) -> &FunctionSlot {
        &self.common.slots[id]
    }

    /// Runs `f` with all functions held. Then, with nothing locked, delivers its interrupts and
    /// calls watchers; wakes sleeping threads of the engine, since they may have work.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut LockedFunctions) -> R) -> R {
        self.front_end(LockSet::All, |locked| {
            let scratch = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut locked.scratch, &mut scratch());
            let result = f(locked);
            std::mem::swap(&mut locked.scratch, &mut scratch());
            result
        })
    }

    /// Calls `f` for a front end with one function held.
    pub(crate) fn with_function<R>(
        &self,
        id: usize,
        f: impl FnOnce(&mut LockedFunctions) -> R,
    ) -> R {
        self.front_end(LockSet::One(id), f)
    }

    fn front_end<R>(&self, set: LockSet, f: impl FnOnce(&mut LockedFunctions) -> R) -> R {
        let result = self.run(self.lock(set), f, true);
        if !self.stepped {
            self.waker.wake();
        }
        result
    }

    /// Handles an event from outside: wakes the engine's threads, or calls watchers.
    pub(crate) fn notify(&self) {
        match self.stepped {
            true => self.deliver(|outbox| outbox.frames.deliver()),
            false => self.waker.wake(),
        }
    }

    /// Reads a function, or makes a change that neither the engine nor a watcher needs to see.
    pub(crate) fn peek<R>(&self, id: usize, access: impl FnOnce(&mut FunctionEngine) -> R) -> R {
        access(&mut self.lock(LockSet::One(id)).functions[id])
    }

    /// Locks all functions.
    pub(crate) fn all(&self) -> LockedFunctions {
        self.lock(LockSet::All)
    }

    /// Lets the engine work with function `id`, if no other thread has it. This calls no watcher:
    /// the engine's thread does not wait for them, except at first for captures. Returns the result
    /// of `work`. If `work` needs a function that another thread has, it is repeated with all
    /// functions that it needs.
    pub(crate) fn work<R>(
        &self,
        id: usize,
        scratch: &mut Scratch,
        mut work: impl FnMut(&mut LockedFunctions) -> R,
    ) -> Option<R> {
        self.common.outbox.frames.wait_for_room();
        let mut locked =
            self.common.lock_none(self.clock(), self.in_packets.load(Ordering::Relaxed));
        let slot = self.slot(id);
        // Waiting threads hold it for a moment each; then it is this thread's turn.
        let function = match slot.try_take() {
            None if slot.is_wanted() => slot.take(),
            function => function?,
        };
        locked.put(id, function);
        loop {
            std::mem::swap(&mut locked.scratch, scratch);
            let (result, functions_to_relock) = self.run(
                locked,
                |locked| {
                    let result = work(locked);
                    std::mem::swap(&mut locked.scratch, scratch);
                    (result, locked.functions_to_relock())
                },
                false,
            );
            let Some(functions_to_relock) = functions_to_relock else { return Some(result) };
            locked = self.lock(LockSet::These(functions_to_relock));
        }
    }

    /// Waits for functions; while it waits for one, it holds no higher one.
    fn lock(&self, set: LockSet) -> LockedFunctions {
        let mut locked =
            self.common.lock_none(self.clock(), self.in_packets.load(Ordering::Relaxed));
        let mut take = |id: usize| locked.put(id, self.common.slots[id].take());
        match set {
            LockSet::All => (0..self.count()).for_each(take),
            LockSet::One(id) => take(id),
            LockSet::These(ids) => ids.into_iter().for_each(take),
        }
        // An earlier holder may have moved the clock.
        locked.clock = self.clock();
        locked
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
    fn run<R>(
        &self,
        locked: LockedFunctions,
        f: impl FnOnce(&mut LockedFunctions) -> R,
        notify_watchers: bool,
    ) -> R {
        let (mut f, mut answer) = (Some(f), None);
        // One function for every closure: it is compiled once.
        self.run_dyn(locked, &mut |locked| answer = f.take().map(|f| f(locked)), notify_watchers);
        answer.expect("what is run is run once, or has panicked")
    }

    /// [`Self::run`] for a closure that stores its result itself.
    fn run_dyn(
        &self,
        mut locked: LockedFunctions,
        f: &mut dyn FnMut(&mut LockedFunctions),
        notify_watchers: bool,
    ) {
        let mut result = catch_unwind(AssertUnwindSafe(|| f(&mut locked)));
        if result.is_err() {
            // The next holder of these functions finds them dead and without delayed transfers.
            self.common.dead.store(true, Ordering::Release);
            for function in locked.functions.iter_mut() {
                function.hca.die();
                function.hca.memory.release();
            }
        }
        let raised = locked.take_interrupts();
        let refused = locked.take_refused();
        if self.stepped && locked.functions.has_all() {
            self.now.store(locked.clock.now, Ordering::Relaxed);
        }
        drop(locked);
        let dead = if result.is_err() { self.die() } else { Vec::new() };
        // Drivers do not wait for watchers.
        for (interrupts, vector) in raised {
            interrupts.raise(vector);
        }
        if result.is_err() {
            tracing::error!(
                "the model panicked, which is a bug of the model: every device is dead, commands \
                 fail and no data moves; restart it, and report the panic"
            );
            dead.iter().for_each(|interrupts| interrupts.fatal());
        }
        let delivered = catch_unwind(AssertUnwindSafe(|| {
            self.deliver(|outbox| {
                refused.iter().for_each(Refused::log);
                if notify_watchers {
                    outbox.commands.deliver();
                }
                if notify_watchers && self.stepped {
                    outbox.requests.deliver();
                    outbox.frames.deliver();
                }
            });
        }));
        if let Err(panic) = delivered
            && result.is_ok()
        {
            result = Err(panic);
        }
        result.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Delivers pending events to watchers and to the log; if they panic, every device dies.
    pub(crate) fn deliver(&self, deliver: impl FnOnce(&Outbox)) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| deliver(&self.common.outbox))) else {
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
    pub(crate) fn fail(&self) {
        tracing::error!(
            "the model has failed at executing a program of the DPA, which is a mistake of its \
             own: every device is dead from now on; restart it, and report the panic"
        );
        self.die().iter().for_each(|interrupts| interrupts.fatal());
    }

    /// Kills every function; returns the interrupt receivers to notify.
    fn die(&self) -> Vec<Arc<dyn Interrupts>> {
        self.common.dead.store(true, Ordering::Release);
        let locked = self.all();
        locked.functions.iter().filter_map(|function| function.hca.interrupts.clone()).collect()
    }

    /// Starts the thread that calls a queue's watcher, so that the engine's thread does not wait
    /// for it. It ends with the watcher.
    pub(crate) fn start_delivery_thread<T: 'static>(
        self: &Arc<Self>,
        id: u64,
        queue: fn(&Outbox) -> &Queue<T>,
    ) {
        let (outbox, shared) = (self.common.outbox.clone(), Arc::downgrade(self));
        std::thread::Builder::new()
            .name("verbless-watch".into())
            .spawn(move || {
                while queue(&outbox).wait_for_work(id) {
                    let delivered = catch_unwind(AssertUnwindSafe(|| queue(&outbox).deliver()));
                    if let Err(panic) = delivered
                        && let Some(shared) = shared.upgrade()
                    {
                        // The other watchers still get their events.
                        let _ = catch_unwind(AssertUnwindSafe(|| {
                            shared.deliver(|_| resume_unwind(panic));
                        }));
                    }
                }
            })
            .expect("a thread for the watcher");
    }

    /// Whether no thread holds any function.
    #[cfg(test)]
    fn is_free(&self) -> bool {
        self.common.slots.iter().all(FunctionSlot::is_free)
    }
}

impl Drop for SharedModel {
    fn drop(&mut self) {
        self.waker.close();
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
