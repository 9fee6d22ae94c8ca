//! The contexts of a work queue, and its completion queues on their devices.

use std::sync::Arc;

use super::core::{Core, CtxId};
use super::engine::{Engine, Place, Succeeded};
use super::engines::{AnyEngine, Listed};
use super::event::{Done, Tag};
use super::handle::Handle;
use super::job::Job;
use super::library::Context;
use super::side::{Side, SideOf};
use crate::error::{Error, ErrorKind, Refused, Result};

/// What jobs run on. It does not know whose they are.
pub(crate) struct Queues {
    pub(super) depth: u32,
    in_flight: u32,
    /// By the index of the context.
    contexts: Vec<Option<Added>>,
    /// The indexes of those that are there.
    there: Vec<u32>,
    /// In `there`, the one that is asked first the next time.
    turn: usize,
    /// The device that is asked first: the one that had something the last time.
    last: usize,
    /// Declared behind the contexts: their queues go before the completion queues.
    sides: Vec<Option<Side>>,
}

/// A context that the work queue was added to.
struct Added {
    engine: AnyEngine,
    id: CtxId,
    core: Arc<Core>,
    /// In `sides`.
    side: usize,
}

impl Queues {
    pub(super) fn new(depth: u32) -> Self {
        let (contexts, there, sides) = (Vec::new(), Vec::new(), Vec::new());
        Self { depth, in_flight: 0, contexts, there, turn: 0, last: 0, sides }
    }

    /// Jobs that began and did not end.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Contexts that it is on.
    pub(super) fn contexts(&self) -> usize {
        self.there.len()
    }

    /// Makes the queues for a context. With `handle`, events go there.
    pub(super) fn add<C: Context>(&mut self, context: &C, handle: Option<&Handle>) -> Result<()> {
        let core = context.core();
        if self.has(core.id()) {
            let text = "the work queue is on this context already";
            return Err(Error::plain(ErrorKind::AlreadyExist, text));
        }
        if core.id().index() == CtxId::MOST {
            let text = "the process has 2^24 contexts, more than work queues tell apart: drop some";
            return Err(Error::plain(ErrorKind::Full, text));
        }
        core.attach()?;
        self.make(context, handle).inspect_err(|_| core.detach())
    }

    fn make<C: Context>(&mut self, context: &C, handle: Option<&Handle>) -> Result<()> {
        let core = context.core();
        let at = self.side_on(core.dev(), handle)?;
        let (id, depth) = (core.id(), self.depth);
        let side = self.sides[at].as_mut().expect("it was found or made");
        let made = context.engine(&mut Place { depth, user_index: id.index(), side });
        let engine = made.inspect_err(|_| self.leave_if_unused(at, handle))?;
        self.side(at).contexts += 1;
        let index = id.index() as usize;
        if self.contexts.len() <= index {
            self.contexts.resize_with(index + 1, || None);
        }
        self.there.push(id.index());
        self.contexts[index] = Some(Added { engine, id, core: core.clone(), side: at });
        Ok(())
    }

    fn side(&mut self, at: usize) -> &mut Side {
        self.sides[at].as_mut().expect("a context is there")
    }

