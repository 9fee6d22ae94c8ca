//! Stores to trapped pages: doorbells, and WQEs that are executed from their BlueFlame copies.

use std::time::Duration;

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Endpoint, PAGE, Request, Rig};
use crate::engine;
use crate::memory::{HostMemory, UAR_PAGE};

const REGISTER: u64 = PAGE as u64 * UAR_PAGE + 0x800;

fn store(rig: &mut Rig, offset: u64, bytes: &[u8]) {
    engine::trapped_write(&mut rig.locked, 0, offset, bytes);
}

/// Copies a WQE to a register, eight bytes at a time.
fn copy(rig: &mut Rig, register: u64, wqe: &[u8]) {
    for (at, bytes) in (0..).step_by(8).zip(wqe.chunks(8)) {
        store(rig, register + at, bytes);
    }
}

/// Puts a NOP without a CQE into the ring, and returns the same NOP with one, for a copy.
fn write_wqe(rig: &mut Rig, end: &mut Endpoint) -> Vec<u8> {
    let mut copied = Request::new(opcode::NOP).wqe(end.qpn, end.posted);
    copied.resize(64, 0);
    let quiet = Request::new(opcode::NOP).unsignaled().wqe(end.qpn, end.posted);
    rig.write_wqe(end, &quiet);
    copied
}

#[test]
fn fully_copied_wqes_run_from_their_copies_in_order() {
    for queued in [false, true] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        let mut seen = Vec::new();
        for turn in 0..4 {
            let copied = write_wqe(&mut rig, &mut a);
            copy(&mut rig, REGISTER + turn % 2 * 0x100, &copied);
            if !queued {
                seen.push(rig.one(0, a.send_cq).index());
            }
        }
        seen.extend(rig.all(0, a.send_cq).iter().map(|entry| entry.index()));
        assert_eq!(seen, [0, 1, 2, 3], "queued: {queued}");
    }
}

#[test]
fn lone_8_byte_store_becomes_a_doorbell() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let copied = write_wqe(&mut rig, &mut a);
    store(&mut rig, REGISTER, &copied[..8]);
    rig.advance(Duration::from_millis(10));
    assert_eq!(rig.qp(&a).sq.as_ref().unwrap().consumer, 0, "the copy may still continue");
    rig.advance(Duration::from_millis(30));
    rig.none(0, a.send_cq);
    assert_eq!(rig.qp(&a).sq.as_ref().unwrap().consumer, 1, "the ring's NOP requests no CQE");
}

#[test]
fn only_nop_doorbell_is_held_back() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    rig.receive(&mut b, &[]);
    let wqe = Request::send().wqe(a.qpn, a.posted);
    rig.write_wqe(&mut a, &wqe);
    store(&mut rig, REGISTER, &wqe[..8]);
    rig.advance(Duration::from_millis(1));
    assert_eq!(rig.qp(&a).sq.as_ref().unwrap().consumer, 1);
}

#[test]
fn nop_copy_may_pause_10_ms_between_stores() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let copied = write_wqe(&mut rig, &mut a);
    for (at, bytes) in (0..).step_by(8).zip(copied.chunks(8)) {
        rig.advance(Duration::from_millis(10));
        store(&mut rig, REGISTER + at, bytes);
    }
    assert_eq!(rig.one(0, a.send_cq).index(), 0, "the copy requests a CQE");
}

#[test]
fn partial_copy_becomes_a_doorbell() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let copied = write_wqe(&mut rig, &mut a);
    for at in (0..32).step_by(8) {
        store(&mut rig, REGISTER + at as u64, &copied[at..at + 8]);
    }
    rig.advance(Duration::from_millis(30));
    for at in (32..64).step_by(8) {
        store(&mut rig, REGISTER + at as u64, &copied[at..at + 8]);
    }
    rig.advance(Duration::from_millis(30));
    rig.none(0, a.send_cq);
    assert_eq!(rig.qp(&a).sq.as_ref().unwrap().consumer, 1);
}

