//! CQs and EQs: owner bits, overrun, arming, events, and completions that faults delay.

use std::time::Duration;

use verbless_prm::hot::{DataSegment, event_type, opcode};
use verbless_prm::{CqErrorSyndrome, Cqe, CqeOpcode, EqeCompletion, EqeCqError};

use super::rig::{COMP_EQ, Endpoint, Request, Rig};
use crate::engine;
use crate::hca::Effect;
use crate::hca::objects::{Arm, QpState};
use crate::hca::registry::kind;
use crate::memory::HostMemory;

fn nop(rig: &mut Rig, end: &mut Endpoint) {
    rig.post(end, Request::new(opcode::NOP));
    rig.run();
}

/// CQNs of the pending completion events.
fn completion_events(rig: &mut Rig, hca: usize) -> Vec<u32> {
    std::iter::from_fn(|| rig.eqe(hca, COMP_EQ))
        .map(|eqe| EqeCompletion::from_prefix(eqe.event_data()).unwrap().cqn())
        .collect()
}

#[test]
fn cq_owner_bit_flips_each_round() {
    let mut rig = Rig::new();
    let cq = rig.cq(0, 2);
    let mut a = rig.end_on(0, cq, cq);
    rig.connect(&a.clone(), &a.clone());
    for round in 0..21 {
        nop(&mut rig, &mut a);
        assert_eq!(rig.poll(0, cq).unwrap().index(), round);
        assert_eq!(rig.poll(0, cq), None);
    }
}

#[test]
fn cq_overrun_fails_cq_and_its_qp() {
    let mut rig = Rig::new();
    let cq = rig.cq(0, 1);
    let mut a = rig.end_on(0, cq, cq);
    rig.connect(&a.clone(), &a.clone());
    for _ in 0..2 {
        nop(&mut rig, &mut a);
    }
    assert!(rig.events(0).is_empty());
    nop(&mut rig, &mut a);
    let event = rig.eqe(0, super::rig::ASYNC_EQ).unwrap();
    assert_eq!(event.event_type().0, event_type::CQ_ERROR);
    let data = EqeCqError::from_prefix(event.event_data()).unwrap();
    assert_eq!((data.cqn(), data.syndrome()), (cq, CqErrorSyndrome::OVERRUN));
    assert_eq!(rig.events(0), [event_type::WQ_CATASTROPHIC_ERROR]);
    assert_eq!(rig.qp(&a).state, QpState::Error);
    assert_eq!(rig.all(0, cq).len(), 2, "earlier CQEs stay");
    nop(&mut rig, &mut a);
    rig.none(0, cq);
    assert!(rig.events(0).is_empty());
}

#[test]
fn overrun_ignore_keeps_qp_in_rts() {
    let mut rig = Rig::new();
    let cq = rig.cq(0, 1);
    rig.cq_mut(0, cq).overrun_ignore = true;
    let mut a = rig.end_on(0, cq, cq);
    rig.connect(&a.clone(), &a.clone());
    for _ in 0..7 {
        nop(&mut rig, &mut a);
    }
    assert_eq!(rig.qp(&a).state, QpState::Rts);
    assert!(rig.events(0).is_empty());
}

#[test]
fn armed_cq_reports_only_once() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nop(&mut rig, &mut a);
    assert!(completion_events(&mut rig, 0).is_empty(), "not armed");
    rig.poll(0, a.send_cq);
    rig.arm(0, a.send_cq, 1);
    rig.run();
    rig.events(0);
    while !completion_events(&mut rig, 0).is_empty() {}
    nop(&mut rig, &mut a);
    assert_eq!(completion_events(&mut rig, 0), [a.send_cq]);
    nop(&mut rig, &mut a);
    assert!(completion_events(&mut rig, 0).is_empty());
}

