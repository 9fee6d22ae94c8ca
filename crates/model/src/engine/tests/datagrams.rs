//! UD and UC: the messages that arrive, the bytes in front of them, and lost messages.

use verbless_prm::DatagramSegment;
use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Endpoint, Request, Rig};
use crate::engine::transport::types::{QP0, QP1, RC, UC, UD};
use crate::hca::objects::QpState;
use crate::hca::qp_type::QpType;

const KEY: u32 = 0x1111_1111;

/// A datagram QP in RTS.
fn end(rig: &mut Rig, hca: usize, service: &'static QpType) -> Endpoint {
    let end = rig.end(hca);
    let qp = rig.qp(&end);
    (qp.qp_type, qp.state, qp.log_mtu) = (service, QpState::Rts, 12);
    qp.context.set_q_key(KEY);
    rig.locked.functions[hca].hca.objects.index_again();
    end
}

/// An address vector of the QP at its port.
fn vector(rig: &Rig, to: &Endpoint, qpn: u32) -> DatagramSegment {
    let mut vector = DatagramSegment::zeroed();
    vector.set_ext(true).set_q_key(KEY).set_dqp_dct(qpn).set_sl(3);
    vector.set_rlid(rig.locked.functions[to.hca].hca.ports[0].lid);
    vector
}

fn request(opcode: u8, vector: &DatagramSegment) -> Request {
    Request::new(opcode).bytes(vector.as_bytes())
}

/// Posts a receive of `bytes` bytes; returns its address.
fn buffer(rig: &mut Rig, end: &mut Endpoint, bytes: u32) -> u64 {
    let (to, lkey) = rig.region(end.hca, bytes.into());
    rig.receive(end, &[DataSegment::new(bytes, lkey, to)]);
    to
}

#[test]
fn ud_payload_follows_40_bytes_of_grh_space() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
    let to = buffer(&mut rig, &mut b, 64);
    let vector = vector(&rig, &b, b.qpn);
    rig.post(&mut a, request(opcode::SEND_IMM, &vector).imm(0xabcd).inline(b"hello"));
    let sent = rig.one(0, a.send_cq);
    assert_eq!((sent.opcode(), sent.index()), (cqe_opcode::REQUESTER, 0));
    let got = rig.one(1, b.receive_cq);
    assert_eq!((got.opcode(), got.bytes()), (cqe_opcode::RESPONDER_SEND_IMM, 45));
    assert_eq!((got.cqe.g(), got.cqe.sl(), got.cqe.rqpn()), (0, 3, a.qpn));
    assert_eq!(got.cqe.slid(), rig.locked.functions[0].hca.ports[0].lid);
    assert_eq!(got.cqe.imm_inval_pkey(), 0xabcd);
    assert_eq!(rig.bytes(to + 40, 5), b"hello");
}

#[test]
fn address_vector_without_extension_needs_its_capability() {
    for (has, syndrome) in [(true, None), (false, Some(cqe_syndrome::LOCAL_QP_OPERATION))] {
        let mut rig = Rig::new();
        let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
        rig.locked.functions[0].hca.caps.general_mut().set_compact_address_vector(has);
        let to = buffer(&mut rig, &mut b, 64);
        let mut vector = vector(&rig, &b, b.qpn);
        vector.set_ext(false);
        let short = Request::new(opcode::SEND).bytes(&vector.as_bytes()[..16]);
        rig.post(&mut a, short.inline(b"hello"));
        let sent = rig.one(0, a.send_cq);
        match syndrome {
            Some(syndrome) => assert_eq!(sent.syndrome(), syndrome),
            None => assert_eq!(rig.bytes(to + 40, 5), b"hello"),
        }
    }
}

#[test]
fn grh_carries_source_and_destination_gid() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
    let to = buffer(&mut rig, &mut b, 64);
    let gid =
        |rig: &Rig, hca: usize| rig.locked.functions[hca].hca.identity.ports[0].link_local_gid();
    let mut vector = vector(&rig, &b, b.qpn);
    vector.set_grh(true).set_hop_limit(9).set_tclass(7).set_flow_label(5);
    vector.set_rgid(&gid(&rig, 1));
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"hello"));
    let got = rig.one(1, b.receive_cq);
    assert_eq!(got.cqe.g(), 1);
    let header = rig.bytes(to, 40);
    assert_eq!(header[..4], [0x60, 0x70, 0, 5]);
    assert_eq!(header[4..8], [0, 12 + 8 + 8 + 4, 0x1b, 9]);
    assert_eq!(header[8..24], gid(&rig, 0));
    assert_eq!(header[24..], gid(&rig, 1));
    vector.set_src_addr_index(1);
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"hello"));
    let entry = rig.all(0, a.send_cq).pop().unwrap();
    assert_eq!(entry.syndrome(), cqe_syndrome::LOCAL_QP_OPERATION, "an empty GID");
}

