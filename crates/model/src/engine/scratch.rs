//! Buffers of the engine that outlive a turn, so that a turn allocates nothing.

use super::keys::Sge;

/// The buffers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The send WQE at hand.
    pub wqe: Vec<u8>,
    /// The receive WQE at hand.
    pub receive: Vec<u8>,
    /// Memory of the requester.
    pub local: Vec<Sge>,
    /// Memory of the responder.
    pub remote: Vec<Sge>,
    /// The QPs that a datagram goes to, each with its function.
    pub targets: Vec<(usize, u32)>,
    /// Pages whose doorbells wait.
    pub pages: Vec<u32>,
    /// The function whose turn is next.
    pub next: usize,
    /// Turns since doorbells were looked for.
    pub turns: u32,
}
