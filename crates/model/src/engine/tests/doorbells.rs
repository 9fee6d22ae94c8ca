//! Doorbells: stores that wake a queue, and stores that do not.

use verbless_prm::SqState;
use verbless_prm::hot::{CtrlWord, cqe_syndrome, opcode};

use super::rig::{COMP_EQ, EQ_PAGE, Endpoint, PAGE, Request, Rig};
use crate::engine;
use crate::hca::Effect;
use crate::hca::objects::{Arm, QpState};
use crate::memory::UAR_PAGE;

/// A doorbell that names a queue.
fn word(number: u32) -> u64 {
    CtrlWord::new().with_qpn(number).with_ds(1).into_bits()
}

fn strays(rig: &Rig) -> usize {
    rig.locked.functions[0].engine.strays.len()
}

fn write_wqe(rig: &mut Rig, end: &mut Endpoint) {
    let wqe = Request::new(opcode::NOP).wqe(end.qpn, end.posted);
    rig.write_wqe(end, &wqe);
}

#[test]
fn wqe_without_doorbell_hangs() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    write_wqe(&mut rig, &mut a);
    rig.none(0, a.send_cq);
    rig.ring(&a);
    rig.one(0, a.send_cq);
    write_wqe(&mut rig, &mut a);
    rig.none(0, a.send_cq);
}

#[test]
fn store_to_any_blueflame_buffer_is_a_doorbell() {
    for trapped in [false, true] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        // Twice each: a doorbell that equals the one before counts, too.
        for offset in (0x800..0x1000).step_by(0x100).flat_map(|it| [it; 2]) {
            write_wqe(&mut rig, &mut a);
            let at = u64::from(PAGE) * UAR_PAGE + offset;
            match trapped {
                true => {
                    engine::mmio_write(&mut rig.locked, 0, at, &word(a.qpn).to_be_bytes());
                }
                false => rig.locked.functions[0].hca.bar.store64(PAGE, offset, word(a.qpn)),
            }
            assert_eq!(rig.all(0, a.send_cq).len(), 1, "{offset:#x}, trapped: {trapped}");
        }
    }
}

#[test]
fn misplaced_or_half_doorbell_store_wakes_no_queue() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    write_wqe(&mut rig, &mut a);
    let at = u64::from(PAGE) * UAR_PAGE;
    for (offset, bytes) in [(0x808, 8), (0x8f8, 8), (0x7f8, 8), (0x800, 4)] {
        engine::mmio_write(&mut rig.locked, 0, at + offset, &word(a.qpn).to_be_bytes()[..bytes]);
        rig.none(0, a.send_cq);
    }
    engine::mmio_write(&mut rig.locked, 0, at + 0x800, &word(a.qpn).to_be_bytes());
    rig.one(0, a.send_cq);
}

#[test]
fn doorbell_on_other_uar_page_wakes_no_queue() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    write_wqe(&mut rig, &mut a);
    rig.locked.functions[0].hca.bar.store64(PAGE + 1, 0x800, word(a.qpn));
    rig.none(0, a.send_cq);
    rig.locked.functions[1].hca.bar.store64(PAGE, 0x800, word(a.qpn));
    rig.none(0, a.send_cq);
    rig.qp(&a).uar_page = PAGE + 1;
    rig.locked.functions[0].hca.objects.index_again();
    rig.locked.functions[0].hca.bar.store64(PAGE + 1, 0x800, word(a.qpn));
    rig.one(0, a.send_cq);
}

#[test]
fn lost_doorbell_leaves_queue_idle() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.locked.functions[0].engine.faults.lose_doorbells =
        engine::FaultWindow { skip: 0, count: 1 };
    rig.post(&mut a, Request::new(opcode::NOP));
    rig.none(0, a.send_cq);
    rig.ring(&a);
    rig.one(0, a.send_cq);
}

#[test]
fn doorbell_before_rts_takes_effect_at_rts() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.qp(&a).state = QpState::SqDrained;
    rig.post(&mut a, Request::new(opcode::NOP));
    rig.none(0, a.send_cq);
    rig.qp(&a).state = QpState::Rts;
    rig.effect(0, Effect::SenderReady(a.qpn));
    rig.one(0, a.send_cq);
}

#[test]
fn doorbell_before_reset_posts_nothing_after_it() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let mut sq = rig.sq(0);
    for _ in 0..3 {
        rig.post(&mut a, Request::new(opcode::NOP));
        rig.post(&mut sq, Request::new(opcode::NOP));
    }
    let send = rig.qp(&a).sq.as_mut().unwrap().reset();
    let runtime = std::mem::take(&mut rig.qp(&a).runtime);
    rig.qp(&a).state = QpState::Reset;
    rig.effect(0, Effect::QpForgotten(a.qpn, runtime, Some(send)));
    let send = rig.sq_mut(&sq).queue.reset();
    rig.sq_mut(&sq).state = SqState::RST;
    rig.effect(0, Effect::SqForgotten(sq.qpn, send));
    rig.run();
    // The driver clears the records only after the doorbell, and then connects.
    for end in [&mut a, &mut sq] {
        end.posted = 0;
        rig.publish(end);
    }
    rig.qp(&a).state = QpState::Rts;
    rig.sq_mut(&sq).state = SqState::RDY;
    rig.effect(0, Effect::SenderReady(a.qpn));
    rig.effect(0, Effect::SenderReady(sq.qpn));
    rig.none(0, a.send_cq);
    rig.none(0, sq.send_cq);
    for end in [&mut a, &mut sq] {
        rig.post(end, Request::new(opcode::NOP));
        assert_eq!(rig.one(0, end.send_cq).index(), 0);
    }
}

