//! Messages while links change: whole or in packets, late, or lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome};

use super::rig::{Endpoint, Request, Rig};
use crate::engine;
use crate::fabric::{
    FrameEffect, FrameFault, FrameSelector, LinkSettings, Occurrence, PhysicalPort, Vport,
};
use crate::watch::SeenFrame;

fn port(rig: &Rig, function: usize) -> PhysicalPort {
    rig.locked.fabric().lock().physical_port(Vport { function, port: 1 }).unwrap()
}

fn set_faults(
    rig: &mut Rig,
    faults: impl IntoIterator<Item = (FrameEffect, Occurrence)>,
    seed: u64,
) {
    let select = FrameSelector::default();
    let faults = faults
        .into_iter()
        .map(|(effect, when)| FrameFault { effect, select: select.clone(), when })
        .collect();
    let latency = Duration::from_nanos(700);
    for function in 0..2 {
        let settings =
            LinkSettings { faults: Vec::clone(&faults), seed, latency, ..LinkSettings::default() };
        let port = port(rig, function);
        rig.locked.fabric().lock().set_link(port, settings);
    }
}

/// Runs until no timer is pending.
fn run(rig: &mut Rig) {
    for _ in 0..1_000_000 {
        if !engine::step(&mut rig.locked) && !engine::jump(&mut rig.locked) {
            return;
        }
    }
    panic!("the engine does not become idle");
}

/// A pair with enough retries.
fn pair(rig: &mut Rig) -> (Endpoint, Endpoint) {
    let (a, b) = rig.pair();
    for end in [&a, &b] {
        let requester = &mut rig.qp(end).requester;
        (requester.retry_limit, requester.retries_left) = (7, 7);
    }
    (a, b)
}

const BYTES: u32 = 6000;
const MESSAGES: u32 = 8;

/// WRITEs and SENDs of several packets: each completes once, in order, with its bytes.
fn exchange(rig: &mut Rig) {
    let (mut a, mut b) = pair(rig);
    let (from, lkey) = rig.region(0, u64::from(BYTES * MESSAGES));
    let (to, rkey) = rig.region(1, u64::from(BYTES * MESSAGES));
    let payload: Vec<u8> = (0..BYTES * MESSAGES).map(|it| (it * 7 + it / 251) as u8).collect();
    rig.fill(from, &payload);
    for message in 0..MESSAGES {
        let at = u64::from(message * BYTES);
        let request = match message % 2 {
            0 => Request::write(to + at, rkey),
            _ => {
                rig.receive(&mut b, &[DataSegment::new(BYTES, rkey, to + at)]);
                Request::send()
            }
        };
        rig.post(&mut a, request.sge(from + at, BYTES, lkey));
    }
    run(rig);
    let completed = |rig: &mut Rig, end: &Endpoint, cqn, opcode| {
        let entries = rig.all(end.hca, cqn);
        for entry in &entries {
            assert_eq!(entry.opcode(), opcode, "syndrome {:#x}", entry.syndrome());
        }
        entries.iter().map(|entry| entry.index()).collect::<Vec<_>>()
    };
    let sent = completed(rig, &a, a.send_cq, cqe_opcode::REQUESTER);
    assert_eq!(sent, (0..MESSAGES as u16).collect::<Vec<_>>());
    let received = completed(rig, &b, b.receive_cq, cqe_opcode::RESPONDER_SEND);
    assert_eq!(received, (0..MESSAGES as u16 / 2).collect::<Vec<_>>());
    assert!(rig.bytes(to, payload.len()) == payload, "the bytes are those that were sent");
}

#[test]
fn messages_are_carried_whole_once_link_faults_end() {
    let mut rig = Rig::new();
    rig.locked.in_packets = false;
    let frames = |rig: &Rig| {
        let port = port(rig, 0);
        rig.locked.fabric().lock().traffic(port)[0].frames
    };
    exchange(&mut rig);
    assert_eq!(frames(&rig), 0);
    set_faults(&mut rig, [(FrameEffect::Lose, Occurrence::Nth { skip: 3, count: 2 })], 0);
    exchange(&mut rig);
    let so_far = frames(&rig);
    assert!(so_far > 0);
    for function in 0..2 {
        let port = port(&rig, function);
        rig.locked.fabric().lock().set_link(port, LinkSettings::default());
    }
    exchange(&mut rig);
    assert_eq!(frames(&rig), so_far);
}

