//! The structure of a graph: its nodes and their dependencies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::data::{Callback, UserNode};
use super::node::Node;
use crate::context::core::CtxId;
use crate::context::job_type::JobType;
use crate::context::library::Context;
use crate::error::{Error, ErrorKind, Refused, Result};

/// The type of a node.
#[derive(Clone)]
pub(super) enum NodeKind {
    Ctx(CtxId, JobType),
    User(Arc<Callback>),
    Graph(Arc<Plan>),
}

#[derive(Clone)]
pub(super) struct PlanNode {
    pub(super) kind: NodeKind,
    /// Nodes that depend on this one.
    pub(super) children: Vec<u32>,
    /// The number of nodes that this one depends on.
    pub(super) parents: u32,
}

/// The nodes of a started graph and their dependencies.
pub(crate) struct Plan {
    serial: u64,
    pub(super) nodes: Box<[PlanNode]>,
    /// The number of instances in one instance, including those of its sub-graphs, recursively.
    pub(super) instances: u32,
    workqs: AtomicU32,
    /// Whether the graph was dropped; instances may remain.
    pub(super) dropped: AtomicBool,
}

/// A graph that is being built (`doca_graph_create`).
#[must_use = "a graph exists when it is started"]
pub struct GraphBuilder {
    serial: u64,
    nodes: Vec<PlanNode>,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

impl GraphBuilder {
    /// Adds a node for a job of this type on this context (`doca_graph_ctx_node_create`).
    pub fn ctx_node<C: Context + ?Sized>(&mut self, context: &C, job_type: JobType) -> Node {
        self.add(NodeKind::Ctx(context.core().id(), job_type))
    }

