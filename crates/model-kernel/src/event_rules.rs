//! Which events a client may subscribe to, and which object an event belongs to: the rules of Linux
//! 6.12 `hw/mlx5/devx.c`.
//!
//! A subscription is found by two keys: the event's number with a type of object beside it (older
//! events carry the queue's type, newer ones an object type of their own numbering), and the
//! object's number.

use verbless_prm::Opcode;

use super::rules::ObjectId;

/// Event types. Source: Linux `include/linux/mlx5/device.h`.
pub(super) mod event {
    pub(crate) const COMP: u8 = 0x00;
    pub(crate) const PATH_MIG: u8 = 0x01;
    pub(crate) const COMM_EST: u8 = 0x02;
    pub(crate) const SQ_DRAINED: u8 = 0x03;
    pub(crate) const CQ_ERROR: u8 = 0x04;
    pub(crate) const WQ_CATAS_ERROR: u8 = 0x05;
    pub(crate) const PATH_MIG_FAILED: u8 = 0x07;
    pub(crate) const PORT_CHANGE: u8 = 0x09;
    pub(crate) const CMD: u8 = 0x0a;
    pub(crate) const PAGE_REQUEST: u8 = 0x0b;
    pub(crate) const WQ_INVAL_REQ_ERROR: u8 = 0x10;
    pub(crate) const WQ_ACCESS_ERROR: u8 = 0x11;
    pub(crate) const SRQ_CATAS_ERROR: u8 = 0x12;
    pub(crate) const SRQ_LAST_WQE: u8 = 0x13;
    pub(crate) const SRQ_RQ_LIMIT: u8 = 0x14;
    pub(crate) const XRQ_ERROR: u8 = 0x18;
    pub(crate) const DCT_DRAINED: u8 = 0x1c;
    pub(crate) const DCT_KEY_VIOLATION: u8 = 0x1d;
}

/// Types of queue in the events that have one.
const QUEUE_RQ: u16 = 1;
const QUEUE_SQ: u16 = 2;
const QUEUE_DCT: u16 = 6;

/// The events that a device lets users subscribe to, from its event capabilities; `None`: it has
/// none, and the list is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subscribable {
    pub affiliated: [u64; 4],
    pub unaffiliated: [u64; 4],
}

fn has(mask: &[u64; 4], kind: u8) -> bool {
    mask[usize::from(kind / 64)] >> (kind % 64) & 1 == 1
}

/// Events of one object that every device had before there were event capabilities.
fn is_old_affiliated(kind: u16) -> bool {
    let Ok(kind) = u8::try_from(kind) else { return false };
    matches!(
        kind,
        event::PATH_MIG
            | event::COMM_EST
            | event::SQ_DRAINED
            | event::SRQ_LAST_WQE
            | event::SRQ_RQ_LIMIT
            | event::CQ_ERROR
            | event::WQ_CATAS_ERROR
            | event::PATH_MIG_FAILED
            | event::WQ_INVAL_REQ_ERROR
            | event::WQ_ACCESS_ERROR
            | event::SRQ_CATAS_ERROR
            | event::DCT_DRAINED
            | event::COMP
            | event::DCT_KEY_VIOLATION
            | event::XRQ_ERROR
    )
}

/// Whether event `kind` may be subscribed to, for one object or for the device as a whole.
pub(super) fn may_subscribe(device: Option<&Subscribable>, kind: u16, with_object: bool) -> bool {
    let Some(device) = device else {
        return if with_object {
            is_old_affiliated(kind)
        } else {
            kind == u16::from(event::PORT_CHANGE)
        };
    };
    let Ok(number) = u8::try_from(kind) else { return false };
    if with_object {
        number == event::COMP || has(&device.affiliated, number)
    } else {
        has(&device.unaffiliated, number)
    }
}

/// The type that stands beside event `kind` in the key of a subscription to an object.
pub(super) fn subscribed_type(object: ObjectId, kind: u16) -> u16 {
    if is_old_affiliated(kind) {
        return match object.opcode {
            Opcode::CREATE_RQ | Opcode::CREATE_RMP => QUEUE_RQ,
            Opcode::CREATE_SQ => QUEUE_SQ,
            Opcode::CREATE_DCT => QUEUE_DCT,
            _ => 0,
        };
    }
    match object.opcode {
        Opcode::CREATE_GENERAL_OBJECT => object.general_type,
        Opcode::CREATE_QP => 0xff02,
        Opcode::CREATE_PSV => 0xff03,
        Opcode::CREATE_RMP => 0xff04,
        Opcode::CREATE_XRC_SRQ => 0xff05,
        Opcode::CREATE_RQ => 0xff06,
        Opcode::CREATE_SQ => 0xff07,
        Opcode::CREATE_TIR => 0xff08,
        Opcode::CREATE_TIS => 0xff09,
        Opcode::CREATE_DCT => 0xff0a,
        Opcode::CREATE_XRQ => 0xff0b,
        Opcode::CREATE_RQT => 0xff0e,
        Opcode::ALLOC_FLOW_COUNTER => 0xff0f,
        Opcode::CREATE_CQ => 0xff10,
        _ => 0,
    }
}

/// An event queue entry as the device wrote it.
pub(super) type Eqe = [u8; 64];

/// An entry's event type.
pub(super) fn kind(eqe: &Eqe) -> u8 {
    eqe[1]
}

