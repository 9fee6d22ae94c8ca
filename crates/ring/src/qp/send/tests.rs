//! Tests of a send queue's internals: indexes that no test reaches by posting, and an operation
//! that no device has.

use std::vec;
use std::vec::Vec;

use super::*;
use crate::completion::WcOpcode;
use crate::ring::{RecordMemory, RingMemory, SharedMemory};
use crate::types::{Lkey, RemoteAddr, Rkey, Sge};
use crate::uar::UarPage;
use crate::wr::{Inline, Payload, Request, Write, probe};

fn memory(length: usize) -> SharedMemory {
    SharedMemory::zeroed(length).slice(0, length).unwrap()
}

#[allow(unsafe_code, reason = "ordinary memory stands in for rings and a UAR page")]
fn ring(memory: &SharedMemory) -> RingMemory {
    // SAFETY: other handles read it only between calls, on the same thread.
    unsafe { RingMemory::new(memory.clone()) }
}

fn queue() -> SendQueue {
    queue_over(&memory(64 * 8))
}

#[allow(unsafe_code, reason = "a page of ordinary memory takes the doorbells")]
fn queue_over(sends: &SharedMemory) -> SendQueue {
    // SAFETY: only this page has the memory.
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
fn slot_without_request_is_not_found_at_index_wrap() {
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

/// The cookie that a successful CQE of this opcode, queue and index completes, if any.
fn completes(queue: &mut SendQueue, opcode: u8, qpn: u32, index: WqeIndex) -> Option<u64> {
    let opcode_qpn = OpcodeQpn::new().with_wqe_opcode(opcode).with_qpn(qpn);
    let outcome = || Outcome {
        byte_count: Be32::default(),
        user_index: Be32::default(),
        immediate: Be32::default(),
    };
    queue.complete_success(RequestId::of(opcode_qpn, index), outcome).map(|it| it.cookie)
}

/// The CQE has any operation, and the number of no queue, of this one, or of another.
#[test]
fn forged_cqe_completes_nothing_at_index_wrap() {
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
                for &operation in WcOpcode::ALL {
                    assert_ne!(operation as u8, NOT_POSTED);
                    for qpn in [0, 7, 8, 0xff_ffff] {
                        let truth = ours && operation == WcOpcode::Write && qpn == 7;
                        if !truth {
                            let found = completes(&mut queue, operation as u8, qpn, index);
                            assert_eq!(found, None, "{operation:?} of QP {qpn}, {index:?}");
                        }
                    }
                }
            }
            assert_eq!(queue.free(), free, "nothing was freed");
            assert_eq!(completes(&mut queue, WcOpcode::Write as u8, 7, posted), Some(3));
        }
    }
}

/// The entry of a collapsed CQ, and the CQ.
struct CollapsedCqe {
    entry: SharedMemory,
    cq: CollapsedCompletionQueue,
}

impl CollapsedCqe {
    fn new() -> Self {
        let entry = memory(64);
        let record = RecordMemory::new(ring(&memory(8))).unwrap();
        Self { cq: CollapsedCompletionQueue::new(ring(&entry), record).unwrap(), entry }
    }

    /// Writes the CQE of a write at this index of this queue.
    fn write(&self, opcode: u8, qpn: u32, index: u16) {
        let opcode_qpn = OpcodeQpn::new().with_wqe_opcode(WcOpcode::Write as u8).with_qpn(qpn);
        self.entry
            .write_at(offset_of!(hot::Cqe, opcode_qpn), &opcode_qpn.to_raw().to_ne_bytes())
            .unwrap();
        let tail = u32::from(index) << 16 | u32::from(opcode << 4);
        self.entry.write_at(offset_of!(hot::Cqe, cqe_tail), &tail.to_be_bytes()).unwrap();
    }
}

fn write() -> Write<Sge> {
    Write::new(Sge::new(0, 64, Lkey(1)), RemoteAddr::new(0, Rkey(2))).signaled()
}

