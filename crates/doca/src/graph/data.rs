//! The data of an instance's nodes: jobs, user data and sub-graphs.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::instance::Instance;
use super::node::Node;
use super::plan::{NodeKind, Plan};
use crate::context::core::CtxId;
use crate::context::event::{Event, Tag};
use crate::context::failure::JobError;
use crate::context::job::Job;
use crate::context::queues::Queues;
use crate::error::{Error, ErrorKind, Refused, Result};

/// A job of any type, or an empty slot for one.
pub(super) trait AnyJob: Any + Send {
    /// The job's context; `None` if the slot is empty.
    fn context(&self) -> Option<CtxId>;

    /// Begins the job; a refused job stays.
    fn begin(&mut self, queues: &mut Queues, tag: Tag) -> Result<()>;
}

impl<J: Job> AnyJob for Option<J> {
    fn context(&self) -> Option<CtxId> {
        self.as_ref().map(J::context)
    }

    fn begin(&mut self, queues: &mut Queues, tag: Tag) -> Result<()> {
        let Some(job) = self.take() else { return Err(unset()) };
        match queues.begin(job, tag) {
            Ok(()) => Ok(()),
            Err(Refused { error, given }) => {
                *self = Some(given);
                Err(error)
            }
        }
    }
}

pub(super) enum Data {
    Unset,
    Job(Box<dyn AnyJob>),
    User(Box<dyn Any + Send>),
    Graph(SubInstance),
}

/// The instance of a sub-graph node.
pub(super) struct SubInstance {
    pub(super) instance: Instance,
    /// The sub-graph's state while the outer instance is in flight, except while the sub-graph
    /// itself runs.
    pub(super) claimed: Option<Box<InstanceState>>,
}

/// The progress of a node in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The node waits for this many other nodes.
    Waits(u32),
    Ended,
    /// The node depends on a failed one.
    Stopped,
}

pub(super) struct NodeData {
    pub(super) data: Data,
    pub(super) result: Option<Event>,
    progress: Progress,
}

/// Nodes that can begin. While there are some, the instance is in a list of the work queue.
pub(super) struct ReadyNodes {
    pub(super) nodes: VecDeque<u32>,
    pub(super) listed: bool,
}

/// The state of an instance. The work queue owns it while the instance runs.
pub(super) struct InstanceState {
    pub(super) plan: Arc<Plan>,
    pub(super) nodes: Box<[NodeData]>,
    /// User nodes that can begin.
    pub(super) users: ReadyNodes,
    /// Other nodes that can begin.
    pub(super) others: ReadyNodes,
    /// Nodes that have not ended.
    left: u32,
    /// The first failure.
    pub(super) result: std::result::Result<(), JobError>,
    pub(super) failed: Option<u32>,
    /// Nodes to stop; empty outside of `stop`.
    open: Vec<u32>,
}

pub(super) fn unset() -> Error {
    let text = "the data of a node is not set: set that of every node before each submission";
    Error::plain(ErrorKind::InvalidValue, text)
}

impl InstanceState {
    pub(super) fn new(plan: &Arc<Plan>) -> Self {
        let count = plan.nodes.len();
        let line = || ReadyNodes { nodes: VecDeque::with_capacity(count), listed: false };
        let node = |_| NodeData { data: Data::Unset, result: None, progress: Progress::Ended };
        Self {
            plan: plan.clone(),
            nodes: (0..count).map(node).collect(),
            users: line(),
            others: line(),
            left: 0,
            result: Ok(()),
            failed: None,
            open: Vec::with_capacity(count),
        }
    }

    /// Sets the job of a node.
    pub(super) fn set_job<J: Job>(
        &mut self,
        index: usize,
        job: J,
    ) -> std::result::Result<(), Refused<J>> {
        match self.plan.nodes[index].kind {
            NodeKind::Ctx(context, kind) if context == job.context() && kind == job.job_type() => {}
            _ => {
                let text = "the node is for no job of this sort and context";
                return Err(Refused::new(Error::plain(ErrorKind::InvalidValue, text), job));
            }
        }
        match self.job::<J>(index) {
            Some(held) => *held = Some(job),
            None => self.nodes[index].data = Data::Job(Box::new(Some(job))),
        }
        Ok(())
    }