/// Dword `index` of an entry's event data.
fn data(eqe: &Eqe, index: usize) -> u32 {
    let at = 0x20 + 4 * index;
    u32::from_be_bytes([eqe[at], eqe[at + 1], eqe[at + 2], eqe[at + 3]])
}

/// How many pages a page request event asks for; negative: offers back.
pub(super) fn pages(eqe: &Eqe) -> i32 {
    data(eqe, 1).cast_signed()
}

/// The CQ of a completion event.
pub(super) fn completed_cq(eqe: &Eqe) -> u32 {
    data(eqe, 6) & 0xff_ffff
}

/// The keys under which subscriptions to an asynchronous event are kept: with an object's number,
/// or for the whole device.
pub(super) fn keys(device: Option<&Subscribable>, eqe: &Eqe) -> (u32, Option<u32>) {
    let kind = kind(eqe);
    let whole_device =
        device.map_or(kind == event::PORT_CHANGE, |device| has(&device.unaffiliated, kind));
    if whole_device {
        return (kind.into(), None);
    }
    let (kind_of_object, number) = match kind {
        event::WQ_CATAS_ERROR
        | event::WQ_ACCESS_ERROR
        | event::WQ_INVAL_REQ_ERROR
        | event::SRQ_LAST_WQE
        | event::PATH_MIG
        | event::PATH_MIG_FAILED
        | event::COMM_EST
        | event::SQ_DRAINED
        | event::SRQ_RQ_LIMIT
        | event::SRQ_CATAS_ERROR => ((data(eqe, 5) >> 24) as u16, data(eqe, 6) & 0xff_ffff),
        event::CQ_ERROR => (0, data(eqe, 0) & 0xff_ffff),
        event::XRQ_ERROR => (0, data(eqe, 5) & 0xff_ffff),
        event::DCT_DRAINED | event::DCT_KEY_VIOLATION => (QUEUE_DCT, data(eqe, 6) & 0xff_ffff),
        _ => (data(eqe, 0) as u16, data(eqe, 1)),
    };
    (u32::from(kind) | u32::from(kind_of_object) << 16, Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(opcode: Opcode, number: u32) -> ObjectId {
        ObjectId { number, opcode, general_type: 0x1c }
    }

    fn eqe(kind: u8, dwords: &[(usize, u32)]) -> Eqe {
        let mut eqe = [0; 64];
        eqe[1] = kind;
        for &(index, value) in dwords {
            eqe[0x20 + 4 * index..][..4].copy_from_slice(&value.to_be_bytes());
        }
        eqe
    }

    #[test]
    fn an_event_finds_the_subscription_to_the_object_that_it_names() {
        let cases = [
            (Opcode::CREATE_CQ, event::CQ_ERROR, eqe(event::CQ_ERROR, &[(0, 77)])),
            (Opcode::CREATE_QP, event::COMM_EST, eqe(event::COMM_EST, &[(6, 77)])),
            (Opcode::CREATE_SQ, event::WQ_CATAS_ERROR, eqe(0x05, &[(5, 2 << 24), (6, 77)])),
            (Opcode::CREATE_RMP, event::SRQ_RQ_LIMIT, eqe(0x14, &[(5, 1 << 24), (6, 77)])),
            (Opcode::CREATE_DCT, event::DCT_DRAINED, eqe(event::DCT_DRAINED, &[(6, 77)])),
            (Opcode::CREATE_GENERAL_OBJECT, 0x27, eqe(0x27, &[(0, 0x1c), (1, 77)])),
            (Opcode::CREATE_TIR, 0x27, eqe(0x27, &[(0, 0xff08), (1, 77)])),
        ];
        for (opcode, kind, eqe) in cases {
            let key =
                u32::from(kind) | u32::from(subscribed_type(object(opcode, 77), kind.into())) << 16;
            assert_eq!(keys(None, &eqe), (key, Some(77)), "event {kind:#x} of {opcode:?}");
        }
    }

    #[test]
    fn a_port_event_belongs_to_the_whole_device() {
        assert_eq!(keys(None, &eqe(event::PORT_CHANGE, &[(2, 1 << 28)])), (9, None));
        let mut device = Subscribable { affiliated: [0; 4], unaffiliated: [0; 4] };
        device.unaffiliated[1] = 1 << 2;
        assert_eq!(keys(Some(&device), &eqe(66, &[])), (66, None));
    }

    #[test]
    fn only_listed_events_may_be_subscribed_to() {
        let mut device = Subscribable { affiliated: [0; 4], unaffiliated: [0; 4] };
        device.affiliated[0] = 1 << event::CQ_ERROR;
        device.unaffiliated[0] = 1 << event::PORT_CHANGE;
        let cases = [
            (None, 0x04, true, true),
            (None, 0x09, true, false),
            (None, 0x09, false, true),
            (None, 0x04, false, false),
            (None, 0x104, true, false),
            (None, 0x0c, true, false),
            (Some(&device), 0x00, true, true),
            (Some(&device), 0x04, true, true),
            (Some(&device), 0x05, true, false),
            (Some(&device), 0x09, false, true),
            (Some(&device), 0x00, false, false),
            (Some(&device), 0x100, true, false),
        ];
        for (device, kind, with_object, allowed) in cases {
            let got = may_subscribe(device, kind, with_object);
            assert_eq!(got, allowed, "event {kind:#x}, object: {with_object}, {device:?}");
        }
    }
}
