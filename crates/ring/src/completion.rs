//! Outcomes of work requests.

use core::fmt;

use verbless_prm::hot::{CqeUserIndex, OpcodeQpn, cqe_opcode, cqe_syndrome, opcode};

use crate::address::{GRH_BYTES, Source};
use crate::cq::{Cqe, Outcome, RequestId};
use crate::eth_cqe::EthCqe;
use crate::types::{Be32, Qpn, Rkey, WqeIndex};

/// A request that completed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The cookie that the request was posted with.
    pub cookie: u64,
    /// The operation's number, and the QPN.
    opcode_qpn: Be32,
    user_index: Be32,
    /// Immediate, or invalidated key, by operation.
    immediate: Be32,
    /// Byte count in the byte order of the CQE.
    byte_count: Be32,
}

impl Completion {
    /// The completion of a send request whose CQE matches the posted request.
    #[inline(always)]
    pub(crate) const fn sent(cookie: u64, request: RequestId, outcome: Outcome) -> Self {
        let Outcome { user_index, immediate, byte_count } = outcome;
        Self { cookie, opcode_qpn: request.opcode_qpn, user_index, immediate, byte_count }
    }

    /// The completion of a receive; the opcode field of its CQE is not meaningful.
    #[inline(always)]
    pub(crate) const fn received(cookie: u64, cqe: &Cqe, operation: WcOpcode) -> Self {
        let opcode_qpn = cqe.request().opcode_qpn().with_wqe_opcode(operation as u8).into_bits();
        let Outcome { user_index, immediate, byte_count } = cqe.outcome();
        Self { cookie, opcode_qpn: Be32::new(opcode_qpn), user_index, immediate, byte_count }
    }

    /// The operation that completed.
    pub const fn operation(&self) -> WcOpcode {
        WcOpcode::from_number(OpcodeQpn::from_bits(self.opcode_qpn.get()).wqe_opcode())
    }

    /// The queue pair that the request was posted to; for an SRQ WQE, the queue pair that the
    /// message was sent to.
    pub const fn qpn(&self) -> Qpn {
        Qpn(OpcodeQpn::from_bits(self.opcode_qpn.get()).qpn())
    }

    /// The user index that this queue pair was created with, 24 bits.
    pub const fn user_index(&self) -> u32 {
        CqeUserIndex::from_bits(self.user_index.get()).srqn_uidx()
    }

    /// Bytes written to local memory by a receive, a READ, or an atomic (8); 0 for other requests.
    pub const fn byte_len(&self) -> u32 {
        match self.operation() {
            WcOpcode::Read
            | WcOpcode::Receive
            | WcOpcode::ReceiveImm
            | WcOpcode::ReceiveInvalidate
            | WcOpcode::ReceiveWriteImm => self.byte_count.get(),
            WcOpcode::CompareSwap | WcOpcode::FetchAdd => 8,
            _ => 0,
        }
    }

    /// The immediate data of the received message, if it has any.
    pub const fn immediate(&self) -> Option<u32> {
        match self.operation() {
            WcOpcode::ReceiveImm | WcOpcode::ReceiveWriteImm => Some(self.immediate.get()),
            _ => None,
        }
    }

    /// The local key that the peer invalidated, if any.
    pub const fn invalidated(&self) -> Option<Rkey> {
        match self.operation() {
            WcOpcode::ReceiveInvalidate => Some(Rkey(self.immediate.get())),
            _ => None,
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("cookie", &self.cookie)
            .field("operation", &self.operation())
            .field("qpn", &self.qpn())
            .field("user_index", &self.user_index())
            .field("byte_len", &self.byte_len())
            .field("immediate", &self.immediate())
            .field("invalidated", &self.invalidated())
            .finish()
    }
}

/// A completion of a datagram queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The completion. The byte count of a receive includes the 40 bytes before the message.
    pub completion: Completion,
    /// The sender of a received message; `None` for a send.
    pub source: Option<Source>,
}

impl Datagram {
    /// Length in bytes of the received datagram, which begins after [`GRH_BYTES`]; 0 for a send.
    pub const fn message_len(&self) -> u32 {
        self.completion.byte_len().saturating_sub(GRH_BYTES as u32)
    }
}

