//! What became of a work request.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, opcode};

use crate::address::{HEADER_BYTES, Source};
use crate::types::{Qpn, Rkey, WqeIndex};

/// A request that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What was given when it was posted.
    pub cookie: u64,
    /// What was done.
    pub operation: Operation,
    /// Bits 31:0: bytes, as the CQE counts them. Bits 63:32: immediate, or invalidated key, by operation.
    pub(crate) data: u64,
}

impl Completion {
    /// Bytes that arrived here: of a receive, a READ, or an atomic (8). 0 for what only sends.
    pub const fn byte_len(&self) -> u32 {
        match self.operation {
            Operation::Read
            | Operation::Receive
            | Operation::ReceiveImm
            | Operation::ReceiveInvalidate
            | Operation::ReceiveWriteImm => self.data as u32,
            Operation::CompareSwap | Operation::FetchAdd => 8,
            _ => 0,
        }
    }

    /// The peer's immediate, if one came.
    pub const fn immediate(&self) -> Option<u32> {
        match self.operation {
            Operation::ReceiveImm | Operation::ReceiveWriteImm => Some((self.data >> 32) as u32),
            _ => None,
        }
    }

    /// The key of ours that the peer has invalidated, if it has.
    pub const fn invalidated(&self) -> Option<Rkey> {
        match self.operation {
            Operation::ReceiveInvalidate => Some(Rkey((self.data >> 32) as u32)),
            _ => None,
        }
    }
}

/// A completion of a datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The completion. The bytes of a receive include the 40 in front of the message.
    pub completion: Completion,
    /// Where a received message came from; `None` of a send.
    pub source: Option<Source>,
}

impl Datagram {
    /// Bytes of the message that arrived; they stand behind [`HEADER_BYTES`]. 0 of a send.
    pub const fn message_len(&self) -> u32 {
        self.completion.byte_len().saturating_sub(HEADER_BYTES as u32)
    }
}

/// What a request did. The numbers are the opcodes of send requests, and those of receive CQEs plus 0x80.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// No operation.
    Nop = opcode::NOP,
    /// SEND.
    Send = opcode::SEND,
    /// SEND with immediate.
    SendImm = opcode::SEND_IMM,
    /// SEND with invalidate.
    SendInvalidate = opcode::SEND_INVALIDATE,
    /// RDMA WRITE.
    Write = opcode::WRITE,
    /// RDMA WRITE with immediate.
    WriteImm = opcode::WRITE_IMM,
    /// RDMA READ.
    Read = opcode::READ,
    /// Compare and swap.
    CompareSwap = opcode::COMPARE_SWAP,
    /// Fetch and add.
    FetchAdd = opcode::FETCH_ADD,
    /// A change of a key: UMR, local invalidate.
    Umr = opcode::UMR,
    /// A WRITE arrived with an immediate; the data went where the peer said.
    ReceiveWriteImm = 0x80 | cqe_opcode::RESPONDER_WRITE_IMM,
    /// A SEND arrived.
    Receive = 0x80 | cqe_opcode::RESPONDER_SEND,
    /// A SEND arrived with an immediate.
    ReceiveImm = 0x80 | cqe_opcode::RESPONDER_SEND_IMM,
    /// A SEND arrived, and has invalidated a key of ours.
    ReceiveInvalidate = 0x80 | cqe_opcode::RESPONDER_SEND_INVALIDATE,
}

