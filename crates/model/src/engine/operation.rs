//! The operations of send queues: one table with one entry for each operation. The entry holds all
//! that is particular to it: the services that carry it, the layout of its WQE, and its execution
//! by the device or the peer. To add an operation, add its entry; if its execution is of a new
//! kind, the compiler names each `match` that lacks it.
//!
//! Sources: Linux `include/linux/mlx5/device.h` (MLX5_OPCODE_*, MLX5_MAX_SGE_RD),
//! `include/linux/mlx5/qp.h`; InfiniBand specification, volume 1, 9.2 (operations of each transport
//! service).

use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_prm::{HcaCap, MmoOpMod, ServiceType, WaitOpMod};

use super::counters::Count;
use super::sender::{MAX_WQE_BYTES, Malformed};
use crate::connection::Response;
use crate::hca::qp_type::QpType;
use verbless_wire::Message;

/// An operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub name: &'static str,
    /// The opcode in the control segment.
    pub opcode: u8,
    pub op_mod: u8,
    /// The QP types whose send queues carry the operation.
    pub carriers: QpTypeSet,
    /// The execution on an SQ, which has no QP type; `None`: an SQ refuses it.
    pub on_sq: Option<OnSq>,
    /// The capability that the device needs for the operation.
    pub needs: Option<Capability>,
    /// The segments between the control segment and the data, in order.
    pub segments: &'static [WqeSegment],
    /// Bytes of the operation's longest WQE.
    pub longest: usize,
    /// Opcode of the receiver's CQE, if it consumes a receive WQE.
    pub responder_cqe: Option<u8>,
    /// The control segment's immediate (or the rkey to invalidate) goes into the receiver's CQE.
    pub immediate: bool,
    /// The immediate is a key, which the receiver frees.
    pub invalidate: bool,
    pub execution: Execution,
}

/// A set of QP types: a bit for each number.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpTypeSet(u32);

/// The execution of an operation on an SQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnSq {
    /// Sends the frame that the WQE describes.
    Frame,
    /// Only completes.
    Nop,
}

/// How an operation is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Execution {
    /// The device executes it, when nothing before it in the send queue is in flight.
    Local(Local),
    /// The peer executes it, and gets a message.
    Remote(Remote),
}

/// An operation that does not leave the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Local {
    /// Only completes.
    Nop,
    /// Changes a memory key.
    Umr,
    /// Copies memory.
    Copy,
    /// Stops the send queue until a word in memory fulfils a condition.
    Wait,
}

/// An operation of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remote {
    Send,
    Write,
    Read,
    Atomic(Atomic),
}

/// What an atomic does to the word in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Atomic {
    CompareSwap,
    FetchAdd,
}

/// The operands of an atomic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Operands {
    pub swap_add: u64,
    pub compare: u64,
}

/// A segment in front of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WqeSegment {
    /// The address vector, with services whose requests each have one.
    Address,
    /// Remote address and rkey.
    Remote,
    /// The operands of an atomic.
    Atomic,
    /// The metadata of a memory copy: the buffer for its status.
    Metadata,
    /// The condition of a WAIT, read at its execution.
    Wait,
    /// The rest of a UMR's WQE, read at its execution.
    Umr,
}

/// A capability bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capability {
    Atomic,
    DmaMmoQp,
    WaitOnData,
}

const RELIABLE: QpTypeSet = QpTypeSet::of(&[ServiceType::RC]);
const CONNECTED: QpTypeSet = RELIABLE.and(&[ServiceType::UC]);
const SENDING: QpTypeSet = CONNECTED.and(&[ServiceType::UD, ServiceType::QP0, ServiceType::QP1]);

/// Values that most entries share.
const BASE: Operation = Operation {
    name: "",
    opcode: opcode::NOP,
    op_mod: 0,
    carriers: RELIABLE,
    on_sq: None,
    needs: None,
    segments: &[],
    longest: MAX_WQE_BYTES,
    responder_cqe: None,
    immediate: false,
    invalidate: false,
    execution: Execution::Local(Local::Nop),
};