/// Declares [`WcOpcode`], and the list of its values.
macro_rules! operations {
    ($(#[$attr:meta])* pub enum WcOpcode {
        $($(#[$value_attr:meta])* $value:ident = $number:expr,)*
    }) => {
        $(#[$attr])*
        pub enum WcOpcode {
            $($(#[$value_attr])* $value = $number,)*
        }

        impl WcOpcode {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$value),*];
        }
    };
}

operations! {
    /// The operation of a request. The values are the opcodes of send requests, and those of
    /// receive CQEs plus 0x80.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum WcOpcode {
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
        /// A copy of memory within the device.
        DmaMmo = opcode::MMO,
        /// A wait for data.
        Wait = opcode::WAIT,
        /// A WRITE with an immediate arrived; its data is at the address in the request.
        ReceiveWriteImm = 0x80 | cqe_opcode::RESPONDER_WRITE_IMM,
        /// A SEND arrived.
        Receive = 0x80 | cqe_opcode::RESPONDER_SEND,
        /// A SEND with an immediate arrived.
        ReceiveImm = 0x80 | cqe_opcode::RESPONDER_SEND_IMM,
        /// A SEND arrived that invalidated a local key.
        ReceiveInvalidate = 0x80 | cqe_opcode::RESPONDER_SEND_INVALIDATE,
    }
}

impl WcOpcode {
    /// The operation with this number. A completion holds only numbers of operations in this enum;
    /// any other number gives a NOP.
    pub(crate) const fn from_number(number: u8) -> Self {
        const BY_NUMBER: [WcOpcode; 256] = {
            let mut table = [WcOpcode::Nop; 256];
            let mut i = 0;
            while i < WcOpcode::ALL.len() {
                let operation = WcOpcode::ALL[i];
                table[operation as usize] = operation;
                i += 1;
            }
            table
        };
        BY_NUMBER[number as usize]
    }
}

/// Why a request failed: the syndrome of an error CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// The message does not fit the receive, or our own length is wrong.
    LocalLength,
    /// The QP could not execute the request.
    LocalQpOperation,
    /// A local key is unknown, of another PD, out of bounds, or lacks the right.
    LocalProtection,
    /// The QP failed before this request ran.
    Flushed,
    /// A memory window could not be bound.
    MemoryWindowBind,
    /// The peer's response was invalid.
    BadResponse,
    /// As responder, the device could not access local memory.
    LocalAccess,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer refused: key, PD, bounds or rights.
    RemoteAccess,
    /// The peer failed while it served the request.
    RemoteOperation,
    /// The peer did not answer.
    TransportRetryExceeded,
    /// The peer had no receive posted.
    RnrRetryExceeded,
    /// The peer aborted.
    RemoteAborted,
    /// Another, undocumented syndrome.
    Other(u8),
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalLength => {
                f.write_str("local length error: the message exceeds its buffer or the limit")
            }
            Self::LocalQpOperation => f.write_str(
                "local QP operation error: bad work request, or not legal in this state",
            ),
            Self::LocalProtection => {
                f.write_str("local protection error: check the lkey, its PD, bounds and rights")
            }
            Self::Flushed => {
                f.write_str("flushed: the QP went to the error state before this request ran")
            }
            Self::MemoryWindowBind => {
                f.write_str("memory window bind error: a bind or UMR was refused")
            }
            Self::BadResponse => f.write_str("bad response from the peer"),
            Self::LocalAccess => {
                f.write_str("local access error: a peer's request failed on our memory")
            }
            Self::RemoteInvalidRequest => f.write_str(
                "remote invalid request: the peer's QP does not allow it, its length is wrong, or \
                 an atomic's address is not a multiple of 8",
            ),
            Self::RemoteAccess => {
                f.write_str("remote access error: check the rkey, its PD, bounds and rights")
            }
            Self::RemoteOperation => {
                f.write_str("remote operation error: the peer failed to complete it")
            }
            Self::TransportRetryExceeded => {
                f.write_str("transport retries exceeded: the peer does not answer")
            }
            Self::RnrRetryExceeded => {
                f.write_str("RNR retries exceeded: the peer has no receive posted")
            }
            Self::RemoteAborted => f.write_str("remote aborted error: the peer aborted"),
            Self::Other(it) => write!(f, "syndrome {it:#04x}"),
        }
    }
}

impl core::error::Error for WcStatus {}

impl WcStatus {
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

    /// The syndrome in an error CQE for this status.
    pub const fn syndrome(self) -> u8 {
        match self {
            Self::LocalLength => cqe_syndrome::LOCAL_LENGTH,
            Self::LocalQpOperation => cqe_syndrome::LOCAL_QP_OPERATION,
            Self::LocalProtection => cqe_syndrome::LOCAL_PROTECTION,
            Self::Flushed => cqe_syndrome::FLUSHED,
            Self::MemoryWindowBind => cqe_syndrome::MEMORY_WINDOW_BIND,
            Self::BadResponse => cqe_syndrome::BAD_RESPONSE,
            Self::LocalAccess => cqe_syndrome::LOCAL_ACCESS,
            Self::RemoteInvalidRequest => cqe_syndrome::REMOTE_INVALID_REQUEST,
            Self::RemoteAccess => cqe_syndrome::REMOTE_ACCESS,
            Self::RemoteOperation => cqe_syndrome::REMOTE_OPERATION,
            Self::TransportRetryExceeded => cqe_syndrome::TRANSPORT_RETRY_EXCEEDED,
            Self::RnrRetryExceeded => cqe_syndrome::RNR_RETRY_EXCEEDED,
            Self::RemoteAborted => cqe_syndrome::REMOTE_ABORTED,
            Self::Other(syndrome) => syndrome,
        }
    }
}

