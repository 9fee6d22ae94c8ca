//! SQs: executions, from the ring and from BlueFlame copies, and failures.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type, opcode};
use verbless_prm::{EqeQpSrq, EqeQueueType, SqState};

use super::rig::{ASYNC_EQ, Endpoint, PAGE, Request, Rig};
use crate::engine;
use crate::hca::Effect;
use crate::memory::UAR_PAGE;

const REGISTER: u64 = PAGE as u64 * UAR_PAGE + 0x800;

fn nop() -> Request {
    Request::new(opcode::NOP)
}

/// Posts a NOP as Linux's write-combining test does: without a CQE in the ring, with one in the
/// copy.
fn post_write_combining_probe(rig: &mut Rig, sq: &mut Endpoint, last: bool) {
    let mut copied = nop().wqe(sq.qpn, sq.posted);
    copied.resize(64, 0);
    let written = if last { nop() } else { nop().unsignaled() };
    let written = written.wqe(sq.qpn, sq.posted);
    rig.write_wqe(sq, &written);
    let register = REGISTER + u64::from(sq.posted % 2) * 0x100;
    for (at, bytes) in (0..).step_by(8).zip(copied.chunks(8)) {
        engine::trapped_write(&mut rig.locked, 0, register + at, bytes);
    }
}

#[test]
fn nop_cqe_has_sqn_and_index() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    for turn in 0..40 {
        let index = rig.post(&mut sq, nop());
        let done = rig.one(0, sq.send_cq);
        assert_eq!((done.opcode(), done.index(), index), (cqe_opcode::REQUESTER, turn, turn));
        assert_eq!(done.cqe.qpn(), sq.qpn);
        assert_eq!(done.cqe.srqn_uidx(), 0x1234);
    }
    rig.post(&mut sq, nop().unsignaled());
    rig.none(0, sq.send_cq);
}

#[test]
fn write_combining_test_sees_copies_executed() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    for turn in 0..16 {
        post_write_combining_probe(&mut rig, &mut sq, turn == 15);
    }
    let indexes: Vec<u16> = rig.all(0, sq.send_cq).iter().map(|done| done.index()).collect();
    assert_eq!(
        indexes,
        (0..16).collect::<Vec<_>>(),
        "the first one that completes is not the last"
    );
}

#[test]
fn write_combining_test_sees_ring_wqes_without_copies() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    for turn in 0..16 {
        let request = if turn == 15 { nop() } else { nop().unsignaled() };
        rig.post(&mut sq, request);
    }
    assert_eq!(rig.one(0, sq.send_cq).index(), 15);
}

#[test]
fn unsupported_opcode_fails_sq_and_flushes_rest() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    for request in [nop().unsignaled(), Request::send(), nop().unsignaled(), nop()] {
        let wqe = request.wqe(sq.qpn, sq.posted);
        rig.write_wqe(&mut sq, &wqe);
    }
    rig.ring(&sq);
    let errors: Vec<_> = rig.all(0, sq.send_cq).iter().map(|done| done.error()).collect();
    let error = cqe_opcode::REQUESTER_ERROR;
    let (bad, flushed) = (cqe_syndrome::LOCAL_QP_OPERATION, cqe_syndrome::FLUSHED);
    assert_eq!(errors, [(error, 1, bad), (error, 2, flushed), (error, 3, flushed)]);
    assert_eq!(rig.sq_mut(&sq).state, SqState::ERR);
    rig.post(&mut sq, nop());
    assert_eq!(rig.one(0, sq.send_cq).error(), (error, 4, flushed));
}

#[test]
fn sq_without_flush_in_error_flushes_nothing() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    rig.sq_mut(&sq).context.set_flush_in_error_en(false);
    rig.post(&mut sq, Request::send());
    rig.post(&mut sq, nop());
    let syndromes: Vec<_> = rig.all(0, sq.send_cq).iter().map(|done| done.syndrome()).collect();
    assert_eq!(syndromes, [cqe_syndrome::LOCAL_QP_OPERATION]);
}

#[test]
fn wqe_with_wrong_sqn_or_index_fails() {
    for (other, index) in [(1, 0), (0, 1)] {
        let mut rig = Rig::new();
        let mut sq = rig.sq(0);
        let wqe = nop().wqe(sq.qpn + other, index);
        rig.write_wqe(&mut sq, &wqe);
        rig.ring(&sq);
        assert_eq!(rig.one(0, sq.send_cq).syndrome(), cqe_syndrome::LOCAL_QP_OPERATION);
    }
}

#[test]
fn sq_in_rst_ignores_doorbells() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    rig.sq_mut(&sq).state = SqState::RST;
    rig.post(&mut sq, nop());
    rig.none(0, sq.send_cq);
    rig.sq_mut(&sq).state = SqState::RDY;
    rig.effect(0, Effect::SenderReady(sq.qpn));
    rig.none(0, sq.send_cq);
    rig.ring(&sq);
    assert_eq!(rig.one(0, sq.send_cq).index(), 0);
}

#[test]
fn sq_reset_forgets_posted_wqes() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    rig.sq_mut(&sq).state = SqState::RST;
    rig.post(&mut sq, nop());
    rig.none(0, sq.send_cq);
    let send = rig.sq_mut(&sq).queue.reset();
    rig.effect(0, Effect::SqForgotten(sq.qpn, send));
    rig.sq_mut(&sq).state = SqState::RDY;
    rig.effect(0, Effect::SenderReady(sq.qpn));
    rig.none(0, sq.send_cq);
    sq.posted = 0;
    rig.post(&mut sq, nop());
    assert_eq!(rig.one(0, sq.send_cq).index(), 0);
}

#[test]
fn doorbell_on_shared_page_wakes_sqs_and_qps() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    let (mut qp, _) = rig.pair();
    let (sq_wqe, qp_wqe) = (nop().wqe(sq.qpn, 0), nop().wqe(qp.qpn, 0));
    rig.write_wqe(&mut sq, &sq_wqe);
    rig.write_wqe(&mut qp, &qp_wqe);
    rig.none(0, sq.send_cq);
    rig.ring(&qp);
    rig.one(0, qp.send_cq);
    rig.one(0, sq.send_cq);
}

#[test]
fn sq_with_overrun_cq_fails_with_an_event() {
    let mut rig = Rig::new();
    let mut sq = rig.sq(0);
    let small = rig.cq(0, 1);
    rig.sq_mut(&sq).queue.cqn = small;
    for _ in 0..3 {
        rig.post(&mut sq, nop());
    }
    rig.run();
    assert_eq!(rig.sq_mut(&sq).state, SqState::ERR);
    let kinds: Vec<_> = std::iter::from_fn(|| rig.eqe(0, ASYNC_EQ)).collect();
    let of = |kind: u8| kinds.iter().find(|eqe| eqe.event_type().0 == kind).expect("an event");
    of(event_type::CQ_ERROR);
    let failed = of(event_type::WQ_CATASTROPHIC_ERROR);
    let failed = EqeQpSrq::from_prefix(failed.event_data()).unwrap();
    assert_eq!((failed.r#type(), failed.qpn_rqn_sqn()), (EqeQueueType::SQ, sq.qpn));
}
