//! The instances that run on a work queue.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::data::UserNode;
use super::data::{Data, InstanceState, SubInstance, unset};
use super::done::GraphDone;
use super::instance::Instance;
use super::plan::{Graph, NodeKind, Plan};
use crate::context::core::CtxId;
use crate::context::event::{Done, Event, Owner, Tag};
use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::context::queues::Queues;
use crate::error::{Error, ErrorKind, Result};
use crate::types::UserData;

/// Limit of preallocated instances, including sub-graphs'. Beyond it an instance allocates at its
/// first run.
const MAX_PREPARED: usize = 1 << 16;

/// The graphs of a work queue, and their running instances.
#[derive(Default)]
pub(crate) struct Runs {
    graphs: Vec<AddedGraph>,
    runs: Vec<Option<GraphRun>>,
    free: Vec<u32>,
    /// Runs with user nodes that can begin.
    users: VecDeque<u32>,
    /// Runs with other nodes that can begin; not empty only if a job has no room.
    others: VecDeque<u32>,
    /// Ended runs that were not retrieved.
    ended: VecDeque<u32>,
    /// Contexts without room for a job of this type, during [`Runs::pump`].
    full: Vec<(CtxId, JobType)>,
    /// Instances submitted and not retrieved.
    in_flight: u32,
    depth: u32,
}

struct AddedGraph {
    plan: Arc<Plan>,
    running: u32,
}

struct GraphRun {
    instance: Instance,
    body: Box<InstanceState>,
    owner: RunOwner,
}

enum RunOwner {
    /// A node of another run.
    Node { run: u32, node: u32 },
    /// The submitter of an outermost instance.
    Submitter { tag: Tag, user_data: UserData },
}

/// The result of [`Runs::step`].
pub(crate) enum RunStep {
    /// There was nothing to do.
    Nothing,
    /// A user node was called.
    Node,
    /// An instance has ended.
    Ended(Done),
}

impl Runs {
    /// The number of graphs of the work queue.
    pub(crate) fn graphs(&self) -> usize {
        self.graphs.len()
    }

    /// Instances submitted and not retrieved.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether an instance in flight has jobs for a context, begun or not.
    pub(crate) fn need(&self, context: CtxId) -> bool {
        self.graphs.iter().any(|added| added.running > 0 && added.plan.names(context))
    }

    /// Adds a graph, and preallocates `depth` instances of it.
    pub(crate) fn add(&mut self, graph: &Graph, depth: u32) -> Result<()> {
        if self.index_of(&graph.plan).is_some() {
            let text = "the work queue is on this graph already";
            return Err(Error::plain(ErrorKind::AlreadyExist, text));
        }
        let plan = graph.plan.clone();
        plan.attach();
        self.depth = depth;
        self.graphs.push(AddedGraph { plan, running: 0 });
        let most = self.graphs.iter().map(|added| added.plan.instances).max().unwrap_or(1);
        let runs = (depth as usize).saturating_mul(most as usize).min(MAX_PREPARED);
        let more = runs.saturating_sub(self.runs.len());
        self.runs.reserve(more);
        for list in [&mut self.users, &mut self.others, &mut self.ended] {
            list.reserve(runs);
        }
        self.free.reserve(runs);
        let nodes = self.graphs.iter().map(|added| added.plan.nodes.len()).sum();
        self.full.reserve(nodes);
        Ok(())
    }

    pub(crate) fn remove(&mut self, graph: &Graph) -> Result<()> {
        let Some(index) = self.index_of(&graph.plan) else {
            return Err(Error::plain(ErrorKind::NotFound, "the work queue is not on this graph"));
        };
        match self.graphs[index].running {
            0 => {
                self.graphs.swap_remove(index).plan.detach();
                Ok(())
            }
            some => {
                let text = format!("{some} instances of it are in flight: retrieve them first");
                Err(Error::new(ErrorKind::InUse, text))
            }
        }
    }