#[test]
fn link_changes_do_not_interrupt_connection() {
    let mut rig = Rig::new();
    rig.locked.in_packets = false;
    let (mut a, _) = pair(&mut rig);
    let (to, rkey) = rig.region(1, 64);
    for turn in 0..6_u8 {
        match turn % 2 {
            0 => set_faults(&mut rig, [], 0),
            _ => (0..2).for_each(|function| {
                let port = port(&rig, function);
                rig.locked.fabric().lock().set_link(port, LinkSettings::default());
            }),
        }
        rig.post(&mut a, Request::write(to, rkey).inline(&[turn + 1; 8]));
        run(&mut rig);
        let entry = rig.one(0, a.send_cq);
        assert_eq!(entry.opcode(), cqe_opcode::REQUESTER, "turn {turn}");
        assert_eq!(rig.bytes(to, 8), [turn + 1; 8]);
    }
}

#[test]
fn partition_exceeds_transport_retries() {
    let mut rig = Rig::new();
    rig.locked.in_packets = false;
    let (mut a, _) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    let isolated = port(&rig, 1);
    rig.locked
        .fabric()
        .lock()
        .set_link(isolated, LinkSettings { partition: 1, ..LinkSettings::default() });
    rig.post(&mut a, Request::write(to, rkey).inline(b"lost"));
    run(&mut rig);
    let entry = rig.one(0, a.send_cq);
    assert_eq!(
        entry.error(),
        (cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::TRANSPORT_RETRY_EXCEEDED)
    );
    assert_eq!(rig.bytes(to, 4), [0; 4]);
}

#[test]
fn message_time_follows_latency_and_bandwidth() {
    let mut rig = Rig::new();
    let (mut a, _) = pair(&mut rig);
    let (from, lkey) = rig.region(0, 4096);
    let (to, rkey) = rig.region(1, 4096);
    let (bandwidth, latency) = (Some(8_000_000_000), Duration::from_nanos(500));
    for function in 0..2 {
        let port = port(&rig, function);
        let settings = LinkSettings { bandwidth, latency, ..LinkSettings::default() };
        rig.locked.fabric().lock().set_link(port, settings);
    }
    rig.post(&mut a, Request::write(to, rkey).sge(from, 1024, lkey));
    while rig.poll(0, a.send_cq).is_none() {
        assert!(
            engine::step(&mut rig.locked) || engine::jump(&mut rig.locked),
            "the request completes"
        );
    }
    // LRH, BTH, RETH, payload, ICRC, VCRC; LRH, BTH, AETH, ICRC, VCRC: each over two links, a byte
    // each nanosecond.
    let (request, ack) = (8 + 12 + 16 + 1024 + 4 + 2, 8 + 12 + 4 + 4 + 2);
    assert_eq!(rig.locked.clock.now, 2 * (request + 500) + 2 * (ack + 500));
}

#[test]
fn stepped_model_trace_depends_only_on_seed() {
    // Time, port, direction, and the parts of a frame without memory addresses: opcode, QPN, PSN.
    type Trace = Vec<(Duration, usize, bool, usize, Vec<u8>)>;
    let mut kept = Vec::new();
    let trace = |seed| -> Trace {
        let mut rig = Rig::new();
        let seen = Arc::new(Mutex::new(Trace::new()));
        let sink = seen.clone();
        rig.locked.outbox().frames.add(move |frame: &SeenFrame| {
            let SeenFrame { at, port, leaving, bytes, .. } = frame;
            let bth = bytes[8..20].to_vec();
            sink.lock().unwrap().push((*at, *port, *leaving, bytes.len(), bth));
        });
        let chance = Occurrence::Chance(0.1);
        let late = FrameEffect::Delay(Duration::from_micros(3));
        set_faults(&mut rig, [(FrameEffect::Lose, chance), (late, chance)], seed);
        exchange(&mut rig);
        rig.locked.outbox().frames.deliver();
        // The next rig must have its memory elsewhere.
        kept.push(rig);
        let seen = seen.lock().unwrap();
        seen.clone()
    };
    let [first, second, other] = [5, 5, 6].map(trace);
    assert!(first.len() > 50, "{} frames", first.len());
    assert!(first == second, "two runs differ");
    assert!(first != other, "the seed has no effect");
}
