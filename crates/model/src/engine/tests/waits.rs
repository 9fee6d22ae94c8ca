//! WAIT WQEs on data: execution in a stepped model, and invalid WQEs.

use verbless_prm::hot::{WaitDataSegment, WaitOperation, cqe_opcode, cqe_syndrome, opcode};
use verbless_prm::{WaitCondition, WaitOpMod};

use super::rig::{Endpoint, Request, Rig};
use crate::engine;
use crate::hca::Effect;
use crate::hca::objects::Access;

/// A rig whose device supports WAIT on data (capability `wait_on_data`).
fn rig() -> (Rig, Endpoint) {
    let mut rig = Rig::new();
    rig.locked.functions[0].hca.caps.general_mut().set_wait_on_data(true);
    let (end, _) = rig.pair();
    (rig, end)
}

/// A WAIT WQE that ends when the word at `at` is `value`.
fn wait(at: u64, key: u32, value: u64) -> Request {
    wait_segment(WaitCondition::EQUAL.0, at, key, value)
}

fn wait_segment(condition: u8, at: u64, key: u32, value: u64) -> Request {
    let operation = WaitOperation::new().with_condition(condition);
    let segment = WaitDataSegment::new(operation, key, at, value, u64::MAX);
    Request::new(opcode::WAIT).op_mod(WaitOpMod::DATA.0).bytes(segment.as_bytes())
}

#[test]
fn idle_stepped_model_checks_wait_each_step() {
    let (mut rig, mut end) = rig();
    let (at, key) = rig.region(0, 64);
    rig.post(&mut end, wait(at, key, 5));
    rig.run();
    assert!(
        !engine::step(&mut rig.locked) && !engine::jump(&mut rig.locked),
        "idle: the word is still 0"
    );
    assert!(rig.poll(0, end.send_cq).is_none());
    rig.fill(at, &5u64.to_be_bytes());
    assert_eq!(rig.one(0, end.send_cq).opcode(), cqe_opcode::REQUESTER);
    assert!(rig.locked.functions[0].engine.waits.queues.is_empty());
}

#[test]
fn lost_access_right_ends_wait_with_error() {
    let (mut rig, mut end) = rig();
    let (at, key) = rig.region(0, 64);
    rig.post(&mut end, wait(at, key, 5));
    rig.run();
    assert!(rig.poll(0, end.send_cq).is_none());
    rig.mkey_mut(0, key).access = Access::default();
    let entry = rig.one(0, end.send_cq);
    assert_eq!(entry.error(), (cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::LOCAL_PROTECTION));
}

#[test]
fn unknown_wait_options_are_an_operation_error() {
    let cases: [fn(u64, u32) -> Request; 3] = [
        // Bit 0 of the address (an action on failure) and condition 6: no public source defines
        // them.
        |at, key| wait(at + 1, key, 0),
        |at, key| wait_segment(6, at, key, 0),
        // A WQE that ends before its mask.
        |_, _| Request::new(opcode::WAIT).op_mod(WaitOpMod::DATA.0).bytes(&[0; 16]),
    ];
    for case in cases {
        let (mut rig, mut end) = rig();
        let (at, key) = rig.region(0, 64);
        rig.post(&mut end, case(at, key));
        assert_eq!(rig.one(0, end.send_cq).syndrome(), cqe_syndrome::LOCAL_QP_OPERATION);
    }
    let (mut rig, mut end) = rig();
    rig.locked.functions[0].hca.caps.general_mut().set_wait_on_data(false);
    let (at, key) = rig.region(0, 64);
    rig.post(&mut end, wait(at, key, 0));
    assert_eq!(
        rig.one(0, end.send_cq).syndrome(),
        cqe_syndrome::LOCAL_QP_OPERATION,
        "no capability"
    );
}

#[test]
fn failed_qp_ends_its_wait() {
    let (mut rig, mut end) = rig();
    let (at, key) = rig.region(0, 64);
    rig.post(&mut end, wait(at, key, 5));
    rig.run();
    let function = &mut rig.locked.functions[0];
    engine::apply(function, 0, Effect::QpToError(end.qpn)).unwrap();
    assert_eq!(rig.one(0, end.send_cq).syndrome(), cqe_syndrome::FLUSHED);
    rig.run();
    assert!(rig.locked.functions[0].engine.waits.queues.is_empty());
}