    /// The side on `dev`, which is made if there is none.
    fn side_on(&mut self, dev: &crate::device::Dev, handle: Option<&Handle>) -> Result<usize> {
        let on = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.dev == *dev);
        if let Some(at) = self.sides.iter().position(on) {
            return Ok(at);
        }
        let side = Some(Side::new(dev, self.depth, handle)?);
        match self.sides.iter().position(Option::is_none) {
            Some(at) => {
                self.sides[at] = side;
                Ok(at)
            }
            None => {
                self.sides.push(side);
                Ok(self.sides.len() - 1)
            }
        }
    }

    fn leave_if_unused(&mut self, at: usize, handle: Option<&Handle>) {
        if let Some(side) = &self.sides[at]
            && side.contexts == 0
        {
            // The file closes with the side: the epoll descriptor would forget it anyway.
            if let Some(handle) = handle {
                let _gone = side.leave(handle);
            }
            self.sides[at] = None;
        }
    }

    /// Takes down the queues of a context, unless jobs for it are in flight.
    pub(super) fn remove<C: Context>(&mut self, context: &C, handle: &Handle) -> Result<()> {
        match self.find(context)?.engine.in_flight() {
            0 => {
                self.take_out(context.core().id().index(), Some(handle));
                Ok(())
            }
            some => {
                let text = format!("{some} jobs of the context are in flight: retrieve them first");
                Err(Error::new(ErrorKind::InUse, text))
            }
        }
    }

    /// Takes down all queues, whatever is in flight.
    pub(super) fn clear(&mut self) {
        while let Some(&index) = self.there.last() {
            self.take_out(index, None);
        }
        self.in_flight = 0;
    }

    fn take_out(&mut self, index: u32, handle: Option<&Handle>) {
        self.there.retain(|&there| there != index);
        let Some(added) = self.contexts[index as usize].take() else { return };
        let Added { engine, core, side, .. } = added;
        // Its queues go before what they complete to.
        drop(engine);
        core.detach();
        self.side(side).contexts -= 1;
        self.leave_if_unused(side, handle);
    }

    fn find<C: Context>(&mut self, context: &C) -> Result<&mut Added> {
        let id = context.core().id();
        let there = self.contexts.get_mut(id.index() as usize).and_then(Option::as_mut);
        there.filter(|added| added.id == id).ok_or_else(|| {
            Error::plain(ErrorKind::NotFound, "the work queue is not on this context")
        })
    }

    /// Whether it is on a context.
    pub(crate) fn has(&self, id: CtxId) -> bool {
        let there = self.contexts.get(id.index() as usize).and_then(Option::as_ref);
        there.is_some_and(|added| added.id == id)
    }

    /// Ends what is in flight for a context.
    pub(super) fn abort<C: Context>(&mut self, context: &C) -> Result<()> {
        self.find(context)?.engine.abort()
    }

    /// Begins a job, whose end is told to `tag`.
    #[inline(always)]
    pub(crate) fn begin<J: Job>(
        &mut self,
        job: J,
        tag: Tag,
    ) -> std::result::Result<(), Refused<J>> {
        if self.in_flight == self.depth {
            return full(job);
        }
        let id = job.context();
        let Some(Some(added)) = self.contexts.get_mut(id.index() as usize) else {
            return not_there(job);
        };
        if added.id != id {
            return not_there(job);
        }
        let Some(engine) = J::Engine::of(&mut added.engine) else { return not_there(job) };
        job.begin(tag, engine, SideOf { sides: &mut self.sides, at: added.side })?;
        self.in_flight += 1;
        Ok(())
    }

    /// A job that went well, if the next completion is one of such, of the device that had
    /// something the last time. `None`: [`Queues::poll`] tells.
    #[inline(always)]
    pub(super) fn poll_plain(&mut self) -> Option<Done> {
        let Self { contexts, sides, last, in_flight, .. } = self;
        let side = sides.get_mut(*last)?.as_mut()?;
        let room = &mut side.room;
        let succeeded = side.cq.poll_plain(|cqe| {
            let added = contexts.get_mut(cqe.user_index() as usize)?.as_mut()?;
            match added.engine.succeed(cqe, room) {
                Succeeded::Not => None,
                Succeeded::GoesOn => Some(None),
                Succeeded::Done(done) => Some(Some(done)),
            }
        });
        let done = succeeded??;
        *in_flight -= 1;
        Some(done)
    }

    /// A job that a device completed.
    ///
    /// # Errors
    /// A completion that cannot be.
    pub(super) fn poll(&mut self) -> Result<Option<Done>> {
        let count = self.sides.len();
        for step in 0..count {
            let at = (self.last + step) % count;
            let Some(side) = &mut self.sides[at] else { continue };
            while let Some(cqe) = side.cq.poll() {
                let index = cqe.user_index();
                let Some(Some(added)) = self.contexts.get_mut(index as usize) else {
                    return Err(stray(index));
                };
                if let Some(done) = added.engine.complete(cqe, side)? {
                    self.last = at;
                    self.in_flight -= 1;
                    return Ok(Some(done));
                }
            }
        }
        Ok(None)
    }

    /// Has software do a bit of its work, until one completes a job.
    pub(super) fn progress(&mut self) -> Option<Done> {
        let count = self.there.len();
        for step in 0..count {
            let at = (self.turn + 1 + step) % count;
            let index = self.there[at] as usize;
            let Some(added) = &mut self.contexts[index] else { continue };
            if added.engine.has_work() {
                let side = self.sides[added.side].as_mut().expect("a context is there");
                if let Some(done) = added.engine.progress(side) {
                    self.turn = at;
                    self.in_flight -= 1;
                    return Some(done);
                }
            }
        }
        None
    }

    /// Whether [`Queues::progress`] has something to do.
    pub(super) fn has_work(&self) -> bool {
        let there = self.there.iter().filter_map(|&index| self.contexts[index as usize].as_ref());
        there.into_iter().any(|added| added.engine.has_work())
    }

    /// Has each device make an event when a job is done; true if one is already.
    pub(super) fn park(&mut self) -> Result<bool> {
        let mut ready = false;
        for side in self.sides.iter_mut().flatten() {
            ready |= side.park()?;
        }
        Ok(ready)
    }

    /// Takes the events of devices.
    pub(super) fn clear_events(&self) -> Result<()> {
        self.sides.iter().flatten().try_for_each(Side::clear)
    }
}

#[cold]
fn stray(index: u32) -> Error {
    let text = format!("the device completed a request of user index {index}, which nobody has");
    Error::new(ErrorKind::InvalidValue, text)
}

#[cold]
#[inline(never)]
fn full<J>(job: J) -> std::result::Result<(), Refused<J>> {
    let text = "as many jobs are in flight as the work queue takes: retrieve some first";
    Err(Refused::new(Error::plain(ErrorKind::Again, text), job))
}

#[cold]
#[inline(never)]
fn not_there<J>(job: J) -> std::result::Result<(), Refused<J>> {
    let text = "the work queue is not on the job's context: call `add` first";
    Err(Refused::new(Error::plain(ErrorKind::BadState, text), job))
}