/// A request that failed, or a CQE that completes nothing here.
#[derive(PartialEq, Eq)]
pub enum CompletionError {
    /// The request failed. Its QP is in the error state, and the device flushes later requests.
    Failed(FailedRequest),
    /// The device broke its rules. Nothing was completed; treat the queue as broken.
    InvalidCqe(InvalidCqe),
    /// A receive CQE of a shared receive queue, passed to one of its queue pairs: pass it to
    /// [`SharedReceiveQueue::complete`](crate::SharedReceiveQueue::complete) of the shared receive
    /// queue instead.
    OtherSrq(Cqe),
    /// A CQE of another queue; nothing was completed. Pass it to the queue of [`Cqe::qpn`]
    /// ([`Cqe::user_index`] in a dispatcher of those): without it, that queue can neither free the
    /// request's slots nor return its cookie.
    OtherQueue(Cqe),
    /// As [`OtherQueue`](Self::OtherQueue), from a receive queue of frames: the CQE with the words
    /// that describe the frame. Pass it to the queue of its [user index](Cqe::user_index).
    OtherRawRq(EthCqe),
}

/// Same as `Display`, because `main` prints a returned error by `Debug`.
impl fmt::Debug for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(it) => it.fmt(f),
            Self::InvalidCqe(it) => write!(f, "invalid CQE: {it}"),
            Self::OtherSrq(cqe) => write!(
                f,
                "the CQE of SRQ WQE {} (QP {}): pass it to SharedReceiveQueue::complete",
                cqe.wqe_index(),
                cqe.qpn()
            ),
            Self::OtherQueue(cqe) => write!(
                f,
                "the CQE of WQE {} of another queue, QP {} (user index {:#x}): complete it there",
                cqe.wqe_index(),
                cqe.qpn(),
                cqe.user_index()
            ),
            Self::OtherRawRq(frame) => write!(
                f,
                "the CQE of WQE {} of another frame queue (user index {:#x}): complete it there",
                frame.cqe().wqe_index(),
                frame.cqe().user_index()
            ),
        }
    }
}

impl core::error::Error for CompletionError {}

/// A failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// The cookie that the request was posted with.
    pub cookie: u64,
    /// The reason.
    pub status: WcStatus,
    /// The vendor's detailed reason, for a support case: its values are not published.
    pub vendor_syndrome: u8,
    /// The request.
    pub wqe_index: WqeIndex,
    /// Whether the request was a receive.
    pub receive: bool,
    /// The queue pair that the request was posted to; for an SRQ WQE, the queue pair that the
    /// message was sent to.
    pub qpn: Qpn,
    /// The user index that this queue pair was created with, 24 bits.
    pub user_index: u32,
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, vendor_syndrome, wqe_index, receive, qpn, .. } = self;
        let what = if *receive { "receive" } else { "WQE" };
        write!(f, "{status} (QP {qpn}, {what} {wqe_index}, vendor syndrome {vendor_syndrome:#04x})")
    }
}

impl core::error::Error for FailedRequest {}

impl FailedRequest {
    /// The error that an error CQE reports for the request with this cookie.
    pub(crate) const fn new(cookie: u64, cqe: &Cqe) -> Self {
        Self {
            cookie,
            status: WcStatus::from_syndrome(cqe.syndrome()),
            vendor_syndrome: cqe.vendor_syndrome(),
            wqe_index: cqe.wqe_index(),
            receive: cqe.is_receive(),
            qpn: cqe.qpn(),
            user_index: cqe.user_index(),
        }
    }
}

/// Why a CQE is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidCqe {
    /// The opcode is invalid for this queue.
    Opcode(u8),
    /// The CQE has another opcode than the send request that was posted.
    WorkRequest(u8),
    /// The CQE has the index of a WQE that is not outstanding.
    Index(WqeIndex),
    /// The CQE has a format that this queue did not request: compressed.
    Format(u8),
}

impl fmt::Display for InvalidCqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode(it) => write!(f, "opcode {it:#x}"),
            Self::WorkRequest(it) => {
                write!(f, "work request opcode {it:#04x} is not the posted one")
            }
            Self::Index(it) => write!(f, "WQE {it} is not outstanding"),
            Self::Format(it) => write!(f, "format {it}"),
        }
    }
}

impl core::error::Error for InvalidCqe {}

/// The error of an invalid CQE.
#[cold]
pub(crate) fn invalid_cqe(invalid_cqe: InvalidCqe) -> CompletionError {
    CompletionError::InvalidCqe(invalid_cqe)
}
