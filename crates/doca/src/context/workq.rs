//! The work queue.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::handle::Handle;
use super::{Context, Core, CtxId, Engine, Event, Place, Retrieve, Side};
use crate::{Error, ErrorKind, Refused, Result};

pub(crate) mod sealed {
    use super::{CtxId, Engine, Side};
    use crate::Refused;

    pub trait Sealed: Sized {
        /// What runs jobs of this type.
        type Engine: Engine;

        /// The context that it is for.
        fn context(&self) -> CtxId;

        /// Begins it, or gives it back.
        fn begin(self, engine: &mut Self::Engine, side: &mut Side) -> Result<(), Refused<Self>>;
    }
}

/// A job (`struct doca_job`): a context makes it, a work queue takes it with its buffers.
pub trait Job: sealed::Sealed {}

/// A work queue (`struct doca_workq`): one thread's way to submit jobs and to learn how they went.
///
/// It is `Send`, and not `Sync`. Dropping it ends what is in flight: when the drop returns, no
/// device works on a job of it, and the buffers are back where they came from.
pub struct WorkQ {
    depth: u32,
    in_flight: u32,
    event_driven: bool,
    /// Whether somebody may sleep: from an arm to the next clear.
    armed: bool,
    handle: Handle,
    /// By the index of a context, its place in `contexts` plus 1.
    places: Vec<u32>,
    contexts: Vec<Option<Added>>,
    /// Jobs of software in flight make this more than 0.
    software: u32,
    /// The device and the context that are asked first the next time.
    turn: usize,
    /// Declared behind the contexts: their queues go before the completion queues.
    sides: Vec<Option<Side>>,
    _not_sync: PhantomData<Cell<()>>,
}

/// A context that the work queue was added to.
struct Added {
    engine: Box<dyn Engine>,
    core: Arc<Core>,
    /// In `sides`.
    side: usize,
}

/// A work queue that is being configured.
#[derive(Clone, Copy, Debug)]
#[must_use = "a work queue exists when it is built"]
pub struct WorkQBuilder {
    depth: u32,
    event_driven: bool,
}

impl WorkQBuilder {
    /// Has it make events, so that a thread can sleep until jobs are done.
    pub const fn event_driven(self) -> Self {
        Self { event_driven: true, ..self }
    }

    /// Makes the work queue.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a depth of 0; [`ErrorKind::OperatingSystem`] when the
    /// process has too many files.
    pub fn build(self) -> Result<WorkQ> {
        let Self { depth, event_driven } = self;
        if depth == 0 {
            let text = "a work queue of depth 0 takes no job: give it at least 1";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        Ok(WorkQ {
            depth,
            in_flight: 0,
            event_driven,
            armed: false,
            handle: Handle::new()?,
            places: Vec::new(),
            contexts: Vec::new(),
            software: 0,
            turn: 0,
            sides: Vec::new(),
            _not_sync: PhantomData,
        })
    }
}

impl WorkQ {
    /// A work queue for `depth` jobs at a time, in polling mode (`doca_workq_create`).
    ///
    /// # Errors
    /// As [`WorkQBuilder::build`].
    pub fn new(depth: u32) -> Result<Self> {
        Self::builder(depth).build()
    }

    /// A work queue to configure.
    pub const fn builder(depth: u32) -> WorkQBuilder {
        WorkQBuilder { depth, event_driven: false }
    }

    /// Jobs at a time at most.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Sets how many jobs it takes at a time.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] while it is on a context; [`ErrorKind::InvalidValue`] for 0.
    pub fn set_depth(&mut self, depth: u32) -> Result<()> {
        self.must_be_alone("its depth")?;
        if depth == 0 {
            let text = "a work queue of depth 0 takes no job: give it at least 1";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        self.depth = depth;
        Ok(())
    }

    /// Whether it makes events.
    pub fn is_event_driven(&self) -> bool {
        self.event_driven
    }

    /// Sets whether it makes events (`doca_workq_set_event_driven_enable`).
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] while it is on a context.
    pub fn set_event_driven(&mut self, enable: bool) -> Result<()> {
        self.must_be_alone("its mode")?;
        self.event_driven = enable;
        Ok(())
    }

    fn must_be_alone(&self, what: &str) -> Result<()> {
        if self.contexts.iter().all(Option::is_none) {
            return Ok(());
        }
        let text = format!("the work queue is on a context, so {what} is fixed: remove it first");
        Err(Error::new(ErrorKind::BadState, text))
    }

    /// Jobs that were submitted and not retrieved.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Adds it to a context (`doca_ctx_workq_add`), for whose jobs it makes queues on the device.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExist`] if it is on it; [`ErrorKind::InUse`] if the context takes no
    /// more work queues; [`ErrorKind::NotSupported`] if it makes events and the context cannot;
    /// the device's refusal.
    pub fn add<C: Context>(&mut self, context: &C) -> Result<()> {
        let core = context.core();
        if self.place_of(core.id()).is_some() {
            let text = "the work queue is on this context already";
            return Err(Error::plain(ErrorKind::AlreadyExist, text));
        }
        if self.event_driven && !context.event_driven_supported() {
            let text = "the context has no event-driven mode: use a work queue in polling mode";
            return Err(Error::plain(ErrorKind::NotSupported, text));
        }
        core.attach()?;
        self.make(context).inspect_err(|_| core.detach())
    }