    /// Removes dropped graphs, if no instance is in flight.
    pub(crate) fn remove_dropped(&mut self) {
        self.graphs.retain(|AddedGraph { plan, running }| {
            let stays = *running > 0 || !plan.dropped.load(Ordering::Acquire);
            if !stays {
                plan.detach();
            }
            stays
        });
    }

    fn index_of(&self, plan: &Arc<Plan>) -> Option<usize> {
        self.graphs.iter().position(|added| Arc::ptr_eq(&added.plan, plan))
    }

    /// Begins an instance.
    pub(crate) fn submit(
        &mut self,
        queues: &mut Queues,
        instance: &Instance,
        user_data: UserData,
        tag: Tag,
    ) -> Result<()> {
        let Some(index) = self.index_of(instance.plan()) else {
            let text = "the work queue is not on the instance's graph: call `add_graph` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        };
        let mut body = instance.idle()?;
        if self.in_flight == self.depth {
            let text = "as many instances are in flight as the work queue is deep: retrieve some";
            return Err(Error::plain(ErrorKind::Again, text));
        }
        body.claim(queues)?;
        self.graphs[index].running += 1;
        self.in_flight += 1;
        let owner = RunOwner::Submitter { tag, user_data };
        self.begin(GraphRun { instance: instance.clone(), body: body.take(), owner });
        self.pump(queues);
        Ok(())
    }

    fn begin(&mut self, mut run: GraphRun) {
        run.body.begin();
        let index = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() as u32 - 1
        });
        self.runs[index as usize] = Some(run);
        self.list(index);
    }

    fn run(&mut self, index: u32) -> &mut GraphRun {
        self.runs[index as usize].as_mut().expect("a run is there until it has ended")
    }

    /// Lists a run with nodes that can begin.
    fn list(&mut self, index: u32) {
        let Self { runs, users, others, .. } = self;
        let Some(GraphRun { body, .. }) = &mut runs[index as usize] else { return };
        for (line, list) in [(&mut body.users, users), (&mut body.others, others)] {
            if !line.listed && !line.nodes.is_empty() {
                line.listed = true;
                list.push_back(index);
            }
        }
    }

    /// Whether [`Runs::step`] has something to do.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.users.is_empty() || !self.ended.is_empty()
    }

    /// Calls a user node, or yields an ended instance.
    pub(crate) fn step(&mut self, queues: &mut Queues) -> RunStep {
        if let Some(index) = self.ended.pop_front() {
            return RunStep::Ended(self.retrieve(index));
        }
        let Some(index) = self.users.pop_front() else { return RunStep::Nothing };
        let body = &mut self.run(index).body;
        body.users.listed = false;
        let Some(node) = body.users.nodes.pop_front() else { return RunStep::Nothing };
        let NodeKind::User(callback) = &body.plan.nodes[node as usize].kind else {
            return RunStep::Nothing;
        };
        let callback = callback.clone();
        let call = AssertUnwindSafe(|| callback(&mut UserNode::new(body, node)));
        let called = panic::catch_unwind(call);
        let result = called.as_ref().map_or(Err(ErrorKind::Unexpected), |result| *result);
        self.list(index);
        self.end(index, node, result.map_err(JobError::new));
        self.pump(queues);
        if let Err(panic) = called {
            // The node failed, and the panic propagates: the instance is consistent.
            panic::resume_unwind(panic);
        }
        RunStep::Node
    }

    /// Handles an ended job of a node.
    pub(crate) fn node_ended(&mut self, queues: &mut Queues, run: u32, node: u32, event: Event) {
        let result = event.result();
        self.run(run).body.nodes[node as usize].result = Some(event);
        self.end(run, node, result);
        self.pump(queues);
    }

    /// Handles an ended node: lists the nodes that can begin now. The last node ends the run, and
    /// possibly the outer run's node.
    fn end(&mut self, run: u32, node: u32, result: std::result::Result<(), JobError>) {
        let (mut run, mut node, mut result) = (run, node, result);
        loop {
            let here = self.run(run);
            if !here.body.end(node, result) {
                self.list(run);
                return;
            }
            let RunOwner::Node { run: above, node: its } = here.owner else {
                self.ended.push_back(run);
                return;
            };
            result = here.body.result;
            let Some(GraphRun { instance, body, .. }) = self.runs[run as usize].take() else {
                return;
            };
            self.free.push(run);
            (run, node) = (above, its);
            // The outer run has claimed it, and returns it at its end.
            match &mut self.run(run).body.nodes[node as usize].data {
                Data::Graph(sub) => sub.claimed = Some(body),
                _ => instance.put_back(body),
            }
        }
    }

    /// The event of an ended run.
    fn retrieve(&mut self, index: u32) -> Done {
        let run = self.runs[index as usize].take().expect("a run that ended is retrieved once");
        self.free.push(index);
        let GraphRun { instance, mut body, owner } = run;
        let (result, failed) = (body.result, body.failed.map(|node| body.plan.node(node)));
        if let Some(index) = self.index_of(instance.plan()) {
            self.graphs[index].running -= 1;
        }
        self.in_flight -= 1;
        body.release();
        instance.put_back(body);
        let (tag, user_data) = match owner {
            RunOwner::Submitter { tag, user_data } => (tag, user_data),
            RunOwner::Node { .. } => unreachable!("only what was submitted is retrieved"),
        };
        Done { tag, event: Event::Graph(GraphDone::of(user_data, result, failed, instance)) }
    }

    /// Begins all nodes that can begin except user nodes. A job without room is tried again when a
    /// job has ended; it delays jobs of the same type for the same context, and no others.
    pub(crate) fn pump(&mut self, queues: &mut Queues) {
        self.full.clear();
        // Positions in `others` and in the run's line.
        let (mut at, mut skip) = (0, 0);
        while let Some(&index) = self.others.get(at) {
            let Self { runs, full, .. } = self;
            let Some(GraphRun { body, .. }) = &mut runs[index as usize] else { return };
            let Some(&node) = body.others.nodes.get(skip) else {
                (at, skip) = (at + 1, 0);
                continue;
            };
            let kind = match body.plan.nodes[node as usize].kind {
                NodeKind::Ctx(context, kind) => Some((context, kind)),
                _ => None,
            };
            if kind.is_some_and(|kind| full.contains(&kind)) {
                skip += 1;
                continue;
            }
            let began = match &mut body.nodes[node as usize].data {
                Data::Job(job) => job.begin(queues, Tag::of(Owner::Node { run: index, node })),
                Data::Graph(SubInstance { instance, claimed }) => match claimed.take() {
                    Some(body) => {
                        let (instance, owner) =
                            (instance.clone(), RunOwner::Node { run: index, node });
                        self.begin(GraphRun { instance, body, owner });
                        Ok(())
                    }
                    None => Err(unset()),
                },
                Data::Unset | Data::User(_) => Err(unset()),
            };
            match began {
                // With nothing in flight, no room will come.
                Err(error) if error.kind() == ErrorKind::Again && queues.in_flight() > 0 => {
                    if queues.in_flight() == queues.depth() {
                        return;
                    }
                    self.full.extend(kind);
                    skip += 1;
                }
                began => {
                    // Removed from the lists first: the last node ends the run.
                    let line = &mut self.run(index).body.others;
                    line.nodes.remove(skip);
                    if line.nodes.is_empty() {
                        line.listed = false;
                        self.others.remove(at);
                        skip = 0;
                    }
                    if let Err(error) = began {
                        self.end(index, node, Err(JobError::unposted(&error)));
                    }
                }
            }
        }
    }
}

/// Returns running instances, without the jobs in flight.
impl Drop for Runs {
    fn drop(&mut self) {
        for GraphRun { instance, mut body, .. } in self.runs.drain(..).flatten() {
            body.discard_run();
            body.release();
            instance.put_back(body);
        }
        self.graphs.drain(..).for_each(|added| added.plan.detach());
    }
}
