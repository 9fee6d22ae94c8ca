//! Two ends of a connection that disagree, in packets: about the path MTU, the number of
//! outstanding READs, or the peer.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome};

use super::rig::{Endpoint, Request, Rig};
use crate::engine;
use crate::engine::transport::types::UC;
use crate::hca::objects::{Address, QpState};

/// A pair whose messages go in packets.
fn pair() -> (Rig, Endpoint, Endpoint) {
    let mut rig = Rig::new();
    rig.locked.in_packets = true;
    let (a, b) = rig.pair();
    (rig, a, b)
}

fn run(rig: &mut Rig) {
    for _ in 0..100_000 {
        if !engine::step(&mut rig.locked) && !engine::jump(&mut rig.locked) {
            return;
        }
    }
    panic!("the model does not become idle");
}

#[test]
fn mtu_mismatch_is_a_remote_invalid_request() {
    let (mut rig, mut a, b) = pair();
    (rig.qp(&a).log_mtu, rig.qp(&b).log_mtu) = (8, 9);
    let (from, lkey) = rig.region(0, 1000);
    let (to, rkey) = rig.region(1, 1000);
    rig.fill(from, &[7; 1000]);
    // A message that fits in a packet of either size.
    rig.post(&mut a, Request::write(to, rkey).sge(from, 200, lkey));
    run(&mut rig);
    assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
    let index = rig.post(&mut a, Request::write(to, rkey).sge(from, 1000, lkey));
    run(&mut rig);
    let error = (cqe_opcode::REQUESTER_ERROR, index, cqe_syndrome::REMOTE_INVALID_REQUEST);
    assert_eq!(rig.one(0, a.send_cq).error(), error);
    assert_eq!([rig.qp(&a).state, rig.qp(&b).state], [QpState::Error; 2]);
    assert_eq!(rig.bytes(to + 200, 800), [0; 800]);
}

#[test]
fn mtu_mismatch_on_uc_drops_message_silently() {
    let (mut rig, mut a, b) = pair();
    for (end, log_mtu) in [(&a, 8), (&b, 9)] {
        let qp = rig.qp(end);
        (qp.qp_type, qp.log_mtu) = (UC, log_mtu);
    }
    let (from, lkey) = rig.region(0, 1000);
    let (to, rkey) = rig.region(1, 1000);
    rig.fill(from, &[7; 1000]);
    rig.post(&mut a, Request::write(to, rkey).sge(from, 1000, lkey));
    rig.post(&mut a, Request::write(to + 500, rkey).sge(from, 200, lkey));
    run(&mut rig);
    let opcodes: Vec<u8> = rig.all(0, a.send_cq).iter().map(|it| it.opcode()).collect();
    assert_eq!(opcodes, [cqe_opcode::REQUESTER; 2]);
    assert_eq!(rig.bytes(to, 500), [0; 500]);
    assert_eq!(rig.bytes(to + 500, 200), [7; 200]);
    assert_eq!([rig.qp(&a).state, rig.qp(&b).state], [QpState::Rts; 2]);
}

#[test]
fn reads_above_max_dest_rd_atomic_are_invalid() {
    for (outstanding, max, fails) in [(4, 4, false), (4, 1, true)] {
        let (mut rig, mut a, b) = pair();
        rig.qp(&a).requester.max_rd_atomic = outstanding;
        rig.qp(&b).responder.max_dest_rd_atomic = max;
        let (to, lkey) = rig.region(0, 1 << 16);
        let (from, rkey) = rig.region(1, 1 << 16);
        for _ in 0..4 {
            rig.post(&mut a, Request::read(from, rkey).sge(to, 1 << 16, lkey));
        }
        run(&mut rig);
        let entries = rig.all(0, a.send_cq);
        let refused = entries.iter().any(|it| {
            it.opcode() == cqe_opcode::REQUESTER_ERROR
                && it.syndrome() == cqe_syndrome::REMOTE_INVALID_REQUEST
        });
        assert_eq!(refused, fails, "{outstanding} READs, max_dest_rd_atomic {max}");
        assert_eq!(rig.qp(&b).state == QpState::Error, fails);
    }
}

#[test]
fn packets_from_wrong_address_are_not_answered() {
    let (mut rig, mut a, b) = pair();
    let (to, rkey) = rig.region(1, 64);
    let lid = rig.locked.functions[0].hca.ports[0].lid;
    let qp = rig.qp(&b);
    qp.remote = Some(Address::Lid(lid + 7));
    qp.context.primary_address_path_mut().set_rlid(lid + 7);
    let index = rig.post(&mut a, Request::write(to, rkey).inline(b"who is it"));
    run(&mut rig);
    let error = (cqe_opcode::REQUESTER_ERROR, index, cqe_syndrome::TRANSPORT_RETRY_EXCEEDED);
    assert_eq!(rig.one(0, a.send_cq).error(), error);
    assert_eq!(rig.bytes(to, 9), [0; 9]);
    assert_eq!(rig.qp(&b).state, QpState::Rts, "the responder ignored the packets");
}