#[test]
fn copy_with_wrong_index_or_page_is_not_executed() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let mut copied = write_wqe(&mut rig, &mut a);
    copied[2] = 9; // the index's low byte
    copy(&mut rig, REGISTER, &copied);
    rig.none(0, a.send_cq);
    assert_eq!(rig.qp(&a).sq.as_ref().unwrap().consumer, 1);
    let copied = write_wqe(&mut rig, &mut a);
    copy(&mut rig, REGISTER + UAR_PAGE, &copied);
    rig.none(0, a.send_cq);
    assert_eq!(rig.qp(&a).sq.as_ref().unwrap().consumer, 1, "a page that the QP does not ring on");
}

/// What happens if a driver lets several queues share a register.
#[test]
fn interleaved_doorbell_runs_the_mixed_copy() {
    let mut rig = Rig::new();
    let ((mut a, _), (mut b, _)) = (rig.pair(), rig.pair());
    let copied = write_wqe(&mut rig, &mut a);
    let doorbell = write_wqe(&mut rig, &mut b);
    for (at, bytes) in (0..).step_by(8).zip(copied.chunks(8)) {
        if at == 32 {
            store(&mut rig, REGISTER, &doorbell[..8]);
        }
        store(&mut rig, REGISTER + at, bytes);
    }
    assert_eq!(rig.one(0, b.send_cq).index(), 0, "its own NOP requests no CQE");
    rig.advance(Duration::from_millis(30));
    rig.none(0, a.send_cq);
}

#[test]
fn copy_of_multi_wqebb_wqe_is_awaited() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (buffer, key) = rig.region(1, 256);
    rig.receive(&mut b, &[verbless_prm::hot::DataSegment::new(256, key, buffer)]);
    let wqe = Request::send().inline(&[0x5a; 100]).wqe(a.qpn, a.posted);
    assert!(wqe.len() > 64);
    let mut stale = wqe.clone();
    stale[40..].fill(0);
    rig.write_wqe(&mut a, &stale);
    let mut copied = wqe;
    copied.resize(copied.len().next_multiple_of(64), 0);
    copy(&mut rig, REGISTER, &copied);
    rig.one(0, a.send_cq);
    rig.one(1, b.receive_cq);
    assert_eq!(rig.bytes(buffer, 100), [0x5a; 100]);
}

#[test]
fn copy_of_any_bytes_at_any_offset_is_survived() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    write_wqe(&mut rig, &mut a);
    for offset in (0..2 * UAR_PAGE).step_by(4) {
        store(&mut rig, PAGE as u64 * UAR_PAGE + offset, &[0xff; 4]);
    }
    for (offset, length) in [(REGISTER, 0), (REGISTER, 64), (REGISTER + 0xf8, 64), (u64::MAX, 8)] {
        store(&mut rig, offset, &vec![0xa5; length]);
    }
    rig.advance(Duration::from_millis(1));
    let (mut later, _) = rig.pair();
    rig.post(&mut later, Request::new(opcode::NOP));
    rig.one(0, later.send_cq);
}

#[test]
fn copy_longer_than_posted_is_an_operation_error() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let copied = Request::new(opcode::NOP).bytes(&[0; 64]).wqe(a.qpn, 0);
    rig.write_wqe(&mut a, &copied);
    copy(&mut rig, REGISTER, &copied.iter().copied().chain([0; 48]).collect::<Vec<u8>>());
    let record = rig.qp(&a).record;
    rig.memory().store32(record + 4, 1u32.to_be()).unwrap();
    engine::mmio_write(&mut rig.locked, 0, REGISTER, &copied[..8]);
    let entry = rig.one(0, a.send_cq);
    let expected = (cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::LOCAL_QP_OPERATION);
    assert_eq!(entry.error(), expected);
}
