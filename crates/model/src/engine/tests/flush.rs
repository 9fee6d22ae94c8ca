//! The error state: posted WQEs are flushed later, and discarded by a reset.

use std::time::Duration;

use verbless_prm::hot::{cqe_syndrome, event_type, opcode};
use verbless_prm::{RqState, SqState};

use super::rig::{Endpoint, Request, Rig};
use super::srqs::{NUMBER, SrqRig};
use crate::engine;
use crate::hca::Effect;
use crate::hca::objects::QpState;
use crate::memory::HostMemory;

fn nops(rig: &mut Rig, end: &mut Endpoint, count: usize) {
    for _ in 0..count {
        rig.post(end, Request::new(opcode::NOP));
    }
}

pub(super) fn reset(rig: &mut Rig, end: &Endpoint) {
    let qp = rig.qp(end);
    qp.state = QpState::Reset;
    let runtime = std::mem::take(&mut qp.runtime);
    let send = qp.sq.as_mut().map(|sq| sq.reset());
    rig.effect(end.hca, Effect::QpForgotten(end.qpn, runtime, send));
}

#[test]
fn qp_to_error_flushes_in_later_turns() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nops(&mut rig, &mut a, 3);
    rig.receive(&mut a, &[]);
    rig.effect(0, Effect::QpToError(a.qpn));
    assert_eq!(rig.qp(&a).state, QpState::Error);
    assert_eq!((rig.cqes(0, a.send_cq), rig.cqes(0, a.receive_cq)), (0, 0), "not in the command");
    let flushed: Vec<_> = rig.all(0, a.send_cq).iter().map(|entry| entry.syndrome()).collect();
    assert_eq!(flushed, [cqe_syndrome::FLUSHED; 3]);
    assert_eq!(rig.one(0, a.receive_cq).syndrome(), cqe_syndrome::FLUSHED);
}

#[test]
fn qp_flushes_a_few_wqes_a_turn() {
    let mut rig = Rig::new();
    let (cq, other) = (rig.cq(0, 7), rig.cq(0, 7));
    let a = rig.end_on(0, cq, other);
    rig.connect(&a, &a);
    // The ring is short, but its record counts on.
    let record = rig.qp(&a).record;
    rig.memory().store32(record + 4, 100_u32.to_be()).unwrap();
    rig.effect(0, Effect::QpToError(a.qpn));
    let mut max = 0;
    let mut all = 0;
    while engine::step(&mut rig.locked) {
        let here = rig.cqes(0, cq);
        max = max.max(here);
        all += here;
    }
    assert_eq!(all, 100);
    assert!(max < 50, "{max} in one step");
}

#[test]
fn reset_discards_unflushed_wqes() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nops(&mut rig, &mut a, 3);
    rig.receive(&mut a, &[]);
    rig.effect(0, Effect::QpToError(a.qpn));
    reset(&mut rig, &a);
    rig.none(0, a.send_cq);
    rig.none(0, a.receive_cq);
}

#[test]
fn failed_request_completes_before_later_flushes() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.post(&mut a, Request::new(0x7f));
    nops(&mut rig, &mut a, 2);
    while rig.qp(&a).state == QpState::Rts {
        assert!(engine::step(&mut rig.locked));
    }
    assert_eq!(rig.poll(0, a.send_cq).unwrap().syndrome(), cqe_syndrome::LOCAL_QP_OPERATION);
    assert_eq!(rig.poll(0, a.send_cq), None, "those behind it are flushed later");
    let flushed: Vec<_> = rig.all(0, a.send_cq).iter().map(|entry| entry.syndrome()).collect();
    assert_eq!(flushed, [cqe_syndrome::FLUSHED; 2]);
}

