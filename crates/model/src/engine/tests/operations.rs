//! The table of operations as queues meet it.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Request, Rig};
use crate::engine::operation::{Part, TABLE};
use crate::hca::objects::{QpState, Service};

const SERVICES: [Service; 6] =
    [Service::Rc, Service::Uc, Service::Ud, Service::Qp0, Service::Qp1, Service::RegUmr];

/// A WQE of this opcode, whose segments are there and hold zeros.
fn blank(code: u8, service: Service) -> Request {
    let parts = TABLE.iter().find(|entry| entry.opcode == code).map_or(&[][..], |it| it.segments);
    let bytes = parts.iter().map(|part| match part {
        Part::Address if service.is_datagram() => 48,
        Part::Address => 0,
        Part::Remote | Part::Atomic => 16,
        Part::Umr => 112,
    });
    Request::new(code).bytes(&vec![0; bytes.sum()])
}

/// What a QP of this service says of a WQE: nothing, or opcode, index and syndrome of its error
/// CQE.
fn outcome(service: Service, op_mod: u8, code: u8, atomic: bool) -> Option<(u8, u16, u8)> {
    let mut rig = Rig::new();
    rig.world.functions[0].hca.caps.general_mut().set_atomic(atomic);
    let mut end = rig.end(0);
    let peer = rig.end(1);
    rig.connect(&end, &peer);
    let qp = rig.qp(&end);
    (qp.service, qp.state) = (service, QpState::Rts);
    rig.post(&mut end, blank(code, service).op_mod(op_mod));
    let entries = rig.all(0, end.send_cq);
    let entry = entries.first()?;
    (entry.opcode() == cqe_opcode::REQUESTER_ERROR).then(|| entry.error())
}

const REFUSED: Option<(u8, u16, u8)> =
    Some((cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::LOCAL_QP_OPERATION));

#[test]
fn what_a_service_does_not_carry_is_a_local_qp_operation_error() {
    for entry in &TABLE {
        for service in SERVICES {
            if !entry.services.contains(&service) {
                assert_eq!(outcome(service, 0, entry.opcode, true), REFUSED, "{}", entry.name);
            }
        }
        let service = entry.services[0];
        assert_eq!(outcome(service, 1, entry.opcode, true), REFUSED, "{} with op_mod", entry.name);
        if entry.needs.is_some() {
            assert_eq!(outcome(service, 0, entry.opcode, false), REFUSED, "{} lacks", entry.name);
        }
    }
}

#[test]
fn an_unknown_opcode_is_a_local_qp_operation_error() {
    let known = |code: u8| TABLE.iter().any(|entry| entry.opcode == code);
    for code in (0..=u8::MAX).filter(|&code| !known(code)) {
        assert_eq!(outcome(Service::Rc, 0, code, true), REFUSED, "opcode {code:#x}");
    }
    assert_eq!(outcome(Service::Rc, 0, opcode::NOP, true), None);
}
