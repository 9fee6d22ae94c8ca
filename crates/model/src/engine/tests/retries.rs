//! Delays: RNR, missing answers, sequence errors, ports that are down, lost packets.

use std::time::Duration;

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, event_type, opcode};

use super::rig::{Endpoint, Request, Rig};
use crate::engine::{self, FaultWindow};
use crate::hca::Effect;
use crate::hca::objects::{Address, QCounter, QpState};

/// RNR timer code 12.
const RNR: Duration = Duration::from_micros(640);
/// ACK timeout code 14.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

fn error(rig: &mut Rig, end: &Endpoint, syndrome: u8) {
    let entry = rig.one(end.hca, end.send_cq);
    assert_eq!((entry.opcode(), entry.syndrome()), (cqe_opcode::REQUESTER_ERROR, syndrome));
}

#[test]
fn send_waits_for_a_receive() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rlkey) = rig.region(1, 64);
    rig.post(&mut a, Request::send().inline(b"early"));
    rig.none(0, a.send_cq);
    rig.receive(&mut b, &[DataSegment::new(64, rlkey, to)]);
    rig.none(0, a.send_cq);
    rig.advance(RNR - Duration::from_nanos(1));
    rig.none(0, a.send_cq);
    rig.advance(Duration::from_nanos(1));
    rig.one(0, a.send_cq);
    assert_eq!(rig.one(1, b.receive_cq).bytes(), 5);
}

#[test]
fn send_without_receive_exceeds_rnr_retries() {
    for request in [Request::send(), Request::new(opcode::WRITE_IMM).remote(0, 0)] {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        rig.post(&mut a, request);
        rig.none(0, a.send_cq);
        rig.advance(RNR);
        rig.none(0, a.send_cq);
        rig.advance(RNR);
        error(&mut rig, &a, cqe_syndrome::RNR_RETRY_EXCEEDED);
        assert_eq!(rig.qp(&b).state, QpState::Rts);
    }
}

#[test]
fn rnr_retry_count_7_is_unlimited() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let requester = &mut rig.qp(&a).requester;
    (requester.rnr_retry_limit, requester.rnr_retries_left) = (7, 7);
    rig.post(&mut a, Request::send());
    for _ in 0..300 {
        rig.advance(RNR);
    }
    rig.none(0, a.send_cq);
    rig.receive(&mut b, &[]);
    rig.advance(RNR);
    rig.one(0, a.send_cq);
}

#[test]
fn doorbell_does_not_shorten_rnr_wait() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.post(&mut a, Request::send());
    rig.run();
    for _ in 0..20 {
        rig.ring(&a);
        rig.none(0, a.send_cq);
    }
    assert_eq!(rig.qp(&a).requester.rnr_retries_left, 1);
}

#[test]
fn unanswered_request_exceeds_transport_retries() {
    let changes: [fn(&mut Rig, &Endpoint, &Endpoint); 7] = [
        |rig, a, _| rig.qp(a).requester.psn = 3,
        |rig, a, _| rig.qp(a).remote = Some(Address::Lid(99)),
        |rig, a, _| rig.qp(a).remote_qpn = 0x9999,
        |rig, _, b| rig.qp(b).state = QpState::Init,
        |rig, _, b| rig.qp(b).remote_qpn = 0x9999,
        |rig, _, b| rig.qp(b).remote = Some(Address::Lid(99)),
        |rig, _, b| rig.qp(b).responder.psn = 5,
    ];
    for change in changes {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        change(&mut rig, &a, &b);
        rig.post(&mut a, Request::write(0, 0));
        rig.none(0, a.send_cq);
        for _ in 0..2 {
            rig.advance(TIMEOUT);
            rig.none(0, a.send_cq);
        }
        rig.advance(TIMEOUT);
        error(&mut rig, &a, cqe_syndrome::TRANSPORT_RETRY_EXCEEDED);
    }
}

#[test]
fn psns_count_packets_on_both_sides() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    let (from, lkey) = rig.region(0, 8192);
    let (to, rkey) = rig.region(1, 8192);
    let start = 0xff_fffe;
    rig.qp(&a).requester.psn = start;
    rig.qp(&b).responder.psn = start;
    rig.post(&mut a, Request::write(to, rkey).sge(from, 4097, lkey));
    rig.one(0, a.send_cq);
    assert_eq!(rig.qp(&a).requester.psn, 3);
    rig.post(&mut a, Request::read(to, rkey).sge(from, 1024, lkey));
    rig.one(0, a.send_cq);
    rig.post(&mut a, Request::write(to, rkey));
    rig.one(0, a.send_cq);
    assert_eq!(rig.qp(&a).requester.psn, 5);
    assert_eq!(rig.qp(&b).responder.psn, 5);
}