#[test]
fn arm_before_poll_waits_for_unreported_completion() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.arm(0, a.send_cq, 1);
    for (sequence, index) in (1..=3).zip(0..) {
        nop(&mut rig, &mut a);
        // As perftest does: event, arm with the index from before the poll, poll.
        rig.arm(0, a.send_cq, sequence << 28 | index);
        rig.run();
        let events = completion_events(&mut rig, 0);
        assert_eq!(events.iter().filter(|&&cqn| cqn == a.send_cq).count(), 1, "round {sequence}");
        assert!(rig.poll(0, a.send_cq).is_some());
    }
    // No event has reported a CQE between the event and the arm.
    nop(&mut rig, &mut a);
    nop(&mut rig, &mut a);
    while !completion_events(&mut rig, 0).is_empty() {}
    rig.arm(0, a.send_cq, 3);
    rig.run();
    assert_eq!(completion_events(&mut rig, 0), [a.send_cq]);
}

#[test]
fn arm_with_fired_sequence_number_is_ignored() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.arm(0, a.send_cq, 0);
    nop(&mut rig, &mut a);
    assert!(completion_events(&mut rig, 0).contains(&a.send_cq));
    rig.arm(0, a.send_cq, 1);
    nop(&mut rig, &mut a);
    assert!(!completion_events(&mut rig, 0).contains(&a.send_cq), "sequence 0 again");
    rig.arm(0, a.send_cq, 1 << 28 | 2);
    nop(&mut rig, &mut a);
    assert_eq!(completion_events(&mut rig, 0), [a.send_cq]);
}

#[test]
fn overwritten_arm_doorbells_both_count() {
    let mut rig = Rig::new();
    let (a, b) = (rig.cq(0, 4), rig.cq(0, 4));
    rig.arm(0, a, 0);
    rig.arm(0, b, 0);
    rig.run();
    assert_ne!(rig.cq_mut(0, a).arm, Arm::Idle);
    assert_ne!(rig.cq_mut(0, b).arm, Arm::Idle);
}

/// Two queues on a page: a program sleeps on one of them, and uses the other unarmed.
#[test]
fn unarmed_event_does_not_consume_an_arm() {
    for overwritten in [false, true] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        let other = rig.cq(0, 4);
        rig.arm(0, other, 0);
        nop(&mut rig, &mut a);
        assert_eq!(completion_events(&mut rig, 0), [a.send_cq], "its record is zero");
        rig.poll(0, a.send_cq).expect("a completion");
        // Its first request, by its own doorbell or by an overwritten one.
        rig.arm(0, a.send_cq, 1);
        if overwritten {
            rig.arm(0, other, 0);
        }
        nop(&mut rig, &mut a);
        assert_eq!(completion_events(&mut rig, 0), [a.send_cq], "overwritten: {overwritten}");
        rig.arm(0, a.send_cq, 2);
        nop(&mut rig, &mut a);
        assert!(completion_events(&mut rig, 0).is_empty(), "this request was answered already");
    }
}

#[test]
fn solicited_arm_ignores_unsolicited_completions() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rlkey) = rig.region(1, 64);
    rig.arm(1, b.receive_cq, 1 << 24);
    rig.run();
    while !completion_events(&mut rig, 1).is_empty() {}
    for _ in 0..3 {
        rig.receive(&mut b, &[DataSegment::new(64, rlkey, to)]);
    }
    rig.post(&mut a, Request::send());
    rig.run();
    assert!(completion_events(&mut rig, 1).is_empty());
    rig.post(&mut a, Request::send().solicited());
    rig.run();
    assert_eq!(completion_events(&mut rig, 1), [b.receive_cq]);
    // An arm makes no event for a solicited completion that an earlier event has reported, and an
    // immediate one for a newer completion.
    rig.arm(1, b.receive_cq, 1 << 28 | 1 << 24 | 1);
    rig.run();
    assert!(completion_events(&mut rig, 1).is_empty());
    rig.post(&mut a, Request::send().solicited());
    rig.run();
    assert_eq!(completion_events(&mut rig, 1), [b.receive_cq]);
    rig.receive(&mut b, &[DataSegment::new(64, rlkey, to)]);
    rig.arm(1, b.receive_cq, 2 << 28 | 1 << 24 | 3);
    rig.post(&mut a, Request::send());
    rig.run();
    assert!(completion_events(&mut rig, 1).is_empty());
    // An error always causes an event.
    rig.effect(1, Effect::QpToError(b.qpn));
    rig.receive(&mut b, &[]);
    rig.run();
    assert_eq!(completion_events(&mut rig, 1), [b.receive_cq]);
}

