//! What the engine keeps beside the objects that commands make.

use std::collections::{BTreeMap, VecDeque};

/// What the engine keeps per function.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// QPs whose SQ is awake, each once, in the order of their turns.
    pub active: VecDeque<u32>,
    /// Queues by the UAR page that they name; rebuilt when a command may have changed it.
    pub index: Index,
    /// A command ran since the index was built.
    pub stale: bool,
}

/// Which queues a doorbell on a UAR page wakes.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub pages: BTreeMap<u32, Page>,
}

/// The queues that name one UAR page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub qps: Vec<u32>,
    pub cqs: Vec<u32>,
}

/// What the engine keeps per CQ.
#[derive(Debug, Default)]
pub(crate) struct CqRuntime {
    /// Consumer index as last read from the record (24 bits count).
    pub consumer: u32,
    /// Arm word of the last request that was taken: the same word in the record asks for nothing new.
    pub arm_word: Option<u32>,
    /// Index after the last solicited CQE.
    pub solicited: Option<u32>,
}

/// What the engine keeps per QP.
#[derive(Debug, Default)]
pub(crate) struct QpRuntime {
    /// It waits in [`State::active`].
    pub queued: bool,
    /// The first message arrived, or the QP was moved to RTS: no COMM_EST event any more.
    pub established: bool,
}
