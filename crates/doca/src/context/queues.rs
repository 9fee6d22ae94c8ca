//! The contexts of a work queue, and its completion queues on their devices.

use std::collections::HashMap;
use std::hint::cold_path;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbless_queue::{ErrorKind as LowerKind, RequestId};

use super::core::{Core, CtxId, NEAR};
use super::engine::{EndedJobs, Engine, Place};
use super::engines::{AnyEngine, Listed, stray};
use super::event::{Done, Settled, Tag};
use super::handle::Handle;
use super::job::Job;
use super::library::Context;
use super::side::{Side, SideOf, Sides};
use crate::error::{Error, ErrorKind, Refused, Result};

/// The engines and completion queues of a work queue. They do not know the submitters of jobs.
pub(crate) struct Queues {
    depth: u32,
    /// Jobs that may begin before others end.
    left: u32,
    /// Indexed by the context's number modulo the slots: with a slot for each residue, the index
    /// needs no bounds check. They are in this struct, because each job reads one twice.
    near: [Added; NEAR],
    /// Contexts whose slot in `near` was taken.
    far: Vec<Added>,
    /// The contexts.
    there: Vec<There>,
    /// The slot of each context.
    places: HashMap<CtxId, u32>,
    /// The slots of contexts whose jobs software executes.
    software: Vec<u32>,
    /// The index in `software` of the engine that runs first next time.
    turn: usize,
    /// The device with the last completion: it is polled last.
    last: usize,
    /// Declared behind the contexts: their queues go before the completion queues.
    sides: Sides,
}

/// A completion of a successful request. The caller that gets a job from it calls [`Peeked::pass`].
pub(super) struct Peeked<'q> {
    pub(super) request: RequestId,
    /// The engine that may have posted the request.
    pub(super) engine: &'q mut AnyEngine,
    side: &'q mut Side,
    left: &'q mut u32,
}

impl Peeked<'_> {
    /// Consumes the CQE: it has ended a job.
    #[inline(always)]
    pub(super) fn pass(self) {
        self.side.cq.pass();
        *self.left += 1;
    }
}

/// A context of the work queue, and its state at the last checks.
struct There {
    /// Slots in `far` are numbered after those in `near`.
    place: u32,
    core: Arc<Core>,
    /// The jobs that its queues had ended at the last check.
    ended: EndedJobs,
    /// The jobs that its queues had ended when one was in the error state at the last check: the
    /// device may still flush it.
    suspect: EndedJobs,
    /// The time of the last status query because no job ended, and the pause before the next one:
    /// it grows with each sound answer.
    asked: Option<Instant>,
    pause: Duration,
}

/// The increment of the pause after each sound answer, and its maximum.
const MORE_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A context of the work queue, or a free slot.
struct Added {
    engine: AnyEngine,
    id: CtxId,
    /// Index in `sides`.
    side: u32,
}

impl Added {
    const NONE: Self = Self { engine: AnyEngine::None, id: CtxId::NONE, side: 0 };
}

impl Queues {
    pub(super) fn new(depth: u32) -> Self {
        let near = [const { Added::NONE }; NEAR];
        Self {
            depth,
            left: depth,
            near,
            far: Vec::new(),
            there: Vec::new(),
            places: HashMap::new(),
            software: Vec::new(),
            turn: 0,
            last: 0,
            sides: Sides::default(),
        }
    }