#[test]
fn armed_eq_interrupts_once() {
    let mut rig = Rig::new();
    let raised = |rig: &mut Rig| std::mem::take(&mut rig.locked.functions[0].hca.raised);
    let event =
        |rig: &mut Rig| rig.locked.functions[0].events().post(event_type::GENERAL, 0, [0; 28]);
    event(&mut rig);
    assert!(raised(&mut rig).is_empty());
    rig.eq_doorbell(0, super::rig::ASYNC_EQ, true);
    assert_eq!(raised(&mut rig), [1], "an unread EQE interrupts at once");
    event(&mut rig);
    assert!(raised(&mut rig).is_empty());
    assert_eq!(rig.events(0).len(), 2);
    rig.eq_doorbell(0, super::rig::ASYNC_EQ, true);
    assert!(raised(&mut rig).is_empty());
    event(&mut rig);
    event(&mut rig);
    assert_eq!(raised(&mut rig), [1]);
}

#[test]
fn full_eq_drops_events_until_room_is_reported() {
    let mut rig = Rig::new();
    for _ in 0..20 {
        rig.locked.functions[0].events().post(event_type::GENERAL, 0, [0; 28]);
    }
    assert_eq!(rig.events(0).len(), 16);
    rig.locked.functions[0].events().post(event_type::GENERAL, 0, [0; 28]);
    assert_eq!(rig.events(0).len(), 0, "software has not updated the consumer index");
    rig.eq_doorbell(0, super::rig::ASYNC_EQ, false);
    rig.locked.functions[0].events().post(event_type::GENERAL, 0, [0; 28]);
    assert_eq!(rig.events(0).len(), 1);
}

#[test]
fn eq_receives_only_events_in_its_bitmask() {
    let mut rig = Rig::new();
    let eq = rig.locked.functions[0].hca.objects.eqs.get_mut(&super::rig::ASYNC_EQ).unwrap();
    eq.bitmask = [1 << event_type::CQ_ERROR, 0, 0, 0];
    rig.locked.functions[0].events().post(event_type::GENERAL, 0, [0; 28]);
    rig.locked.functions[0].events().post(event_type::CQ_ERROR, 0, [0; 28]);
    assert_eq!(rig.events(0), [event_type::CQ_ERROR]);
}

#[test]
fn faults_drop_and_delay_completions_in_order() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let faults = &mut rig.locked.functions[0].engine.faults;
    faults.lose_completions = engine::FaultWindow { skip: 1, count: 1 };
    faults.delay_completions = engine::FaultWindow { skip: 1, count: 1 };
    faults.delay = 1000;
    for _ in 0..4 {
        nop(&mut rig, &mut a);
    }
    assert_eq!(rig.all(0, a.send_cq).iter().map(|e| e.index()).collect::<Vec<_>>(), [0]);
    rig.advance(Duration::from_nanos(1000));
    assert_eq!(rig.all(0, a.send_cq).iter().map(|e| e.index()).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn delayed_cqe_is_dropped_with_its_cq_or_qp_reset() {
    for cq_is_destroyed in [false, true] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        delay_one(&mut rig);
        nop(&mut rig, &mut a);
        if cq_is_destroyed {
            let objects = &mut rig.locked.functions[0].hca.objects;
            let mut next = objects.remove(kind::Cq, a.send_cq).unwrap();
            let runtime = std::mem::take(&mut next.runtime);
            rig.effect(0, Effect::CqForgotten(a.send_cq, runtime));
            rig.locked.functions[0].hca.objects.add(kind::Cq, a.send_cq, next);
        } else {
            super::flush::reset(&mut rig, &a);
        }
        rig.advance(Duration::from_nanos(1000));
        rig.none(0, a.send_cq);
        assert_eq!(
            rig.cq_mut(0, a.send_cq).runtime.delayed.0,
            0,
            "CQ destroyed: {cq_is_destroyed}"
        );
    }
}

