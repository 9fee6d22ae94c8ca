//! Work queues: QPs, SQs, RQs and SRQs, and TIRs and TISs.

use verbless_prm::{
    QpContext, RmpContext, RqContext, RqState, SqContext, SqState, TirContext, TisContext,
    XrcSrqContext,
};

use super::queue_memory::QueueMemory;
use super::uid::Uid;
use crate::hca::qp_type::QpType;
use crate::runtime::{QpRuntime, SendRuntime};

/// QP states in the PRM's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    SqError = 4,
    SqDrained = 5,
    Error = 6,
}

impl QpState {
    /// Whether a QP receives messages in this state.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::SqError | Self::SqDrained)
    }

    pub(crate) fn to_prm(self) -> verbless_prm::QpState {
        verbless_prm::QpState(self as u8)
    }
}

/// The send half of a QP, or an SQ.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub memory: QueueMemory,
    /// log2 of the number of WQEBBs.
    pub log_size: u32,
    pub cqn: u32,
    /// Index of the next WQEBB to execute, modulo 2^16 (a CQE's wqe_counter).
    pub consumer: u16,
    /// Producer index as last read from the record.
    pub producer: u16,
    /// A doorbell arrived, and the queue is not drained yet.
    pub awake: bool,
    /// The engine's state; initially and after a reset the default.
    pub runtime: SendRuntime,
}

impl SendQueue {
    /// An empty queue of 2^`log_size` WQEBBs.
    pub(crate) fn new(memory: QueueMemory, log_size: u32, cqn: u32) -> Self {
        Self {
            memory,
            log_size,
            cqn,
            consumer: 0,
            producer: 0,
            awake: false,
            runtime: Default::default(),
        }
    }

    /// Resets the indices; returns the engine's old state.
    pub(crate) fn reset(&mut self) -> SendRuntime {
        (self.consumer, self.producer, self.awake) = (0, 0, false);
        // UCX does not clear the doorbell record on reset (`uct_ib_mlx5_txwq_reset`). `rung` stays,
        // so that the engine accepts a nonzero record, which it rejects for a new queue.
        let kept = SendRuntime { rung: self.runtime.rung, ..SendRuntime::default() };
        std::mem::replace(&mut self.runtime, kept)
    }
}

/// The receive half of a QP, an RQ or an RMP.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub memory: QueueMemory,
    /// log2 of the number of WQEs.
    pub log_size: u32,
    /// log2 of the stride in bytes.
    pub log_stride: u32,
    pub cqn: u32,
    pub consumer: u16,
}

/// The destination of a connected QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// InfiniBand, by LID.
    Lid(u16),
    /// InfiniBand, by LID and with a GRH, whose GID selects the port among those that share the
    /// LID.
    Routed { lid: u16, gid: [u8; 16] },
    /// RoCE, by GID and MAC. `own` is src_addr_index: that entry of the sender's GID table selects
    /// the VLAN and the RoCE version.
    Roce { gid: [u8; 16], mac: [u8; 6], own: u8 },
    /// The function itself, within the device (force loopback).
    Own,
}

/// The requester half of a connected QP.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Next PSN to send.
    pub psn: u32,
    pub retry_limit: u8,
    pub rnr_retry_limit: u8,
    /// Local ACK timeout code n: 4.096 µs * 2^n; 0: no timeout.
    pub ack_timeout: u8,
    pub retries_left: u8,
    pub rnr_retries_left: u8,
    pub max_rd_atomic: u8,
}