    /// Adds a node that calls `callback` (`doca_graph_user_node_create`), in the thread that calls
    /// [`WorkQ::progress_retrieve`](crate::WorkQ::progress_retrieve). If the callback returns an
    /// error, the node fails, and the error is the status of the instance. A panic of the callback
    /// propagates to that thread; the node has then failed with [`ErrorKind::Unexpected`], and the
    /// next retrieval continues. All instances share the callback; each instance has its own
    /// [data](crate::graph::Instance::set_user_node_data).
    pub fn user_node<F>(&mut self, callback: F) -> Node
    where
        F: Fn(&mut UserNode<'_>) -> std::result::Result<(), ErrorKind> + Send + Sync + 'static,
    {
        self.add(NodeKind::User(Arc::new(callback)))
    }

    /// Adds a node that is an instance of another graph (`doca_graph_sub_graph_node_create`).
    pub fn sub_graph_node(&mut self, graph: &Graph) -> Node {
        self.add(NodeKind::Graph(graph.plan.clone()))
    }

    fn add(&mut self, kind: NodeKind) -> Node {
        let index = self.nodes.len() as u32;
        self.nodes.push(PlanNode { kind, children: Vec::new(), parents: 0 });
        Node { graph: self.serial, index }
    }

    /// Adds a dependency: `to` begins only after `from` is done (`doca_graph_add_dependency`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if `from` already depends on `to` (the error has the cycle), or
    /// for a node of another graph; [`ErrorKind::AlreadyExist`] if `to` already depends on `from`.
    pub fn add_dependency(&mut self, from: Node, to: Node) -> Result<()> {
        if from.graph != self.serial || to.graph != self.serial {
            let text = "a node of another graph can be in no dependency: use a sub-graph node";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        if self.nodes[from.index as usize].children.contains(&to.index) {
            let text = format!("{} depends on {} already", self.name(to), self.name(from));
            return Err(Error::new(ErrorKind::AlreadyExist, text));
        }
        if let Some(path) = self.path(to.index, from.index) {
            let edges: Vec<_> =
                path.iter().map(|&index| self.name(Node { index, ..from })).collect();
            let text = format!(
                "the dependency of {} on {} would close the cycle {} -> {}: leave one of them out",
                self.name(to),
                self.name(from),
                edges.join(" -> "),
                self.name(to)
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        self.nodes[from.index as usize].children.push(to.index);
        self.nodes[to.index as usize].parents += 1;
        Ok(())
    }

    /// The nodes on a path from one node to another, both included.
    fn path(&self, from: u32, to: u32) -> Option<Vec<u32>> {
        let mut before = vec![None; self.nodes.len()];
        let mut open = vec![from];
        before[from as usize] = Some(from);
        while let Some(at) = open.pop() {
            if at == to {
                let back = |&at: &u32| before[at as usize].filter(|_| at != from);
                let mut path: Vec<_> = std::iter::successors(Some(to), back).collect();
                path.reverse();
                return Some(path);
            }
            for &child in &self.nodes[at as usize].children {
                if before[child as usize].is_none() {
                    before[child as usize] = Some(at);
                    open.push(child);
                }
            }
        }
        None
    }

    fn name(&self, node: Node) -> String {
        let index = node.index;
        match &self.nodes[index as usize].kind {
            NodeKind::Ctx(_, job_type) => format!("node {index} ({job_type:?})"),
            NodeKind::User(_) => format!("node {index} (user)"),
            NodeKind::Graph(_) => format!("node {index} (sub-graph)"),
        }
    }

    /// Starts the graph (`doca_graph_start`): it can then be instantiated, but not changed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if neither it nor a sub-graph has a context node.
    pub fn start(self) -> Result<Graph> {
        let works = |node: &PlanNode| !matches!(node.kind, NodeKind::User(_));
        if !self.nodes.iter().any(works) {
            let text = "a graph has at least one context node, itself or in a sub-graph: add one";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        let below = |node: &PlanNode| match &node.kind {
            NodeKind::Graph(plan) => plan.instances,
            _ => 0,
        };
        let instances = self.nodes.iter().map(below).fold(1, u32::saturating_add);
        let Self { serial, nodes } = self;
        let (workqs, dropped) = (AtomicU32::new(0), AtomicBool::new(false));
        let nodes = nodes.into();
        Ok(Graph { plan: Arc::new(Plan { serial, nodes, instances, workqs, dropped }) })
    }
}

/// A started graph (`struct doca_graph`). It is `Send` and `Sync`.
pub struct Graph {
    pub(super) plan: Arc<Plan>,
}

impl Graph {
    /// A graph to build.
    pub fn builder() -> GraphBuilder {
        GraphBuilder { serial: SERIAL.fetch_add(1, Ordering::Relaxed), nodes: Vec::new() }
    }

    /// The number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.plan.nodes.len()
    }

    /// The number of work queues that the graph was added to.
    pub fn workqs(&self) -> u32 {
        self.plan.workqs.load(Ordering::Acquire)
    }

    /// Stops the graph (`doca_graph_stop`). Its instances keep their data.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it is on a work queue.
    pub fn stop(self) -> std::result::Result<(), Refused<Self>> {
        match self.workqs() {
            0 => Ok(()),
            some => {
                let text = format!("{some} work queues have the graph: remove it from them first");
                Err(Refused::new(Error::new(ErrorKind::InUse, text), self))
            }
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.plan.dropped.store(true, Ordering::Release);
    }
}

impl Plan {
    /// Whether a node of the graph, or of a sub-graph, has jobs for a context.
    pub(super) fn names(&self, context: CtxId) -> bool {
        self.nodes.iter().any(|node| match &node.kind {
            NodeKind::Ctx(id, _) => *id == context,
            NodeKind::Graph(plan) => plan.names(context),
            NodeKind::User(_) => false,
        })
    }

    pub(super) fn attach(&self) {
        self.workqs.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn detach(&self) {
        self.workqs.fetch_sub(1, Ordering::AcqRel);
    }

    /// The index in `nodes` of a node of this graph.
    pub(super) fn index(&self, node: Node) -> Result<usize> {
        if node.graph == self.serial {
            return Ok(node.index as usize);
        }
        Err(Error::plain(ErrorKind::InvalidValue, "the node is of another graph"))
    }

    pub(super) const fn node(&self, index: u32) -> Node {
        Node { graph: self.serial, index }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("nodes", &self.num_nodes())
            .field("workqs", &self.workqs())
            .finish()
    }
}

impl fmt::Debug for GraphBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphBuilder").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
