//! Which events a client may subscribe to, and which object an event belongs to: the rules of Linux
//! 6.12 `hw/mlx5/devx.c`.
//!
//! A subscription has two keys. The first is the event's number with an object type: older events
//! carry the queue's type, newer ones an object type from another numbering. The second key is the
//! object's number.

use verbless_prm::hot::event_type as event;
use verbless_prm::{
    Eqe, EqeCompletion, EqeCqError, EqeDct, EqeObjectChange, EqePageRequest, EqeQpSrq,
    EqeQueueType, EqeXrqError, Opcode, Structure,
};

use super::release::KernelRelease;
use super::rules::ObjectId;

/// The events that a device lets users subscribe to, from its event capabilities. `None`: the
/// device has no event capabilities, and the list is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subscribable {
    pub affiliated: [u64; 4],
    pub unaffiliated: [u64; 4],
}

fn has(mask: &[u64; 4], kind: u8) -> bool {
    mask[usize::from(kind / 64)] >> (kind % 64) & 1 == 1
}

/// Events of one object that every device had before event capabilities existed.
fn is_old_affiliated(kind: u16) -> bool {
    let Ok(kind) = u8::try_from(kind) else { return false };
    matches!(
        kind,
        event::PATH_MIGRATED
            | event::COMMUNICATION_ESTABLISHED
            | event::SQ_DRAINED
            | event::SRQ_LAST_WQE
            | event::SRQ_LIMIT
            | event::CQ_ERROR
            | event::WQ_CATASTROPHIC_ERROR
            | event::PATH_MIGRATION_FAILED
            | event::WQ_INVALID_REQUEST_ERROR
            | event::WQ_ACCESS_ERROR
            | event::SRQ_CATASTROPHIC_ERROR
            | event::DCT_DRAINED
            | event::COMPLETION
            | event::DCT_KEY_VIOLATION
            | event::XRQ_ERROR
    )
}

/// Whether a client may subscribe to event `kind`, for one object or for the device as a whole.
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
        number == event::COMPLETION || has(&device.affiliated, number)
    } else {
        has(&device.unaffiliated, number)
    }
}

