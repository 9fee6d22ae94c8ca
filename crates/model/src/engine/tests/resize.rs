//! CQs that move to another buffer.

use std::time::Duration;

use verbless_prm::EqeCompletion;
use verbless_prm::hot::{cqe_opcode, opcode};

use super::rig::{COMP_EQ, Endpoint, Request, Rig};
use crate::engine;
use crate::hca::Refusal;
use crate::memory::HostMemory;

fn nop(rig: &mut Rig, end: &mut Endpoint) -> u16 {
    let index = rig.post(end, Request::new(opcode::NOP));
    rig.run();
    index
}

/// A CQ, and a QP that reports to it.
fn queue(rig: &mut Rig, log_size: u32, cqe_bytes: u32) -> (u32, Endpoint) {
    let cq = rig.cq_of(0, log_size, cqe_bytes);
    let end = rig.end_on(0, cq, cq);
    rig.connect(&end.clone(), &end.clone());
    (cq, end)
}

fn reported_cqs(rig: &mut Rig) -> Vec<u32> {
    std::iter::from_fn(|| rig.eqe(0, COMP_EQ))
        .map(|eqe| EqeCompletion::from_prefix(eqe.event_data()).unwrap().cqn())
        .collect()
}

#[test]
fn completions_keep_order_across_resize() {
    for (from, to, cqe_bytes) in [(2, 2, 64), (2, 3, 64), (2, 5, 128), (4, 2, 64), (5, 2, 128)] {
        // Any consumer index, and so any owner bit in the buffers.
        for (taken, waiting) in
            (0..9).chain(29..34).flat_map(|taken| (0..4).map(move |it| (taken, it)))
        {
            let mut rig = Rig::new();
            let (cq, mut end) = queue(&mut rig, from, cqe_bytes);
            for _ in 0..taken {
                let index = nop(&mut rig, &mut end);
                assert_eq!(rig.poll(0, cq).unwrap().index(), index);
            }
            let indexes: Vec<u16> = (0..waiting).map(|_| nop(&mut rig, &mut end)).collect();
            rig.resize(0, cq, to).unwrap();
            for index in indexes {
                assert_eq!(rig.poll(0, cq).unwrap().index(), index, "{from} {to} {taken}");
            }
            assert_eq!(rig.poll(0, cq), None, "{from} {to} {taken} {waiting}");
            for _ in 0..9 {
                let index = nop(&mut rig, &mut end);
                assert_eq!(rig.poll(0, cq).unwrap().index(), index);
                assert_eq!(rig.poll(0, cq), None);
            }
        }
    }
}

#[test]
fn old_buffer_ends_with_resize_cqe() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 2, 64);
    for _ in 0..5 {
        nop(&mut rig, &mut end);
        rig.poll(0, cq);
    }
    let old = rig.cq_mut(0, cq).memory.pages[0];
    rig.resize(0, cq, 4).unwrap();
    // Entry 5 of 4: the second entry of the second round.
    let left = rig.bytes(old, 256);
    assert_eq!(left[127], cqe_opcode::RESIZE << 4 | 1);
    for _ in 0..16 {
        nop(&mut rig, &mut end);
        rig.poll(0, cq).unwrap();
    }
    assert_eq!(rig.bytes(old, 256), left);
}

#[test]
fn cq_is_resized_repeatedly() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 3, 64);
    for log_size in [1, 3, 2, 6, 2, 1, 4] {
        rig.resize(0, cq, log_size).unwrap();
        for _ in 0..11 {
            let index = nop(&mut rig, &mut end);
            assert_eq!(rig.poll(0, cq).unwrap().index(), index);
        }
        nop(&mut rig, &mut end);
        rig.resize(0, cq, log_size + 1).unwrap();
        rig.poll(0, cq).unwrap();
    }
}