#[test]
fn sq_and_rq_flush_later_unless_reset() {
    for resets in [false, true] {
        let mut rig = Rig::new();
        let mut sq = rig.sq(0);
        nops(&mut rig, &mut sq, 2);
        rig.sq_mut(&sq).state = SqState::ERR;
        rig.effect(0, Effect::SqToError(sq.qpn));
        assert_eq!(rig.cqes(0, sq.send_cq), 0, "not in the command");
        if resets {
            let send = rig.sq_mut(&sq).queue.reset();
            rig.sq_mut(&sq).state = SqState::RST;
            rig.effect(0, Effect::SqForgotten(sq.qpn, send));
        }
        assert_eq!(rig.all(0, sq.send_cq).len(), if resets { 0 } else { 2 });

        let rq = rig.rq(0);
        let record = rig.rq_mut(&rq).record;
        rig.memory().store32(record, 2_u32.to_be()).unwrap();
        rig.effect(0, Effect::RqToError(rq.qpn));
        assert_eq!(rig.cqes(0, rq.receive_cq), 0, "not in the command");
        if resets {
            rig.rq_mut(&rq).state = RqState::RST;
            rig.effect(0, Effect::RqForgotten(rq.qpn));
        }
        assert_eq!(rig.all(0, rq.receive_cq).len(), if resets { 0 } else { 2 });
    }
}

#[test]
fn last_wqe_reached_follows_the_flush() {
    let mut rig = Rig::new();
    let (_, mut b) = rig.pair();
    SrqRig::new(&mut rig);
    let qp = rig.qp(&b);
    (qp.srq, qp.rq) = (Some(NUMBER), None);
    nops(&mut rig, &mut b, 3);
    rig.effect(1, Effect::QpToError(b.qpn));
    assert!(rig.events(1).is_empty(), "nothing is flushed yet");
    let mut flushed = 0;
    while !rig.events(1).contains(&event_type::SRQ_LAST_WQE) {
        assert!(engine::step(&mut rig.locked), "the SRQ_LAST_WQE event");
        flushed += rig.cqes(1, b.send_cq);
    }
    assert_eq!(flushed, 3);
    nops(&mut rig, &mut b, 1);
    assert_eq!(rig.all(1, b.send_cq).len(), 1);
    assert!(rig.events(1).is_empty(), "only one event");
}

#[test]
fn sqerr2rts_finishes_the_flush() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nops(&mut rig, &mut a, 2);
    rig.qp(&a).state = QpState::SqError;
    let now = rig.locked.clock.now;
    rig.locked.functions[0].engine.flushes.add(a.qpn, now);
    rig.qp(&a).state = QpState::Rts;
    rig.effect(0, Effect::SenderReady(a.qpn));
    assert_eq!(rig.cqes(0, a.send_cq), 2);
    nops(&mut rig, &mut a, 1);
    assert_eq!(rig.one(0, a.send_cq).index(), 2);
}

#[test]
fn error_during_a_flush_does_not_begin_another() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nops(&mut rig, &mut a, 2);
    rig.effect(0, Effect::QpToError(a.qpn));
    rig.effect(0, Effect::QpToError(a.qpn));
    nops(&mut rig, &mut a, 1);
    let indexes: Vec<_> = rig.all(0, a.send_cq).iter().map(|entry| entry.index()).collect();
    assert_eq!(indexes, [0, 1, 2], "each once, in order");
}

#[test]
fn threaded_model_delays_flush() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nops(&mut rig, &mut a, 1);
    rig.locked.functions[0].engine.flushes.without_delay = false;
    rig.effect(0, Effect::QpToError(a.qpn));
    rig.none(0, a.send_cq);
    rig.advance(Duration::from_millis(1));
    rig.one(0, a.send_cq);
}

/// A DPA program need not write the record (`verbless-flexio-dev`, outbox).
#[test]
fn flush_after_ring_by_index_ignores_record() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let record = rig.qp(&a).record;
    nops(&mut rig, &mut a, 3);
    rig.memory().store32(record + 4, 0).unwrap();
    engine::doorbell::ring_at_index(&mut rig.locked.functions[0], a.qpn, 3);
    assert_eq!(rig.all(0, a.send_cq).len(), 3);
    // Two more WQEs without a doorbell, a sweep by another queue's doorbell, and an error.
    nops(&mut rig, &mut a, 2);
    rig.memory().store32(record + 4, 0).unwrap();
    engine::doorbell::producer_found(&mut rig.locked.functions[0], a.qpn, Ok(0));
    rig.none(0, a.send_cq);
    engine::doorbell::ring_at_index(&mut rig.locked.functions[0], a.qpn, 5);
    rig.effect(0, Effect::QpToError(a.qpn));
    let flushed: Vec<_> = rig.all(0, a.send_cq).iter().map(|entry| entry.syndrome()).collect();
    assert_eq!(flushed, [cqe_syndrome::FLUSHED; 2]);
}