    /// The slot of a node's job.
    pub(super) fn job<J: Job>(&mut self, index: usize) -> Option<&mut Option<J>> {
        let Data::Job(held) = &mut self.nodes[index].data else { return None };
        let held: &mut dyn Any = held.as_mut();
        held.downcast_mut()
    }

    /// Takes the instances of all sub-graph nodes, so that no other submission can take them, if
    /// this graph and they can be submitted now.
    pub(super) fn claim(&mut self, queues: &Queues) -> Result<()> {
        let claimed = self.nodes.iter_mut().try_for_each(|node| match &mut node.data {
            Data::Unset => Err(unset()),
            Data::User(_) => Ok(()),
            Data::Graph(SubInstance { instance, claimed }) => {
                let mut body = instance.idle()?;
                body.claim(queues)?;
                *claimed = Some(body.take());
                Ok(())
            }
            Data::Job(job) => match job.context() {
                None => Err(unset()),
                Some(context) if queues.has(context) => Ok(()),
                Some(_) => {
                    let text = "the work queue is not on the context of a node: call `add` first";
                    Err(Error::plain(ErrorKind::BadState, text))
                }
            },
        });
        claimed.inspect_err(|_| self.release())
    }

    /// Returns the claimed instances without a run.
    pub(super) fn release(&mut self) {
        for node in &mut self.nodes {
            if let Data::Graph(SubInstance { instance, claimed }) = &mut node.data
                && let Some(mut body) = claimed.take()
            {
                body.release();
                instance.put_back(body);
            }
        }
    }

    /// Begins a run.
    pub(super) fn begin(&mut self) {
        self.forget_results();
        (self.left, self.result, self.failed) = (self.nodes.len() as u32, Ok(()), None);
        for index in 0..self.nodes.len() {
            let parents = self.plan.nodes[index].parents;
            self.nodes[index].progress = Progress::Waits(parents);
            if parents == 0 {
                self.enlist(index as u32);
            }
        }
    }

    /// Discards the results of the last run, also in sub-graphs: their nodes may not run this time.
    fn forget_results(&mut self) {
        for node in &mut self.nodes {
            node.result = None;
            if let Data::Graph(SubInstance { claimed: Some(body), .. }) = &mut node.data {
                body.forget_results();
            }
        }
    }

    fn enlist(&mut self, node: u32) {
        match self.plan.nodes[node as usize].kind {
            NodeKind::User(_) => self.users.nodes.push_back(node),
            _ => self.others.nodes.push_back(node),
        }
    }

    /// Notes the end of a node. True if the run has ended, too.
    pub(super) fn end(&mut self, node: u32, result: std::result::Result<(), JobError>) -> bool {
        self.nodes[node as usize].progress = Progress::Ended;
        self.left -= 1;
        if result.is_err() && self.result.is_ok() {
            (self.result, self.failed) = (result, Some(node));
        }
        let plan = self.plan.clone();
        let children = &plan.nodes[node as usize].children;
        match result {
            Ok(()) => children.iter().for_each(|&child| self.parent_ended(child)),
            Err(_) => {
                self.open.extend(children);
                self.stop(&plan);
            }
        }
        self.left == 0
    }

    fn parent_ended(&mut self, node: u32) {
        if let Progress::Waits(parents) = &mut self.nodes[node as usize].progress {
            *parents -= 1;
            if *parents == 0 {
                self.enlist(node);
            }
        }
    }

    /// Stops the nodes in `open` and their dependents. None of them has begun.
    fn stop(&mut self, plan: &Plan) {
        while let Some(node) = self.open.pop() {
            let progress = &mut self.nodes[node as usize].progress;
            if *progress != Progress::Stopped {
                *progress = Progress::Stopped;
                self.left -= 1;
                self.open.extend(&plan.nodes[node as usize].children);
            }
        }
    }