/// Every operation that the model knows; the most frequent come first.
pub(super) static TABLE: [Operation; 12] = [
    Operation {
        name: "WRITE",
        opcode: opcode::WRITE,
        carriers: CONNECTED,
        segments: &[WqeSegment::Remote],
        execution: Execution::Remote(Remote::Write),
        ..BASE
    },
    Operation {
        name: "SEND",
        opcode: opcode::SEND,
        carriers: SENDING,
        on_sq: Some(OnSq::Frame),
        segments: &[WqeSegment::Address],
        responder_cqe: Some(cqe_opcode::RESPONDER_SEND),
        execution: Execution::Remote(Remote::Send),
        ..BASE
    },
    Operation {
        name: "READ",
        opcode: opcode::READ,
        segments: &[WqeSegment::Remote],
        longest: 512,
        execution: Execution::Remote(Remote::Read),
        ..BASE
    },
    Operation {
        name: "WRITE_IMM",
        opcode: opcode::WRITE_IMM,
        carriers: CONNECTED,
        segments: &[WqeSegment::Remote],
        responder_cqe: Some(cqe_opcode::RESPONDER_WRITE_IMM),
        immediate: true,
        execution: Execution::Remote(Remote::Write),
        ..BASE
    },
    Operation {
        name: "SEND_IMM",
        opcode: opcode::SEND_IMM,
        carriers: SENDING,
        segments: &[WqeSegment::Address],
        responder_cqe: Some(cqe_opcode::RESPONDER_SEND_IMM),
        immediate: true,
        execution: Execution::Remote(Remote::Send),
        ..BASE
    },
    Operation {
        name: "SEND_INVALIDATE",
        opcode: opcode::SEND_INVALIDATE,
        segments: &[WqeSegment::Address],
        responder_cqe: Some(cqe_opcode::RESPONDER_SEND_INVALIDATE),
        immediate: true,
        invalidate: true,
        execution: Execution::Remote(Remote::Send),
        ..BASE
    },
    Operation {
        name: "COMPARE_SWAP",
        opcode: opcode::COMPARE_SWAP,
        needs: Some(Capability::Atomic),
        segments: &[WqeSegment::Remote, WqeSegment::Atomic],
        execution: Execution::Remote(Remote::Atomic(Atomic::CompareSwap)),
        ..BASE
    },
    Operation {
        name: "FETCH_ADD",
        opcode: opcode::FETCH_ADD,
        needs: Some(Capability::Atomic),
        segments: &[WqeSegment::Remote, WqeSegment::Atomic],
        execution: Execution::Remote(Remote::Atomic(Atomic::FetchAdd)),
        ..BASE
    },
    Operation {
        name: "NOP",
        carriers: SENDING.and(&[ServiceType::REG_UMR]),
        on_sq: Some(OnSq::Nop),
        ..BASE
    },
    Operation {
        name: "UMR",
        opcode: opcode::UMR,
        carriers: CONNECTED.and(&[ServiceType::REG_UMR]),
        segments: &[WqeSegment::Umr],
        execution: Execution::Local(Local::Umr),
        ..BASE
    },
    Operation {
        name: "DMA",
        opcode: opcode::MMO,
        op_mod: MmoOpMod::DMA.0,
        needs: Some(Capability::DmaMmoQp),
        segments: &[WqeSegment::Metadata],
        execution: Execution::Local(Local::Copy),
        ..BASE
    },
    Operation {
        name: "WAIT",
        opcode: opcode::WAIT,
        op_mod: WaitOpMod::DATA.0,
        needs: Some(Capability::WaitOnData),
        segments: &[WqeSegment::Wait],
        execution: Execution::Local(Local::Wait),
        ..BASE
    },
];

/// Why a queue refuses a WQE, with a local QP operation error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WqeRefusal {
    /// The WQE is incomplete, or has the index or QPN of another slot.
    Malformed,
    /// No operation has the opcode and op_mod.
    Unknown,
    /// The queue is of a QP type that does not carry the operation.
    QpType,
    /// The device lacks the capability of this name.
    Lacks(&'static str),
}

impl From<Malformed> for WqeRefusal {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

impl Operation {
    /// The operation with this opcode and op_mod, if there is one.
    pub(super) fn find(opcode: u8, op_mod: u8) -> Result<&'static Self, WqeRefusal> {
        let asked = |entry: &&Self| entry.opcode == opcode && entry.op_mod == op_mod;
        TABLE.iter().find(asked).ok_or(WqeRefusal::Unknown)
    }

