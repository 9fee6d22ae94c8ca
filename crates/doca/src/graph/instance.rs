//! Instances of graphs.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::data::{Data, InstanceState, SubInstance};
use super::done::GraphDone;
use super::node::Node;
use super::plan::{Graph, NodeKind, Plan};
use crate::context::event::Event;
use crate::context::failure::JobError;
use crate::context::job::Job;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::UserData;

/// An instance of a graph (`struct doca_graph_instance`): its nodes' data, then their results.
///
/// A clone is the same instance. It is `Send` and `Sync`. While it is in flight, by itself or in a
/// sub-graph node of another, all of its methods return [`ErrorKind::InUse`]. If all clones are
/// dropped, it runs on to its end.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # use verbless_doca::{Event, JobType, WorkQ, dma::Dma, graph::Graph};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dev = doc::dev();
/// # let dma = Dma::builder(&dev).start()?;
/// # let mut workq = WorkQ::new(4)?;
/// # workq.add(&dma)?;
/// # let mut graph = Graph::builder();
/// # let copy = graph.ctx_node(&dma, JobType::DmaMemcpy);
/// # let graph = graph.start()?;
/// # workq.add_graph(&graph)?;
/// let instance = graph.instance();
/// for round in 0..3 {
///     instance.set_ctx_node_data(copy, dma.memcpy(doc::data(&dev, b"data"), doc::room(&dev)))?;
///     workq.submit_graph(&instance, round)?;
///     assert!(instance.is_running());
///     let Some(Event::Graph(done)) = workq.retrieve_within(None)? else { panic!("no other") };
///     assert_eq!((done.result, done.user_data.0), (Ok(()), round));
///     assert!(instance.take_result(copy)?.is_some());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Instance {
    shared: Arc<InstanceInner>,
}

struct InstanceInner {
    plan: Arc<Plan>,
    /// `None` while the instance is in flight, by itself or in another.
    body: Mutex<Option<Box<InstanceState>>>,
}

/// The state of an instance that is not in flight.
pub(super) struct IdleInstance<'i>(MutexGuard<'i, Option<Box<InstanceState>>>);

impl Deref for IdleInstance<'_> {
    type Target = InstanceState;
    fn deref(&self) -> &InstanceState {
        self.0.as_ref().expect("the borrow was checked when this handle was made")
    }
}

impl DerefMut for IdleInstance<'_> {
    fn deref_mut(&mut self) -> &mut InstanceState {
        self.0.as_mut().expect("the borrow was checked when this handle was made")
    }
}

impl IdleInstance<'_> {
    /// Takes the state for a submission.
    pub(super) fn take(mut self) -> Box<InstanceState> {
        self.0.take().expect("the borrow was checked when this handle was made")
    }
}

impl Graph {
    /// Creates an instance (`doca_graph_instance_create`); its nodes have no data yet.
    pub fn instance(&self) -> Instance {
        Instance::new(&self.plan)
    }
}

impl Instance {
    pub(super) fn new(plan: &Arc<Plan>) -> Self {
        let body = Mutex::new(Some(Box::new(InstanceState::new(plan))));
        Self { shared: Arc::new(InstanceInner { plan: plan.clone(), body }) }
    }

    pub(super) fn plan(&self) -> &Arc<Plan> {
        &self.shared.plan
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<InstanceState>>> {
        self.shared.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the instance's state; an error while the instance is in flight.
    pub(super) fn idle(&self) -> Result<IdleInstance<'_>> {
        let body = self.lock();
        if body.is_some() {
            return Ok(IdleInstance(body));
        }
        let text = "the instance is in flight, by itself or in a sub-graph node of another: \
                    retrieve the event of what was submitted first";
        Err(Error::plain(ErrorKind::InUse, text))
    }

    /// Returns the state at the end of a flight.
    pub(super) fn put_back(&self, body: Box<InstanceState>) {
        *self.lock() = Some(body);
    }

    /// Whether the instance is in flight, by itself or in a sub-graph node of another instance.
    pub fn is_running(&self) -> bool {
        self.lock().is_none()
    }

    /// Sets the job of a context node (`doca_graph_instance_set_ctx_node_data`) and drops the old
    /// one. A run consumes the job; its buffers are then in the node's
    /// [result](Instance::take_result).
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::InvalidValue`] if the job is of another context or type
    /// than the node, or the node is of another graph.
    pub fn set_ctx_node_data<J: Job>(
        &self,
        node: Node,
        job: J,
    ) -> std::result::Result<(), Refused<J>> {
        match self.shared.plan.index(node).and_then(|index| Ok((index, self.idle()?))) {
            Ok((index, mut body)) => body.set_job(index, job),
            Err(error) => Err(Refused::new(error, job)),
        }
    }

    /// Sets the data for the callback of a user node (`doca_graph_instance_set_user_node_data`);
    /// `()` if it needs none. The data stays from run to run.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::InvalidValue`] if the node is not a user node of this
    /// graph.
    pub fn set_user_node_data<T: Any + Send>(&self, node: Node, data: T) -> Result<()> {
        let index = self.shared.plan.index(node)?;
        if !matches!(self.shared.plan.nodes[index].kind, NodeKind::User(_)) {
            return Err(Error::plain(ErrorKind::InvalidValue, "the node is not a user node"));
        }
        let mut body = self.idle()?;
        match body.user_data::<T>(index) {
            Some(there) => *there = data,
            None => body.nodes[index].data = Data::User(Box::new(data)),
        }
        Ok(())
    }

