//! The work queue.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::Instant;

use super::engine::Engine;
use super::engines::AnyEngine;
use super::event::{Done, Event, EventSlot, Owner, Retrieve, Tag};
use super::handle::Handle;
use super::job::Job;
use super::library::{Context, Removable};
use super::queues::{Queues, not_added};
use super::wait::StallCheck;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::graph::instance::Instance;
use crate::graph::plan::Graph;
use crate::graph::runs::{RunStep, Runs};
use crate::types::UserData;

/// One in this number of retrievals runs software engines first, however many jobs devices
/// complete.
const SOFTWARE_INTERVAL: u32 = 4;
/// Context count at which `add` first sweeps contexts whose handles were dropped.
const MAX_SWEEP: usize = 16;

/// One in this number of empty retrievals reads the clock.
const CLOCK_INTERVAL: u32 = 64;

/// A work queue (`struct doca_workq`): one thread's access to submit jobs and retrieve their
/// results.
///
/// It is `Send`, but not `Sync`. A drop ends the jobs in flight: when it returns, no device works
/// on a job of it, and the buffers are back in their stores.
pub struct WorkQ {
    pub(super) queues: Queues,
    /// Declared after the queues: parts of instances in the queues are dropped first.
    pub(super) runs: Runs,
    pub(super) event_driven: bool,
    /// Whether a thread may sleep: from an arm to the next clear.
    pub(super) armed: bool,
    /// Graphs run, or software may have work: devices do not complete all jobs.
    mixed: bool,
    /// Retrievals that missed the fast path.
    turn: u32,
    /// Consecutive retrievals that found nothing.
    pub(super) stall_check: StallCheck,
    /// Context count at which `add` next sweeps contexts whose handles were dropped.
    sweep: usize,
    pub(super) handle: Handle,
    _not_sync: PhantomData<Cell<()>>,
}

/// A work queue that is being configured.
#[derive(Clone, Copy, Debug)]
#[must_use = "a work queue exists when it is built"]
pub struct WorkQBuilder {
    depth: u32,
    event_driven: bool,
}

impl WorkQBuilder {
    /// Enables events, so that a thread can sleep until jobs are done.
    pub const fn event_driven(self) -> Self {
        Self { event_driven: true, ..self }
    }

    /// Maximum number of jobs at a time.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether events are enabled.
    pub const fn is_event_driven(&self) -> bool {
        self.event_driven
    }