    /// The name of the first operation with an opcode, when only the opcode is known.
    pub(super) fn name_of(opcode: u8) -> &'static str {
        let found = TABLE.iter().find(|entry| entry.opcode == opcode);
        found.map_or("unknown", |operation| operation.name)
    }

    /// Refuses an operation that a QP of this type, on a device with these capabilities, lacks.
    pub(super) fn check(&self, qp_type: &QpType, general: &HcaCap) -> Result<(), WqeRefusal> {
        if !self.carriers.has(qp_type) {
            return Err(WqeRefusal::QpType);
        }
        match self.needs {
            Some(capability) if !capability.is_set(general) => {
                Err(WqeRefusal::Lacks(capability.name()))
            }
            _ => Ok(()),
        }
    }

    /// The peer's part of the operation; `None` if it stays in the device.
    #[inline]
    pub(super) fn remote(&self) -> Option<Remote> {
        match self.execution {
            Execution::Local(_) => None,
            Execution::Remote(remote) => Some(remote),
        }
    }

    /// The answer that acknowledges the operation's message.
    #[inline]
    pub(super) fn response(&self) -> Response {
        self.remote().map_or(Response::Acknowledgement, Remote::response)
    }

    /// Whether the requester's memory receives data: a READ or an atomic.
    pub(super) fn scatters(&self) -> bool {
        self.response() != Response::Acknowledgement
    }

    /// Whether the operation is COMPARE_SWAP or FETCH_ADD.
    pub(super) fn is_atomic(&self) -> bool {
        self.response() == Response::Atomic
    }
}

impl Remote {
    /// The operation of the peer for this type of message.
    pub(super) fn of(message: Message) -> Option<Self> {
        match message {
            Message::Send => Some(Self::Send),
            Message::Write => Some(Self::Write),
            Message::ReadRequest => Some(Self::Read),
            Message::CompareSwap => Some(Self::Atomic(Atomic::CompareSwap)),
            Message::FetchAdd => Some(Self::Atomic(Atomic::FetchAdd)),
            _ => None,
        }
    }

    /// The type of its packets' message.
    pub(super) fn message(self) -> Message {
        match self {
            Self::Send => Message::Send,
            Self::Write => Message::Write,
            Self::Read => Message::ReadRequest,
            Self::Atomic(Atomic::CompareSwap) => Message::CompareSwap,
            Self::Atomic(Atomic::FetchAdd) => Message::FetchAdd,
        }
    }

    /// The answer that acknowledges a request of this operation.
    #[inline]
    pub(super) fn response(self) -> Response {
        match self {
            Self::Send | Self::Write => Response::Acknowledgement,
            Self::Read => Response::Read,
            Self::Atomic(_) => Response::Atomic,
        }
    }

    /// The responder's counter of requests of this operation.
    pub(super) fn count(self) -> Option<Count> {
        match self {
            Self::Send => None,
            Self::Write => Some(Count::Writes),
            Self::Read => Some(Count::Reads),
            Self::Atomic(_) => Some(Count::Atomics),
        }
    }
}

impl Atomic {
    /// The new value of a word that holds `now`.
    pub(super) fn next(self, now: u64, operands: Operands) -> u64 {
        match self {
            Self::CompareSwap if now == operands.compare => operands.swap_add,
            Self::CompareSwap => now,
            Self::FetchAdd => now.wrapping_add(operands.swap_add),
        }
    }
}

impl Capability {
    /// The name of its field in [`HcaCap`].
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::DmaMmoQp => "dma_mmo_qp",
            Self::WaitOnData => "wait_on_data",
        }
    }

    fn is_set(self, general: &HcaCap) -> bool {
        match self {
            Self::Atomic => general.atomic(),
            Self::DmaMmoQp => general.dma_mmo_qp(),
            Self::WaitOnData => general.wait_on_data(),
        }
    }
}

impl QpTypeSet {
    const fn of(types: &[ServiceType]) -> Self {
        Self(0).and(types)
    }

    /// The union of these types and `types`.
    const fn and(self, types: &[ServiceType]) -> Self {
        let (mut bits, mut at) = (self.0, 0);
        while at < types.len() {
            bits |= 1 << types[at].0;
            at += 1;
        }
        Self(bits)
    }