/// The responder half of a connected QP.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Next PSN expected.
    pub psn: u32,
    pub min_rnr_timer: u8,
    pub allow_read: bool,
    pub allow_write: bool,
    pub allow_atomic: bool,
    pub max_dest_rd_atomic: u8,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QpObject {
    pub uid: Uid,
    pub state: QpState,
    pub qp_type: &'static QpType,
    pub pd: u32,
    pub uar_page: u32,
    /// Address of the 8-byte doorbell record: receive counter, then send counter.
    pub record: u64,
    pub sq: Option<SendQueue>,
    pub rq: Option<ReceiveQueue>,
    /// The SRQ (XRC SRQ or RMP) that replaces the RQ.
    pub srq: Option<u32>,
    pub remote_qpn: u32,
    pub remote: Option<Address>,
    /// The port that the QP sends from, counted from 1.
    pub port: u8,
    /// srqn_uidx of every CQE; 0xffffff: CQEs hold the SRQN, or 0 without SRQ.
    pub user_index: u32,
    /// Whether the QP executes WQEs that copy memory within the device (mmo of the context's
    /// extension).
    pub mmo: bool,
    /// Bytes of a READ or atomic response that may be delivered in the CQE (0, 32 or 64; cs_req).
    pub requester_inline: u8,
    /// Bytes of a received message that may be delivered in the CQE (0, 32 or 64; cs_res).
    pub responder_inline: u8,
    /// log2 of the path MTU in bytes (8 to 12).
    pub log_mtu: u32,
    pub requester: Requester,
    pub responder: Responder,
    pub umems: Vec<u32>,
    /// The multicast groups that the QP joined.
    pub groups: Vec<[u8; 16]>,
    /// The engine's state; initially and after 2RST the default.
    pub runtime: QpRuntime,
    pub context: QpContext,
}

/// A send queue without a QP.
#[derive(Debug)]
pub(crate) struct Sq {
    pub uid: Uid,
    pub state: SqState,
    /// PD of the WQEs' lkeys. No mkey has PD 0.
    pub pd: u32,
    pub uar_page: u32,
    /// Address of the 8-byte doorbell record; its second word counts the WQEBBs posted.
    pub record: u64,
    pub queue: SendQueue,
    pub umems: Vec<u32>,
    pub context: SqContext,
}

/// A receive queue of Ethernet frames.
#[derive(Debug)]
pub(crate) struct Rq {
    pub uid: Uid,
    pub state: RqState,
    /// PD of the WQEs' lkeys; `None` with an RMP, which has a PD of its own.
    pub pd: Option<u32>,
    /// Address of the 8-byte doorbell record of the queue's own ring; its first word counts the
    /// posted WQEs.
    pub record: u64,
    /// The queue's own ring; `None` with an RMP.
    pub queue: Option<ReceiveQueue>,
    /// The RMP that holds the WQEs instead.
    pub srq: Option<u32>,
    pub umems: Vec<u32>,
    pub context: RqContext,
}

/// A transport interface for sending: SQs send frames through it.
#[derive(Debug)]
pub(crate) struct Tis {
    pub uid: Uid,
    pub context: TisContext,
}

/// A transport interface for receiving: it directs frames to an RQ.
#[derive(Debug)]
pub(crate) struct Tir {
    pub uid: Uid,
    pub context: TirContext,
}

/// A receive queue that several QPs share: an XRC SRQ or an RMP.
#[derive(Debug)]
pub(crate) struct Srq {
    pub uid: Uid,
    pub pd: u32,
    pub memory: QueueMemory,
    /// Address of the 8-byte doorbell record; its first word counts the WQEs posted.
    pub record: u64,
    /// log2 of the number of WQEs.
    pub log_size: u32,
    /// log2 of the stride in bytes.
    pub log_stride: u32,
    /// The device uses WQEs in ring order, and not by their links.
    pub cyclic: bool,
    /// The index of the next WQE to use; its low bits are the index in the ring.
    pub head: u16,
    /// WQEs consumed, modulo 2^16.
    pub consumed: u16,
    /// lwm: the SRQ-limit event is raised when fewer WQEs are left; 0: not armed.
    pub limit: u16,
    /// The CQ of an XRC SRQ; an RMP's users have their own.
    pub cqn: Option<u32>,
    pub xrcd: Option<u32>,
    pub umems: Vec<u32>,
    pub context: SrqContext,
}

/// The context with which software created an SRQ.
#[derive(Debug, Clone)]
pub(crate) enum SrqContext {
    XrcSrq(XrcSrqContext),
    Rmp(Box<RmpContext>),
}
