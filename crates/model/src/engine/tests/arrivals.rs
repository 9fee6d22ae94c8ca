//! Recorded arrivals, queue by queue, for messages carried whole and in packets.

use verbless_prm::hot::{DataSegment, cqe_opcode, opcode};

use super::rig::{Request, Rig};
use crate::watch::{ArrivalRecording, Arrivals, QueueId, QueueSide};

const BYTES: u32 = 5000;

/// Sends a SEND, a WRITE, a READ, an atomic, and two messages that fit into CQEs; returns the
/// arrivals.
fn run(in_packets: bool, sent: &[u8]) -> (Arrivals, [u32; 2]) {
    let mut rig = Rig::new();
    rig.locked.in_packets = in_packets;
    let recording = ArrivalRecording::new(&rig.locked.common.outbox);
    let (mut a, mut b) = rig.pair();
    let (local, lkey) = rig.region(0, 8192);
    let (remote, rkey) = rig.region(1, 8192);
    let (into, key) = rig.region(1, 8192);
    rig.fill(local, sent);
    rig.receive(&mut b, &[DataSegment::new(8192, key, into)]);
    rig.post(&mut a, Request::send().sge(local, BYTES, lkey));
    rig.post(&mut a, Request::write(remote, rkey).sge(local, BYTES, lkey).unsignaled());
    rig.post(&mut a, Request::read(remote, rkey).sge(local, BYTES, lkey));
    // A READ without a fence may see the effect of an atomic after it.
    rig.run();
    let add = Request::atomic(opcode::FETCH_ADD, remote, rkey, 1, 0);
    rig.post(&mut a, add.sge(local, 8, lkey));
    rig.run();
    for end in [&a, &b] {
        let qp = rig.qp(end);
        (qp.requester_inline, qp.responder_inline) = (32, 32);
    }
    rig.receive(&mut b, &[DataSegment::new(8192, key, into)]);
    rig.post(&mut a, Request::send().inline(b"in the CQE"));
    rig.post(&mut a, Request::read(remote, rkey).sge(local, 10, lkey));
    rig.run();
    (recording.arrivals(), [a.qpn, b.qpn])
}

#[test]
fn arrivals_match_between_whole_and_packet_modes() {
    let sent: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let (whole, [a, b]) = run(false, &sent);
    let (packets, _) = run(true, &sent);
    let strip = |arrivals: &Arrivals| -> Vec<_> {
        let of = |cqe: &[u8]| (cqe[0], cqe[cqe.len() - 1] >> 4, cqe[46..48].to_vec());
        let lines = arrivals.iter().map(|(at, it)| {
            let cqes: Vec<_> = it.completions.iter().map(|cqe| of(cqe)).collect();
            (*at, it.bytes, it.digest, cqes)
        });
        lines.collect()
    };
    assert_eq!(strip(&whole), strip(&packets));

    let at = |function, qpn, side| &whole[&QueueId { function, qpn, side }];
    let requester = at(0, a, QueueSide::Requester);
    // The READ and the result of the atomic; the last READ is in its CQE.
    assert_eq!(requester.bytes, u64::from(BYTES) + 8);
    let opcodes: Vec<u8> = requester.completions.iter().map(|cqe| cqe[63] >> 4).collect();
    assert_eq!(opcodes, [cqe_opcode::REQUESTER; 5]);
    let responder = at(1, b, QueueSide::Responder);
    // The SEND, the WRITE and the word that the atomic changed.
    assert_eq!((responder.bytes, responder.completions.len()), (2 * u64::from(BYTES) + 8, 2));
    assert_eq!(whole.len(), 2, "the other sides got nothing");

    let mut other = sent.clone();
    other[4999] ^= 1;
    let (other, _) = run(false, &other);
    let digest =
        |of: &Arrivals| of[&QueueId { function: 1, qpn: b, side: QueueSide::Responder }].digest;
    assert_ne!(digest(&whole), digest(&other), "one bit");
}

#[test]
fn arrivals_are_recorded_only_on_request() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (remote, rkey) = rig.region(1, 64);
    let outbox = rig.locked.common.outbox.clone();
    let mut write = |rig: &mut Rig| {
        rig.post(&mut a, Request::write(remote, rkey).inline(b"one"));
        rig.run();
    };
    write(&mut rig);
    let recordings = [(); 2].map(|()| ArrivalRecording::new(&outbox));
    write(&mut rig);
    let [one, other] = recordings;
    drop(one);
    write(&mut rig);
    assert_eq!(other.arrivals().values().map(|it| it.bytes).sum::<u64>(), 6);
    drop(other);
    write(&mut rig);
    assert!(ArrivalRecording::new(&outbox).arrivals().is_empty());
}