    /// Discards a run that does not end.
    pub(super) fn discard_run(&mut self) {
        for line in [&mut self.users, &mut self.others] {
            line.nodes.clear();
            line.listed = false;
        }
    }
}

/// The function of a user node.
pub(super) type Callback =
    dyn Fn(&mut UserNode<'_>) -> std::result::Result<(), ErrorKind> + Send + Sync;

/// A user node's view of its instance: the node's own data, and [all nodes](Nodes). The nodes on
/// which it depends have all ended, and its dependents have not begun; others may be in any state.
pub struct UserNode<'b> {
    nodes: Nodes<'b>,
    node: u32,
}

impl<'b> UserNode<'b> {
    pub(super) fn new(body: &'b mut InstanceState, node: u32) -> Self {
        Self { nodes: Nodes { body }, node }
    }

    /// The node.
    pub fn node(&self) -> Node {
        self.nodes.body.plan.node(self.node)
    }

    /// The data of this node; `None` if it is of another type.
    pub fn data<T: Any + Send>(&mut self) -> Option<&mut T> {
        self.nodes.body.user_data(self.node as usize)
    }
}

impl<'b> Deref for UserNode<'b> {
    type Target = Nodes<'b>;
    fn deref(&self) -> &Nodes<'b> {
        &self.nodes
    }
}

impl<'b> DerefMut for UserNode<'b> {
    fn deref_mut(&mut self) -> &mut Nodes<'b> {
        &mut self.nodes
    }
}

/// The nodes of an instance in flight: the results of ended nodes, and the jobs of nodes that have
/// not begun.
pub struct Nodes<'b> {
    body: &'b mut InstanceState,
}

impl Nodes<'_> {
    /// The event of a context node's job, with its buffers; `None` if the job has not ended, the
    /// event was taken, or the node is of another graph.
    pub fn result(&mut self, node: Node) -> Option<&mut Event> {
        let index = self.body.plan.index(node).ok()?;
        self.body.nodes[index].result.as_mut()
    }

    /// Takes the event of a context node's job out of the node, with its buffers; `None` as in
    /// [`Self::result`].
    pub fn take_result(&mut self, node: Node) -> Option<Event> {
        let index = self.body.plan.index(node).ok()?;
        self.body.nodes[index].result.take()
    }

    /// Takes the job of a node that has not begun. A node without a job at its begin fails with
    /// [`ErrorKind::InvalidValue`].
    pub fn take_job<J: Job>(&mut self, node: Node) -> Option<J> {
        let index = self.body.plan.index(node).ok()?;
        self.body.job::<J>(index)?.take()
    }

    /// Sets the job of a node that depends on this one, and replaces the old job.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the job is of another context or type than the node, or the
    /// node is of another graph.
    pub fn set_job<J: Job>(&mut self, node: Node, job: J) -> std::result::Result<(), Refused<J>> {
        match self.body.plan.index(node) {
            Ok(index) => self.body.set_job(index, job),
            Err(error) => Err(Refused::new(error, job)),
        }
    }

    /// The data of a user node; `None` if it is of another type, or the node of another graph.
    pub fn user_node_data<T: Any + Send>(&mut self, node: Node) -> Option<&mut T> {
        let index = self.body.plan.index(node).ok()?;
        self.body.user_data(index)
    }

    /// The nodes of a sub-graph node's instance, which has ended or not begun. Until the outer
    /// instance has ended, there is no other access to them.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it runs; [`ErrorKind::InvalidValue`] if the node is not a
    /// sub-graph node of this graph.
    pub fn sub_graph(&mut self, node: Node) -> Result<Nodes<'_>> {
        let index = self.body.plan.index(node)?;
        match &mut self.body.nodes[index].data {
            Data::Graph(SubInstance { claimed: Some(body), .. }) => Ok(Nodes { body }),
            Data::Graph(_) => {
                let text = "the sub-graph runs: let this node depend on its node, or that on this";
                Err(Error::plain(ErrorKind::InUse, text))
            }
            _ => Err(Error::plain(ErrorKind::InvalidValue, "the node is not a sub-graph node")),
        }
    }
}
