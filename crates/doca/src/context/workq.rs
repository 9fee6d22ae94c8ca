//! The work queue.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use super::engine::Engine;
use super::engines::AnyEngine;
use super::event::{Done, Event, Owner, Retrieve, Settled, Tag};
use super::handle::Handle;
use super::job::Job;
use super::library::{Context, Removable};
use super::queues::{Queues, is_not_on_it};
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::graph::instance::Instance;
use crate::graph::plan::Graph;
use crate::graph::runs::{Runs, Step};
use crate::types::UserData;

/// Software engines are asked first in one of this number of retrievals, however many jobs devices
/// complete.
const EVERY: u32 = 4;
/// The number of contexts from which on those with dropped handles are looked for.
const SWEEP: usize = 16;

/// A work queue (`struct doca_workq`): one thread's way to submit jobs and to learn how they went.
///
/// It is `Send`, and not `Sync`. Dropping it ends what is in flight: when the drop returns, no
/// device works on a job of it, and the buffers are back where they came from.
pub struct WorkQ {
    pub(super) queues: Queues,
    /// Declared behind the queues: what they have of instances goes first.
    pub(super) runs: Runs,
    pub(super) event_driven: bool,
    /// Whether somebody may sleep: from an arm to the next clear.
    pub(super) armed: bool,
    /// Graphs run, or software may have something to do: not only devices complete jobs.
    mixed: bool,
    /// Retrievals that were not the simplest.
    turn: u32,
    /// Contexts at which those whose handles were dropped are left before another is added.
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
            queues: Queues::new(depth),
            runs: Runs::default(),
            event_driven,
            armed: false,
            mixed: false,
            turn: 0,
            sweep: SWEEP,
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

    /// Jobs at a time at most.
    pub fn depth(&self) -> u32 {
        self.queues.depth()
    }

    /// Sets how many jobs can be in flight at a time.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] while it is on a context or a graph; [`ErrorKind::InvalidValue`]
    /// for 0.
    pub fn set_depth(&mut self, depth: u32) -> Result<()> {
        self.must_be_alone("its depth")?;
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
        self.must_be_alone("its mode")?;
        self.event_driven = enable;
        Ok(())
    }

    /// Leaves contexts and graphs whose handles were dropped, if nothing of theirs is in flight:
    /// nobody could name them.
    fn leave_dropped(&mut self) {
        self.runs.leave_dropped();
        let Self { queues, runs, handle, .. } = self;
        queues.leave_dropped(handle, |id| runs.need(id));
    }

    fn must_be_alone(&mut self, what: &str) -> Result<()> {
        self.leave_dropped();
        if self.queues.contexts() == 0 && self.runs.graphs() == 0 {
            return Ok(());
        }
        let text = format!(
            "the work queue is on a context or a graph, so {what} is fixed: remove it first"
        );
        Err(Error::new(ErrorKind::BadState, text))
    }

    /// Jobs and instances of graphs that were submitted and not retrieved; the jobs of their nodes
    /// that the contexts have count, too.
    pub fn in_flight(&self) -> u32 {
        self.queues.in_flight() + self.runs.in_flight()
    }

