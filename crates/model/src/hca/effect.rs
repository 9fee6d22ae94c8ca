//! Effects of commands on the engine's queues. The engine applies them right after the command,
//! under the same lock; objects do not depend on the engine.

use verbless_prm::CqContext;

use crate::hca::doorbell::PageDoorbell;
use crate::hca::objects::QueueMemory;
use crate::runtime::{CqRuntime, QpRuntime, SendRuntime};

/// An effect of a command.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A QP or SQ entered a state in which it may send.
    SenderReady(u32),
    /// A QP was reset or destroyed, with everything in flight.
    QpForgotten(u32, QpRuntime, Option<SendRuntime>),
    /// An SQ was reset or destroyed, with everything in flight.
    SqForgotten(u32, SendRuntime),
    /// An RQ was reset or destroyed.
    RqForgotten(u32),
    /// A QP must go to the error state.
    QpToError(u32),
    /// An SQ must go to the error state.
    SqToError(u32),
    /// An RQ must go to the error state.
    RqToError(u32),
    /// A CQ was destroyed.
    CqForgotten(u32, CqRuntime),
    /// A CQ must get another buffer: the only effect that the data path may refuse.
    CqResize(Box<Resize>),
    /// A doorbell of a UAR page was dropped with its queue.
    DoorbellForgotten(PageDoorbell, u32),
    /// Every queue was destroyed.
    AllForgotten,
    /// Port `.0` (from 1) has another LID.
    PortLid(u8),
    /// The addresses of ports changed.
    AddressesChanged,
    /// A doorbell of an emulated device was rung.
    EmulatedDoorbell(u32),
    /// An event of type `kind` must be reported, with bytes 0x20 to 0x3c of the entry.
    Event { kind: u8, data: [u8; 28] },
}

/// A new buffer for a CQ.
#[derive(Debug)]
pub(crate) struct Resize {
    pub cqn: u32,
    pub memory: QueueMemory,
    pub log_size: u32,
    pub context: CqContext,
    /// The UMEMs of buffer and record.
    pub umems: Vec<u32>,
}
