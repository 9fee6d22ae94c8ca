//! What commands do that concerns queues at work. The engine hears of it right after the command,
//! under the same lock; objects know nothing of the engine.

use verbless_prm::CqContext;

use crate::hca::objects::QueueMemory;
use crate::runtime::{CqRuntime, QpRuntime, SendRuntime};

/// One consequence of a command.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A QP or SQ may send from now on.
    SenderReady(u32),
    /// A QP was reset or is gone, with all that was in flight.
    QpForgotten(u32, QpRuntime, Option<SendRuntime>),
    /// The same of an SQ.
    SqForgotten(u32, SendRuntime),
    /// An RQ was reset or is gone.
    RqForgotten(u32),
    /// A QP is to go to the error state.
    QpToError(u32),
    /// An SQ is to go to the error state.
    SqToError(u32),
    /// An RQ is to go to the error state.
    RqToError(u32),
    /// A CQ is gone.
    CqForgotten(u32, CqRuntime),
    /// A CQ is to get another buffer: the one effect that the data path may refuse.
    CqResize(Box<Resize>),
    /// Every queue is gone.
    AllForgotten,
    /// Port `.0` (from 1) has another LID.
    PortLid(u8),
    /// Ports have other addresses.
    AddressesChanged,
    /// A doorbell of an emulated device was rung.
    EmulatedDoorbell(u32),
    /// An event of type `kind` is to be reported, with bytes 0x20 to 0x3c of the entry.
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