    /// Creates the work queue.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a depth of 0; [`ErrorKind::OperatingSystem`] if the process
    /// has too many files.
    pub fn build(self) -> Result<WorkQ> {
        let Self { depth, event_driven } = self;
        if depth == 0 {
            let text = "a work queue of depth 0 takes no job: give it at least 1";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        Ok(WorkQ {
            queues: Queues::new(depth),
            runs: Runs::default(),
            event_driven,
            armed: false,
            mixed: false,
            turn: 0,
            stall_check: StallCheck::default(),
            sweep: MAX_SWEEP,
            handle: Handle::new()?,
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

    /// Maximum number of jobs at a time.
    pub fn depth(&self) -> u32 {
        self.queues.depth()
    }

    /// Sets the maximum number of jobs in flight.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] while it is on a context or a graph; [`ErrorKind::InvalidValue`]
    /// for 0.
    pub fn set_depth(&mut self, depth: u32) -> Result<()> {
        self.must_have_no_context("its depth")?;
        if depth == 0 {
            let text = "a work queue of depth 0 takes no job: give it at least 1";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        self.queues.set_depth(depth);
        Ok(())
    }

    /// Whether events are enabled.
    pub fn is_event_driven(&self) -> bool {
        self.event_driven
    }

    /// Enables or disables events (`doca_workq_set_event_driven_enable`).
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] while it is on a context.
    pub fn set_event_driven(&mut self, enable: bool) -> Result<()> {
        self.must_have_no_context("its mode")?;
        self.event_driven = enable;
        Ok(())
    }

    /// Removes contexts and graphs whose handles were dropped, if they have nothing in flight: no
    /// program can refer to them.
    fn remove_dropped(&mut self) {
        self.runs.remove_dropped();
        let Self { queues, runs, handle, .. } = self;
        queues.remove_dropped(handle, |id| runs.need(id));
    }

    fn must_have_no_context(&mut self, what: &str) -> Result<()> {
        self.remove_dropped();
        if self.queues.contexts() == 0 && self.runs.graphs() == 0 {
            return Ok(());
        }
        let text = format!(
            "the work queue is on a context or a graph, so {what} is fixed: remove it first"
        );
        Err(Error::new(ErrorKind::BadState, text))
    }

    /// Submitted jobs and instances of graphs that were not retrieved; jobs of nodes that the
    /// contexts have count, too.
    pub fn in_flight(&self) -> u32 {
        self.queues.in_flight() + self.runs.in_flight()
    }

    /// Adds the work queue to a context (`doca_ctx_workq_add`): creates the queues on the device
    /// for its jobs.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExist`] if it is on the context; [`ErrorKind::InUse`] if the context
    /// takes no more work queues; [`ErrorKind::NotSupported`] if it is in event-driven mode and the
    /// context has none; [`ErrorKind::InvalidValue`] if its depth exceeds the device's completion
    /// queues; the device refuses. DMA and sync events send to themselves: most devices loop that
    /// back internally, and the others need a port with an address.
    pub fn add<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        if self.event_driven && !context.event_driven_supported() {
            let text = "the context has no event-driven mode: use a work queue in polling mode";
            return Err(Error::plain(ErrorKind::NotSupported, text));
        }
        // Not on each call, because it scans all of them.
        if self.queues.contexts() >= self.sweep {
            self.remove_dropped();
            self.sweep = (2 * self.queues.contexts()).max(MAX_SWEEP);
        }
        self.queues.add(context, self.event_driven.then_some(&self.handle))?;
        if self.armed
            && let Err(error) = self.arm()
        {
            // Its jobs would wake no thread.
            self.queues.remove(context.core().id(), &self.handle)?;
            return Err(error);
        }
        Ok(())
    }

    /// Removes the work queue from a context, or from an RDMA instance that was stopped on it
    /// (`doca_ctx_workq_rm`). A dropped context needs no removal: once its jobs have been
    /// retrieved, it takes no resources.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on the context; [`ErrorKind::InUse`] while jobs for it
    /// are in flight: retrieve them; to end them at once, [`abort`](WorkQ::abort) them first.
    pub fn remove<C: Removable + ?Sized>(&mut self, context: &C) -> Result<()> {
        let id = context.member().ok_or_else(not_added)?;
        if self.runs.need(id) {
            let text =
                "an instance of a graph in flight has jobs for the context: retrieve it first";
            return Err(Error::plain(ErrorKind::InUse, text));
        }
        self.queues.remove(id, &self.handle)
    }

    /// Ends the jobs in flight of a context: each of them is retrieved once, as done if it was,
    /// else as failed with [`ErrorKind::Shutdown`]. The context takes no more jobs on this work
    /// queue; it can be removed when all are retrieved. A dead device completes nothing: this
    /// returns its jobs, too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on the context; the device does not release the jobs.
    pub fn abort<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        self.queues.abort(context)?;
        if self.armed {
            self.handle.signal()?;
        }
        Ok(())
    }

    /// Submits a job (`doca_workq_submit`). Its event returns the buffers.
    ///
    /// # Errors
    /// Nothing was begun; the error returns the job with its buffers. [`ErrorKind::Again`] if the
    /// work queue or the context has its maximum number of jobs in flight; [`ErrorKind::BadState`]
    /// if the work queue is not on the job's context; [`ErrorKind::InvalidValue`] or
    /// [`ErrorKind::NotPermitted`] for buffers that the job cannot use; [`ErrorKind::NotSupported`]
    /// for a job that the device does not support; [`ErrorKind::Shutdown`] if the context was
    /// aborted on this work queue, or stopped there after an error of its queue on the device.
    #[inline(always)]
    pub fn submit<J: Job>(&mut self, job: J) -> std::result::Result<(), Refused<J>> {
        self.submit_tagged(job, Tag::PROGRAM)
    }

    /// Submits a job for the owner in `tag`. A refused job may be submitted again with another tag.
    #[inline(always)]
    pub(crate) fn submit_tagged<J: Job>(
        &mut self,
        job: J,
        tag: Tag,
    ) -> std::result::Result<(), Refused<J>> {
        self.queues.begin(job, tag)?;
        if J::Engine::WORKS {
            self.mixed = true;
            self.wake_for_software();
        }
        Ok(())
    }

    /// Wakes a sleeping thread if software has work: nothing else signals it.
    #[inline(always)]
    fn wake_for_software(&self) {
        if self.armed {
            self.wake_sleeper();
        }
    }

    #[cold]
    fn wake_sleeper(&self) {
        if self.has_work() {
            let _told = self.handle.signal();
        }
    }

    /// Adds the work queue to a graph (`doca_graph_workq_add`); its instances, and those of its
    /// sub-graphs, can then be submitted.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExist`] if it is on the graph.
    pub fn add_graph(&mut self, graph: &Graph) -> Result<()> {
        self.runs.add(graph, self.queues.depth())
    }

    /// Removes the work queue from a graph (`doca_graph_workq_rm`). A dropped graph needs no
    /// removal.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on the graph; [`ErrorKind::InUse`] while instances of
    /// it are in flight.
    pub fn remove_graph(&mut self, graph: &Graph) -> Result<()> {
        self.runs.remove(graph)
    }

    /// Submits an instance of a graph (`doca_workq_graph_submit`): all nodes without dependencies
    /// begin. Jobs and other instances may be submitted while it runs. When the whole instance has
    /// ended, its one [`Event::Graph`] is retrieved, with `user_data`.
    ///
    /// If the work queue or the context has no room for a node's job, the job waits until there is
    /// room.
    ///
    /// # Errors
    /// Nothing was begun. [`ErrorKind::InUse`] if the instance, or one of a sub-graph in it, is in
    /// flight, or an instance occurs in it twice; [`ErrorKind::InvalidValue`] if the data of a node
    /// is not set; [`ErrorKind::Again`] if as many instances are in flight as the work queue is
    /// deep; [`ErrorKind::BadState`] if it is not on the graph or on a node's context.
    pub fn submit_graph(
        &mut self,
        instance: &Instance,
        user_data: impl Into<UserData>,
    ) -> Result<()> {
        self.submit_graph_tagged(instance, user_data.into(), Tag::PROGRAM)
    }

    pub(crate) fn submit_graph_tagged(
        &mut self,
        instance: &Instance,
        user_data: UserData,
        tag: Tag,
    ) -> Result<()> {
        self.runs.submit(&mut self.queues, instance, user_data, tag)?;
        self.mixed = true;
        self.wake_for_software();
        Ok(())
    }

    /// Retrieves the result of a job (`doca_workq_progress_retrieve`), and lets software do a step
    /// of its work. Jobs complete in no particular order.
    ///
    /// # Errors
    /// [`Retrieve::Again`] if none is done; [`Retrieve::IoFailed`] with the event of a failed job;
    /// [`Retrieve::Failed`] if the device sent an impossible completion.
    ///
    /// Once in 100 ms, a 64th call that finds nothing queries the devices about each queue that has
    /// jobs in flight and has completed no job since the last time, whatever other contexts do
    /// (QUERY_CQ, QUERY_QP: system calls). It queries an idle queue ever more rarely, down to once
    /// a second. A program whose calls always find something, and which does not wait by
    /// [`WorkQ::retrieve_within`], must call [`WorkQ::check`] now and then. Jobs that no device
    /// completes, because a completion queue overran or a queue pair failed, then end with
    /// [`ErrorKind::Shutdown`] or the reason, and their contexts take no more jobs on this work
    /// queue.
    ///
    /// For an instance of a graph, it returns [`Retrieve::Again`] for every ended node, and at the
    /// end the event of the instance, which is `Ok` even if a node failed.
    #[inline(always)]
    pub fn progress_retrieve(&mut self) -> std::result::Result<Event, Retrieve> {
        // Each engine returns separately: a common return path would build the events in memory and
        // move them from there.
        if !self.mixed
            && let Some(peeked) = self.queues.peek()
        {
            match &mut *peeked.engine {
                AnyEngine::Dma(engine) => {
                    if let Some(done) = engine.complete_success(peeked.request) {
                        peeked.consume_peeked();
                        return Ok(done.event);
                    }
                }
                AnyEngine::Rdma(engine) => {
                    if let Some(done) = engine.complete_success(peeked.request) {
                        peeked.consume_peeked();
                        return Ok(done.event);
                    }
                }
                _ => {}
            }
        }
        let mut other = None;
        self.progress_retrieve_other(&mut other);
        other.unwrap_or_else(|| self.nothing())
    }

    /// Called when a retrieval found nothing. Now and then it checks whether anything can still
    /// come.
    #[cold]
    #[inline(never)]
    fn nothing(&mut self) -> std::result::Result<Event, Retrieve> {
        self.stall_check.calls = self.stall_check.calls.wrapping_add(1);
        if self.stall_check.calls.is_multiple_of(CLOCK_INTERVAL) && self.queues.in_flight() > 0 {
            self.check_if_stalled(Instant::now()).map_err(Retrieve::Failed)?;
        }
        Err(Retrieve::Again)
    }

    /// Retrieves the rarer events, or none. The result has its own memory, so that events of the
    /// fast path stay in registers.
    #[inline(never)]
    fn progress_retrieve_other(&mut self, result: &mut EventSlot) {
        if self.runs.in_flight() == 0 && !self.queues.has_work() {
            // Only devices have work, and their completions end all jobs.
            self.mixed = false;
            return match self.queues.poll(result) {
                Ok(_) => {
                    if let Some(Ok(event)) = result
                        && event.is_failed_job()
                    {
                        *result = result.take().map(|failed| failed.and_then(as_failed));
                    }
                }
                Err(error) => *result = Some(Err(Retrieve::Failed(error))),
            };
        }
        *result = Some(match self.progress() {
            Err(Retrieve::Again) => return,
            Ok(Done { event, .. }) if event.is_failed_job() => Err(Retrieve::IoFailed(event)),
            Ok(Done { event, .. }) => Ok(event),
            Err(why) => Err(why),
        });
    }

    /// Retrieves the next event, with its owner.
    pub(crate) fn progress(&mut self) -> std::result::Result<Done, Retrieve> {
        if self.runs.has_work() {
            match self.runs.step(&mut self.queues) {
                RunStep::Ended(done) => return Ok(done),
                RunStep::Node => return self.again(),
                RunStep::Nothing => {}
            }
        }
        if let Some(done) = self.software_in_turn() {
            return self.of_graphs(done);
        }
        let plain = self.queues.peek().and_then(|peeked| {
            let done = peeked.engine.complete_success(peeked.request)?;
            peeked.consume_peeked();
            Some(done)
        });
        let Some(done) = plain else { return self.progress_others() };
        if self.runs.in_flight() == 0 { Ok(done) } else { self.of_graphs(done) }
    }

    /// Handles everything but plain completions of a device. It is separate, because events that
    /// are built in memory, as here, would slow down the others on a common path.
    #[inline(never)]
    fn progress_others(&mut self) -> std::result::Result<Done, Retrieve> {
        let mut into = None;
        let done = match (self.queues.poll(&mut into).map_err(Retrieve::Failed)?, into) {
            (Some(tag), Some(Ok(event))) => Done { tag, event },
            _ => self.queues.progress().ok_or(Retrieve::Again)?,
        };
        self.of_graphs(done)
    }

    /// Handles an ended job; returns it unless it was a graph node's.
    #[inline(never)]
    fn of_graphs(&mut self, done: Done) -> std::result::Result<Done, Retrieve> {
        if self.runs.in_flight() == 0 {
            return Ok(done);
        }
        if let Owner::Node { run, node } = done.tag.owner() {
            self.runs.node_ended(&mut self.queues, run, node, done.event);
            return self.again();
        }
        self.runs.pump(&mut self.queues);
        self.wake_for_software();
        Ok(done)
    }

    /// Runs a step of software at times, however many jobs devices complete.
    fn software_in_turn(&mut self) -> Option<Done> {
        let works = self.queues.has_work();
        self.mixed = works || self.runs.in_flight() > 0;
        self.turn = self.turn.wrapping_add(1);
        if works && self.turn.is_multiple_of(SOFTWARE_INTERVAL) {
            self.queues.progress()
        } else {
            None
        }
    }

    /// A node ended. It may have begun software's work.
    fn again(&self) -> std::result::Result<Done, Retrieve> {
        self.wake_for_software();
        Err(Retrieve::Again)
    }

    /// Whether software has something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.runs.has_work() || self.queues.has_work()
    }

    /// Destroys the work queue (`doca_workq_destroy`).
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it is on a context or a graph.
    #[expect(clippy::result_large_err, reason = "it gives back the work queue")]
    pub fn destroy(mut self) -> std::result::Result<(), Refused<Self>> {
        self.remove_dropped();
        match (self.queues.contexts(), self.runs.graphs()) {
            (0, 0) => Ok(()),
            (contexts, graphs) => {
                let text = format!(
                    "the work queue is on {contexts} contexts and {graphs} graphs: remove them \
                     first"
                );
                Err(Refused::new(Error::new(ErrorKind::InUse, text), self))
            }
        }
    }
}

/// The event of a failed job, at its retrieval.
fn as_failed(event: Event) -> std::result::Result<Event, Retrieve> {
    Err(Retrieve::IoFailed(event))
}

impl Drop for WorkQ {
    fn drop(&mut self) {
        self.queues.clear();
    }
}

impl fmt::Debug for WorkQ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQ")
            .field("depth", &self.depth())
            .field("in_flight", &self.in_flight())
            .field("event_driven", &self.event_driven)
            .field("contexts", &self.queues.contexts())
            .field("graphs", &self.runs.graphs())
            .finish_non_exhaustive()
    }
}