    /// Adds the work queue to a context (`doca_ctx_workq_add`), for whose jobs it makes queues on
    /// the device.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExist`] if it is on it; [`ErrorKind::InUse`] if the context takes no
    /// more work queues; [`ErrorKind::NotSupported`] if it makes events and the context cannot;
    /// [`ErrorKind::InvalidValue`] if its depth is more than the device's completion queues have;
    /// the device's refusal. DMA and sync events send to themselves: most devices loop that back
    /// within themselves, and the others need a port with an address.
    pub fn add<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        if self.event_driven && !context.event_driven_supported() {
            let text = "the context has no event-driven mode: use a work queue in polling mode";
            return Err(Error::plain(ErrorKind::NotSupported, text));
        }
        // Not each time: it looks at all of them.
        if self.queues.contexts() >= self.sweep {
            self.leave_dropped();
            self.sweep = (2 * self.queues.contexts()).max(SWEEP);
        }
        self.queues.add(context, self.event_driven.then_some(&self.handle))?;
        if self.armed
            && let Err(error) = self.arm()
        {
            // Its jobs would wake nobody.
            self.queues.remove(context.core().id(), &self.handle)?;
            return Err(error);
        }
        Ok(())
    }

    /// Removes the work queue from a context, or from an RDMA instance that was stopped on it
    /// (`doca_ctx_workq_rm`). A context that was dropped needs no removal: once its jobs have been
    /// retrieved, it takes up nothing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on it; [`ErrorKind::InUse`] while jobs for it are in
    /// flight: retrieve them, [`abort`](WorkQ::abort) them first if they should end at once.
    pub fn remove<C: Removable + ?Sized>(&mut self, context: &C) -> Result<()> {
        let id = context.member().ok_or_else(is_not_on_it)?;
        if self.runs.need(id) {
            let text =
                "an instance of a graph in flight has jobs for the context: retrieve it first";
            return Err(Error::plain(ErrorKind::InUse, text));
        }
        self.queues.remove(id, &self.handle)
    }

    /// Ends what is in flight for a context: each of its jobs is retrieved once, as done if it was,
    /// else as failed with [`ErrorKind::Shutdown`]. The context takes no more jobs on this work
    /// queue; it can be removed when all are retrieved. A device that died completes nothing: this
    /// gets its jobs back, too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on it; the device's refusal to let go of the jobs.
    pub fn abort<C: Context + ?Sized>(&mut self, context: &C) -> Result<()> {
        self.queues.abort(context)?;
        if self.armed {
            self.handle.signal()?;
        }
        Ok(())
    }

    /// Submits a job (`doca_workq_submit`). Its buffers come back with its event.
    ///
    /// # Errors
    /// The job is given back with them, and nothing was begun. [`ErrorKind::Again`] if as many are
    /// in flight as the work queue takes, or the context; [`ErrorKind::BadState`] if it is not on
    /// the job's context; [`ErrorKind::InvalidValue`] or [`ErrorKind::NotPermitted`] for buffers
    /// that the job cannot have; [`ErrorKind::NotSupported`] for a job that the device does not do;
    /// [`ErrorKind::Shutdown`] if the context was aborted on this work queue, or gave up there.
    #[inline(always)]
    pub fn submit<J: Job>(&mut self, job: J) -> std::result::Result<(), Refused<J>> {
        self.submit_tagged(job, Tag::PROGRAM)
    }

    /// Submits a job for the owner that `tag` identifies. A job that was refused may be submitted
    /// again with another tag.
    #[inline(always)]
    pub(crate) fn submit_tagged<J: Job>(
        &mut self,
        job: J,
        tag: Tag,
    ) -> std::result::Result<(), Refused<J>> {
        self.queues.begin(job, tag)?;
        if J::Engine::WORKS {
            self.mixed = true;
            self.tell();
        }
        Ok(())
    }

    /// Wakes who sleeps if software has something to do: nothing else tells of it.
    #[inline(always)]
    fn tell(&self) {
        if self.armed {
            self.tell_sleeper();
        }
    }

    #[cold]
    fn tell_sleeper(&self) {
        if self.has_work() {
            let _told = self.handle.signal();
        }
    }

    /// Adds the work queue to a graph (`doca_graph_workq_add`), whose instances, and those of its
    /// sub-graphs, can then be submitted.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExist`] if it is on it.
    pub fn add_graph(&mut self, graph: &Graph) -> Result<()> {
        self.runs.add(graph, self.queues.depth())
    }

    /// Removes the work queue from a graph (`doca_graph_workq_rm`). A graph that was dropped needs
    /// no removal.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not on it; [`ErrorKind::InUse`] while instances of it are
    /// in flight.
    pub fn remove_graph(&mut self, graph: &Graph) -> Result<()> {
        self.runs.remove(graph)
    }

    /// Submits an instance of a graph (`doca_workq_graph_submit`): all nodes that depend on no
    /// other begin. Jobs may be submitted and other instances, too, while it runs. When all of it
    /// has ended, its one [`Event::Graph`] is retrieved, with `user_data`.
    ///
    /// A job of a node that the work queue or the context has no room for waits until there is.
    ///
    /// # Errors
    /// Nothing was begun. [`ErrorKind::InUse`] if the instance, or one of a sub-graph in it, is in
    /// flight, or one is in it at two places; [`ErrorKind::InvalidValue`] if the data of a node is
    /// not set; [`ErrorKind::Again`] if as many instances are in flight as the work queue is deep;
    /// [`ErrorKind::BadState`] if it is not on the graph or on a node's context.
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
        self.tell();
        Ok(())
    }

    /// Takes the result of a job (`doca_workq_progress_retrieve`), and has software do a bit of its
    /// work. Jobs are done in no particular order.
    ///
    /// # Errors
    /// [`Retrieve::Again`] if none is done; [`Retrieve::IoFailed`] with the event of one that
    /// failed; [`Retrieve::Failed`] if the device sent a completion that cannot be.
    ///
    /// Of an instance of a graph, it is [`Retrieve::Again`] for every node that ended, and in the
    /// end the event of the instance, which is `Ok` even if a node failed.
    #[inline(always)]
    pub fn progress_retrieve(&mut self) -> std::result::Result<Event, Retrieve> {
        // Each engine has its own way out: were the events of all put together in one place, they
        // would be made in memory and moved from there.
        if !self.mixed
            && let Some(peeked) = self.queues.peek()
        {
            match &mut *peeked.engine {
                AnyEngine::Dma(engine) => {
                    if let Some(done) = engine.succeed(peeked.request) {
                        peeked.pass();
                        return Ok(done.event);
                    }
                }
                AnyEngine::Rdma(engine) => {
                    if let Some(done) = engine.succeed(peeked.request) {
                        peeked.pass();
                        return Ok(done.event);
                    }
                }
                _ => {}
            }
        }
        let mut other = None;
        self.progress_retrieve_other(&mut other);
        other.unwrap_or_else(|| Err(Retrieve::Again))
    }

    /// Retrieves the rarer events, or none. The result goes to memory of its own, so that events
    /// that are not made here can stay in registers.
    #[inline(never)]
    fn progress_retrieve_other(&mut self, result: &mut Settled) {
        if self.runs.in_flight() == 0 && !self.queues.has_work() {
            // Devices do all that there is, and nothing ends but what they have completed.
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
            Ok(Done { event, .. }) if event.is_failed_job() => Err(Retrieve::IoFailed(event)),
            Ok(Done { event, .. }) => Ok(event),
            Err(why) => Err(why),
        });
    }

    /// Retrieves the next event, with its owner.
    pub(crate) fn progress(&mut self) -> std::result::Result<Done, Retrieve> {
        if self.runs.has_work() {
            match self.runs.step(&mut self.queues) {
                Step::Ended(done) => return Ok(done),
                Step::Node => return self.again(),
                Step::Nothing => {}
            }
        }
        if let Some(done) = self.software_in_turn() {
            return self.of_graphs(done);
        }
        let plain = self.queues.peek().and_then(|peeked| {
            let done = peeked.engine.succeed(peeked.request)?;
            peeked.pass();
            Some(done)
        });
        let Some(done) = plain else { return self.progress_others() };
        if self.runs.in_flight() == 0 { Ok(done) } else { self.of_graphs(done) }
    }

    /// Handles everything but plain completions of a device. It is separate, because events that
    /// are assembled in memory, as here, would slow down the others on a common path.
    #[inline(never)]
    fn progress_others(&mut self) -> std::result::Result<Done, Retrieve> {
        let mut into = None;
        let done = match (self.queues.poll(&mut into).map_err(Retrieve::Failed)?, into) {
            (Some(tag), Some(Ok(event))) => Done { tag, event },
            _ => self.queues.progress().ok_or(Retrieve::Again)?,
        };
        self.of_graphs(done)
    }

    /// Handles a job that ended; returns it unless it was a graph node's.
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
        self.tell();
        Ok(done)
    }

    /// Lets software do a bit at times, however many jobs devices complete.
    fn software_in_turn(&mut self) -> Option<Done> {
        let works = self.queues.has_work();
        self.mixed = works || self.runs.in_flight() > 0;
        self.turn = self.turn.wrapping_add(1);
        if works && self.turn.is_multiple_of(EVERY) { self.queues.progress() } else { None }
    }

    /// A node ended. What it began may be software's.
    fn again(&self) -> std::result::Result<Done, Retrieve> {
        self.tell();
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
        self.leave_dropped();
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

/// The event of a job that failed, as it is retrieved.
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
