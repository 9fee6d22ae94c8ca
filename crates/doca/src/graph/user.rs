//! User nodes.

use std::any::Any;

use super::data::{Body, Data};
use super::instance::Instance;
use super::plan::Node;
use crate::context::{Event, Job};
use crate::error::{ErrorKind, Refused, Result};

/// The function of a user node.
pub(super) type Callback =
    dyn Fn(&mut UserNode<'_>) -> std::result::Result<(), ErrorKind> + Send + Sync;

/// What the function of a user node sees of its instance: its own data, the results of nodes that
/// ended, and the jobs of nodes that did not begin. Those on which it depends have all ended, and
/// those that depend on it have not begun; others may be either.
pub struct UserNode<'b> {
    body: &'b mut Body,
    node: u32,
}

impl<'b> UserNode<'b> {
    pub(super) fn new(body: &'b mut Body, node: u32) -> Self {
        Self { body, node }
    }

    /// The node.
    pub fn node(&self) -> Node {
        self.body.plan.node(self.node)
    }

    /// The data of this node; `None` if it is of another type.
    pub fn data<T: Any + Send>(&mut self) -> Option<&mut T> {
        self.body.user_data(self.node as usize)
    }

    /// The event of a context node's job, with its buffers; `None` if it has not ended, or the
    /// event was taken, or the node is of another graph.
    pub fn result(&mut self, node: Node) -> Option<&mut Event> {
        let place = self.body.plan.place(node).ok()?;
        self.body.nodes[place].result.as_mut()
    }

    /// Takes it.
    pub fn take_result(&mut self, node: Node) -> Option<Event> {
        let place = self.body.plan.place(node).ok()?;
        self.body.nodes[place].result.take()
    }

    /// Takes the job of a node that has not begun. A node that has none when it should begin fails
    /// with [`ErrorKind::InvalidValue`].
    pub fn take_job<J: Job>(&mut self, node: Node) -> Option<J> {
        let place = self.body.plan.place(node).ok()?;
        self.body.job::<J>(place)?.take()
    }

    /// Sets the job of a node that depends on this one, in the place of what it has.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the job is of another context or sort than the node, or the
    /// node is of another graph.
    pub fn set_job<J: Job>(&mut self, node: Node, job: J) -> std::result::Result<(), Refused<J>> {
        match self.body.plan.place(node) {
            Ok(place) => self.body.set_job(place, job),
            Err(error) => Err(Refused::new(error, job)),
        }
    }

    /// The instance of a sub-graph node.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if it is no sub-graph node of this graph.
    pub fn sub_graph(&self, node: Node) -> Result<&Instance> {
        let place = self.body.plan.place(node)?;
        match &self.body.nodes[place].data {
            Data::Graph(instance) => Ok(instance),
            _ => Err(crate::error::Error::plain(
                ErrorKind::InvalidValue,
                "the node is no sub-graph node",
            )),
        }
    }
}
