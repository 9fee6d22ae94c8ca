//! The contexts of a work queue, and its completion queues on their devices.

use std::collections::HashMap;
use std::hint::cold_path;
use std::mem;
use std::sync::Arc;

use verbless_queue::RequestId;

use super::core::{Core, CtxId, NEAR};
use super::engine::{Engine, Place};
use super::engines::{AnyEngine, Listed, stray};
use super::event::{Done, Settled, Tag};
use super::handle::Handle;
use super::job::Job;
use super::library::Context;
use super::side::{Side, SideOf, Sides};
use crate::error::{Error, ErrorKind, Refused, Result};

/// The engines and completion queues of a work queue. They do not know who submitted the jobs.
pub(crate) struct Queues {
    depth: u32,
    /// Jobs that may begin before others have ended.
    left: u32,
    /// At their numbers modulo the places: where there is a place for each number, nothing is
    /// compared with the number of places. They are here, and not elsewhere in memory, as each job
    /// asks for one twice.
    near: [Added; NEAR],
    /// Contexts whose place in `near` was taken.
    far: Vec<Added>,
    /// The contexts, with their places; those in `far` are numbered after those in `near`.
    there: Vec<(u32, Arc<Core>)>,
    /// The place of each context.
    places: HashMap<CtxId, u32>,
    /// The places of contexts whose jobs software executes.
    software: Vec<u32>,
    /// The index in `software` of the one that is asked first the next time.
    turn: usize,
    /// The device that had a completion last: it is polled last.
    last: usize,
    /// Declared behind the contexts: their queues go before the completion queues.
    sides: Sides,
}

/// A completion of a request that went well. Who gets a job of it calls [`Peeked::pass`].
pub(super) struct Peeked<'q> {
    pub(super) request: RequestId,
    /// The engine that may know the request.
    pub(super) engine: &'q mut AnyEngine,
    side: &'q mut Side,
    left: &'q mut u32,
}

impl Peeked<'_> {
    /// Takes the CQE: it has ended a job.
    #[inline(always)]
    pub(super) fn pass(self) {
        self.side.cq.pass();
        *self.left += 1;
    }
}

