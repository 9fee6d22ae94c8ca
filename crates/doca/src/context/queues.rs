//! The contexts of a work queue, and its completion queues on their devices.

use std::collections::HashMap;
use std::hint::cold_path;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbless_queue::{ErrorKind as LowerKind, RequestId};

use super::core::{Core, CtxId, NEAR};
use super::device_cq::{DeviceCq, DeviceCqLookup, DeviceCqs};
use super::engine::{EndedJobs, Engine, EngineArgs};
use super::engines::{AnyEngine, EngineOf, stray};
use super::event::{Done, EventSlot, Tag};
use super::handle::Handle;
use super::job::Job;
use super::library::Context;
use crate::error::{Error, ErrorKind, Refused, Result};

/// The engines and completion queues of a work queue. They do not know the submitters of jobs.
pub(crate) struct Queues {
    depth: u32,
    /// The number of jobs that may begin before another one ends.
    left: u32,
    /// Indexed by the context's number modulo the slots: with a slot for each residue, the index
    /// needs no bounds check. The slots are in this struct, not on the heap, because each job reads
    /// its context's slot twice.
    near: [ContextSlot; NEAR],
    /// Contexts whose slot in `near` was taken.
    far: Vec<ContextSlot>,
    /// The contexts.
    context_states: Vec<ContextState>,
    /// The slot of each context.
    slots: HashMap<CtxId, u32>,
    /// The slots of contexts whose jobs software executes.
    software: Vec<u32>,
    /// The index in `software` of the engine that runs first next time.
    turn: usize,
    /// The device with the last completion: it is polled last.
    last: usize,
    /// Declared after the contexts: their queues go before the completion queues.
    device_cqs: DeviceCqs,
}

/// A completion of a successful request. The caller that gets a job from it calls
/// [`PeekedCqe::pass`].
pub(super) struct PeekedCqe<'q> {
    pub(super) request: RequestId,
    /// The engine that may have posted the request.
    pub(super) engine: &'q mut AnyEngine,
    device_cq: &'q mut DeviceCq,
    left: &'q mut u32,
}

impl PeekedCqe<'_> {
    /// Consumes the CQE: it has ended a job.
    #[inline(always)]
    pub(super) fn consume_peeked(self) {
        self.device_cq.cq.consume_peeked();
        *self.left += 1;
    }
}

/// A context of the work queue, and its state at the last checks.
struct ContextState {
    /// Slots in `far` are numbered after those in `near`.
    slot: u32,
    core: Arc<Core>,
    /// The jobs that its queues had ended at the last check.
    ended: EndedJobs,
    /// The jobs that its queues had ended when one was in the error state at the last check: the
    /// device may still flush it.
    suspect: EndedJobs,
    /// The time of the last status query because no job ended, and the pause before the next one:
    /// it grows with each query that finds no failure.
    queried: Option<Instant>,
    pause: Duration,
}

/// The increment of the pause after each query that finds no failure, and its maximum.
const MORE_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A context of the work queue, or a free slot.
struct ContextSlot {
    engine: AnyEngine,
    id: CtxId,
    /// Index in `device_cqs`.
    device_cq: u32,
}

impl ContextSlot {
    const NONE: Self = Self { engine: AnyEngine::None, id: CtxId::NONE, device_cq: 0 };
}

impl Queues {
    pub(super) fn new(depth: u32) -> Self {
        let near = [const { ContextSlot::NONE }; NEAR];
        Self {
            depth,
            left: depth,
            near,
            far: Vec::new(),
            context_states: Vec::new(),
            slots: HashMap::new(),
            software: Vec::new(),
            turn: 0,
            last: 0,
            device_cqs: DeviceCqs::default(),
        }
    }

