//! The contexts of a work queue, and its completion queues on their devices.

use std::any::Any;
use std::sync::Arc;

use super::core::{Core, CtxId};
use super::engine::{Engine, Place};
use super::event::Done;
use super::handle::Handle;
use super::job::Job;
use super::library::Context;
use super::side::Side;
use crate::error::{Error, ErrorKind, Refused, Result};

/// What jobs run on. It does not know whose they are.
pub(crate) struct Queues {
    pub(super) depth: u32,
    in_flight: u32,
    /// By the index of a context, its place in `contexts` plus 1.
    places: Vec<u32>,
    contexts: Vec<Option<Added>>,
    /// The device and the context that are asked first the next time.
    turn: usize,
    /// Declared behind the contexts: their queues go before the completion queues.
    sides: Vec<Option<Side>>,
}

/// A context that the work queue was added to.
struct Added {
    engine: Box<dyn Engine>,
    core: Arc<Core>,
    /// In `sides`.
    side: usize,
}

impl Queues {
    pub(super) fn new(depth: u32) -> Self {
        let (places, contexts, sides) = (Vec::new(), Vec::new(), Vec::new());
        Self { depth, in_flight: 0, places, contexts, turn: 0, sides }
    }

    /// Jobs that began and did not end.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Contexts that it is on.
    pub(super) fn contexts(&self) -> usize {
        self.contexts.iter().flatten().count()
    }

    /// Makes the queues for a context. With `handle`, events go there.
    pub(super) fn add<C: Context>(&mut self, context: &C, handle: Option<&Handle>) -> Result<()> {
        let core = context.core();
        if self.place_of(core.id()).is_some() {
            let text = "the work queue is on this context already";
            return Err(Error::plain(ErrorKind::AlreadyExist, text));
        }
        core.attach()?;
        self.make(context, handle).inspect_err(|_| core.detach())
    }

    fn make<C: Context>(&mut self, context: &C, handle: Option<&Handle>) -> Result<()> {
        let core = context.core();
        let at = self.side_on(core.dev(), handle)?;
        let place = self.contexts.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            self.contexts.push(None);
            self.contexts.len() - 1
        });
        let depth = self.depth;
        let side = self.sides[at].as_mut().expect("it was found or made");
        let made = context.engine(&mut Place { depth, user_index: place as u32, side });
        let engine = made.inspect_err(|_| self.leave_if_unused(at, handle))?;
        self.side(at).contexts += 1;
        let index = core.id().index as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, 0);
        }
        self.places[index] = place as u32 + 1;
        self.contexts[place] = Some(Added { engine, core: core.clone(), side: at });
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
        let place = self.find(context)?;
        let Some(added) = &self.contexts[place] else { return Ok(()) };
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

    /// Takes down all queues, whatever is in flight.
    pub(super) fn clear(&mut self) {
        (0..self.contexts.len()).for_each(|place| self.take_out(place, None));
        self.in_flight = 0;
    }

    fn take_out(&mut self, place: usize, handle: Option<&Handle>) {
        let Some(Added { engine, core, side }) = self.contexts[place].take() else { return };
        // Its queues go before what they complete to.
        drop(engine);
        self.places[core.id().index as usize] = 0;
        core.detach();
        self.side(side).contexts -= 1;
        self.leave_if_unused(side, handle);
    }

    fn find<C: Context>(&self, context: &C) -> Result<usize> {
        self.place_of(context.core().id()).ok_or_else(|| {
            Error::plain(ErrorKind::NotFound, "the work queue is not on this context")
        })
    }

    /// Whether it is on a context.
    pub(crate) fn has(&self, id: CtxId) -> bool {
        self.place_of(id).is_some()
    }

    #[inline]
    fn place_of(&self, id: CtxId) -> Option<usize> {
        let place = self.places.get(id.index as usize)?.checked_sub(1)? as usize;
        let added = self.contexts.get(place)?.as_ref()?;
        (added.core.id() == id).then_some(place)
    }

    /// Ends what is in flight for a context.
    pub(super) fn abort<C: Context>(&mut self, context: &C) -> Result<()> {
        let place = self.find(context)?;
        let Some(added) = &mut self.contexts[place] else { return Ok(()) };
        added.engine.abort()
    }

    /// Begins a job. True: its engine has work for [`Queues::progress`].
    #[inline]
    pub(crate) fn begin<J: Job>(&mut self, job: J) -> std::result::Result<bool, Refused<J>> {
        if self.in_flight == self.depth {
            let text = "as many jobs are in flight as the work queue takes: retrieve some first";
            return Err(Refused::new(Error::plain(ErrorKind::Again, text), job));
        }
        let Some(place) = self.place_of(job.context()) else {
            let text = "the work queue is not on the job's context: call `add` first";
            return Err(Refused::new(Error::plain(ErrorKind::BadState, text), job));
        };
        let Some(Added { engine, side, .. }) = &mut self.contexts[place] else {
            unreachable!("there is a context at a place that was found");
        };
        let engine: &mut dyn Any = engine.as_mut();
        let engine = engine.downcast_mut::<J::Engine>();
        let engine = engine.expect("a context's jobs are for its own engine");
        let side = self.sides[*side].as_mut().expect("a context is there");
        job.begin(engine, side)?;
        self.in_flight += 1;
        Ok(engine.has_work())
    }

    /// A job that a device completed.
    ///
    /// # Errors
    /// A completion that cannot be.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<Option<Done>> {
        let count = self.sides.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let Some(side) = &mut self.sides[at] else { continue };
            while let Some(cqe) = side.cq.poll() {
                let place = cqe.user_index() as usize;
                let Some(Some(added)) = self.contexts.get_mut(place) else {
                    return Err(stray(place));
                };
                if let Some(done) = added.engine.complete(cqe, side)? {
                    self.turn = at;
                    self.in_flight -= 1;
                    return Ok(Some(done));
                }
            }
        }
        Ok(None)
    }

    /// Has software do a bit of its work, until one completes a job.
    pub(super) fn progress(&mut self) -> Option<Done> {
        let count = self.contexts.len();
        for step in 0..count {
            let at = (self.turn + 1 + step) % count;
            let Some(added) = &mut self.contexts[at] else { continue };
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
        self.contexts.iter().flatten().any(|added| added.engine.has_work())
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
fn stray(place: usize) -> Error {
    let text = format!("the device completed a request of user index {place}, which nobody has");
    Error::new(ErrorKind::InvalidValue, text)
}