    /// Takes the data of a user node; `None` if it has none of this type.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::InvalidValue`] for a node of another graph.
    pub fn take_user_node_data<T: Any + Send>(&self, node: Node) -> Result<Option<T>> {
        let index = self.shared.plan.index(node)?;
        let mut body = self.idle()?;
        if body.user_data::<T>(index).is_none() {
            return Ok(None);
        }
        match std::mem::replace(&mut body.nodes[index].data, Data::Unset) {
            Data::User(data) => Ok(data.downcast().ok().map(|data| *data)),
            _ => Ok(None),
        }
    }

    /// Sets the instance of a sub-graph node (`doca_graph_instance_set_sub_graph_node_data`). It
    /// stays from run to run. Another clone of it sets the data of its nodes, and takes their
    /// results. It may be the data of nodes of several instances, of which one at a time is in
    /// flight: from the submission of that one to its end, this one is in flight, too.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::InvalidValue`] if it is not an instance of the node's
    /// graph, if another node has it, or if the node is of another graph.
    pub fn set_sub_graph_node_data(&self, node: Node, instance: Self) -> Result<()> {
        let index = self.shared.plan.index(node)?;
        match &self.shared.plan.nodes[index].kind {
            NodeKind::Graph(plan) if Arc::ptr_eq(plan, instance.plan()) => {
                let mut body = self.idle()?;
                let is_same = |data: &Data| match data {
                    Data::Graph(SubInstance { instance: other, .. }) => {
                        Arc::ptr_eq(&other.shared, &instance.shared)
                    }
                    _ => false,
                };
                let mut others = body.nodes.iter().enumerate();
                if others.any(|(other, node)| other != index && is_same(&node.data)) {
                    let text = "another node has the instance, which runs once at a time: make \
                                one for each node";
                    return Err(Error::plain(ErrorKind::InvalidValue, text));
                }
                body.nodes[index].data = Data::Graph(SubInstance { instance, claimed: None });
                Ok(())
            }
            _ => {
                let text = "the node is for no instance of this graph";
                Err(Error::plain(ErrorKind::InvalidValue, text))
            }
        }
    }

    /// Takes the event of a context node's job, with its buffers; `None` if it did not run, or the
    /// event was taken. The next submission drops remaining events.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::InvalidValue`] for a node of another graph.
    pub fn take_result(&self, node: Node) -> Result<Option<Event>> {
        let index = self.shared.plan.index(node)?;
        Ok(self.idle()?.nodes[index].result.take())
    }

    /// Takes the job of a context node that did not run; `None` if it ran, was not set, or is of
    /// another type.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::InvalidValue`] for a node of another graph.
    pub fn take_job<J: Job>(&self, node: Node) -> Result<Option<J>> {
        let index = self.shared.plan.index(node)?;
        Ok(self.idle()?.job::<J>(index).and_then(Option::take))
    }
}

impl InstanceState {
    pub(super) fn user_data<T: Any + Send>(&mut self, index: usize) -> Option<&mut T> {
        match &mut self.nodes[index].data {
            Data::User(data) => data.downcast_mut(),
            _ => None,
        }
    }
}

impl GraphDone {
    pub(super) fn of(
        user_data: UserData,
        result: std::result::Result<(), JobError>,
        failed: Option<Node>,
        instance: Instance,
    ) -> Self {
        Self { user_data, result, failed, instance: instance.shared }
    }

    /// The instance with the results of its nodes.
    pub fn instance(&self) -> Instance {
        let shared = self.instance.clone().downcast();
        Instance { shared: shared.expect("an instance's event has the instance") }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("nodes", &self.shared.plan.nodes.len())
            .field("running", &self.is_running())
            .finish()
    }
}
