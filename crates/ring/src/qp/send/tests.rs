//! Tests of a send queue from within: indexes that no test gets to by posting, and an operation
//! that no device has.

use std::vec;
use std::vec::Vec;

use super::*;
use crate::completion::Operation;
use crate::ring::{RecordMemory, RingMemory, SharedMemory};
use crate::types::{Lkey, RemoteAddr, Rkey, Sge};
use crate::uar::UarPage;
use crate::wr::{Inline, Payload, Request, Write, probe};

fn memory(length: usize) -> SharedMemory {
    SharedMemory::zeroed(length).slice(0, length).unwrap()
}

#[allow(unsafe_code, reason = "ordinary memory stands in for rings and a UAR page")]
fn ring(memory: &SharedMemory) -> RingMemory {
    // SAFETY: who else has it reads it only between calls, on the same thread.
    unsafe { RingMemory::new(memory.clone()) }
}

fn queue() -> SendQueue {
    queue_over(&memory(64 * 8))
}

#[allow(unsafe_code, reason = "a page of ordinary memory takes the doorbells")]
fn queue_over(sends: &SharedMemory) -> SendQueue {
    // SAFETY: the memory is this page's alone.
    let page = unsafe { UarPage::new(memory(4096)) }.unwrap();
    SendQueue::new(SendQueueParts {
        qpn: Qpn(7),
        ring: ring(sends),
        record: RecordMemory::new(ring(&memory(8))).unwrap(),
        doorbell: page.doorbell(),
        max_sges: 2,
        max_inline: 64,
        signal_all: false,
        blueflame: BlueFlame::Never,
    })
    .unwrap()
}

#[test]
fn a_slot_without_a_request_is_not_outstanding_where_the_indexes_wrap() {
    for back in 1..=8 {
        let mut queue = queue();
        queue.limit = 0u32.wrapping_sub(back);
        queue.producer = queue.limit.wrapping_sub(8);
        let write = Write::new(Sge::new(0, 64, Lkey(1)), RemoteAddr::new(0, Rkey(2)));
        let posted = queue.post(&write, 3).unwrap();
        for index in (0..8).map(WqeIndex) {
            let found = queue.find(index).map(|slot| slot.cookie);
            let expected = (index.0 == posted.0 % 8).then_some(3);
            assert_eq!(found, expected, "{index:?} at {back} before the wrap");
        }
    }
}

/// What a good CQE of this opcode, queue and index completes: a cookie, if anything.
fn completes(queue: &mut SendQueue, opcode: u8, qpn: u32, index: WqeIndex) -> Option<u64> {
    let opcode_qpn = OpcodeQpn::new().with_wqe_opcode(opcode).with_qpn(qpn);
    let outcome = || Outcome {
        byte_count: Be32::default(),
        user_index: Be32::default(),
        immediate: Be32::default(),
    };
    queue.succeed(RequestId::of(opcode_qpn, index), outcome).map(|it| it.cookie)
}

/// Of whatever operation and queue it says that it is: of none, of this one, of another.
#[test]
fn a_lying_cqe_completes_no_slot_without_a_request_where_the_indexes_wrap() {
    let write = Write::new(Sge::new(0, 64, Lkey(1)), RemoteAddr::new(0, Rkey(2)));
    for back in 1..=8 {
        for taken_back in [false, true] {
            let mut queue = queue();
            queue.limit = 0u32.wrapping_sub(back);
            queue.producer = queue.limit.wrapping_sub(8);
            if taken_back {
                let mut batch = queue.batch();
                for cookie in 0..8 {
                    batch.post(&write, cookie).unwrap();
                }
                drop(batch);
            }
            let posted = queue.post(&write, 3).unwrap();
            let free = queue.free();
            for index in (0..8).map(WqeIndex) {
                let ours = index.0 == posted.0 % 8;
                for &operation in Operation::ALL {
                    assert_ne!(operation as u8, NOT_POSTED);
                    for qpn in [0, 7, 8, 0xff_ffff] {
                        let truth = ours && operation == Operation::Write && qpn == 7;
                        if !truth {
                            let found = completes(&mut queue, operation as u8, qpn, index);
                            assert_eq!(found, None, "{operation:?} of QP {qpn}, {index:?}");
                        }
                    }
                }
            }
            assert_eq!(queue.free(), free, "nothing was freed");
            assert_eq!(completes(&mut queue, Operation::Write as u8, 7, posted), Some(3));
        }
    }
}

