//! The table of operations, through queues.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Request, Rig};
use crate::engine::operation::{TABLE, WqeSegment};
use crate::engine::transport::types::{QP0, QP1, RC, REG_UMR, UC, UD};
use crate::hca::objects::QpState;
use crate::hca::qp_type::QpType;

const SERVICES: [&QpType; 6] = [RC, UC, UD, QP0, QP1, REG_UMR];

/// A WQE of this opcode with all its segments, which hold zeros.
fn blank(code: u8, service: &'static QpType) -> Request {
    let parts = TABLE.iter().find(|entry| entry.opcode == code).map_or(&[][..], |it| it.segments);
    let bytes = parts.iter().map(|part| match part {
        WqeSegment::Address if service.is_datagram() => 48,
        WqeSegment::Address => 0,
        WqeSegment::Remote | WqeSegment::Atomic | WqeSegment::Metadata => 16,
        WqeSegment::Wait => 32,
        WqeSegment::Umr => 112,
    });
    Request::new(code).bytes(&vec![0; bytes.sum()])
}

/// The outcome of a WQE on a QP of this service: success, or opcode, index and syndrome of its
/// error CQE.
fn outcome(service: &'static QpType, op_mod: u8, code: u8, capable: bool) -> Option<(u8, u16, u8)> {
    let mut rig = Rig::new();
    let general = rig.locked.functions[0].hca.caps.general_mut();
    general.set_atomic(capable).set_dma_mmo_qp(capable).set_wait_on_data(capable);
    let mut end = rig.end(0);
    let peer = rig.end(1);
    rig.connect(&end, &peer);
    let qp = rig.qp(&end);
    (qp.qp_type, qp.state) = (service, QpState::Rts);
    rig.post(&mut end, blank(code, service).op_mod(op_mod));
    let entries = rig.all(0, end.send_cq);
    let entry = entries.first()?;
    (entry.opcode() == cqe_opcode::REQUESTER_ERROR).then(|| entry.error())
}

const REFUSED: Option<(u8, u16, u8)> =
    Some((cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::LOCAL_QP_OPERATION));

#[test]
fn unsupported_operation_is_local_qp_operation_error() {
    for entry in &TABLE {
        for service in SERVICES {
            if !entry.carriers.has(service) {
                let outcome = outcome(service, entry.op_mod, entry.opcode, true);
                assert_eq!(outcome, REFUSED, "{}", entry.name);
            }
        }
        let service = SERVICES.iter().find(|service| entry.carriers.has(service)).unwrap();
        let other = outcome(service, entry.op_mod + 1, entry.opcode, true);
        assert_eq!(other, REFUSED, "{} with another op_mod", entry.name);
        if entry.needs.is_some() {
            let incapable = outcome(service, entry.op_mod, entry.opcode, false);
            assert_eq!(incapable, REFUSED, "{} without its capability", entry.name);
        }
    }
}

#[test]
fn unknown_opcode_is_local_qp_operation_error() {
    let known = |code: u8| TABLE.iter().any(|entry| entry.opcode == code);
    for code in (0..=u8::MAX).filter(|&code| !known(code)) {
        assert_eq!(outcome(RC, 0, code, true), REFUSED, "opcode {code:#x}");
    }
    assert_eq!(outcome(RC, 0, opcode::NOP, true), None);
}
