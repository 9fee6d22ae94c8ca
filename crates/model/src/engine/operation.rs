//! What send queues can be asked to do: one table, one entry for each operation. To add one is to
//! add its entry, and what it does where [`Action`] is matched.
//!
//! Sources: Linux `include/linux/mlx5/device.h` (MLX5_OPCODE_*), `include/linux/mlx5/qp.h`;
//! InfiniBand specification, volume 1, 9.2 (operations of each transport service).

use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_prm::{HcaCap, MmoOpMod, WaitOpMod};

pub(crate) use crate::hca::qp_type::Action;
use crate::hca::qp_type::QpType;
use crate::wire::Message;

/// One operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub name: &'static str,
    /// What the control segment asks for it by.
    pub opcode: u8,
    pub op_mod: u8,
    /// The segments between the control segment and the data, in order.
    pub segments: &'static [Part],
    /// An SQ, which is of no QP type, does it too.
    pub sq: bool,
    /// The capability without which the device does not know it.
    pub needs: Option<Capability>,
    /// Opcode of the CQE of whoever asked for it.
    pub requester_cqe: u8,
    /// Opcode of the receiver's CQE, if it uses up a receive WQE.
    pub responder_cqe: Option<u8>,
    /// The control segment's immediate (or the rkey to invalidate) goes into the receiver's CQE.
    pub immediate: bool,
    /// What its packets are; `None`: it does not leave the device.
    pub message: Option<Message>,
    pub action: Action,
}

/// A segment in front of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Where it goes, of services whose requests each say so.
    Address,
    /// Remote address and rkey.
    Remote,
    /// The operands of an atomic.
    Atomic,
    /// What a copy of memory tells beside its data: a buffer of the device's own.
    Metadata,
    /// What is waited for, which is read where it is executed.
    Wait,
    /// The rest of the WQE is a change of a key, which is read where it is executed.
    Umr,
}

/// A capability bit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capability {
    pub name: &'static str,
    pub of: fn(&HcaCap) -> bool,
}

const ATOMIC: Capability = Capability { name: "atomic", of: HcaCap::atomic };
const DMA: Capability = Capability { name: "dma_mmo_qp", of: HcaCap::dma_mmo_qp };

const WAIT_ON_DATA: Capability = Capability { name: "wait_on_data", of: HcaCap::wait_on_data };

/// What most entries have in common.
const BASE: Operation = Operation {
    name: "",
    opcode: opcode::NOP,
    op_mod: 0,
    segments: &[],
    sq: false,
    needs: None,
    requester_cqe: cqe_opcode::REQUESTER,
    responder_cqe: None,
    immediate: false,
    message: None,
    action: Action::Nop,
};

/// Every operation that the model knows; those that are asked for most come first.
pub(crate) static TABLE: [Operation; 12] = [
    Operation {
        name: "WRITE",
        opcode: opcode::WRITE,
        segments: &[Part::Remote],
        message: Some(Message::Write),
        action: Action::Write,
        ..BASE
    },
    Operation {
        name: "SEND",
        opcode: opcode::SEND,
        segments: &[Part::Address],
        sq: true,
        responder_cqe: Some(cqe_opcode::RESPONDER_SEND),
        message: Some(Message::Send),
        action: Action::Send { invalidate: false },
        ..BASE
    },
    Operation {
        name: "READ",
        opcode: opcode::READ,
        segments: &[Part::Remote],
        message: Some(Message::ReadRequest),
        action: Action::Read,
        ..BASE
    },
    Operation {
        name: "WRITE_IMM",
        opcode: opcode::WRITE_IMM,
        segments: &[Part::Remote],
        responder_cqe: Some(cqe_opcode::RESPONDER_WRITE_IMM),
        immediate: true,
        message: Some(Message::Write),
        action: Action::Write,
        ..BASE
    },
    Operation {
        name: "SEND_IMM",
        opcode: opcode::SEND_IMM,
        segments: &[Part::Address],
        responder_cqe: Some(cqe_opcode::RESPONDER_SEND_IMM),
        immediate: true,
        message: Some(Message::Send),
        action: Action::Send { invalidate: false },
        ..BASE
    },
    Operation {
        name: "SEND_INVALIDATE",
        opcode: opcode::SEND_INVALIDATE,
        segments: &[Part::Address],
        responder_cqe: Some(cqe_opcode::RESPONDER_SEND_INVALIDATE),
        immediate: true,
        message: Some(Message::Send),
        action: Action::Send { invalidate: true },
        ..BASE
    },
    Operation {
        name: "COMPARE_SWAP",
        opcode: opcode::COMPARE_SWAP,
        segments: &[Part::Remote, Part::Atomic],
        needs: Some(ATOMIC),
        message: Some(Message::CompareSwap),
        action: Action::CompareSwap,
        ..BASE
    },
    Operation {
        name: "FETCH_ADD",
        opcode: opcode::FETCH_ADD,
        segments: &[Part::Remote, Part::Atomic],
        needs: Some(ATOMIC),
        message: Some(Message::FetchAdd),
        action: Action::FetchAdd,
        ..BASE
    },
    Operation { name: "NOP", sq: true, ..BASE },
    Operation {
        name: "UMR",
        opcode: opcode::UMR,
        segments: &[Part::Umr],
        action: Action::Umr,
        ..BASE
    },
    Operation {
        name: "DMA",
        opcode: opcode::MMO,
        op_mod: MmoOpMod::DMA.0,
        segments: &[Part::Metadata],
        needs: Some(DMA),
        action: Action::Copy,
        ..BASE
    },
    Operation {
        name: "WAIT",
        opcode: opcode::WAIT,
        op_mod: WaitOpMod::DATA.0,
        segments: &[Part::Wait],
        needs: Some(WAIT_ON_DATA),
        action: Action::Wait,
        ..BASE
    },
];