/// Posts a probe with this payload to an empty queue; returns its WQE.
fn posted(payload: impl Payload) -> Vec<u8> {
    let ring = memory(64 * 8);
    ring.fill(0xee);
    let mut queue = queue_over(&ring);
    let probe = probe::Probe::new(payload, probe::BEHIND, 0xcafe).signaled();
    queue.post(&probe, 9).unwrap();
    let mut bytes = vec![0; 64 * 8];
    ring.read_at(0, &mut bytes).unwrap();
    let length = usize::from(bytes[7]) * 16;
    let used = length.next_multiple_of(64);
    assert!(bytes[used..].iter().all(|&byte| byte == 0xee), "more than its wqebbs");
    bytes.truncate(length);
    bytes
}

#[test]
fn one_entry_makes_an_operation_whose_op_mod_goes_into_the_control_segment() {
    let [lone, operation] = probe::OPERATIONS else { panic!("two entries") };
    assert_eq!((lone.name, lone.op_mod, lone.ds), ("probe", 0x5a, 3));
    assert_eq!(lone.operation, Operation::CompareSwap);
    assert_eq!((operation.name, operation.op_mod, operation.ds), (PROBE_TO, 0x5a, 6));
    let sge = Sge::new(0x1000, 64, Lkey(7));
    let behind = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0];
    let wqe = posted(sge);
    let control = [0x5a, 0, 0, Operation::CompareSwap as u8, 0, 0, 7, 3];
    assert_eq!(wqe[..8], control, "op_mod, index, opcode; number, ds");
    assert_eq!(wqe[8..16], [0, 0, 0, 8, 0, 0, 0xca, 0xfe]);
    assert_eq!((wqe[19], &wqe[32..]), (64, &behind[..]));
    // Whatever the payload is, what stands behind it follows without a gap.
    let empty = Sge::new(0, 0, Lkey(7));
    for (wqe, ds) in [
        (posted(empty), 2),
        (posted([sge, sge]), 4),
        (posted(&[empty, sge][..]), 3),
        (posted(Inline(&[])), 2),
        (posted(Inline(&[1; 12])), 3),
        (posted(Inline(&[1; 13])), 4),
        (posted(Inline(&[1; 45])), 6),
    ] {
        assert_eq!((wqe[7], wqe[0]), (ds, 0x5a));
        assert_eq!(wqe[wqe.len() - 16..], behind, "at ds {ds}");
    }
}

const PROBE_TO: &str = "probe to a destination";

#[test]
fn an_operation_that_the_device_lacks_a_capability_for_is_refused_and_changes_nothing() {
    let mut queue = queue();
    let probe = probe::Probe::new(Inline(&[1]), probe::BEHIND, 0);
    let info = <probe::Probe<Sge> as Request>::INFO;
    assert_eq!(queue.supports(&info), Ok(()));
    queue.set_capabilities(|capability| capability != Capability::Atomics);
    let refused = Err(Unsupported::Capability { operation: "probe", needs: Capability::Atomics });
    assert_eq!(queue.supports(&info), refused);
    assert_eq!(queue.post(&probe, 1), Err(PostError::Unsupported));
    assert_eq!(queue.batch().post(&probe, 1), Err(PostError::Unsupported));
    assert_eq!((queue.free(), queue.producer), (8, 0));
    queue.set_capabilities(|_| true);
    queue.post(&probe, 1).unwrap();
}