#[test]
fn unaccepted_datagram_is_lost_silently() {
    type Edit = fn(&mut Rig, &Endpoint, &mut DatagramSegment);
    let cases: [Edit; 5] = [
        |_, _, vector| {
            vector.set_q_key(KEY + 1);
        },
        |_, _, vector| {
            vector.set_dqp_dct(0xabcdef);
        },
        |_, _, vector| {
            vector.set_rlid(0x77);
        },
        |rig, b, _| rig.qp(b).state = QpState::Init,
        |rig, b, _| rig.qp(b).qp_type = RC,
    ];
    for edit in cases {
        let mut rig = Rig::new();
        let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
        buffer(&mut rig, &mut b, 64);
        let mut vector = vector(&rig, &b, b.qpn);
        edit(&mut rig, &b, &mut vector);
        rig.post(&mut a, request(opcode::SEND, &vector).inline(b"lost"));
        assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
        rig.none(1, b.receive_cq);
    }
    // The sender does not see a missing receive either.
    let mut rig = Rig::new();
    let (mut a, b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
    let vector = vector(&rig, &b, b.qpn);
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"lost"));
    assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
}

#[test]
fn qkey_with_top_bit_means_own_qkey() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
    buffer(&mut rig, &mut b, 64);
    let mut vector = vector(&rig, &b, b.qpn);
    vector.set_q_key(0x8000_0000);
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"x"));
    rig.one(1, b.receive_cq);
}

#[test]
fn management_qps_are_reached_by_their_numbers() {
    for (service, number, key) in [(QP0, 0, 0), (QP1, 1, 0x8001_0000)] {
        let mut rig = Rig::new();
        let (mut a, mut b) = (end(&mut rig, 0, service), end(&mut rig, 1, service));
        rig.qp(&a).context.set_q_key(key);
        let to = buffer(&mut rig, &mut b, 300);
        let mut vector = vector(&rig, &b, number);
        vector.set_q_key(key);
        rig.post(&mut a, request(opcode::SEND, &vector).inline(b"a mad"));
        let got = rig.one(1, b.receive_cq);
        assert_eq!(got.cqe.rqpn(), number);
        let pkey = if service == QP1 { 0xffff } else { 0 };
        assert_eq!(got.cqe.imm_inval_pkey(), pkey);
        assert_eq!(rig.bytes(to + 40, 5), b"a mad");
    }
}

#[test]
fn multicast_reaches_all_group_members() {
    let mut rig = Rig::new();
    let mut a = end(&mut rig, 0, UD);
    let (mut b, mut c) = (end(&mut rig, 1, UD), end(&mut rig, 0, UD));
    let group = [0xff; 16];
    for (hca, qpn) in [(1, b.qpn), (0, c.qpn)] {
        rig.locked.functions[hca].hca.objects.groups.join(group, qpn);
    }
    let (one, two) = (buffer(&mut rig, &mut b, 64), buffer(&mut rig, &mut c, 64));
    let mut vector = vector(&rig, &b, 0xff_ffff);
    vector.set_rlid(0xc001).set_grh(true).set_rgid(&group);
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"all"));
    assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
    for (hca, cq, at) in [(1, b.receive_cq, one), (0, c.receive_cq, two)] {
        assert_eq!(rig.one(hca, cq).cqe.g(), 2);
        assert_eq!(rig.bytes(at + 40, 3), b"all");
    }
}

#[test]
fn block_lb_mc_drops_only_own_multicast() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 0, UD));
    let group = [0xff; 16];
    for qpn in [a.qpn, b.qpn] {
        rig.locked.functions[0].hca.objects.groups.join(group, qpn);
    }
    rig.qp(&a).context.set_block_lb_mc(true);
    for _ in 0..2 {
        buffer(&mut rig, &mut a, 64);
        buffer(&mut rig, &mut b, 64);
    }
    let mut vector = vector(&rig, &b, 0xff_ffff);
    vector.set_rlid(0xc001).set_grh(true).set_rgid(&group);
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"mine"));
    rig.one(0, b.receive_cq);
    rig.none(0, a.receive_cq);
    rig.post(&mut b, request(opcode::SEND, &vector).inline(b"ours"));
    rig.one(0, b.receive_cq);
    rig.one(0, a.receive_cq);
}

