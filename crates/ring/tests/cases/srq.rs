//! Shared receive queues: WQEs in the ring, completions in any order, and malformed CQEs.

use crate::support::{Completer, Sender, Settings, bytes, memory, record_of, ring_of};
use proptest::prelude::*;
use std::mem::offset_of;
use verbless_prm::hot::{self, cqe_opcode, cqe_syndrome};
use verbless_ring::completion::InvalidCqe;
use verbless_ring::ring::SharedMemory;
use verbless_ring::srq::{SharedReceiveQueue, SharedReceiveQueueParts};
use verbless_ring::wr::PostError;
use verbless_ring::{CompletionError, Lkey, Qpn, QueuePair, Sge, WcStatus, WithSrq, WqeIndex};

const STRIDE: usize = 64;

struct SrqRig {
    queue: SharedReceiveQueue,
    ring: SharedMemory,
    record: SharedMemory,
    device: Completer,
}

impl SrqRig {
    fn new(count: usize) -> Self {
        let (ring, record) = (memory(count * STRIDE), memory(8));
        let queue = SharedReceiveQueue::new(SharedReceiveQueueParts {
            ring: ring_of(&ring),
            stride: STRIDE,
            record: record_of(&record),
        })
        .unwrap();
        Self { queue, ring, record, device: Completer::new(0x123) }
    }

    fn wqe(&self, index: u16) -> Vec<u8> {
        bytes(&self.ring)[usize::from(index) * STRIDE..][..STRIDE].to_vec()
    }

    /// The link of a WQE, as the device reads it.
    fn link(&self, index: u16) -> u16 {
        u16::from_be_bytes(*self.wqe(index)[2..].first_chunk().unwrap())
    }

    fn posted(&self) -> u32 {
        u32::from_be_bytes(*bytes(&self.record).first_chunk().unwrap())
    }

    fn complete(&mut self, opcode: u8, index: u16) -> Result<u64, CompletionError> {
        let mut cqe = self.device.cqe(opcode, 0, index);
        if opcode == cqe_opcode::RESPONDER_ERROR {
            cqe.as_bytes_mut()[offset_of!(hot::CqeError, cqe_syndromes) + 3] =
                cqe_syndrome::LOCAL_LENGTH;
        }
        let cqe = self.device.deliver(cqe);
        self.queue.complete(cqe).map(|completion| completion.cookie)
    }
}

fn sge(length: u32) -> Sge {
    Sge::new(0x1122_3344_5566_7788, length, Lkey(0xaabb_ccdd))
}