/// The object type in the key of a subscription to event `kind` of an object.
pub(super) fn subscribed_type(object: ObjectId, kind: u16, release: KernelRelease) -> u16 {
    if is_old_affiliated(kind) {
        let queue = match object.opcode {
            Opcode::CREATE_RQ => EqeQueueType::RQ,
            Opcode::CREATE_RMP if release.knows_rmp_events() => EqeQueueType::RQ,
            Opcode::CREATE_SQ => EqeQueueType::SQ,
            Opcode::CREATE_DCT => EqeQueueType::DCT,
            _ => EqeQueueType::QP,
        };
        return queue.0.into();
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

/// The event data of an EQE, in the layout of its event type.
pub(super) fn data<T: Structure>(eqe: &Eqe) -> &T {
    let (data, _) = T::ref_from_prefix(&eqe.event_data).expect("all event data has as many bytes");
    data
}

/// The number of pages that a page request event requests; negative if it returns pages.
pub(super) fn pages(eqe: &Eqe) -> i32 {
    let request: &EqePageRequest = data(eqe);
    request.num_pages().cast_signed()
}

/// The CQ of a completion event.
pub(super) fn completed_cq(eqe: &Eqe) -> u32 {
    let completion: &EqeCompletion = data(eqe);
    completion.cqn()
}

/// The keys of subscriptions to an asynchronous event: with an object's number, or for the whole
/// device.
pub(super) fn keys(device: Option<&Subscribable>, eqe: &Eqe) -> (u32, Option<u32>) {
    let kind = eqe.event_type().0;
    let whole_device =
        device.map_or(kind == event::PORT_CHANGE, |device| has(&device.unaffiliated, kind));
    if whole_device {
        return (kind.into(), None);
    }
    let (kind_of_object, number) = match kind {
        event::WQ_CATASTROPHIC_ERROR
        | event::WQ_ACCESS_ERROR
        | event::WQ_INVALID_REQUEST_ERROR
        | event::SRQ_LAST_WQE
        | event::PATH_MIGRATED
        | event::PATH_MIGRATION_FAILED
        | event::COMMUNICATION_ESTABLISHED
        | event::SQ_DRAINED
        | event::SRQ_LIMIT
        | event::SRQ_CATASTROPHIC_ERROR => {
            let queue: &EqeQpSrq = data(eqe);
            (queue.r#type().0.into(), queue.qpn_rqn_sqn())
        }
        event::CQ_ERROR => {
            let cq: &EqeCqError = data(eqe);
            (0, cq.cqn())
        }
        event::XRQ_ERROR => {
            let xrq: &EqeXrqError = data(eqe);
            (0, xrq.xrqn())
        }
        event::DCT_DRAINED | event::DCT_KEY_VIOLATION => {
            let dct: &EqeDct = data(eqe);
            (EqeQueueType::DCT.0.into(), dct.dctn())
        }
        // An event without a layout here begins with the type and number of its object.
        _ => {
            let object: &EqeObjectChange = data(eqe);
            (object.obj_type().0, object.obj_id())
        }
    };
    (u32::from(kind) + (u32::from(kind_of_object) << 16), Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWEST: KernelRelease = KernelRelease::Newest;

    fn object(opcode: Opcode, number: u32) -> ObjectId {
        ObjectId { number, opcode, general_type: 0x1c }
    }

    fn eqe(kind: u8, dwords: &[(usize, u32)]) -> Eqe {
        let mut eqe = Eqe::zeroed();
        let bytes = eqe.as_bytes_mut();
        bytes[1] = kind;
        for &(index, value) in dwords {
            bytes[0x20 + 4 * index..][..4].copy_from_slice(&value.to_be_bytes());
        }
        eqe
    }

    #[test]
    fn event_key_matches_subscription_of_object() {
        let cases = [
            (Opcode::CREATE_CQ, event::CQ_ERROR, eqe(event::CQ_ERROR, &[(0, 77)])),
            (
                Opcode::CREATE_QP,
                event::COMMUNICATION_ESTABLISHED,
                eqe(event::COMMUNICATION_ESTABLISHED, &[(6, 77)]),
            ),
            (Opcode::CREATE_SQ, event::WQ_CATASTROPHIC_ERROR, eqe(0x05, &[(5, 2 << 24), (6, 77)])),
            (Opcode::CREATE_RMP, event::SRQ_LIMIT, eqe(0x14, &[(5, 1 << 24), (6, 77)])),
            (Opcode::CREATE_DCT, event::DCT_DRAINED, eqe(event::DCT_DRAINED, &[(6, 77)])),
            (Opcode::CREATE_GENERAL_OBJECT, 0x27, eqe(0x27, &[(0, 0x1c), (1, 77)])),
            (Opcode::CREATE_TIR, 0x27, eqe(0x27, &[(0, 0xff08), (1, 77)])),
        ];
        for (opcode, kind, eqe) in cases {
            let key = u32::from(kind)
                | u32::from(subscribed_type(object(opcode, 77), kind.into(), NEWEST)) << 16;
            assert_eq!(keys(None, &eqe), (key, Some(77)), "event {kind:#x} of {opcode:?}");
        }
    }

    #[test]
    fn srq_events_miss_their_subscription_on_linux_5_10() {
        let limit = eqe(event::SRQ_LIMIT, &[(5, 1 << 24), (6, 77)]);
        let (key, _) = keys(None, &limit);
        for (release, opcode, delivered) in [
            (KernelRelease::V5_10, Opcode::CREATE_RMP, false),
            (KernelRelease::V5_10, Opcode::CREATE_RQ, true),
            (NEWEST, Opcode::CREATE_RMP, true),
        ] {
            let kind = u16::from(event::SRQ_LIMIT);
            let subscribed = subscribed_type(object(opcode, 77), kind, release);
            let subscribed = u32::from(kind) | u32::from(subscribed) << 16;
            assert_eq!(subscribed == key, delivered, "{release} {opcode:?}");
        }
    }

    #[test]
    fn port_event_has_no_object() {
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

    #[test]
    fn subscribed_type_depends_on_object_and_event() {
        let old = [
            (Opcode::CREATE_RQ, EqeQueueType::RQ),
            (Opcode::CREATE_RMP, EqeQueueType::RQ),
            (Opcode::CREATE_SQ, EqeQueueType::SQ),
            (Opcode::CREATE_DCT, EqeQueueType::DCT),
            (Opcode::CREATE_QP, EqeQueueType::QP),
        ];
        for (opcode, kind) in old {
            let subscribed =
                subscribed_type(object(opcode, 1), event::WQ_ACCESS_ERROR.into(), NEWEST);
            assert_eq!(subscribed, kind.0.into(), "{opcode:?}");
        }
        let types = [
            (Opcode::CREATE_GENERAL_OBJECT, 0x1c),
            (Opcode::CREATE_QP, 0xff02),
            (Opcode::CREATE_PSV, 0xff03),
            (Opcode::CREATE_RMP, 0xff04),
            (Opcode::CREATE_XRC_SRQ, 0xff05),
            (Opcode::CREATE_RQ, 0xff06),
            (Opcode::CREATE_SQ, 0xff07),
            (Opcode::CREATE_TIR, 0xff08),
            (Opcode::CREATE_TIS, 0xff09),
            (Opcode::CREATE_DCT, 0xff0a),
            (Opcode::CREATE_XRQ, 0xff0b),
            (Opcode::CREATE_RQT, 0xff0e),
            (Opcode::ALLOC_FLOW_COUNTER, 0xff0f),
            (Opcode::CREATE_CQ, 0xff10),
            (Opcode::CREATE_MKEY, 0),
        ];
        for (opcode, expected) in types {
            assert_eq!(subscribed_type(object(opcode, 1), 0x27, NEWEST), expected, "{opcode:?}");
        }
        let xrq = eqe(event::XRQ_ERROR, &[(5, 0xff00_0000), (6, 0x1234)]);
        let (key, number) = keys(None, &xrq);
        let error: &EqeXrqError = data(&xrq);
        assert_eq!((key, number), (event::XRQ_ERROR.into(), Some(error.xrqn())));
    }
}
