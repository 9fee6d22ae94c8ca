//! Long messages that are carried whole go in parts: other queues have turns between the parts, and
//! each part continues where the one before it ended.

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, event_type, opcode};

use super::rig::{Endpoint, Request, Rig};
use super::srqs::{NUMBER, SrqRig};
use crate::engine;
use crate::engine::transport::types::{RC, UC};
use crate::hca::objects::QpState;
use crate::hca::qp_type::QpType;

/// Longer than a few parts, which have 2 KiB in tests.
const MESSAGE_BYTES: u32 = 9000;

fn pair(rig: &mut Rig, service: &'static QpType) -> (Endpoint, Endpoint) {
    rig.locked.in_packets = false;
    let (a, b) = rig.pair();
    for end in [&a, &b] {
        rig.qp(end).qp_type = service;
    }
    (a, b)
}

fn pattern(length: u32) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A region at function 0 that holds a pattern.
fn filled(rig: &mut Rig, length: u32) -> (u64, u32) {
    let (at, key) = rig.region(0, length.into());
    rig.fill(at, &pattern(length));
    (at, key)
}

#[test]
fn whole_mode_shares_bytes_between_queues() {
    let mut rig = Rig::new();
    let (mut a, _) = pair(&mut rig, RC);
    let (mut c, _) = pair(&mut rig, RC);
    let length = 40 * 1024;
    let (from, lkey) = filled(&mut rig, length);
    let (to, rkey) = rig.region(1, length.into());
    rig.post(&mut a, Request::write(to, rkey).sge(from, length, lkey));
    for _ in 0..15 {
        let wqe = Request::write(to, rkey).sge(from, 1024, lkey).wqe(c.qpn, c.posted);
        rig.write_wqe(&mut c, &wqe);
    }
    rig.ring(&c);
    // The long message has moved as many bytes when all short ones are done.
    let mut done = 0;
    while done < 15 {
        assert!(engine::step(&mut rig.locked));
        done += usize::from(rig.poll(0, c.send_cq).is_some());
    }
    let moved = rig.qp(&a).runtime.carried;
    assert!((12 * 1024..=20 * 1024).contains(&moved), "{moved} against 15 KiB");
    rig.one(0, a.send_cq);
    assert!(rig.bytes(to, length as usize) == pattern(length));
}

#[test]
fn packet_mode_shares_bytes_between_queues() {
    let mut rig = Rig::new();
    let (mut a, _) = pair(&mut rig, RC);
    let (mut c, _) = pair(&mut rig, RC);
    rig.locked.in_packets = true;
    let length = 120 << 10;
    let (from, lkey) = filled(&mut rig, length);
    let (to, rkey) = rig.region(1, length.into());
    let (other, other_key) = rig.region(1, 4096);
    rig.post(&mut a, Request::write(to, rkey).sge(from, length, lkey));
    for _ in 0..15 {
        let wqe = Request::write(other, other_key).sge(from, 4096, lkey).wqe(c.qpn, c.posted);
        rig.write_wqe(&mut c, &wqe);
    }
    rig.ring(&c);
    // Stops before the last short messages are in flight: from then on, the long one gets all
    // turns.
    let mut done = 0;
    while done < 12 {
        assert!(engine::step(&mut rig.locked));
        done += usize::from(rig.poll(0, c.send_cq).is_some());
    }
    let there = rig.bytes(to, length as usize);
    let arrived =
        there.iter().zip(pattern(length)).take_while(|(one, other)| *one == other).count();
    // A turn moves 16 KiB at most.
    assert!((32 << 10..=64 << 10).contains(&arrived), "{arrived} bytes against 48 KiB");
    rig.one(0, a.send_cq);
    assert!(rig.bytes(to, length as usize) == pattern(length));
}