    fn make<C: Context>(&mut self, context: &C) -> Result<()> {
        let core = context.core();
        let at = self.side_on(core.dev())?;
        let place = self.contexts.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            self.contexts.push(None);
            self.contexts.len() - 1
        });
        let depth = self.depth;
        let side = self.sides[at].as_mut().expect("it was found or made");
        let made = context.engine(&mut Place { depth, user_index: place as u32, side });
        let engine = made.inspect_err(|_| self.leave_if_unused(at))?;
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
    fn side_on(&mut self, dev: &crate::Dev) -> Result<usize> {
        let on = |side: &Option<Side>| side.as_ref().is_some_and(|side| side.dev == *dev);
        if let Some(at) = self.sides.iter().position(on) {
            return Ok(at);
        }
        let handle = self.event_driven.then_some(&self.handle);
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

    fn leave_if_unused(&mut self, at: usize) {
        if let Some(side) = &self.sides[at]
            && side.contexts == 0
        {
            // The file closes with the side: the epoll descriptor would forget it anyway.
            let _gone = side.leave(&self.handle);
            self.sides[at] = None;
        }
    }

    /// Takes it from a context (`doca_ctx_workq_rm`).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on it; [`ErrorKind::InUse`] while jobs for it are in
    /// flight: retrieve them, [`abort`](WorkQ::abort) them first if they should end at once.
    pub fn remove<C: Context>(&mut self, context: &C) -> Result<()> {
        let place = self.find(context)?;
        let Some(added) = &self.contexts[place] else { return Ok(()) };
        match added.engine.in_flight() {
            0 => {
                self.take_out(place);
                Ok(())
            }
            some => {
                let text = format!("{some} jobs of the context are in flight: retrieve them first");
                Err(Error::new(ErrorKind::InUse, text))
            }
        }
    }

    fn take_out(&mut self, place: usize) {
        let Some(Added { engine, core, side }) = self.contexts[place].take() else { return };
        // Its queues go before what they complete to.
        drop(engine);
        self.places[core.id().index as usize] = 0;
        core.detach();
        self.side(side).contexts -= 1;
        self.leave_if_unused(side);
    }

    fn find<C: Context>(&self, context: &C) -> Result<usize> {
        self.place_of(context.core().id()).ok_or_else(|| {
            Error::plain(ErrorKind::NotFound, "the work queue is not on this context")
        })
    }

    #[inline]
    fn place_of(&self, id: CtxId) -> Option<usize> {
        let place = self.places.get(id.index as usize)?.checked_sub(1)? as usize;
        let added = self.contexts.get(place)?.as_ref()?;
        (added.core.id() == id).then_some(place)
    }

    /// Ends what is in flight for a context: each of its jobs is retrieved once, as done if it was,
    /// else as failed with [`ErrorKind::Shutdown`]. The context takes no more jobs on this work
    /// queue; it can be removed when all are retrieved.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on it; the device's refusal.
    pub fn abort<C: Context>(&mut self, context: &C) -> Result<()> {
        let place = self.find(context)?;
        let Some(added) = &mut self.contexts[place] else { return Ok(()) };
        added.engine.abort()?;
        if self.armed {
            self.handle.signal()?;
        }
        Ok(())
    }

    /// Submits a job (`doca_workq_submit`). Its buffers come back with its event.
    ///
    /// # Errors
    /// The job is given back with them, and nothing was begun. [`ErrorKind::Again`] if so many are
    /// in flight as the work queue takes, or the context; [`ErrorKind::BadState`] if it is not on
    /// the job's context; [`ErrorKind::InvalidValue`] or [`ErrorKind::NotPermitted`] for buffers
    /// that the job cannot have.
    #[inline]
    pub fn submit<J: Job>(&mut self, job: J) -> std::result::Result<(), Refused<J>> {
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
        let worked = engine.has_work();
        job.begin(engine, side)?;
        self.in_flight += 1;
        if engine.has_work() {
            self.software += u32::from(!worked);
            if self.armed {
                // Nothing of it will tell that there is something to retrieve.
                let _told = self.handle.signal();
            }
        }
        Ok(())
    }

    /// Takes the result of a job (`doca_workq_progress_retrieve`), and has software do a bit of its
    /// work. Jobs are done in no particular order.
    ///
    /// # Errors
    /// [`Retrieve::Again`] if none is done; [`Retrieve::IoFailed`] with the event of one that
    /// failed; [`Retrieve::InvalidValue`] if the device sent a completion that cannot be.
    #[inline]
    pub fn progress_retrieve(&mut self) -> std::result::Result<Event, Retrieve> {
        let count = self.sides.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let Some(side) = &mut self.sides[at] else { continue };
            while let Some(cqe) = side.cq.poll() {
                let place = cqe.user_index() as usize;
                let Some(Some(added)) = self.contexts.get_mut(place) else {
                    return Err(Retrieve::InvalidValue(stray(place)));
                };
                match added.engine.complete(cqe, side) {
                    Ok(Some(event)) => {
                        self.turn = at;
                        self.in_flight -= 1;
                        return sorted(event);
                    }
                    Ok(None) => {}
                    Err(error) => return Err(Retrieve::InvalidValue(error)),
                }
            }
        }
        self.progress_software()
    }