#[test]
fn invalid_ud_request_puts_only_sq_in_error() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
    let good = vector(&rig, &b, b.qpn);
    let (long, lkey) = rig.region(0, 8192);
    let cases = [
        (request(opcode::SEND, &good).sge(long, 4097, lkey), cqe_syndrome::LOCAL_LENGTH),
        (request(opcode::WRITE, &good), cqe_syndrome::LOCAL_QP_OPERATION),
        (Request::new(opcode::SEND), cqe_syndrome::LOCAL_QP_OPERATION),
        (Request::new(opcode::SEND).bytes(&[0; 16]), cqe_syndrome::LOCAL_QP_OPERATION),
        (request(opcode::SEND, &good).sge(long, 8, lkey ^ 1), cqe_syndrome::LOCAL_PROTECTION),
    ];
    for (request, syndrome) in cases {
        rig.post(&mut a, request);
        assert_eq!(rig.one(0, a.send_cq).syndrome(), syndrome);
        assert_eq!(rig.qp(&a).state, QpState::SqError);
        // A WQE posted after the error is flushed; a message that arrives is received.
        rig.post(&mut a, Request::new(opcode::NOP));
        assert_eq!(rig.one(0, a.send_cq).syndrome(), cqe_syndrome::FLUSHED);
        buffer(&mut rig, &mut a, 64);
        let back = vector(&rig, &a, a.qpn);
        rig.post(&mut b, self::request(opcode::SEND, &back).inline(b"x"));
        rig.one(1, b.send_cq);
        assert_eq!(rig.one(0, a.receive_cq).bytes(), 41);
        rig.qp(&a).state = QpState::Rts;
    }
}

#[test]
fn short_ud_receive_fails_receiver_qp() {
    let mut rig = Rig::new();
    let (mut a, mut b) = (end(&mut rig, 0, UD), end(&mut rig, 1, UD));
    buffer(&mut rig, &mut b, 44);
    let vector = vector(&rig, &b, b.qpn);
    rig.post(&mut a, request(opcode::SEND, &vector).inline(b"hello"));
    assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
    assert_eq!(rig.one(1, b.receive_cq).syndrome(), cqe_syndrome::LOCAL_LENGTH);
    assert_eq!(rig.qp(&b).state, QpState::Error);
}

/// Two QPs of an unreliable connection.
fn unreliable(rig: &mut Rig) -> (Endpoint, Endpoint) {
    let (a, b) = rig.pair();
    for end in [&a, &b] {
        rig.qp(end).qp_type = UC;
    }
    (a, b)
}

#[test]
fn uc_sends_and_writes() {
    let mut rig = Rig::new();
    let (mut a, mut b) = unreliable(&mut rig);
    let at = buffer(&mut rig, &mut b, 64);
    rig.post(&mut a, Request::send().inline(b"sent"));
    assert_eq!(rig.one(1, b.receive_cq).bytes(), 4);
    assert_eq!(rig.bytes(at, 4), b"sent");
    let (to, rkey) = rig.region(1, 64);
    rig.post(&mut a, Request::write(to, rkey).inline(b"written"));
    assert_eq!(rig.all(0, a.send_cq).len(), 2);
    assert_eq!(rig.bytes(to, 7), b"written");
    buffer(&mut rig, &mut b, 0);
    rig.post(&mut a, Request::new(opcode::WRITE_IMM).remote(to, rkey).imm(7).inline(b"!"));
    assert_eq!(rig.one(1, b.receive_cq).opcode(), cqe_opcode::RESPONDER_WRITE_IMM);
}

#[test]
fn uc_losses_leave_both_qps_in_rts() {
    let mut rig = Rig::new();
    let (mut a, mut b) = unreliable(&mut rig);
    let (to, rkey) = rig.region(1, 64);
    // No receive; a wrong key; a message lost on the way: the sender sees none of them.
    rig.post(&mut a, Request::send().inline(b"unseen"));
    rig.post(&mut a, Request::write(to, rkey ^ 1).inline(b"denied"));
    rig.locked.functions[0].engine.faults.lose_messages =
        crate::engine::FaultWindow { skip: 2, count: 1 };
    rig.post(&mut a, Request::write(to, rkey).inline(b"lost"));
    let entries = rig.all(0, a.send_cq);
    assert!(entries.len() == 3 && entries.iter().all(|entry| entry.opcode() == 0));
    assert_eq!(rig.bytes(to, 6), [0; 6]);
    assert_eq!((rig.qp(&a).state, rig.qp(&b).state), (QpState::Rts, QpState::Rts));
    buffer(&mut rig, &mut b, 64);
    rig.post(&mut a, Request::send().inline(b"heard"));
    assert_eq!(rig.one(1, b.receive_cq).bytes(), 5);
}

