//! Completion queues and event queues.

use verbless_prm::{CqContext, CqErrorSyndrome, EqContext};

use super::queue_memory::QueueMemory;
use super::uid::Uid;
use crate::runtime::CqRuntime;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub uid: Uid,
    pub memory: QueueMemory,
    /// Address of the 8-byte doorbell record: consumer index, then arm word.
    pub record: u64,
    pub log_size: u32,
    /// Bytes per CQE: 64 or 128.
    pub cqe_bytes: u32,
    /// The receiver of the CQ's completion events.
    pub target: EventTarget,
    pub uar_page: u32,
    pub overrun_ignore: bool,
    /// Index of the next CQE to write; it never wraps at the queue's size.
    pub producer: u32,
    /// Why the queue accepts no more CQEs, after it failed.
    pub failure: Option<CqErrorSyndrome>,
    pub arm: Arm,
    /// Index after the last solicited CQE.
    pub solicited: Option<u32>,
    /// Index after the last CQE that an event reported: earlier CQEs cause no other event.
    pub notified: u32,
    pub umems: Vec<u32>,
    /// The engine's state; initially the default.
    pub runtime: CqRuntime,
    pub context: CqContext,
}

/// The receiver of a CQ's completion events, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventTarget {
    /// An event queue.
    Eq(u32),
    /// A part of the DPA.
    Dpa(DpaEventTarget),
}

/// The part of the DPA that gets a CQ's events, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DpaEventTarget {
    /// A thread.
    Thread(u32),
    /// An event queue.
    Eq(u32),
    /// A thread of a process of another device context; the CQ's UAR page is extended to it.
    OtherContext {
        /// The number in the model of the process's function.
        function: usize,
        /// The process's serial number.
        process: u64,
        /// The thread.
        thread: u32,
    },
}

/// The state of a CQ's arming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Arm {
    /// Not armed.
    #[default]
    Idle,
    /// The next CQE after the consumer index given.
    Next { consumer: u32, sequence: u8 },
    /// The next solicited or error CQE after the consumer index.
    Solicited { consumer: u32, sequence: u8 },
}

/// The ring of an event queue, and its position.
#[derive(Debug)]
pub(crate) struct EventRing {
    pub memory: QueueMemory,
    pub log_size: u32,
    /// The device writes events even if software has not consumed the earlier ones.
    pub overrun_ignore: bool,
    /// The bits of the consumer index that a doorbell has.
    pub counter_mask: u32,
    /// Index of the next EQE to write; it never wraps at the queue's size.
    pub producer: u32,
    pub consumer: u32,
    /// An EQE written while armed raises the vector and disarms.
    pub armed: bool,
}

/// An event queue; only the kernel creates them.
#[derive(Debug)]
pub(crate) struct Eq {
    pub ring: EventRing,
    pub vector: u32,
    /// The event types that the queue subscribes to.
    pub bitmask: [u64; 4],
    pub uar_page: u32,
    pub context: EqContext,
}

impl Eq {
    /// Whether the queue subscribes to events of this type.
    pub(crate) fn takes(&self, kind: u8) -> bool {
        self.bitmask[usize::from(kind) / 64] >> (kind % 64) & 1 != 0
    }
}
