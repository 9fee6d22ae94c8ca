//! Retransmissions after the loss of certain packets, and their times.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use verbless_prm::BthOpcode;
use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome};

use super::rig::{Endpoint, Entry, Request, Rig};
use crate::engine;
use crate::engine::transport::types::UC;
use crate::fabric::{
    FrameEffect, FrameFault, FrameSelector, LinkSettings, Occurrence, PhysicalPort, Vport,
};
use crate::hca::objects::QpState;
use crate::watch::SeenFrame;

/// Loses packets of an opcode that function 0 sends or receives: `count`, after `skip`.
struct LostPackets {
    opcode: BthOpcode,
    skip: u64,
    count: u64,
}

/// A pair with packets of 256 bytes that take time and may get lost.
fn pair(lost: &[LostPackets]) -> (Rig, Endpoint, Endpoint) {
    let mut rig = Rig::new();
    rig.locked.in_packets = true;
    let faults = lost.iter().map(|&LostPackets { opcode, skip, count }| FrameFault {
        effect: FrameEffect::Lose,
        select: FrameSelector { opcodes: vec![opcode.0], ..FrameSelector::default() },
        when: Occurrence::Nth { skip, count },
    });
    let latency = Duration::from_micros(3);
    let bandwidth = Some(10_000_000_000);
    let settings =
        LinkSettings { faults: faults.collect(), latency, bandwidth, ..LinkSettings::default() };
    let link = port(&rig, 0);
    rig.locked.fabric().lock().set_link(link, settings);
    let (a, b) = rig.pair();
    for end in [&a, &b] {
        rig.qp(end).log_mtu = 8;
    }
    (rig, a, b)
}

fn port(rig: &Rig, function: usize) -> PhysicalPort {
    rig.locked.fabric().lock().physical_port(Vport { function, port: 1 }).unwrap()
}

fn frames_lost(rig: &Rig) -> u64 {
    let port = port(rig, 0);
    rig.locked.fabric().lock().traffic(port).iter().map(|it| it.lost).sum()
}

/// Whether work was left.
fn step(rig: &mut Rig) -> bool {
    engine::step(&mut rig.locked) || engine::jump(&mut rig.locked)
}

fn run(rig: &mut Rig) {
    for _ in 0..1_000_000 {
        if !step(rig) {
            return;
        }
    }
    panic!("the transfer does not end");
}

#[test]
fn requests_before_a_local_failure_are_resent() {
    let (mut rig, mut a, _) =
        pair(&[LostPackets { opcode: BthOpcode::RC_WRITE_ONLY, skip: 0, count: 1 }]);
    let (to, rkey) = rig.region(1, 64);
    let (from, lkey) = rig.region(0, 64);
    rig.fill(from, &[7; 8]);
    let wqes = [
        Request::write(to, rkey).sge(from, 8, lkey),
        Request::write(to, rkey).sge(from, 8, lkey ^ 1),
    ];
    for request in wqes {
        let wqe = request.wqe(a.qpn, a.posted);
        rig.write_wqe(&mut a, &wqe);
    }
    rig.ring(&a);
    run(&mut rig);
    assert_eq!(frames_lost(&rig), 1);
    let done: Vec<_> = rig.all(0, a.send_cq).iter().map(Entry::error).collect();
    assert_eq!(done.len(), 2, "both complete: {done:x?}");
    assert_eq!(done[0].0, cqe_opcode::REQUESTER);
    assert_eq!(done[1], (cqe_opcode::REQUESTER_ERROR, 1, cqe_syndrome::LOCAL_PROTECTION));
    assert_eq!(rig.bytes(to, 8), [7; 8]);
}

/// READs 300 packets, twice, from a peer that answers one READ at a time. Returns the requests, and
/// the last packets of the responses, in the order in which the requester's port sees them.
fn long_read(lost: &[LostPackets]) -> Vec<BthOpcode> {
    const SHOWN: [BthOpcode; 2] = [BthOpcode::RC_READ_REQUEST, BthOpcode::RC_READ_RESPONSE_LAST];
    const LENGTH: u32 = 300 << 8;
    let (mut rig, mut a, b) = pair(lost);
    rig.qp(&a).requester.max_rd_atomic = 1;
    rig.qp(&b).responder.max_dest_rd_atomic = 1;
    let (to, lkey) = rig.region(0, LENGTH.into());
    let (from, rkey) = rig.region(1, LENGTH.into());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    rig.locked.outbox().frames.add(move |frame: &SeenFrame| {
        let opcode = BthOpcode(frame.bytes[8]);
        if frame.port == 0 && SHOWN.contains(&opcode) {
            sink.lock().unwrap().push(opcode);
        }
    });
    let data: Vec<u8> = (0..LENGTH).map(|at| (at * 7 + at / 251) as u8).collect();
    rig.fill(from, &data);
    for _ in 0..2 {
        rig.post(&mut a, Request::read(from, rkey).sge(to, LENGTH, lkey));
    }
    run(&mut rig);
    assert_eq!(frames_lost(&rig), lost.iter().map(|it| it.count).sum::<u64>());
    let done: Vec<_> = rig.all(0, a.send_cq).iter().map(|it| (it.opcode(), it.index())).collect();
    assert_eq!(done, [(cqe_opcode::REQUESTER, 0), (cqe_opcode::REQUESTER, 1)]);
    assert!(rig.bytes(to, LENGTH as usize) == data);
    assert_eq!([rig.qp(&a).state, rig.qp(&b).state], [QpState::Rts; 2]);
    rig.locked.outbox().frames.deliver();
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[test]
fn read_with_lost_request_is_resent_part_by_part() {
    let seen = long_read(&[LostPackets { opcode: BthOpcode::RC_READ_REQUEST, skip: 0, count: 1 }]);
    let (request, last) = (BthOpcode::RC_READ_REQUEST, BthOpcode::RC_READ_RESPONSE_LAST);
    // The lost request; three parts of 128 packets at most; the second READ.
    assert_eq!(seen, [request, request, last, request, last, request, last, request, last]);
}

#[test]
fn missing_packets_are_rerequested_within_a_part() {
    long_read(&[
        LostPackets { opcode: BthOpcode::RC_READ_REQUEST, skip: 0, count: 1 },
        LostPackets { opcode: BthOpcode::RC_READ_RESPONSE_MIDDLE, skip: 40, count: 1 },
    ]);
}

#[test]
fn wrong_packet_size_drops_its_uc_message() {
    let (mut rig, mut a, mut b) = pair(&[]);
    for end in [&a, &b] {
        rig.qp(end).qp_type = UC;
    }
    let (from, lkey) = rig.region(0, 1024);
    let (to, key) = rig.region(1, 1024);
    for value in 1..=2 {
        rig.fill(from, &[value; 1024]);
        rig.receive(&mut b, &[DataSegment::new(1024, key, to)]);
        rig.post(&mut a, Request::send().sge(from, 1024, lkey));
        let sizes = |rig: &mut Rig| match rig.qp(&b).responder.psn {
            // The second packet of the first message is shorter than this message expects.
            1 => 9,
            _ => 8,
        };
        while step(&mut rig) {
            rig.qp(&b).log_mtu = sizes(&mut rig);
        }
    }
    let arrived = rig.one(1, b.receive_cq);
    assert_eq!((arrived.index(), arrived.bytes()), (0, 1024));
    assert_eq!(rig.bytes(to, 1024), [2; 1024], "only the second message");
}