#[test]
fn zero_ack_timeout_never_retries() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    rig.qp(&a).requester.ack_timeout = 0;
    rig.qp(&b).state = QpState::Reset;
    rig.post(&mut a, Request::write(0, 0));
    rig.advance(Duration::from_secs(1_000_000));
    rig.none(0, a.send_cq);
}

#[test]
fn lost_message_is_sent_again() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    rig.locked.functions[0].engine.faults.lose_messages = FaultWindow { skip: 1, count: 2 };
    for _ in 0..2 {
        rig.post(&mut a, Request::write(to, rkey).inline(&[5; 8]));
    }
    rig.one(0, a.send_cq);
    rig.advance(TIMEOUT);
    rig.none(0, a.send_cq);
    rig.advance(TIMEOUT);
    rig.one(0, a.send_cq);
    assert_eq!(rig.qp(&a).requester.retries_left, 2, "success restores the retries");
}

#[test]
fn down_port_loses_messages_and_reports_event() {
    for side in 0..2 {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        engine::set_port(&mut rig.locked, side, 1, false);
        engine::set_port(&mut rig.locked, side, 1, false);
        let event = rig.eqe(side, super::rig::ASYNC_EQ).unwrap();
        assert_eq!((event.event_type().0, event.event_sub_type()), (event_type::PORT_CHANGE, 1));
        assert_eq!(event.event_data()[8], 1 << 4);
        assert!(rig.events(side).is_empty());
        rig.post(&mut a, Request::write(0, 0));
        rig.advance(TIMEOUT);
        rig.none(0, a.send_cq);
        engine::set_port(&mut rig.locked, side, 1, true);
        assert_eq!(rig.eqe(side, super::rig::ASYNC_EQ).unwrap().event_sub_type(), 4);
        rig.advance(TIMEOUT);
        rig.one(0, a.send_cq);
    }
}

#[test]
fn gid_reaches_peer_like_a_lid() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    for (end, other) in [(&a, &b), (&b, &a)] {
        let gid = rig.locked.functions[other.hca].hca.ports[0].gids[0];
        let lid = rig.locked.functions[other.hca].hca.ports[0].lid;
        let qp = rig.qp(end);
        qp.remote = Some(Address::Routed { lid, gid });
        qp.context.primary_address_path_mut().set_grh(true).set_rgid_rip(&gid);
    }
    rig.post(&mut a, Request::write(0, 0));
    rig.one(0, a.send_cq);
}

#[test]
fn fatal_device_executes_no_wqe() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.locked.functions[0].hca.fatal = true;
    rig.post(&mut a, Request::new(opcode::NOP));
    rig.none(0, a.send_cq);
}

#[test]
fn dead_device_is_silent_and_delays_no_other() {
    let mut rig = Rig::new();
    let (mut dead, mut alive) = (rig.pair().0, rig.end(1));
    let peer = rig.end(1);
    rig.connect(&alive, &peer);
    rig.locked.functions[0].engine.faults.delay_completions = FaultWindow { skip: 0, count: 1 };
    rig.locked.functions[0].engine.faults.delay = 1000;
    rig.post(&mut dead, Request::new(opcode::NOP));
    rig.run();
    assert!(!rig.locked.functions[0].engine.delayed.is_empty());
    for _ in 0..2 {
        rig.post(&mut dead, Request::new(opcode::NOP).unsignaled());
    }
    assert!(engine::step(&mut rig.locked));
    assert!(
        !rig.locked.functions[0].engine.active.is_empty(),
        "the function fails with work to do"
    );
    rig.locked.functions[0].hca.fatal = true;
    // The other device handles each doorbell at once, though one waits on a page of the dead
    // device.
    for _ in 0..12 {
        rig.ring(&dead);
        rig.post(&mut alive, Request::new(opcode::NOP));
        rig.one(1, alive.send_cq);
        assert!(!rig.locked.functions[0].hca.bar.rung(), "the doorbell is dropped");
    }
    rig.advance(Duration::from_secs(1));
    rig.none(0, dead.send_cq);
}