/// Why a request failed: the syndrome of an error CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Status {
    /// The message does not fit the receive, or our own length is wrong.
    #[error("local length error: the message does not fit")]
    LocalLength,
    /// The QP could not do it.
    #[error("local QP operation error: bad work request, or not legal in this state")]
    LocalQpOperation,
    /// A key of ours: unknown, of another PD, out of bounds, or without the right.
    #[error("local protection error: an lkey, its PD, bounds or rights")]
    LocalProtection,
    /// The QP failed before this request ran.
    #[error("flushed: the QP went to the error state before this request ran")]
    Flushed,
    /// A memory window could not be bound.
    #[error("memory window bind error")]
    MemoryWindowBind,
    /// The peer's answer made no sense.
    #[error("bad response from the peer")]
    BadResponse,
    /// As responder, we could not access our memory.
    #[error("local access error while serving the peer")]
    LocalAccess,
    /// The peer found the request invalid.
    #[error("remote invalid request: the peer does not support it, or its length is wrong")]
    RemoteInvalidRequest,
    /// The peer refused: key, PD, bounds or rights.
    #[error("remote access error: an rkey, its PD, bounds or rights")]
    RemoteAccess,
    /// The peer failed while it served the request.
    #[error("remote operation error: the peer failed")]
    RemoteOperation,
    /// The peer did not answer.
    #[error("transport retries exceeded: the peer does not answer")]
    TransportRetryExceeded,
    /// The peer had no receive posted.
    #[error("RNR retries exceeded: the peer has no receive posted")]
    RnrRetryExceeded,
    /// The peer aborted.
    #[error("the peer aborted")]
    RemoteAborted,
    /// Another syndrome, which is not published.
    #[error("syndrome {0:#04x}")]
    Other(u8),
}

impl Status {
    /// The status that the syndrome of an error CQE means.
    pub const fn from_syndrome(syndrome: u8) -> Self {
        match syndrome {
            cqe_syndrome::LOCAL_LENGTH => Self::LocalLength,
            cqe_syndrome::LOCAL_QP_OPERATION => Self::LocalQpOperation,
            cqe_syndrome::LOCAL_PROTECTION => Self::LocalProtection,
            cqe_syndrome::FLUSHED => Self::Flushed,
            cqe_syndrome::MEMORY_WINDOW_BIND => Self::MemoryWindowBind,
            cqe_syndrome::BAD_RESPONSE => Self::BadResponse,
            cqe_syndrome::LOCAL_ACCESS => Self::LocalAccess,
            cqe_syndrome::REMOTE_INVALID_REQUEST => Self::RemoteInvalidRequest,
            cqe_syndrome::REMOTE_ACCESS => Self::RemoteAccess,
            cqe_syndrome::REMOTE_OPERATION => Self::RemoteOperation,
            cqe_syndrome::TRANSPORT_RETRY_EXCEEDED => Self::TransportRetryExceeded,
            cqe_syndrome::RNR_RETRY_EXCEEDED => Self::RnrRetryExceeded,
            cqe_syndrome::REMOTE_ABORTED => Self::RemoteAborted,
            other => Self::Other(other),
        }
    }
}

/// A request that failed, or a CQE that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The request failed. Its QP is in the error state, and what was posted behind it will be flushed.
    #[error("{0}")]
    Failed(Failure),
    /// The device broke its rules. Nothing was completed; treat the queue as broken.
    #[error("impossible CQE: {0}")]
    Malformed(Malformed),
}

/// A failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} ({} {wqe_index}, vendor syndrome {vendor_syndrome:#04x})", if *.receive { "receive" } else { "WQE" })]
pub struct Failure {
    /// What was given when it was posted.
    pub cookie: u64,
    /// Why.
    pub status: Status,
    /// The vendor's finer reason, for a support case: its values are not published.
    pub vendor_syndrome: u8,
    /// The request.
    pub wqe_index: WqeIndex,
    /// Whether it was a receive.
    pub receive: bool,
}

/// What is impossible about a CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It names another queue. Not the device's fault if it was given to the wrong [`QueuePair`](crate::QueuePair).
    #[error("it is of QP {0}")]
    Queue(Qpn),
    /// Its opcode is none that this queue can get.
    #[error("opcode {0:#x}")]
    Opcode(u8),
    /// It is of a receive that several queue pairs share. Not the device's fault if it was given to one of those:
    /// [`SharedReceiveQueue::complete`](crate::SharedReceiveQueue::complete) is its place.
    #[error("it is of a shared receive queue")]
    Shared,
    /// It completes a send request of another opcode than the one that was posted.
    #[error("work request opcode {0:#04x}, which is not what was posted")]
    WorkRequest(u8),
    /// It completes a WQE that is not outstanding.
    #[error("WQE {0} is not outstanding")]
    Index(WqeIndex),
    /// It is of a format that this queue did not ask for: compressed.
    #[error("format {0}")]
    Format(u8),
}