#[test]
fn resize_without_room_is_rejected_unchanged() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 2, 64);
    let indexes: Vec<u16> = (0..2).map(|_| nop(&mut rig, &mut end)).collect();
    assert_eq!(rig.resize(0, cq, 1), Err(Refusal::CqOutstanding), "two CQEs, and the RESIZE CQE");
    assert_eq!((rig.cq_mut(0, cq).producer, rig.cq_mut(0, cq).log_size), (2, 2));
    assert_eq!(rig.poll(0, cq).unwrap().index(), indexes[0]);
    rig.resize(0, cq, 1).unwrap();
    assert_eq!(rig.poll(0, cq).unwrap().index(), indexes[1]);
    // A full buffer has no room for the CQE that ends it.
    for _ in 0..2 {
        nop(&mut rig, &mut end);
    }
    assert_eq!(rig.resize(0, cq, 5), Err(Refusal::CqOutstanding));
    assert_eq!(rig.all(0, cq).len(), 2);
    rig.resize(0, cq, 5).unwrap();
    assert!(rig.events(0).is_empty());
}

#[test]
fn overrun_cq_cannot_be_resized() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 1, 64);
    for _ in 0..3 {
        nop(&mut rig, &mut end);
    }
    assert!(rig.cq_mut(0, cq).failure.is_some());
    assert_eq!(rig.resize(0, cq, 5), Err(Refusal::CqState));
    assert_eq!(rig.cq_mut(0, cq).log_size, 1);
}

#[test]
fn shrunk_cq_overruns_at_new_size() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 5, 64);
    rig.resize(0, cq, 1).unwrap();
    for _ in 0..2 {
        nop(&mut rig, &mut end);
    }
    assert!(rig.cq_mut(0, cq).failure.is_none());
    nop(&mut rig, &mut end);
    assert!(rig.cq_mut(0, cq).failure.is_some());
}

#[test]
fn delayed_completion_moves_to_new_buffer() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 2, 64);
    let before = nop(&mut rig, &mut end);
    let faults = &mut rig.locked.functions[0].engine.faults;
    (faults.delay, faults.delay_completions) = (1000, engine::FaultWindow { skip: 0, count: 1 });
    let late = nop(&mut rig, &mut end);
    let after = nop(&mut rig, &mut end);
    rig.resize(0, cq, 4).unwrap();
    assert_eq!(rig.poll(0, cq).unwrap().index(), before);
    assert_eq!(rig.poll(0, cq), None);
    rig.advance(Duration::from_micros(1));
    assert_eq!(rig.all(0, cq).iter().map(|it| it.index()).collect::<Vec<_>>(), [late, after]);
}

#[test]
fn resize_cqe_counts_as_next_cqe_for_arming() {
    let mut rig = Rig::new();
    let (cq, mut end) = queue(&mut rig, 2, 64);
    nop(&mut rig, &mut end);
    rig.poll(0, cq);
    rig.arm(0, cq, 1);
    rig.run();
    while !reported_cqs(&mut rig).is_empty() {}
    // The CQE that ends the buffer is the next CQE.
    rig.resize(0, cq, 4).unwrap();
    assert_eq!(reported_cqs(&mut rig), [cq]);
    assert_eq!(rig.poll(0, cq), None);
    let record = rig.cq_mut(0, cq).record;
    assert_eq!(rig.memory().load32(record).unwrap(), 2_u32.to_be());
    rig.arm(0, cq, 1 << 28 | 2);
    rig.run();
    assert!(reported_cqs(&mut rig).is_empty());
    nop(&mut rig, &mut end);
    assert_eq!(reported_cqs(&mut rig), [cq]);
    // It is not a solicited CQE.
    rig.poll(0, cq).unwrap();
    rig.arm(0, cq, 2 << 28 | 1 << 24 | 3);
    rig.run();
    rig.resize(0, cq, 2).unwrap();
    assert!(reported_cqs(&mut rig).is_empty());
    rig.post(&mut end, Request::new(opcode::NOP).solicited());
    rig.run();
    assert_eq!(rig.all(0, cq).len(), 1);
}