    fn progress_software(&mut self) -> std::result::Result<Event, Retrieve> {
        let mut working = 0;
        let mut found = None;
        let count = self.contexts.len();
        for step in 0..count {
            let at = (self.turn + 1 + step) % count;
            let Some(added) = &mut self.contexts[at] else { continue };
            if found.is_none() && added.engine.has_work() {
                let side = self.sides[added.side].as_mut().expect("a context is there");
                if let Some(event) = added.engine.progress(side) {
                    found = Some(event);
                    self.turn = at;
                }
            }
            working += u32::from(added.engine.has_work());
        }
        self.software = working;
        match found {
            Some(event) => {
                self.in_flight -= 1;
                sorted(event)
            }
            None => Err(Retrieve::Again),
        }
    }

    /// A file that becomes readable when a job is done (`doca_workq_get_event_handle`), after
    /// [`arm`](WorkQ::arm). It is there from the beginning, stays the same, and tells of all
    /// contexts and devices.
    pub fn event_handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Has the file become readable when the next job is done (`doca_workq_event_handle_arm`), at
    /// once if one is. Jobs may be submitted before and after; none is missed.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] in polling mode; the device is gone.
    pub fn arm(&mut self) -> Result<()> {
        if !self.event_driven {
            let text = "the work queue is in polling mode: build it with `event_driven`";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        self.armed = true;
        let mut ready = false;
        for side in self.sides.iter_mut().flatten() {
            ready |= side.park()?;
        }
        ready |= self.contexts.iter().flatten().any(|added| added.engine.has_work());
        if ready { self.handle.signal() } else { Ok(()) }
    }

    /// Takes the events that made the file readable (`doca_workq_event_handle_clear`). Then
    /// retrieve until there is nothing, and arm again.
    ///
    /// # Errors
    /// The device is gone.
    pub fn clear(&mut self) -> Result<()> {
        self.armed = false;
        self.handle.clear()?;
        self.sides.iter().flatten().try_for_each(Side::clear)
    }

    /// Retrieves a result, and waits for it if there is none: asleep in event-driven mode, spinning
    /// in polling mode. `None`: `timeout` passed. Without a timeout it waits for good.
    ///
    /// # Errors
    /// As [`WorkQ::progress_retrieve`], but never [`Retrieve::Again`].
    pub fn retrieve_within(
        &mut self,
        timeout: Option<Duration>,
    ) -> std::result::Result<Option<Event>, Retrieve> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.progress_retrieve() {
                Err(Retrieve::Again) => {}
                Ok(event) => return Ok(Some(event)),
                Err(other) => return Err(other),
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.event_driven {
                self.sleep(left).map_err(Retrieve::InvalidValue)?;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Arms, sleeps until there is an event, and clears.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.arm()?;
        let timeout = match timeout {
            // Rounded up, so that it does not spin through the last millisecond.
            Some(left) => {
                PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        let mut files = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => self.clear(),
            Err(errno) => {
                let text = format!("waiting for an event: {errno}");
                Err(Error::new(ErrorKind::OperatingSystem, text).with_source(errno))
            }
        }
    }

    /// Drops it (`doca_workq_destroy`).
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it is on a context.
    #[expect(clippy::result_large_err, reason = "it gives back the work queue")]
    pub fn destroy(self) -> std::result::Result<(), Refused<Self>> {
        match self.contexts.iter().flatten().count() {
            0 => Ok(()),
            some => {
                let text = format!("the work queue is on {some} contexts: remove them first");
                Err(Refused::new(Error::new(ErrorKind::InUse, text), self))
            }
        }
    }
}

/// A failed job is retrieved as such.
#[inline]
fn sorted(event: Event) -> std::result::Result<Event, Retrieve> {
    match event.result() {
        Ok(()) => Ok(event),
        Err(_) => Err(Retrieve::IoFailed(event)),
    }
}

#[cold]
fn stray(place: usize) -> Error {
    let text = format!("the device completed a request of user index {place}, which nobody has");
    Error::new(ErrorKind::InvalidValue, text)
}

impl Drop for WorkQ {
    fn drop(&mut self) {
        (0..self.contexts.len()).for_each(|place| self.take_out(place));
    }
}

impl fmt::Debug for WorkQ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQ")
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight)
            .field("event_driven", &self.event_driven)
            .field("contexts", &self.contexts.iter().flatten().count())
            .finish_non_exhaustive()
    }
}