    pub(super) fn has(self, qp_type: &QpType) -> bool {
        1_u32.checked_shl(qp_type.st.0.into()).is_some_and(|bit| self.0 & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::transport::types::*;

    /// The QP types that carry an operation according to the specifications.
    fn carriers(entry: &Operation) -> &'static [&'static QpType] {
        match entry.name {
            "SEND" | "SEND_IMM" => &[RC, UC, UD, QP0, QP1],
            "WRITE" | "WRITE_IMM" => &[RC, UC],
            "NOP" => &[RC, UC, UD, QP0, QP1, REG_UMR],
            "UMR" => &[RC, UC, REG_UMR],
            _ => &[RC],
        }
    }

    #[test]
    fn find_matches_exact_opcode_and_op_mod() {
        for (at, entry) in TABLE.iter().enumerate() {
            let found = Operation::find(entry.opcode, entry.op_mod).unwrap();
            assert!(std::ptr::eq(found, entry), "{} hides entry {at}", found.name);
            for op_mod in (0..=u8::MAX).filter(|&op_mod| op_mod != entry.op_mod) {
                let other = Operation::find(entry.opcode, op_mod);
                assert!(other.is_err_and(|why| why == WqeRefusal::Unknown), "{}", entry.name);
            }
        }
        for entry in &TABLE {
            let same = |other: &&Operation| other.name == entry.name;
            assert_eq!(TABLE.iter().filter(same).count(), 1, "{}: a duplicate", entry.name);
            assert!(!entry.name.is_empty(), "{:#x} has no name", entry.opcode);
            let first = TABLE.iter().find(|other| other.opcode == entry.opcode);
            assert_eq!(Some(Operation::name_of(entry.opcode)), first.map(|it| it.name));
        }
        assert_eq!(Operation::name_of(0xee), "unknown");
        let known = |opcode: u8| TABLE.iter().any(|entry| entry.opcode == opcode);
        for opcode in (0..=u8::MAX).filter(|&opcode| !known(opcode)) {
            assert_eq!(Operation::find(opcode, 0).unwrap_err(), WqeRefusal::Unknown);
        }
    }

    #[test]
    fn operation_needs_carrying_qp_and_capability() {
        let (mut with, without) = (HcaCap::zeroed(), HcaCap::zeroed());
        with.set_atomic(true).set_dma_mmo_qp(true).set_wait_on_data(true);
        for entry in &TABLE {
            let carriers = carriers(entry);
            for qp_type in [RC, UC, UD, QP0, QP1, REG_UMR] {
                let carried = carriers.contains(&qp_type);
                let expected = if carried { Ok(()) } else { Err(WqeRefusal::QpType) };
                assert_eq!(entry.check(qp_type, &with), expected, "{} {qp_type:?}", entry.name);
            }
            let lacking = match entry.needs {
                Some(capability) => Err(WqeRefusal::Lacks(capability.name())),
                None => Ok(()),
            };
            assert_eq!(entry.check(RC, &without), lacking, "{}", entry.name);
        }
    }

    #[test]
    fn operation_entries_are_consistent() {
        for entry in &TABLE {
            let message = entry.remote().map(Remote::message);
            let remote = message == Some(Message::Write) || entry.scatters();
            assert_eq!(entry.segments.contains(&WqeSegment::Remote), remote, "{}", entry.name);
            assert_eq!(
                entry.segments.contains(&WqeSegment::Atomic),
                entry.is_atomic(),
                "{}",
                entry.name
            );
            assert_eq!(message.and_then(Remote::of), entry.remote(), "{}", entry.name);
            let receives = message == Some(Message::Send) || entry.immediate;
            assert_eq!(entry.responder_cqe.is_some(), receives, "{}", entry.name);
            assert!(entry.immediate || !entry.invalidate, "{}", entry.name);
            let datagrams = entry.carriers.has(UD);
            assert!(
                !datagrams || message.is_none() || entry.segments.contains(&WqeSegment::Address)
            );
        }
    }

    #[test]
    fn dma_copy_is_carried_by_copy_capable_qp_types() {
        let copy = Operation::find(opcode::MMO, MmoOpMod::DMA.0).unwrap();
        for qp_type in [RC, UC, UD, QP0, QP1, REG_UMR] {
            assert_eq!(copy.carriers.has(qp_type), qp_type.copies, "{qp_type:?}");
        }
    }
}
