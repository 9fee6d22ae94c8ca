//! Doorbells: what wakes a queue, and what does not.

use verbless_prm::SqState;
use verbless_prm::hot::opcode;

use super::rig::{COMP_EQ, EQ_PAGE, PAGE, Request, Rig};
use crate::engine;
use crate::hca::Effect;
use crate::hca::objects::QpState;
use crate::memory::UAR_PAGE;

fn place(rig: &mut Rig, end: &mut super::rig::Endpoint) {
    let wqe = Request::new(opcode::NOP).wqe(end.qpn, end.posted);
    rig.place(end, &wqe);
}

#[test]
fn a_request_without_a_doorbell_hangs() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    place(&mut rig, &mut a);
    rig.none(0, a.send_cq);
    rig.ring(&a);
    rig.one(0, a.send_cq);
    place(&mut rig, &mut a);
    rig.none(0, a.send_cq);
}

#[test]
fn equal_doorbells_count_twice() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    for _ in 0..2 {
        place(&mut rig, &mut a);
        rig.world.functions[0].hca.bar.store64(PAGE, 0x900, 0x1234_5678);
        rig.one(0, a.send_cq);
    }
}

#[test]
fn every_blueflame_buffer_is_a_doorbell() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    for k in 0..8 {
        place(&mut rig, &mut a);
        rig.world.functions[0].hca.bar.store64(PAGE, 0x800 + k * 0x100, 1);
        rig.one(0, a.send_cq);
    }
}

#[test]
fn a_store_beside_the_doorbells_or_of_half_a_word_wakes_nobody() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    place(&mut rig, &mut a);
    let at = u64::from(PAGE) * UAR_PAGE;
    for (offset, bytes) in [(0x808, 8), (0x8f8, 8), (0x7f8, 8), (0x800, 4)] {
        engine::mmio_write(&mut rig.world, 0, at + offset, &[1; 8][..bytes]);
        rig.none(0, a.send_cq);
    }
    engine::mmio_write(&mut rig.world, 0, at + 0x800, &[1; 8]);
    rig.one(0, a.send_cq);
}

#[test]
fn a_doorbell_on_another_page_wakes_nobody() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    place(&mut rig, &mut a);
    rig.world.functions[0].hca.bar.store64(PAGE + 1, 0x800, 1);
    rig.none(0, a.send_cq);
    rig.world.functions[1].hca.bar.store64(PAGE, 0x800, 1);
    rig.none(0, a.send_cq);
    rig.qp(&a).uar_page = PAGE + 1;
    rig.world.functions[0].hca.objects.index_again();
    rig.world.functions[0].hca.bar.store64(PAGE + 1, 0x800, 1);
    rig.one(0, a.send_cq);
}

#[test]
fn a_trapped_doorbell_does_what_a_mapped_one_does() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    place(&mut rig, &mut a);
    let offset = u64::from(PAGE) * UAR_PAGE + 0x800;
    engine::mmio_write(&mut rig.world, 0, offset, &1u64.to_be_bytes());
    rig.one(0, a.send_cq);
}

#[test]
fn a_doorbell_that_gets_lost_hangs() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.world.functions[0].engine.faults.lose_doorbells = engine::Strike { skip: 0, count: 1 };
    rig.post(&mut a, Request::new(opcode::NOP));
    rig.none(0, a.send_cq);
    rig.ring(&a);
    rig.one(0, a.send_cq);
}

#[test]
fn what_was_rung_before_rts_runs_when_rts_comes() {
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
fn a_doorbell_from_before_a_reset_is_no_request_after_it() {
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
    // Only now does the driver clear the records, and connect.
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
fn a_store_to_the_second_half_of_an_eq_doorbell_is_taken_and_means_nothing() {
    let mut rig = Rig::new();
    for (offset, arms) in [(0x40, true), (0x48, false)] {
        let eq = |rig: &Rig| {
            let eq = &rig.world.functions[0].hca.objects.eqs[&COMP_EQ];
            (eq.ring.consumer, eq.ring.armed)
        };
        rig.world.functions[0].hca.objects.eqs.get_mut(&COMP_EQ).unwrap().ring.armed = false;
        let before = eq(&rig);
        let bar = rig.world.functions[0].hca.bar.clone();
        bar.store64(EQ_PAGE, offset, u64::from(COMP_EQ << 24 | 5));
        assert!(bar.rung());
        rig.run();
        assert!(!bar.rung(), "left there, it would keep the engine's thread awake");
        assert_eq!(eq(&rig), before);
        // The first half counts, whatever is in the second.
        bar.store64(EQ_PAGE, offset, u64::from(COMP_EQ << 24) << 32 | 0xffff_ffff);
        rig.run();
        assert_eq!((bar.rung(), eq(&rig)), (false, (0, arms)));
    }
}

#[test]
fn stores_to_no_doorbell_are_nothing() {
    let mut rig = Rig::new();
    for (offset, length) in
        [(0, 8), (0x21, 8), (0x20, 4), (0x40, 2), (0x801, 8), (u64::MAX, 8), (0x7000, 0)]
    {
        engine::mmio_write(&mut rig.world, 0, offset, &vec![0xff; length]);
    }
    engine::mmio_write(&mut rig.world, 0, 0x3020, &[0xff; 8]);
    engine::mmio_write(&mut rig.world, 0, 0x1040, &[0xff; 4]);
    rig.run();
}