    /// Jobs in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.depth - self.left
    }

    /// Maximum number of jobs at a time.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Sets the depth, with nothing in flight.
    pub(super) fn set_depth(&mut self, depth: u32) {
        (self.depth, self.left) = (depth, depth);
    }

    /// The number of contexts of the work queue.
    pub(super) fn contexts(&self) -> usize {
        self.context_states.len()
    }

    /// Creates the queues for a context. With `handle`, events go there.
    pub(super) fn add<C: Context + ?Sized>(
        &mut self,
        context: &C,
        handle: Option<&Handle>,
    ) -> Result<()> {
        let core = context.core();
        if self.has(core.id()) {
            let text = "the work queue is on this context already";
            return Err(Error::plain(ErrorKind::AlreadyExist, text));
        }
        core.attach()?;
        self.make(context, handle).inspect_err(|_| core.detach())
    }

    fn make<C: Context + ?Sized>(&mut self, context: &C, handle: Option<&Handle>) -> Result<()> {
        let core = context.core();
        let (id, depth, slot) = (core.id(), self.depth, self.free_slot(core.id()));
        let at = match context.own_cq()? {
            Some(cq) => self.device_cqs.add(DeviceCq::with_own_cq(core.dev(), cq, slot, handle)?),
            None => self.device_cq_on(core.dev(), handle)?,
        };
        let device_cq = self.device_cqs.get(at).expect("the device CQ exists");
        let made = context.engine(&mut EngineArgs { depth, user_index: slot, device_cq });
        // A file leaves the handle when its engine closes it.
        let register_file = |engine: AnyEngine| match (handle, engine.file()) {
            (Some(handle), Some(file)) => handle.add(file).map(|()| engine),
            _ => Ok(engine),
        };
        let engine =
            made.and_then(register_file).inspect_err(|_| self.remove_if_unused(at, handle))?;
        self.device_cq(at).contexts += 1;
        let (ended, suspect) = (EndedJobs::NONE, EndedJobs::NONE);
        let (core, queried, pause) = (core.clone(), None, Duration::ZERO);
        self.context_states.push(ContextState { slot, core, ended, suspect, queried, pause });
        self.slots.insert(id, slot);
        if engine.progresses() {
            self.software.push(slot);
        }
        if slot as usize == NEAR + self.far.len() {
            self.far.push(ContextSlot::NONE);
        }
        if let Some(free) = self.at(slot) {
            *free = ContextSlot { engine, id, device_cq: at as u32 };
        }
        Ok(())
    }

    /// A free slot for a context; it may have to be appended.
    fn free_slot(&self, id: CtxId) -> u32 {
        let near = id.modulo::<NEAR>();
        if self.near[near].id == CtxId::NONE {
            return near as u32;
        }
        let far = self.far.iter().position(|added| added.id == CtxId::NONE);
        (NEAR + far.unwrap_or(self.far.len())) as u32
    }

    fn at(&mut self, slot: u32) -> Option<&mut ContextSlot> {
        slot_at(&mut self.near, &mut self.far, slot)
    }

    /// The slot of a context of the work queue.
    fn slot_of(&self, id: CtxId) -> Option<u32> {
        self.slots.get(&id).copied()
    }

    fn device_cq(&mut self, at: usize) -> &mut DeviceCq {
        self.device_cqs.get(at).expect("a context is there")
    }

    /// The completion queue on `dev`; creates it if there is none.
    fn device_cq_on(&mut self, dev: &crate::device::Dev, handle: Option<&Handle>) -> Result<usize> {
        match self.device_cqs.on(dev) {
            Some(at) => Ok(at),
            None => Ok(self.device_cqs.add(DeviceCq::new(dev, self.depth, handle)?)),
        }
    }

    fn remove_if_unused(&mut self, at: usize, handle: Option<&Handle>) {
        if let Some(device_cq) = self.device_cqs.get(at)
            && device_cq.contexts == 0
        {
            // The device's event channel closes the file: the epoll descriptor then removes it.
            if let Some(handle) = handle {
                let _gone = device_cq.leave(handle);
            }
            self.device_cqs.remove(at);
        }
    }

    /// Destroys the queues of a context, unless it has jobs in flight.
    pub(super) fn remove(&mut self, id: CtxId, handle: &Handle) -> Result<()> {
        let (slot, added) = self.find(id)?;
        match added.engine.in_flight() {
            0 => {
                self.take_out(slot, Some(handle));
                Ok(())
            }
            some => {
                let text = format!("{some} jobs of the context are in flight: retrieve them first");
                Err(Error::new(ErrorKind::InUse, text))
            }
        }
    }

    /// Destroys the queues of contexts whose handles are dropped, unless they have jobs in flight,
    /// or will have.
    pub(super) fn remove_dropped(&mut self, handle: &Handle, needed: impl Fn(CtxId) -> bool) {
        let gone = |core: &Arc<Core>| core.is_dropped() && !needed(core.id());
        let slots: Vec<u32> = self
            .context_states
            .iter()
            .filter(|state| gone(&state.core))
            .map(|state| state.slot)
            .collect();
        for slot in slots {
            if self.at(slot).is_some_and(|added| added.engine.in_flight() == 0) {
                self.take_out(slot, Some(handle));
            }
        }
    }

    /// Destroys all queues, whatever is in flight.
    pub(super) fn clear(&mut self) {
        while let Some(last) = self.context_states.last() {
            self.take_out(last.slot, None);
        }
        self.left = self.depth;
    }

    fn take_out(&mut self, slot: u32, handle: Option<&Handle>) {
        let Some(at) = self.context_states.iter().position(|state| state.slot == slot) else {
            return;
        };
        let core = self.context_states.swap_remove(at).core;
        self.slots.remove(&core.id());
        self.software.retain(|&other| other != slot);
        let Some(added) = self.at(slot) else { return };
        let ContextSlot { engine, device_cq, .. } = mem::replace(added, ContextSlot::NONE);
        // Its queues are dropped before their completion queue.
        drop(engine);
        core.detach();
        self.device_cq(device_cq as usize).contexts -= 1;
        self.remove_if_unused(device_cq as usize, handle);
    }

    fn find(&mut self, id: CtxId) -> Result<(u32, &mut ContextSlot)> {
        let slot = self.slot_of(id);
        slot.and_then(|slot| Some((slot, self.at(slot)?))).ok_or_else(not_added)
    }

    /// Whether the work queue is on this context.
    pub(crate) fn has(&self, id: CtxId) -> bool {
        self.slot_of(id).is_some()
    }

    /// Ends the jobs in flight of a context.
    pub(super) fn abort<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        let slot = self.find(context.core().id())?.0;
        let Self { near, far, device_cqs, software, .. } = self;
        let added = slot_at(near, far, slot).expect("the slot has a context");
        added
            .engine
            .abort(device_cqs.get(added.device_cq as usize).expect("a context is there"))?;
        // An engine that leaves all work to the device gets work after the abort.
        if added.engine.has_work() && !software.contains(&slot) {
            software.push(slot);
        }
        Ok(())
    }

    /// Begins a job; `tag` identifies its owner.
    #[inline(always)]
    pub(crate) fn begin<J: Job>(
        &mut self,
        job: J,
        tag: Tag,
    ) -> std::result::Result<(), Refused<J>> {
        let none;
        (self.left, none) = self.left.overflowing_sub(1);
        if none {
            return self.full(job);
        }
        let id = job.context();
        let ContextSlot { engine, id: its, device_cq } = &mut self.near[id.modulo::<NEAR>()];
        if *its != id {
            return self.begin_far(job, tag);
        }
        let Some(engine) = J::Engine::of(engine) else { return self.begin_far(job, tag) };
        if J::KEEPS {
            return if job.begin_simple(tag, engine) { Ok(()) } else { self.begin_kept(id) };
        }
        match job.begin(
            tag,
            engine,
            DeviceCqLookup { device_cqs: &mut self.device_cqs, at: device_cq },
        ) {
            Ok(()) => Ok(()),
            Err(refused) => {
                cold_path();
                self.left += 1;
                Err(refused)
            }
        }
    }

    /// Begins the kept job of a near context's engine.
    #[cold]
    #[inline(never)]
    fn begin_kept<J: Job>(&mut self, id: CtxId) -> std::result::Result<(), Refused<J>> {
        let ContextSlot { engine, device_cq, .. } = &mut self.near[id.modulo::<NEAR>()];
        let engine = J::Engine::of(engine).expect("the engine keeps the job");
        let begun = J::begin_kept(
            id,
            engine,
            DeviceCqLookup { device_cqs: &mut self.device_cqs, at: device_cq },
        );
        begun.inspect_err(|_| self.left += 1)
    }

    /// Begins a job of a far context, or of an unknown one.
    #[cold]
    #[inline(never)]
    fn begin_far<J: Job>(&mut self, job: J, tag: Tag) -> std::result::Result<(), Refused<J>> {
        let id = job.context();
        let slot = self.slots.get(&id).map(|&slot| slot as usize);
        let far = &mut self.far;
        let begun = match slot.and_then(|slot| far.get_mut(slot.checked_sub(NEAR)?)) {
            Some(ContextSlot { engine, device_cq, .. }) => {
                let engine = J::Engine::of(engine).expect("a context's jobs are for its engine");
                job.begin(
                    tag,
                    engine,
                    DeviceCqLookup { device_cqs: &mut self.device_cqs, at: device_cq },
                )
            }
            None => {
                let text = "the work queue is not on the job's context: call `add` first";
                Err(Refused::new(Error::plain(ErrorKind::BadState, text), job))
            }
        };
        begun.inspect_err(|_| self.left += 1)
    }

    #[cold]
    #[inline(never)]
    fn full<J>(&mut self, job: J) -> std::result::Result<(), Refused<J>> {
        self.left = 0;
        let text = "the work queue is full (its depth of jobs is in flight): retrieve some first";
        Err(Refused::new(Error::plain(ErrorKind::Again, text), job))
    }

    /// The next completion, if there is one device, and the request was successful.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Option<PeekedCqe<'_>> {
        let Self { near, device_cqs, left, .. } = self;
        let device_cq = &mut **device_cqs.only.as_mut()?;
        let cqe = device_cq.cq.peek_send()?;
        // The near context in this slot does not know a far context's CQE.
        let at = cqe.user_index() as usize % NEAR;
        let request = cqe.request();
        Some(PeekedCqe { request, engine: &mut near[at].engine, left, device_cq })
    }

    /// Polls for a successful receive: writes its event to `into`, and returns the job's tag.
    fn poll_receive(&mut self, into: &mut EventSlot) -> Option<Tag> {
        let Self { near, device_cqs, left, .. } = self;
        let device_cq = device_cqs.only.as_mut()?;
        let cqe = device_cq.cq.peek_receive()?;
        let at = cqe.user_index() as usize % NEAR;
        let tag = near[at].engine.receive(&cqe, into)?;
        device_cq.cq.consume_peeked();
        *left += 1;
        Some(tag)
    }

    /// Polls for a job that a device completed: writes its event to `into`, and returns its tag.
    ///
    /// # Errors
    /// An impossible completion.
    #[inline(never)]
    pub(super) fn poll(&mut self, into: &mut EventSlot) -> Result<Option<Tag>> {
        if let Some(tag) = self.poll_receive(into) {
            return Ok(Some(tag));
        }
        let count = self.device_cqs.slots();
        let Self { near, far, device_cqs, software, .. } = self;
        for step in 0..count {
            let at = (self.last + 1 + step) % count;
            let Some(device_cq) = device_cqs.get(at) else { continue };
            while let Some(cqe) = device_cq.cq.poll() {
                let slot = device_cq.owner.unwrap_or_else(|| cqe.user_index());
                let Some(added) = slot_at(near, far, slot) else {
                    return Err(stray(&cqe));
                };
                let completed = added.engine.complete(cqe, device_cq, into);
                if completed.is_err() && added.engine.has_work() && !software.contains(&slot) {
                    software.push(slot);
                }
                if let Some(tag) = completed? {
                    self.last = at;
                    self.left += 1;
                    return Ok(Some(tag));
                }
            }
        }
        Ok(None)
    }

    /// Runs software engines, until one completes a job or has an external event.
    pub(super) fn progress(&mut self) -> Option<Done> {
        let count = self.software.len();
        for step in 0..count {
            let at = (self.turn + 1 + step) % count;
            let slot = self.software[at];
            let Some(added) = slot_at(&mut self.near, &mut self.far, slot) else { continue };
            if added.engine.has_work() {
                let device_cq =
                    self.device_cqs.get(added.device_cq as usize).expect("a context is there");
                if let Some(done) = added.engine.progress(device_cq) {
                    self.turn = at;
                    if done.tag != Tag::EXTERNAL {
                        self.left += 1;
                    }
                    return Some(done);
                }
            }
        }
        None
    }

    /// Whether [`Queues::progress`] has something to do.
    pub(super) fn has_work(&self) -> bool {
        self.software.iter().any(|&slot| {
            let slot = slot as usize;
            let far = || self.far.get(slot - NEAR);
            self.near.get(slot).or_else(far).is_some_and(|added| added.engine.has_work())
        })
    }

    /// Arms each device to make an event when a job is done; true if one is already done.
    pub(super) fn park(&mut self) -> Result<bool> {
        let (mut ready, mut failed) = (false, false);
        for device_cq in self.device_cqs.iter_mut() {
            match device_cq.park() {
                Err(error)
                    if matches!(error.kind(), LowerKind::QueueFailed | LowerKind::DeviceGone) =>
                {
                    failed = true;
                }
                parked => ready |= parked?,
            }
        }
        if failed {
            ready |= self.check()?;
        }
        Ok(ready)
    }

    /// Queries the devices, like [`Queues::check`], for contexts with a queue that has jobs in
    /// flight and has completed no job since the last call, however busy other queues are. While
    /// the queries find no failure, the pauses for a context grow: 100 ms, 200 ms, and so on up to
    /// a second.
    pub(super) fn check_idle(&mut self, time: Instant) -> Result<bool> {
        self.check_those(|state, now| {
            let idle = now.has_one_of(&state.ended);
            state.ended = now;
            if !idle {
                state.pause = Duration::ZERO;
                return false;
            }
            let queried = state.queried.map(|queried| time.saturating_duration_since(queried));
            if queried.is_some_and(|ago| ago < state.pause) {
                return false;
            }
            state.queried = Some(time);
            true
        })
    }

    /// Queries whether the devices still complete the jobs in flight (commands for each context
    /// that has some), and ends the jobs of a failed queue: a completion queue takes no more CQEs,
    /// the device is removed, or a queue is in the error state, was so at the last check, and has
    /// ended nothing since. True if jobs have ended.
    ///
    /// # Errors
    /// A device writes no more completions, and has no job in flight; it does not release its jobs;
    /// it refuses.
    pub(super) fn check(&mut self) -> Result<bool> {
        self.check_those(|_, _| true)
    }

    fn check_those(
        &mut self,
        mut asks: impl FnMut(&mut ContextState, EndedJobs) -> bool,
    ) -> Result<bool> {
        let Self { near, far, device_cqs, software, context_states, .. } = self;
        let (mut ended, mut any_in_flight, mut result) = (false, false, Ok(()));
        for state in context_states.iter_mut() {
            let slot = state.slot;
            let Some(added) = slot_at(near, far, slot) else { continue };
            let engine = &mut added.engine;
            if engine.has_work() {
                ended = true;
                continue;
            }
            let now = engine.ended();
            if engine.in_flight() == 0 {
                state.ended = now;
                continue;
            }
            if !asks(state, now) {
                any_in_flight = true;
                continue;
            }
            let device_cq = device_cqs.get(added.device_cq as usize).expect("a context is there");
            let was_suspect = now.has_one_of(&mem::replace(&mut state.suspect, EndedJobs::NONE));
            let cq = device_cq.cq.check();
            device_cq.failed |= is_failed(&cq);
            let why = match (cq, engine.check()) {
                (Ok(()), Ok(())) => {
                    state.pause = MAX_PAUSE.min(state.pause + MORE_PAUSE);
                    any_in_flight = true;
                    continue;
                }
                (Ok(()), Err(error)) if !was_suspect && error.kind() == LowerKind::QueueFailed => {
                    (state.suspect, state.pause) = (now, Duration::ZERO);
                    any_in_flight = true;
                    continue;
                }
                (Ok(()), Err(error)) | (Err(error), _) => error,
            };
            let ends = matches!(why.kind(), LowerKind::QueueFailed | LowerKind::DeviceGone);
            let why = Error::from(why);
            match if ends { engine.fail(device_cq, &why) } else { Err(why) } {
                Ok(()) => ended = true,
                Err(error) => result = Err(error),
            }
            if engine.has_work() && !software.contains(&slot) {
                software.push(slot);
            }
        }
        if ended {
            return Ok(true);
        }
        result?;
        // A failed device without jobs does not end the jobs of another.
        if !any_in_flight {
            for device_cq in device_cqs.iter_mut() {
                let checked = device_cq.cq.check();
                device_cq.failed |= is_failed(&checked);
                checked?;
            }
        }
        Ok(false)
    }

    /// Takes the events of devices. If a device is found removed, its jobs end.
    ///
    /// # Errors
    /// A device is removed, and no other has jobs in flight.
    pub(super) fn clear_events(&mut self, handle: &Handle) -> Result<()> {
        let (mut gone, mut cleared) = (false, Ok(()));
        for device_cq in self.device_cqs.iter_mut() {
            match device_cq.clear(handle) {
                Ok(is_there) => gone |= !is_there,
                Err(error) => cleared = Err(error),
            }
        }
        cleared?;
        if gone {
            self.check()?;
        }
        Ok(())
    }
}

#[cold]
pub(super) fn not_added() -> Error {
    Error::plain(ErrorKind::NotFound, "the work queue is not on this context")
}

fn slot_at<'q>(
    near: &'q mut [ContextSlot; NEAR],
    far: &'q mut [ContextSlot],
    slot: u32,
) -> Option<&'q mut ContextSlot> {
    let slot = slot as usize;
    match slot < NEAR {
        true => Some(&mut near[slot]),
        false => far.get_mut(slot - NEAR),
    }
}

#[cfg(test)]
mod tests;

/// Whether a completion queue takes no more CQEs.
fn is_failed(checked: &std::result::Result<(), verbless_queue::DeviceError>) -> bool {
    checked.as_ref().is_err_and(|error| error.kind() == LowerKind::QueueFailed)
}