/// The layout of an SRQ WQE in libmlx5: next segment, SGEs, and the key that ends a short list.
#[test]
fn receive_wqe_has_link_sges_and_terminator() {
    let mut srq = SrqRig::new(4);
    assert_eq!([0, 1, 2].map(|index| srq.link(index)), [1, 2, 3], "the list before any post");
    let index = srq.queue.post([sge(0x10), sge(0), sge(0x20)], 1).unwrap();
    assert_eq!(index, WqeIndex(0));
    let mut expected = vec![0; 16];
    expected[3] = 1;
    for length in [0x10, 0x20] {
        expected.extend([0, 0, 0, length, 0xaa, 0xbb, 0xcc, 0xdd]);
        expected.extend([0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    }
    expected.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(srq.wqe(0), expected);
    assert_eq!(srq.posted(), 1);
    srq.queue.post([sge(1); 3], 2).unwrap();
    assert_eq!(srq.wqe(1)[48 + 3], 1, "three SGEs need no end key");
    assert_eq!(srq.queue.post([sge(1); 4], 3), Err(PostError::TooManySges));
    assert_eq!(srq.queue.post(sge(0x8000_0000), 3), Err(PostError::SgeTooLong));
    assert_eq!((srq.posted(), srq.queue.free()), (2, 1));
}

#[test]
fn failed_receive_reports_status_and_is_freed() {
    let mut srq = SrqRig::new(2);
    srq.queue.post(sge(1), 7).unwrap();
    assert_eq!(srq.queue.post(sge(1), 8), Err(PostError::Full));
    match srq.complete(cqe_opcode::RESPONDER_ERROR, 0) {
        Err(CompletionError::Failed(failure)) => {
            assert_eq!((failure.cookie, failure.status), (7, WcStatus::LocalLength));
            assert!(failure.receive);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(srq.queue.post(sge(1), 8).unwrap(), WqeIndex(1));
}

#[test]
fn cqe_of_unposted_receive_is_malformed() {
    let mut srq = SrqRig::new(8);
    srq.queue.post(sge(1), 7).unwrap();
    srq.queue.batch().post(sge(1), 8).unwrap();
    for index in [1, 2, 7, 8, 9, 0x8000, u16::MAX] {
        for opcode in [cqe_opcode::RESPONDER_SEND, cqe_opcode::RESPONDER_ERROR] {
            let error = srq.complete(opcode, index).unwrap_err();
            assert_eq!(error, CompletionError::InvalidCqe(InvalidCqe::Index(WqeIndex(index))));
        }
    }
    assert_eq!(srq.queue.free(), 6);
    assert_eq!(srq.complete(cqe_opcode::RESPONDER_SEND, 0), Ok(7));
    srq.complete(cqe_opcode::RESPONDER_SEND, 0).unwrap_err();
    let error = srq.complete(cqe_opcode::NO_PACKET, 0).unwrap_err();
    assert_eq!(error, CompletionError::InvalidCqe(InvalidCqe::Opcode(cqe_opcode::NO_PACKET)));
    assert_eq!(srq.queue.free(), 7);
}

proptest! {
    /// A device that follows the links finds every receive once, in posting order, whatever the
    /// completion order.
    #[test]
    fn device_takes_receives_in_posting_order(
        log in 1u32..6,
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..400),
    ) {
        let mut srq = SrqRig::new(1 << log);
        // The device's state: its position in the list, the number of receives that it fetched, and
        // the receives that it has not completed.
        let (mut head, mut taken, mut held) = (0u16, 0u32, Vec::new());
        let (mut cookie, mut expected) = (0u32, 0u32);
        for (post, choice) in steps {
            if post {
                let full = srq.queue.free() == 0;
                match srq.queue.post(sge(cookie + 1), cookie.into()) {
                    Ok(_) => cookie += 1,
                    Err(error) => prop_assert!(full && error == PostError::Full),
                }
                prop_assert_eq!(srq.posted(), cookie & 0xffff);
            } else if taken < cookie && choice.index(2) == 0 {
                let wqe = srq.wqe(head);
                let length = u32::from_be_bytes(*wqe[16..].first_chunk().unwrap());
                prop_assert_eq!(length, expected + 1, "the receives are not in order");
                held.push((head, u64::from(expected)));
                head = srq.link(head);
                (taken, expected) = (taken + 1, expected + 1);
            } else if !held.is_empty() {
                let (index, cookie) = held.swap_remove(choice.index(held.len()));
                prop_assert_eq!(srq.complete(cqe_opcode::RESPONDER_SEND, index), Ok(cookie));
            }
        }
    }
}

#[test]
fn invalid_srq_ring_is_rejected() {
    let parts = |count: usize, stride: usize| SharedReceiveQueueParts {
        ring: ring_of(&memory(count * stride)),
        stride,
        record: record_of(&memory(8)),
    };
    for (count, stride) in [(1, 64), (3, 64), (4, 16), (4, 1024), (4, 48), (65536, 32)] {
        assert!(SharedReceiveQueue::new(parts(count, stride)).is_err(), "{count} of {stride}");
    }
    assert_eq!(SharedReceiveQueue::new(parts(32768, 32)).unwrap().capacity(), 32767);
}

#[test]
fn qp_returns_srq_cqe_and_rejects_foreign_ones() {
    let mut srq = SrqRig::new(4);
    srq.queue.post(sge(64), 7).unwrap();
    let Sender { queue: send, mut device, .. } = Sender::new(Settings::default());
    let mut qp = QueuePair::new(send, WithSrq);
    let (ours, theirs) = (qp.qpn(), Qpn(0x124));
    let mut complete = |qpn: Qpn, opcode| {
        let mut cqe = device.cqe(opcode, 0, 0);
        cqe.set_qpn(qpn.0).set_byte_cnt(33).set_imm_inval_pkey(0x5ead);
        qp.complete(device.deliver(cqe)).unwrap_err()
    };
    for opcode in [cqe_opcode::RESPONDER_SEND_IMM, cqe_opcode::RESPONDER_ERROR] {
        let refused = complete(theirs, opcode);
        let CompletionError::OtherQueue(cqe) = refused else { panic!("{refused}") };
        assert_eq!(cqe.qpn(), theirs);
    }
    for opcode in [cqe_opcode::RESIZE, cqe_opcode::NO_PACKET, 12] {
        let refused = complete(ours, opcode);
        assert_eq!(refused, CompletionError::InvalidCqe(InvalidCqe::Opcode(opcode)));
    }
    let refused = complete(ours, cqe_opcode::RESPONDER_SEND_IMM);
    let text = refused.to_string();
    assert!(text.contains("SharedReceiveQueue") && text.contains("QP 0x123"), "{text}");
    let CompletionError::OtherSrq(cqe) = refused else { panic!("{text}") };
    assert_eq!(srq.queue.free(), 2, "the WQE is the device's until its CQE completes it");
    let done = srq.queue.complete(cqe).unwrap();
    assert_eq!((done.cookie, done.byte_len(), done.immediate()), (7, 33, Some(0x5ead)));
    assert_eq!(srq.queue.free(), 3);
}