    /// Jobs in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.depth - self.left
    }

    /// Maximum of jobs at a time.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Sets the depth, with nothing in flight.
    pub(super) fn set_depth(&mut self, depth: u32) {
        (self.depth, self.left) = (depth, depth);
    }

    /// The number of contexts of the work queue.
    pub(super) fn contexts(&self) -> usize {
        self.there.len()
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
        let (id, depth, place) = (core.id(), self.depth, self.free_place(core.id()));
        let at = match context.brings()? {
            Some(cq) => self.sides.add(Side::brought(core.dev(), cq, place, handle)?),
            None => self.side_on(core.dev(), handle)?,
        };
        let side = self.sides.get(at).expect("it was found or made");
        let made = context.engine(&mut Place { depth, user_index: place, side });
        // A file leaves the handle when its engine closes it.
        let told = |engine: AnyEngine| match (handle, engine.file()) {
            (Some(handle), Some(file)) => handle.add(file).map(|()| engine),
            _ => Ok(engine),
        };
        let engine = made.and_then(told).inspect_err(|_| self.leave_if_unused(at, handle))?;
        self.side(at).contexts += 1;
        let (ended, suspect) = (EndedJobs::NONE, EndedJobs::NONE);
        let (core, asked, pause) = (core.clone(), None, Duration::ZERO);
        self.there.push(There { place, core, ended, suspect, asked, pause });
        self.places.insert(id, place);
        if engine.progresses() {
            self.software.push(place);
        }
        if place as usize == NEAR + self.far.len() {
            self.far.push(Added::NONE);
        }
        if let Some(free) = self.at(place) {
            *free = Added { engine, id, side: at as u32 };
        }
        Ok(())
    }

    /// A free slot for a context; it may have to be appended.
    fn free_place(&self, id: CtxId) -> u32 {
        let near = id.modulo::<NEAR>();
        if self.near[near].id == CtxId::NONE {
            return near as u32;
        }
        let far = self.far.iter().position(|added| added.id == CtxId::NONE);
        (NEAR + far.unwrap_or(self.far.len())) as u32
    }

    fn at(&mut self, place: u32) -> Option<&mut Added> {
        at_place(&mut self.near, &mut self.far, place)
    }

    /// The slot of a context of the work queue.
    fn place_of(&self, id: CtxId) -> Option<u32> {
        self.places.get(&id).copied()
    }

    fn side(&mut self, at: usize) -> &mut Side {
        self.sides.get(at).expect("a context is there")
    }

    /// The side on `dev`; creates it if there is none.
    fn side_on(&mut self, dev: &crate::device::Dev, handle: Option<&Handle>) -> Result<usize> {
        match self.sides.on(dev) {
            Some(at) => Ok(at),
            None => Ok(self.sides.add(Side::new(dev, self.depth, handle)?)),
        }
    }

    fn leave_if_unused(&mut self, at: usize, handle: Option<&Handle>) {
        if let Some(side) = self.sides.get(at)
            && side.contexts == 0
        {
            // The side closes the file, and the epoll descriptor then removes it anyway.
            if let Some(handle) = handle {
                let _gone = side.leave(handle);
            }
            self.sides.remove(at);
        }
    }

    /// Destroys the queues of a context, unless it has jobs in flight.
    pub(super) fn remove(&mut self, id: CtxId, handle: &Handle) -> Result<()> {
        let (place, added) = self.find(id)?;
        match added.engine.in_flight() {
            0 => {
                self.take_out(place, Some(handle));
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
    pub(super) fn leave_dropped(&mut self, handle: &Handle, needed: impl Fn(CtxId) -> bool) {
        let gone = |core: &Arc<Core>| core.is_dropped() && !needed(core.id());
        let there: Vec<u32> =
            self.there.iter().filter(|there| gone(&there.core)).map(|there| there.place).collect();
        for place in there {
            if self.at(place).is_some_and(|added| added.engine.in_flight() == 0) {
                self.take_out(place, Some(handle));
            }
        }
    }

    /// Destroys all queues, whatever is in flight.
    pub(super) fn clear(&mut self) {
        while let Some(last) = self.there.last() {
            self.take_out(last.place, None);
        }
        self.left = self.depth;
    }

    fn take_out(&mut self, place: u32, handle: Option<&Handle>) {
        let Some(at) = self.there.iter().position(|there| there.place == place) else { return };
        let core = self.there.swap_remove(at).core;
        self.places.remove(&core.id());
        self.software.retain(|&other| other != place);
        let Some(added) = self.at(place) else { return };
        let Added { engine, side, .. } = mem::replace(added, Added::NONE);
        // Its queues are dropped before their completion queue.
        drop(engine);
        core.detach();
        self.side(side as usize).contexts -= 1;
        self.leave_if_unused(side as usize, handle);
    }

    fn find(&mut self, id: CtxId) -> Result<(u32, &mut Added)> {
        let place = self.place_of(id);
        place.and_then(|place| Some((place, self.at(place)?))).ok_or_else(is_not_on_it)
    }

    /// Whether the work queue is on this context.
    pub(crate) fn has(&self, id: CtxId) -> bool {
        self.place_of(id).is_some()
    }

    /// Ends the jobs in flight of a context.
    pub(super) fn abort<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        let place = self.find(context.core().id())?.0;
        let Self { near, far, sides, software, .. } = self;
        let added = at_place(near, far, place).expect("it was found");
        added.engine.abort(sides.get(added.side as usize).expect("a context is there"))?;
        // An engine that leaves all work to the device gets work after the abort.
        if added.engine.has_work() && !software.contains(&place) {
            software.push(place);
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
        let Added { engine, id: its, side } = &mut self.near[id.modulo::<NEAR>()];
        if *its != id {
            return self.begin_far(job, tag);
        }
        let Some(engine) = J::Engine::of(engine) else { return self.begin_far(job, tag) };
        if J::KEEPS {
            return if job.begin_simple(tag, engine) { Ok(()) } else { self.begin_kept(id) };
        }
        match job.begin(tag, engine, SideOf { sides: &mut self.sides, at: side }) {
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
        let Added { engine, side, .. } = &mut self.near[id.modulo::<NEAR>()];
        let engine = J::Engine::of(engine).expect("it keeps the job");
        let begun = J::begin_kept(id, engine, SideOf { sides: &mut self.sides, at: side });
        begun.inspect_err(|_| self.left += 1)
    }

    /// Begins a job of a far context, or of an unknown one.
    #[cold]
    #[inline(never)]
    fn begin_far<J: Job>(&mut self, job: J, tag: Tag) -> std::result::Result<(), Refused<J>> {
        let id = job.context();
        let place = self.places.get(&id).map(|&place| place as usize);
        let far = &mut self.far;
        let begun = match place.and_then(|place| far.get_mut(place.checked_sub(NEAR)?)) {
            Some(Added { engine, side, .. }) => {
                let engine = J::Engine::of(engine).expect("a context's jobs are for its engine");
                job.begin(tag, engine, SideOf { sides: &mut self.sides, at: side })
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
        let text = "as many jobs are in flight as the work queue takes: retrieve some first";
        Err(Refused::new(Error::plain(ErrorKind::Again, text), job))
    }

    /// The next completion, if there is one device, and the request was successful.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Option<Peeked<'_>> {
        let Self { near, sides, left, .. } = self;
        let side = &mut **sides.only.as_mut()?;
        let cqe = side.cq.peek_plain()?;
        // The near context in this slot does not know a far context's CQE.
        let at = cqe.user_index() as usize % NEAR;
        let request = cqe.request();
        Some(Peeked { request, engine: &mut near[at].engine, left, side })
    }

    /// Polls for a successful receive: writes its event to `into`, and returns the job's tag.
    fn poll_receive(&mut self, into: &mut Settled) -> Option<Tag> {
        let Self { near, sides, left, .. } = self;
        let side = sides.only.as_mut()?;
        let cqe = side.cq.peek_receive()?;
        let at = cqe.user_index() as usize % NEAR;
        let tag = near[at].engine.receive(&cqe, into)?;
        side.cq.pass();
        *left += 1;
        Some(tag)
    }

    /// Polls for a job that a device completed: writes its event to `into`, and returns its tag.
    ///
    /// # Errors
    /// An impossible completion.
    #[inline(never)]
    pub(super) fn poll(&mut self, into: &mut Settled) -> Result<Option<Tag>> {
        if let Some(tag) = self.poll_receive(into) {
            return Ok(Some(tag));
        }
        let count = self.sides.places();
        let Self { near, far, sides, software, .. } = self;
        for step in 0..count {
            let at = (self.last + 1 + step) % count;
            let Some(side) = sides.get(at) else { continue };
            while let Some(cqe) = side.cq.poll() {
                let place = side.owner.unwrap_or_else(|| cqe.user_index());
                let Some(added) = at_place(near, far, place) else {
                    return Err(stray(&cqe));
                };
                let completed = added.engine.complete(cqe, side, into);
                if completed.is_err() && added.engine.has_work() && !software.contains(&place) {
                    software.push(place);
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
            let place = self.software[at];
            let Some(added) = at_place(&mut self.near, &mut self.far, place) else { continue };
            if added.engine.has_work() {
                let side = self.sides.get(added.side as usize).expect("a context is there");
                if let Some(done) = added.engine.progress(side) {
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
        self.software.iter().any(|&place| {
            let place = place as usize;
            let far = || self.far.get(place - NEAR);
            self.near.get(place).or_else(far).is_some_and(|added| added.engine.has_work())
        })
    }

    /// Arms each device to make an event when a job is done; true if one is already done.
    pub(super) fn park(&mut self) -> Result<bool> {
        let (mut ready, mut failed) = (false, false);
        for side in self.sides.iter_mut() {
            match side.park() {
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
    /// flight and has ended none since the last call, however busy other queues are. While the
    /// answers are sound, the pauses for a context grow: 100 ms, 200 ms, and so on up to a second.
    pub(super) fn check_idle(&mut self, time: Instant) -> Result<bool> {
        self.check_those(|there, now| {
            let idle = now.has_one_of(&there.ended);
            there.ended = now;
            if !idle {
                there.pause = Duration::ZERO;
                return false;
            }
            let asked = there.asked.map(|asked| time.saturating_duration_since(asked));
            if asked.is_some_and(|ago| ago < there.pause) {
                return false;
            }
            there.asked = Some(time);
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

    fn check_those(&mut self, mut asks: impl FnMut(&mut There, EndedJobs) -> bool) -> Result<bool> {
        let Self { near, far, sides, software, there, .. } = self;
        let (mut ended, mut flying, mut sound) = (false, false, Ok(()));
        for there in there.iter_mut() {
            let place = there.place;
            let Some(added) = at_place(near, far, place) else { continue };
            let engine = &mut added.engine;
            if engine.has_work() {
                ended = true;
                continue;
            }
            let now = engine.ended();
            if engine.in_flight() == 0 {
                there.ended = now;
                continue;
            }
            if !asks(there, now) {
                flying = true;
                continue;
            }
            let side = sides.get(added.side as usize).expect("a context is there");
            let was_suspect = now.has_one_of(&mem::replace(&mut there.suspect, EndedJobs::NONE));
            let cq = side.cq.check();
            side.failed |= is_failed(&cq);
            let why = match (cq, engine.check()) {
                (Ok(()), Ok(())) => {
                    there.pause = LONGEST_PAUSE.min(there.pause + MORE_PAUSE);
                    flying = true;
                    continue;
                }
                (Ok(()), Err(error)) if !was_suspect && error.kind() == LowerKind::QueueFailed => {
                    (there.suspect, there.pause) = (now, Duration::ZERO);
                    flying = true;
                    continue;
                }
                (Ok(()), Err(error)) | (Err(error), _) => error,
            };
            let ends = matches!(why.kind(), LowerKind::QueueFailed | LowerKind::DeviceGone);
            let why = Error::from(why);
            match if ends { engine.fail(side, &why) } else { Err(why) } {
                Ok(()) => ended = true,
                Err(error) => sound = Err(error),
            }
            if engine.has_work() && !software.contains(&place) {
                software.push(place);
            }
        }
        if ended {
            return Ok(true);
        }
        sound?;
        // A failed device without jobs does not end the jobs of another.
        if !flying {
            for side in sides.iter_mut() {
                let checked = side.cq.check();
                side.failed |= is_failed(&checked);
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
        for side in self.sides.iter_mut() {
            match side.clear(handle) {
                Ok(there) => gone |= !there,
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
pub(super) fn is_not_on_it() -> Error {
    Error::plain(ErrorKind::NotFound, "the work queue is not on this context")
}

fn at_place<'q>(
    near: &'q mut [Added; NEAR],
    far: &'q mut [Added],
    place: u32,
) -> Option<&'q mut Added> {
    let place = place as usize;
    match place < NEAR {
        true => Some(&mut near[place]),
        false => far.get_mut(place - NEAR),
    }
}

#[cfg(test)]
mod tests;

/// Whether a completion queue takes no more CQEs.
fn is_failed(checked: &std::result::Result<(), verbless_queue::DeviceError>) -> bool {
    checked.as_ref().is_err_and(|error| error.kind() == LowerKind::QueueFailed)
}