#[test]
fn eq_doorbell_second_half_is_ignored() {
    let mut rig = Rig::new();
    for (offset, arms) in [(0x40, true), (0x48, false)] {
        let eq = |rig: &Rig| {
            let eq = &rig.locked.functions[0].hca.objects.eqs[&COMP_EQ];
            (eq.ring.consumer, eq.ring.armed)
        };
        rig.locked.functions[0].hca.objects.eqs.get_mut(&COMP_EQ).unwrap().ring.armed = false;
        let before = eq(&rig);
        let bar = rig.locked.functions[0].hca.bar.clone();
        bar.store64(EQ_PAGE, offset, u64::from(COMP_EQ << 24 | 5));
        assert!(bar.rung());
        rig.run();
        assert!(!bar.rung(), "left there, it would keep the engine's thread awake");
        assert_eq!(eq(&rig), before);
        // Only the first half counts.
        bar.store64(EQ_PAGE, offset, u64::from(COMP_EQ << 24) << 32 | 0xffff_ffff);
        rig.run();
        assert_eq!((bar.rung(), eq(&rig)), (false, (0, arms)));
    }
}

#[test]
fn store_outside_doorbells_is_ignored() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    write_wqe(&mut rig, &mut a);
    for (offset, length) in
        [(0, 8), (0x21, 8), (0x20, 4), (0x40, 2), (0x801, 8), (u64::MAX, 8), (0x7000, 0)]
    {
        engine::mmio_write(&mut rig.locked, 0, offset, &vec![0xff; length]);
    }
    engine::mmio_write(&mut rig.locked, 0, 0x3020, &[0xff; 8]);
    engine::mmio_write(&mut rig.locked, 0, 0x1040, &[0xff; 4]);
    rig.none(0, a.send_cq);
    rig.ring(&a);
    rig.one(0, a.send_cq);
}

/// Two QPs on one page, each with a request without its doorbell.
fn two() -> (Rig, Endpoint, Endpoint) {
    let mut rig = Rig::new();
    let ((mut a, _), (mut b, _)) = (rig.pair(), rig.pair());
    write_wqe(&mut rig, &mut a);
    write_wqe(&mut rig, &mut b);
    (rig, a, b)
}

#[test]
fn trapped_word_wakes_only_its_named_queue() {
    let (mut rig, a, b) = two();
    let register = u64::from(PAGE) * UAR_PAGE + 0x800;
    engine::mmio_write(&mut rig.locked, 0, register, &word(a.qpn).to_be_bytes());
    rig.one(0, a.send_cq);
    rig.none(0, b.send_cq);
    engine::trapped_write(&mut rig.locked, 0, register, &word(b.qpn).to_be_bytes());
    rig.advance(std::time::Duration::from_secs(1));
    rig.one(0, b.send_cq);
    assert_eq!(strays(&rig), 0);
}

#[test]
fn mapped_word_wakes_its_queue_first() {
    let (mut rig, a, b) = two();
    rig.locked.functions[0].hca.bar.store64(PAGE, 0x800, word(b.qpn));
    assert!(engine::step(&mut rig.locked));
    assert_eq!((rig.cqes(0, a.send_cq), rig.cqes(0, b.send_cq)), (0, 1));
}

#[test]
fn overwritten_doorbell_is_found_despite_busy_queue() {
    let (mut rig, a, mut b) = two();
    for end in [&a, &b] {
        rig.locked.functions[0].hca.bar.store64(PAGE, 0x800, word(end.qpn));
    }
    let (mut turns, mut done) = (0, [0, 0]);
    while done[0] == 0 {
        write_wqe(&mut rig, &mut b);
        rig.locked.functions[0].hca.bar.store64(PAGE, 0x800, word(b.qpn));
        assert!(engine::step(&mut rig.locked));
        done[1] += rig.cqes(0, b.send_cq);
        done[0] += rig.cqes(0, a.send_cq);
        turns += 1;
        assert!(turns < 200, "the other queue keeps the sweep off");
    }
    rig.run();
    done[1] += rig.cqes(0, b.send_cq);
    done[0] += rig.cqes(0, a.send_cq);
    assert_eq!(done, [1, 1 + turns], "each WQE runs once");
}