/// Why a queue does not do what a WQE asks for: a local QP operation error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not whole, or says that it belongs elsewhere.
    Malformed,
    /// No operation has this opcode and op_mod.
    Unknown,
    /// The queue is of a QP type that does not carry the operation.
    QpType,
    /// The device lacks the capability of this name.
    Lacks(&'static str),
}

impl Operation {
    /// The operation that a control segment asks for by these, if there is one.
    pub(crate) fn find(opcode: u8, op_mod: u8) -> Result<&'static Self, Refused> {
        let asked = |entry: &&Self| entry.opcode == opcode && entry.op_mod == op_mod;
        TABLE.iter().find(asked).ok_or(Refused::Unknown)
    }

    /// The name of the plain operation with an opcode.
    pub(crate) fn name_of(opcode: u8) -> &'static str {
        Self::find(opcode, 0).map_or("unknown", |operation| operation.name)
    }

    /// What the responder does for a request of one packet kind.
    pub(crate) fn of_message(message: Message) -> Option<&'static Self> {
        TABLE.iter().find(|operation| operation.message == Some(message))
    }

    /// Refuses what a QP of this type, of a device with these capabilities, does not do.
    pub(crate) fn check(&self, qp_type: &QpType, general: &HcaCap) -> Result<(), Refused> {
        if !qp_type.carries.has(self.action) {
            return Err(Refused::QpType);
        }
        match self.needs {
            Some(Capability { name, of }) if !of(general) => Err(Refused::Lacks(name)),
            _ => Ok(()),
        }
    }

    /// Memory of whoever asks receives the data.
    pub(crate) fn scatters(&self) -> bool {
        self.action == Action::Read || self.is_atomic()
    }

    /// It is COMPARE_SWAP or FETCH_ADD.
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.action, Action::CompareSwap | Action::FetchAdd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::transport::types::*;

    /// The types whose QPs carry it, as the specifications have it.
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
    fn every_operation_is_found_by_its_opcode_and_op_mod_and_by_no_other() {
        for (at, entry) in TABLE.iter().enumerate() {
            let found = Operation::find(entry.opcode, entry.op_mod).unwrap();
            assert!(std::ptr::eq(found, entry), "{} hides entry {at}", found.name);
            for op_mod in (0..=u8::MAX).filter(|&op_mod| op_mod != entry.op_mod) {
                let other = Operation::find(entry.opcode, op_mod);
                assert!(other.is_err_and(|why| why == Refused::Unknown), "{}", entry.name);
            }
        }
        let known = |opcode: u8| TABLE.iter().any(|entry| entry.opcode == opcode);
        for opcode in (0..=u8::MAX).filter(|&opcode| !known(opcode)) {
            assert_eq!(Operation::find(opcode, 0).unwrap_err(), Refused::Unknown);
        }
    }

    #[test]
    fn an_operation_is_refused_by_qps_that_do_not_carry_it_and_without_its_capability() {
        let (mut with, without) = (HcaCap::zeroed(), HcaCap::zeroed());
        with.set_atomic(true).set_dma_mmo_qp(true).set_wait_on_data(true);
        for entry in &TABLE {
            let carriers = carriers(entry);
            for qp_type in [RC, UC, UD, QP0, QP1, REG_UMR] {
                let carried = carriers.contains(&qp_type);
                let expected = if carried { Ok(()) } else { Err(Refused::QpType) };
                assert_eq!(entry.check(qp_type, &with), expected, "{} {qp_type:?}", entry.name);
            }
            let lacking = match entry.needs {
                Some(capability) => Err(Refused::Lacks(capability.name)),
                None => Ok(()),
            };
            assert_eq!(entry.check(RC, &without), lacking, "{}", entry.name);
        }
    }

    #[test]
    fn an_entry_is_consistent_in_itself() {
        for entry in &TABLE {
            let remote = matches!(entry.action, Action::Write) || entry.scatters();
            assert_eq!(entry.segments.contains(&Part::Remote), remote, "{}", entry.name);
            assert_eq!(entry.segments.contains(&Part::Atomic), entry.is_atomic(), "{}", entry.name);
            let receives = matches!(entry.action, Action::Send { .. }) || entry.immediate;
            assert_eq!(entry.responder_cqe.is_some(), receives, "{}", entry.name);
            let leaves =
                !matches!(entry.action, Action::Nop | Action::Umr | Action::Copy | Action::Wait);
            assert_eq!(entry.message.is_some(), leaves, "{}", entry.name);
            let datagrams = UD.carries.has(entry.action);
            let local = matches!(entry.action, Action::Nop);
            assert!(!datagrams || local || entry.segments.contains(&Part::Address));
        }
    }
}