#[test]
fn unreadable_sender_memory_spares_the_receiver() {
    // A key over unmapped memory.
    const NOWHERE: u64 = 16;
    for service in [UC, UD] {
        let mut rig = Rig::new();
        let (mut a, mut b) = match service {
            it if it == UC => unreliable(&mut rig),
            _ => (end(&mut rig, 0, service), end(&mut rig, 1, service)),
        };
        let lkey = rig.mkey(0, NOWHERE, 64, super::rig::ALL);
        let at = buffer(&mut rig, &mut b, 128);
        let send = |rig: &Rig| match service {
            it if it == UC => Request::send(),
            _ => request(opcode::SEND, &vector(rig, &b, b.qpn)),
        };
        let first = send(&rig).sge(NOWHERE, 8, lkey);
        rig.post(&mut a, first);
        let entry = rig.one(0, a.send_cq);
        assert_eq!(entry.error(), (cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::LOCAL_PROTECTION));
        assert_eq!((rig.qp(&a).state, rig.qp(&b).state), (QpState::SqError, QpState::Rts));
        rig.none(1, b.receive_cq);
        // The receive WQE still serves the next message.
        rig.qp(&a).state = QpState::Rts;
        let next = send(&rig).inline(b"heard");
        rig.post(&mut a, next);
        rig.one(0, a.send_cq);
        let received = rig.one(1, b.receive_cq);
        let header = if service == UD { 40 } else { 0 };
        assert_eq!((received.index(), received.bytes()), (0, header + 5), "{service:?}");
        assert_eq!(rig.bytes(at + u64::from(header), 5), b"heard");
    }
}

#[test]
fn unreadable_multicast_is_not_tried_on_next_member() {
    const NOWHERE: u64 = 16;
    let mut rig = Rig::new();
    let mut a = end(&mut rig, 0, UD);
    let (mut b, mut c) = (end(&mut rig, 1, UD), end(&mut rig, 1, UD));
    let group = [0xff; 16];
    for qpn in [b.qpn, c.qpn] {
        rig.locked.functions[1].hca.objects.groups.join(group, qpn);
    }
    let lkey = rig.mkey(0, NOWHERE, 64, super::rig::ALL);
    buffer(&mut rig, &mut b, 64);
    // Too short: a message would fail.
    buffer(&mut rig, &mut c, 44);
    let mut vector = vector(&rig, &b, 0xff_ffff);
    vector.set_rlid(0xc001).set_grh(true).set_rgid(&group);
    rig.post(&mut a, request(opcode::SEND, &vector).sge(NOWHERE, 8, lkey));
    assert_eq!(rig.one(0, a.send_cq).syndrome(), cqe_syndrome::LOCAL_PROTECTION);
    for member in [&b, &c] {
        rig.none(1, member.receive_cq);
        assert_eq!(rig.qp(member).state, QpState::Rts);
    }
}

#[test]
fn uc_rejects_reads_and_atomics() {
    for request in [Request::read(0, 0), Request::atomic(opcode::FETCH_ADD, 0, 0, 1, 0)] {
        let mut rig = Rig::new();
        let (mut a, _) = unreliable(&mut rig);
        let (to, lkey) = rig.region(0, 64);
        rig.post(&mut a, request.sge(to, 8, lkey));
        assert_eq!(rig.one(0, a.send_cq).syndrome(), cqe_syndrome::LOCAL_QP_OPERATION);
        assert_eq!(rig.qp(&a).state, QpState::SqError);
    }
}

#[test]
fn ud_qp_failing_on_itself_completes_requests_once() {
    let mut rig = Rig::new();
    let mut a = end(&mut rig, 0, UD);
    buffer(&mut rig, &mut a, 41);
    let vector = vector(&rig, &a, a.qpn);
    for _ in 0..3 {
        let wqe = request(opcode::SEND, &vector).inline(b"too long").wqe(a.qpn, a.posted);
        rig.write_wqe(&mut a, &wqe);
    }
    rig.ring(&a);
    let sent = rig.all(0, a.send_cq);
    let indexes: Vec<u16> = sent.iter().map(|entry| entry.index()).collect();
    assert_eq!(indexes, [0, 2, 4]);
    // The first may have left before the QP failed.
    let opcodes = sent.iter().map(|entry| entry.opcode()).skip(1);
    assert!(opcodes.eq([cqe_opcode::REQUESTER_ERROR; 2]), "{sent:?}");
    assert!(sent[1..].iter().all(|entry| entry.syndrome() == cqe_syndrome::FLUSHED));
    assert_eq!(rig.qp(&a).state, QpState::Error);
}
