//! Identifies a node of a graph.

/// A node of a graph (`struct doca_graph_node`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(super) graph: u64,
    pub(super) index: u32,
}

impl Node {
    /// The node's number: nodes are counted from 0 in the order in which they were made.
    pub const fn index(self) -> u32 {
        self.index
    }
}