#[test]
fn sweep_checks_few_queues_per_turn() {
    let mut rig = Rig::new();
    let (send, receive) = (rig.cq(0, 8), rig.cq(0, 6));
    let mut ends: Vec<_> = (0..100).map(|_| rig.end_on(0, send, receive)).collect();
    let to = rig.end(1);
    for end in &mut ends {
        rig.connect(&end.clone(), &to);
        write_wqe(&mut rig, end);
    }
    let bar = rig.locked.functions[0].hca.bar.clone();
    bar.store64(PAGE, 0x800, word(ends[99].qpn));
    let awake = |rig: &Rig| {
        let qps = rig.locked.functions[0].hca.objects.qps.values();
        qps.filter(|qp| qp.sq.as_ref().is_some_and(|sq| sq.producer > 0)).count()
    };
    let mut before = 0;
    while engine::step(&mut rig.locked) {
        // Each doorbell requests a sweep, but the queues are checked no faster.
        bar.store64(PAGE, 0x800, word(ends[99].qpn));
        let now = awake(&rig);
        assert!(now <= before + 33, "{before}, then {now} queues were checked");
        before = now;
        if rig.cq_mut(0, send).producer == 100 {
            break;
        }
    }
    assert_eq!(rig.cq_mut(0, send).producer, 100, "each is found");
}

#[test]
fn word_without_matching_queue_is_a_stray() {
    let (mut rig, a, b) = two();
    rig.qp(&a).uar_page = PAGE + 1;
    rig.locked.functions[0].hca.objects.index_again();
    let register = u64::from(PAGE) * UAR_PAGE + 0x800;
    for (nth, number) in [(1, a.qpn), (2, 0x77_7777), (3, 0)] {
        engine::mmio_write(&mut rig.locked, 0, register, &word(number).to_be_bytes());
        assert_eq!(strays(&rig), nth);
        rig.none(0, a.send_cq);
        rig.none(0, b.send_cq);
    }
    let arm = u64::from(PAGE) * UAR_PAGE + 0x20;
    engine::mmio_write(&mut rig.locked, 0, arm, &u64::from(a.qpn).to_be_bytes());
    assert_eq!(strays(&rig), 4, "a QP is no CQ");
    // On a mapped page it may have overwritten a doorbell that names a queue.
    rig.locked.functions[0].hca.bar.store64(PAGE, 0x800, word(0x77_7777));
    rig.one(0, b.send_cq);
    assert_eq!(strays(&rig), 5);
    // A queue without sends has no doorbell.
    rig.qp(&b).sq = None;
    engine::mmio_write(&mut rig.locked, 0, register, &word(b.qpn).to_be_bytes());
    assert_eq!(strays(&rig), 6);
}

#[test]
fn trapped_arm_word_arms_only_its_named_cq() {
    let mut rig = Rig::new();
    let (a, b, elsewhere) = (rig.cq(0, 4), rig.cq(0, 4), rig.cq(0, 4));
    rig.cq_mut(0, elsewhere).uar_page = PAGE + 1;
    rig.locked.functions[0].hca.objects.index_again();
    let register = |page: u32| u64::from(page) * UAR_PAGE + 0x20;
    let arm = |rig: &mut Rig, page, cqn: u32| {
        engine::mmio_write(&mut rig.locked, 0, register(page), &u64::from(cqn).to_be_bytes());
        rig.run();
    };
    arm(&mut rig, PAGE, a);
    assert_ne!(rig.cq_mut(0, a).arm, Arm::Idle);
    assert_eq!(rig.cq_mut(0, b).arm, Arm::Idle);
    assert_eq!(strays(&rig), 0);
    // The page of the CQ's context counts.
    arm(&mut rig, PAGE, elsewhere);
    assert_eq!(rig.cq_mut(0, elsewhere).arm, Arm::Idle);
    assert_eq!(strays(&rig), 1);
    arm(&mut rig, PAGE + 1, elsewhere);
    assert_ne!(rig.cq_mut(0, elsewhere).arm, Arm::Idle);
    assert_eq!(strays(&rig), 1);
}

#[test]
fn stale_record_of_a_new_qp_counts_as_posted() {
    for stale in [0, 3] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        a.posted = stale;
        rig.publish(&a);
        rig.effect(0, Effect::SenderReady(a.qpn));
        match stale {
            0 => rig.none(0, a.send_cq),
            _ => {
                let syndromes: Vec<_> =
                    rig.all(0, a.send_cq).iter().map(|entry| entry.syndrome()).collect();
                let (bad, flushed) = (cqe_syndrome::LOCAL_QP_OPERATION, cqe_syndrome::FLUSHED);
                assert_eq!(syndromes, [bad, flushed, flushed], "nothing was posted");
            }
        }
    }
}

#[test]
fn sq_record_is_not_read_before_its_doorbell() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    sq.posted = 3;
    rig.publish(&sq);
    rig.effect(0, Effect::SenderReady(sq.qpn));
    rig.none(0, sq.send_cq);
    assert_eq!(rig.sq_mut(&sq).state, SqState::RDY);
}