/// The cookie of the newest request, and whether it succeeded.
fn newest(queue: &mut SendQueue, cq: &CollapsedCqe) -> Option<(u64, bool)> {
    match queue.poll_collapsed(&cq.cq)? {
        Ok(completion) => Some((completion.cookie, true)),
        Err(CompletionError::Failed(failure)) => Some((failure.cookie, false)),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn stale_collapsed_cqe_completes_nothing() {
    // At the beginning, where the index wraps, and where the count wraps.
    for start in [0_u32, 8, 0xfffd, 0x1_0000, 0x1_0005, 0xffff_fffa] {
        for (opcode, good) in [(cqe_opcode::REQUESTER, true), (cqe_opcode::REQUESTER_ERROR, false)]
        {
            let (mut queue, cq) = (queue(), CollapsedCqe::new());
            (queue.producer, queue.limit) = (start, start.wrapping_add(8));
            for round in 0..20_u64 {
                let posted = queue.post(&write(), 100 * round).unwrap();
                assert_eq!(newest(&mut queue, &cq), None, "the device has done nothing more");
                cq.write(opcode, 7, posted.0);
                assert_eq!(newest(&mut queue, &cq), Some((100 * round, good)), "from {start:#x}");
                // Until the slot of the CQE has another request.
                for other in 1.. {
                    assert_eq!(newest(&mut queue, &cq), None, "{other} posted behind it");
                    if queue.post(&write(), 100 * round + other).is_err() {
                        break;
                    }
                }
                assert_eq!(queue.free(), 0);
                // The same holds for a closed queue.
                let last = posted.0.wrapping_add(8);
                cq.write(opcode, 7, last);
                assert_eq!(newest(&mut queue, &cq), Some((100 * round + 8, good)));
                queue.close();
                assert_eq!(newest(&mut queue, &cq), None, "of a closed queue");
                queue.open();
            }
        }
    }
}

#[test]
fn stale_collapsed_cqe_completes_nothing_after_reset() {
    for posted_before in 1..=20 {
        let (mut queue, cq) = (queue(), CollapsedCqe::new());
        for cookie in 0..posted_before {
            let posted = queue.post(&write(), cookie).unwrap();
            cq.write(cqe_opcode::REQUESTER, 7, posted.0);
            assert_eq!(newest(&mut queue, &cq), Some((cookie, true)));
        }
        queue.reset();
        let _none = cq.cq.cleaner().clean(queue.qpn());
        for cookie in 0..8 {
            queue.post(&write(), cookie).unwrap();
            assert_eq!(newest(&mut queue, &cq), None, "of {posted_before} before the reset");
        }
        cq.write(cqe_opcode::REQUESTER, 7, 5);
        assert_eq!(newest(&mut queue, &cq), Some((5, true)));
        assert_eq!((newest(&mut queue, &cq), queue.free()), (None, 6));
        while queue.post(&write(), 9).is_ok() {
            assert_eq!(newest(&mut queue, &cq), None, "of {posted_before} before the reset");
        }
    }
}

#[test]
fn collapsed_cqe_of_another_queue_completes_nothing() {
    for opcode in [cqe_opcode::REQUESTER, cqe_opcode::REQUESTER_ERROR] {
        let (mut queue, cq) = (queue(), CollapsedCqe::new());
        let posted = queue.post(&write(), 3).unwrap();
        cq.write(opcode, 8, posted.0);
        let polled = queue.poll_collapsed(&cq.cq);
        let Some(Err(CompletionError::OtherQueue(cqe))) = polled else { panic!("{polled:?}") };
        assert_eq!((cqe.qpn(), cqe.opcode(), queue.free()), (Qpn(8), opcode, 7));
        cq.write(cqe_opcode::REQUESTER, 7, posted.0);
        assert_eq!(newest(&mut queue, &cq), Some((3, true)));
    }
}

/// Posts a probe with this payload to an empty queue; returns its WQE.
fn posted(payload: impl Payload) -> Vec<u8> {
    let ring = memory(64 * 8);
    ring.fill(0xee);
    let mut queue = queue_over(&ring);
    let probe = probe::Probe::new(payload, probe::AFTER, 0xcafe).signaled();
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
fn custom_operation_encodes_op_mod_and_ds() {
    let [lone, operation] = probe::OPERATIONS else { panic!("two entries") };
    assert_eq!((lone.name, lone.op_mod, lone.ds), ("probe", 0x5a, 3));
    assert_eq!(lone.operation, WcOpcode::CompareSwap);
    assert_eq!((operation.name, operation.op_mod, operation.ds), (PROBE_TO, 0x5a, 6));
    let sge = Sge::new(0x1000, 64, Lkey(7));
    let behind = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0];
    let wqe = posted(sge);
    let control = [0x5a, 0, 0, WcOpcode::CompareSwap as u8, 0, 0, 7, 3];
    assert_eq!(wqe[..8], control, "op_mod, index, opcode; number, ds");
    assert_eq!(wqe[8..16], [0, 0, 0, 8, 0, 0, 0xca, 0xfe]);
    assert_eq!((wqe[19], &wqe[32..]), (64, &behind[..]));
    // The segment after any payload follows without a gap.
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
fn operation_without_capability_is_rejected() {
    let mut queue = queue();
    let probe = probe::Probe::new(Inline(&[1]), probe::AFTER, 0);
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
