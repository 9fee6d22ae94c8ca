//! Buffers of the engine that outlive a turn, so that a turn allocates nothing.

use super::keys::Sge;

/// Kinds of work that take turns, so that a flooded port still answers, and an answering port still
/// sends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Arrived packets are handled, up to this number.
    Arrivals(u8),
    /// A QP sends answers.
    #[default]
    Answers,
    /// A queue has its turn.
    Turns,
}

/// The buffers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The send WQE of this turn.
    pub wqe: Vec<u8>,
    /// The receive WQE of this turn.
    pub receive: Vec<u8>,
    /// Memory of the requester.
    pub local: Vec<Sge>,
    /// Memory of the responder.
    pub remote: Vec<Sge>,
    /// Pages with pending doorbells.
    pub pages: Vec<u32>,
    /// The function that has the next turn, if one thread serves all functions.
    pub next: usize,
    /// Number of steps so far.
    pub steps: u32,
}