#[test]
fn uc_write_with_bad_first_part_writes_nothing() {
    for lost in [false, true] {
        let mut rig = Rig::new();
        let (mut a, b) = pair(&mut rig, UC);
        rig.receive(&mut b.clone(), &[]);
        let (from, lkey) = filled(&mut rig, MESSAGE_BYTES);
        let (to, _) = rig.region(1, MESSAGE_BYTES.into());
        // Without the loss, the key ends before the message does.
        let covered = u64::from(MESSAGE_BYTES) - u64::from(!lost);
        let rkey = rig.mkey(1, to, covered, super::rig::ALL);
        if lost {
            rig.locked.functions[0].engine.faults.lose_messages_of(a.qpn, 0, 1);
        }
        let request = Request::new(opcode::WRITE_IMM).remote(to, rkey);
        rig.post(&mut a, request.sge(from, MESSAGE_BYTES, lkey).imm(7));
        assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
        rig.none(1, b.receive_cq);
        assert!(
            rig.bytes(to, MESSAGE_BYTES as usize).iter().all(|&byte| byte == 0),
            "lost: {lost}"
        );
        // The QP executes the next request.
        rig.post(&mut a, Request::write(to, rkey).sge(from, 5000, lkey));
        rig.one(0, a.send_cq);
        assert!(rig.bytes(to, 5000) == pattern(5000));
    }
}

#[test]
fn srq_receive_is_flushed_when_its_message_fails() {
    let mut rig = Rig::new();
    let mut shared = SrqRig::new(&mut rig);
    let (mut a, b) = pair(&mut rig, RC);
    let qp = rig.qp(&b);
    (qp.srq, qp.rq) = (Some(NUMBER), None);
    qp.context.set_cqn_rcv(b.receive_cq);
    let (from, lkey) = filled(&mut rig, MESSAGE_BYTES);
    let (to, rkey) = rig.region(1, MESSAGE_BYTES.into());
    shared.fill(&rig, 0, 1, DataSegment::new(MESSAGE_BYTES, rkey, to));
    // The key to invalidate does not exist.
    let request = Request::new(opcode::SEND_INVALIDATE).imm(0xde_ad00);
    rig.post(&mut a, request.sge(from, MESSAGE_BYTES, lkey));
    assert_eq!(rig.one(0, a.send_cq).syndrome(), cqe_syndrome::REMOTE_ACCESS);
    let entries = rig.all(1, b.receive_cq);
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0].error(), (cqe_opcode::RESPONDER_ERROR, 0, cqe_syndrome::FLUSHED));
    assert!(rig.events(1).contains(&event_type::SRQ_LAST_WQE));
}

#[test]
fn receiver_loss_between_parts_fails_the_request() {
    for destroyed in [false, true] {
        let mut rig = Rig::new();
        let (mut a, b) = pair(&mut rig, RC);
        let (from, lkey) = filled(&mut rig, MESSAGE_BYTES);
        let (to, rkey) = rig.region(1, MESSAGE_BYTES.into());
        rig.post(&mut a, Request::write(to, rkey).sge(from, MESSAGE_BYTES, lkey));
        while rig.qp(&a).runtime.carried == 0 {
            assert!(engine::step(&mut rig.locked));
        }
        match destroyed {
            true => drop(rig.locked.functions[1].hca.objects.qps.remove(&b.qpn)),
            false => rig.mkey_mut(1, rkey).free = true,
        }
        rig.run();
        let syndrome = match destroyed {
            true => {
                rig.none(0, a.send_cq);
                rig.advance(std::time::Duration::from_secs(100));
                (0..8).for_each(|_| rig.advance(std::time::Duration::from_secs(100)));
                cqe_syndrome::TRANSPORT_RETRY_EXCEEDED
            }
            false => cqe_syndrome::REMOTE_ACCESS,
        };
        let entry = rig.one(0, a.send_cq);
        assert_eq!(entry.error(), (cqe_opcode::REQUESTER_ERROR, 0, syndrome));
        assert_eq!(rig.qp(&a).state, QpState::Error);
        assert_eq!(rig.qp(&a).runtime.carried, 0);
        assert_eq!(rig.bytes(to, 1), pattern(1), "the first part arrived");
    }
}