/// Delays the next completion by a microsecond.
fn delay_one(rig: &mut Rig) {
    let faults = &mut rig.locked.functions[0].engine.faults;
    (faults.delay, faults.delay_completions) = (1000, engine::FaultWindow { skip: 0, count: 1 });
}

#[test]
fn delayed_completion_arrives_exactly_on_time() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    delay_one(&mut rig);
    nop(&mut rig, &mut a);
    rig.none(0, a.send_cq);
    rig.advance(Duration::from_nanos(999));
    rig.none(0, a.send_cq);
    rig.advance(Duration::from_nanos(1));
    assert_eq!(rig.one(0, a.send_cq).index(), 0);
    assert_eq!(rig.cq_mut(0, a.send_cq).runtime.delayed.0, 0, "nothing is held back any more");
    nop(&mut rig, &mut a);
    assert_eq!(rig.one(0, a.send_cq).index(), 1, "the next one is not late");
}

#[test]
fn every_cqe_has_user_index() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nop(&mut rig, &mut a);
    assert_eq!(rig.one(0, a.send_cq).cqe.srqn_uidx(), 0);
    rig.qp(&a).user_index = 0x1234;
    nop(&mut rig, &mut a);
    assert_eq!(rig.one(0, a.send_cq).cqe.srqn_uidx(), 0x1234);
    rig.post(&mut a, Request::new(0x7f));
    assert_eq!(rig.one(0, a.send_cq).cqe.srqn_uidx(), 0x1234);
}

