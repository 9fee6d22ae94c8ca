//! The id of a node of a graph.

/// A node of a graph (`struct doca_graph_node`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(super) graph: u64,
    pub(super) index: u32,
}

impl Node {
    /// The node's number: nodes are numbered from 0 in the order of their creation.
    pub const fn index(self) -> u32 {
        self.index
    }
}