/// A context that the work queue was added to, or a place of one.
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

    /// Jobs that began and did not end.
    pub(crate) fn in_flight(&self) -> u32 {
        self.depth - self.left
    }

    /// Jobs at a time at most.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Sets the depth; nothing is in flight.
    pub(super) fn set_depth(&mut self, depth: u32) {
        (self.depth, self.left) = (depth, depth);
    }

    /// The number of contexts that the work queue was added to.
    pub(super) fn contexts(&self) -> usize {
        self.there.len()
    }

    /// Makes the queues for a context. With `handle`, events go there.
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
        // A file leaves the handle when it closes, with its engine.
        let told = |engine: AnyEngine| match (handle, engine.file()) {
            (Some(handle), Some(file)) => handle.add(file).map(|()| engine),
            _ => Ok(engine),
        };
        let engine = made.and_then(told).inspect_err(|_| self.leave_if_unused(at, handle))?;
        self.side(at).contexts += 1;
        self.there.push((place, core.clone()));
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

    /// A free place for a context; it may have to be added.
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

    /// The place of a context that the work queue was added to.
    fn place_of(&self, id: CtxId) -> Option<u32> {
        self.places.get(&id).copied()
    }

    fn side(&mut self, at: usize) -> &mut Side {
        self.sides.get(at).expect("a context is there")
    }

    /// The side on `dev`, which is made if there is none.
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
            // The file closes with the side: the epoll descriptor would forget it anyway.
            if let Some(handle) = handle {
                let _gone = side.leave(handle);
            }
            self.sides.remove(at);
        }
    }

    /// Takes down the queues of a context, unless jobs for it are in flight.
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

    /// Takes down the queues of contexts whose handles are gone, unless jobs for them are in
    /// flight, or will be.
    pub(super) fn leave_dropped(&mut self, handle: &Handle, needed: impl Fn(CtxId) -> bool) {
        let gone = |core: &Arc<Core>| core.is_dropped() && !needed(core.id());
        let there: Vec<u32> =
            self.there.iter().filter(|(_, core)| gone(core)).map(|&(place, _)| place).collect();
        for place in there {
            if self.at(place).is_some_and(|added| added.engine.in_flight() == 0) {
                self.take_out(place, Some(handle));
            }
        }
    }

    /// Takes down all queues, whatever is in flight.
    pub(super) fn clear(&mut self) {
        while let Some(&(place, _)) = self.there.last() {
            self.take_out(place, None);
        }
        self.left = self.depth;
    }

    fn take_out(&mut self, place: u32, handle: Option<&Handle>) {
        let Some(at) = self.there.iter().position(|there| there.0 == place) else { return };
        let (_, core) = self.there.swap_remove(at);
        self.places.remove(&core.id());
        self.software.retain(|&other| other != place);
        let Some(added) = self.at(place) else { return };
        let Added { engine, side, .. } = mem::replace(added, Added::NONE);
        // Its queues go before what they complete to.
        drop(engine);
        core.detach();
        self.side(side as usize).contexts -= 1;
        self.leave_if_unused(side as usize, handle);
    }

    fn find(&mut self, id: CtxId) -> Result<(u32, &mut Added)> {
        let place = self.place_of(id);
        place.and_then(|place| Some((place, self.at(place)?))).ok_or_else(is_not_on_it)
    }

    /// Whether the work queue was added to this context.
    pub(crate) fn has(&self, id: CtxId) -> bool {
        self.place_of(id).is_some()
    }

    /// Ends what is in flight for a context.
    pub(super) fn abort<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        let place = self.find(context.core().id())?.0;
        let Self { near, far, sides, software, .. } = self;
        let added = at_place(near, far, place).expect("it was found");
        added.engine.abort(sides.get(added.side as usize).expect("a context is there"))?;
        // An engine that leaves all to the device has something to do when that is gone.
        if added.engine.has_work() && !software.contains(&place) {
            software.push(place);
        }
        Ok(())
    }

    /// Begins a job, whose end is reported to `tag`.
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

    /// Begins the job that the engine of a near context keeps.
    #[cold]
    #[inline(never)]
    fn begin_kept<J: Job>(&mut self, id: CtxId) -> std::result::Result<(), Refused<J>> {
        let Added { engine, side, .. } = &mut self.near[id.modulo::<NEAR>()];
        let engine = J::Engine::of(engine).expect("it keeps the job");
        let begun = J::begin_kept(id, engine, SideOf { sides: &mut self.sides, at: side });
        begun.inspect_err(|_| self.left += 1)
    }

    /// Begins a job of a far context, or of one that is not there.
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

    /// The next completion, if there is one device, and it is of a request that went well.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Option<Peeked<'_>> {
        let Self { near, sides, left, .. } = self;
        let side = &mut **sides.only.as_mut()?;
        let cqe = side.cq.peek_plain()?;
        // That of a far context is none that the near one in this place knows.
        let at = cqe.user_index() as usize % NEAR;
        let request = cqe.request();
        Some(Peeked { request, engine: &mut near[at].engine, left, side })
    }

    /// Polls for a successful receive: its event is written to `into`, and the job's tag returned.
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

    /// Polls for a job that a device completed: its event is written to `into`, and its tag
    /// returned.
    ///
    /// # Errors
    /// A completion that cannot be.
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

    /// Lets software engines work, until one completes a job or has an external event.
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

    /// Arms each device to make an event when a job is done; true if one is done already.
    pub(super) fn park(&mut self) -> Result<bool> {
        let mut ready = false;
        for side in self.sides.iter_mut() {
            ready |= side.park()?;
        }
        Ok(ready)
    }

    /// Fails if the device of a side writes no more completions (a command for each).
    pub(super) fn check(&self) -> Result<()> {
        self.sides.iter().try_for_each(|side| Ok(side.cq.check()?))
    }

    /// Takes the events of devices.
    pub(super) fn clear_events(&self) -> Result<()> {
        self.sides.iter().try_for_each(Side::clear)
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