#[test]
fn busy_queue_does_not_delay_late_flushes() {
    let mut rig = Rig::new();
    let (mut busy, mut failed) = rig.pair();
    rig.effect(1, Effect::QpToError(failed.qpn));
    rig.run();
    rig.receive(&mut failed, &[]);
    let mut turns = 0;
    let flushed = loop {
        rig.post(&mut busy, Request::new(opcode::NOP).unsignaled());
        assert!(engine::step(&mut rig.locked), "there is always something to do");
        if let Some(entry) = rig.poll(1, failed.receive_cq) {
            break entry;
        }
        turns += 1;
        assert!(turns < 10_000, "the receive waits while others are busy");
    };
    assert_eq!(flushed.syndrome(), cqe_syndrome::FLUSHED);
}

/// Makes a function's QPs count in its set 7.
fn counting(rig: &mut Rig, ends: [&Endpoint; 2]) {
    for end in ends {
        rig.qp(end).context.set_counter_set_id(7);
        let values = verbless_prm::QueryQCounterOut::zeroed();
        rig.locked.functions[end.hca].hca.objects.counters.insert(7, QCounter { uid: 0, values });
    }
}

fn counters(rig: &Rig, hca: usize) -> verbless_prm::QueryQCounterOut {
    rig.locked.functions[hca].hca.objects.counters[&7].values
}

#[test]
fn retries_naks_and_errors_count_on_both_sides() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    counting(&mut rig, [&a, &b]);
    rig.post(&mut a, Request::send().inline(b"no one waits"));
    for tries in 1..=2 {
        rig.run();
        let (requester, responder) = (counters(&rig, 0), counters(&rig, 1));
        assert_eq!((requester.rnr_nak_retry_err(), responder.out_of_buffer()), (tries, tries));
        rig.advance(RNR);
    }
    error(&mut rig, &a, cqe_syndrome::RNR_RETRY_EXCEEDED);
    let (requester, responder) = (counters(&rig, 0), counters(&rig, 1));
    assert_eq!((requester.rnr_nak_retry_err(), responder.out_of_buffer()), (2, 3));
    assert_eq!((requester.req_rnr_retries_exceeded(), requester.req_cqe_error()), (1, 1));

    let (mut a, b) = rig.pair();
    counting(&mut rig, [&a, &b]);
    rig.locked.functions[0].engine.faults.lose_messages = FaultWindow { skip: 0, count: 1 };
    let (to, rkey) = rig.region(1, 64);
    rig.post(&mut a, Request::write(to, rkey).inline(b"lost, and again"));
    rig.run();
    rig.advance(TIMEOUT);
    let (from, lkey) = rig.region(0, 64);
    rig.post(&mut a, Request::read(to, rkey).sge(from, 8, lkey));
    rig.post(&mut a, Request::write(to, rkey ^ 1).inline(b"no key"));
    rig.post(&mut a, Request::new(opcode::NOP));
    rig.run();
    let (requester, responder) = (counters(&rig, 0), counters(&rig, 1));
    assert_eq!((requester.local_ack_timeout_err(), requester.req_remote_access_errors()), (1, 1));
    assert_eq!((requester.req_cqe_flush_error(), requester.req_cqe_error()), (1, 2));
    assert_eq!((responder.rx_write_requests(), responder.rx_read_requests()), (1, 1));
    assert_eq!(responder.resp_remote_access_errors(), 1);

    let (mut a, b) = rig.pair();
    counting(&mut rig, [&a, &b]);
    rig.qp(&a).requester.psn = 5;
    rig.post(&mut a, Request::new(opcode::SEND));
    for _ in 0..3 {
        rig.run();
        rig.advance(TIMEOUT);
    }
    let (requester, responder) = (counters(&rig, 0), counters(&rig, 1));
    // The NAK names a PSN that was never sent: the requester ignores it, and it is not repeated.
    assert_eq!((requester.packet_seq_err(), responder.out_of_sequence()), (0, 1));
    assert_eq!(requester.req_transport_retries_exceeded(), 1);
}

#[test]
fn only_per_qp_faults_end_with_all_queues() {
    let mut rig = Rig::new();
    let faults = &mut rig.locked.functions[0].engine.faults;
    faults.lose_messages_of(7, 0, 1);
    faults.fail_request(Some(7), 1, 0x13);
    faults.fail_request(None, 1, 0x14);
    rig.effect(0, crate::hca::Effect::AllForgotten);
    let faults = &mut rig.locked.functions[0].engine.faults;
    assert!(!faults.loses_message(7));
    assert_eq!(faults.fails_request(7), Some(0x14));
}