#[test]
fn wrong_record_after_delayed_cqe_flushes_promptly() {
    let mut rig = Rig::new();
    let (a, _) = rig.pair();
    let record = rig.qp(&a).record;
    rig.memory().store32(record, 0xffff_u32.to_be()).unwrap();
    delay_one(&mut rig);
    let start = std::time::Instant::now();
    rig.effect(0, Effect::QpToError(a.qpn));
    rig.none(0, a.receive_cq);
    rig.advance(Duration::from_micros(1));
    assert!(rig.poll(0, a.receive_cq).is_some());
    assert!(rig.cq_mut(0, a.receive_cq).failure.is_some());
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// A pair; the first end's send queue reports after this number of completions or microseconds.
fn moderated(period: u16, count: u16) -> (Rig, Endpoint) {
    let mut rig = Rig::new();
    let (a, _) = rig.pair();
    let context = &mut rig.cq_mut(0, a.send_cq).context;
    context.set_cq_period(period).set_cq_max_count(count);
    // Long after the last event.
    rig.advance(Duration::from_secs(1));
    (rig, a)
}

#[test]
fn moderation_ends_after_count_or_period() {
    let (mut rig, mut a) = moderated(100, 3);
    rig.arm(0, a.send_cq, 1 << 28);
    nop(&mut rig, &mut a);
    assert_eq!(
        completion_events(&mut rig, 0),
        [a.send_cq],
        "the first CQE raises the event at once"
    );
    rig.arm(0, a.send_cq, 2 << 28 | 1);
    for _ in 0..2 {
        nop(&mut rig, &mut a);
        assert!(completion_events(&mut rig, 0).is_empty());
    }
    nop(&mut rig, &mut a);
    assert_eq!(completion_events(&mut rig, 0), [a.send_cq], "the third CQE raises the event");
    rig.arm(0, a.send_cq, 3 << 28 | 4);
    nop(&mut rig, &mut a);
    rig.advance(Duration::from_micros(99));
    assert!(completion_events(&mut rig, 0).is_empty());
    rig.advance(Duration::from_micros(1));
    assert_eq!(completion_events(&mut rig, 0), [a.send_cq], "the time is over");
    nop(&mut rig, &mut a);
    rig.advance(Duration::from_secs(1));
    assert!(completion_events(&mut rig, 0).is_empty(), "the CQ is not armed");
}

#[test]
fn moderation_period_may_start_from_cqe() {
    let (mut rig, mut a) = moderated(100, 10);
    let context = &mut rig.cq_mut(0, a.send_cq).context;
    context.set_cq_period_mode(verbless_prm::CqPeriodMode::START_FROM_CQE);
    rig.arm(0, a.send_cq, 1 << 28);
    for _ in 0..3 {
        nop(&mut rig, &mut a);
        rig.advance(Duration::from_micros(60));
        assert!(completion_events(&mut rig, 0).is_empty());
    }
    rig.advance(Duration::from_micros(40));
    assert_eq!(completion_events(&mut rig, 0), [a.send_cq]);
}

#[test]
fn solicited_cqe_breaks_moderation_if_enabled() {
    for breaks in [false, true] {
        let (mut rig, mut a) = moderated(100, 10);
        rig.cq_mut(0, a.send_cq).context.set_scqe_break_moderation_en(breaks);
        rig.cq_mut(0, a.send_cq).runtime.reported_at = rig.locked.clock.now;
        rig.arm(0, a.send_cq, 1 << 28);
        nop(&mut rig, &mut a);
        assert!(completion_events(&mut rig, 0).is_empty());
        rig.post(&mut a, Request::new(opcode::SET_PSV));
        rig.run();
        assert_eq!(!completion_events(&mut rig, 0).is_empty(), breaks, "an error is solicited");
    }
}

/// A collapsed CQ of 2^`log_size` entries, and a QP that reports to it.
fn collapsed(log_size: u32) -> (Rig, Endpoint, u64) {
    let mut rig = Rig::new();
    let cq = rig.cq(0, log_size);
    let a = rig.end_on(0, cq, cq);
    rig.connect(&a, &a);
    rig.cq_mut(0, cq).context.set_cc(true);
    let base = rig.cq_mut(0, cq).memory.pages[0];
    (rig, a, base)
}

#[test]
fn collapsed_cq_writes_only_entry_0() {
    for log_size in [2, 0] {
        let (mut rig, mut a, base) = collapsed(log_size);
        let cq = rig.cq_mut(0, a.send_cq);
        cq.overrun_ignore = log_size > 0;
        let record = cq.record;
        for counter in 0..9_u16 {
            nop(&mut rig, &mut a);
            let first = *Cqe::from_prefix(&rig.bytes(base, 64)).unwrap();
            assert_eq!((first.wqe_counter(), first.owner()), (counter, false), "2^{log_size}");
            if log_size > 0 {
                let second = *Cqe::from_prefix(&rig.bytes(base + 64, 64)).unwrap();
                assert_eq!(second.opcode(), CqeOpcode::INVALID);
            }
            if log_size == 0 {
                rig.memory().store32(record, (u32::from(counter) + 1).to_be()).unwrap();
            }
        }
        assert!(rig.cq_mut(0, a.send_cq).failure.is_none(), "2^{log_size}");
    }
}

#[test]
fn collapsed_cq_overruns_without_record_updates() {
    for follows in [false, true] {
        let (mut rig, mut a, _) = collapsed(2);
        let record = rig.cq_mut(0, a.send_cq).record;
        for taken in 1..=9_u32 {
            nop(&mut rig, &mut a);
            if follows {
                rig.memory().store32(record, taken.to_be()).unwrap();
            }
        }
        let failure = rig.cq_mut(0, a.send_cq).failure;
        assert_eq!(failure, (!follows).then_some(CqErrorSyndrome::OVERRUN));
    }
}

#[test]
fn always_armed_cq_reports_every_cqe() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    nop(&mut rig, &mut a);
    assert!(completion_events(&mut rig, 0).is_empty(), "the CQ is not armed");
    rig.cq_mut(0, a.send_cq).context.set_always_armed_cq(true);
    for _ in 0..3 {
        nop(&mut rig, &mut a);
        assert_eq!(completion_events(&mut rig, 0), [a.send_cq]);
    }
}
