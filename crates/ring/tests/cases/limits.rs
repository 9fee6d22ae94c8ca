//! Full queues, wrapping rings, and requests above the limits.

use crate::support::{
    Completer, REMOTE, Receiver, Sender, Settings, bytes, record_of, ring_of, sge, to_lid,
};
use proptest::prelude::*;
use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_prm::{Cqe, CqeOpcode};
use verbless_ring::completion::InvalidCqe;
use verbless_ring::cq::CompletionQueueParts;
use verbless_ring::qp::{ReceiveQueueParts, SendQueueParts};
use verbless_ring::ring::{RecordMemory, RingMemory, SharedMemory};
use verbless_ring::uar::UarPage;
use verbless_ring::wr::{CompareSwap, FetchAdd, Inline, Nop, PostError, Read, Send, Write};
use verbless_ring::{
    CompletionError, CompletionQueue, Cqn, QKey, Qpn, QueuePair, ReceiveQueue, SendQueue, Ud,
    WqeIndex,
};

#[test]
fn full_queue_rejects_post_without_change() {
    let mut sender = Sender::new(Settings { wqebbs: 8, ..Settings::default() });
    for i in 0..7 {
        sender.queue.post(&Write::new(sge(64), REMOTE), i).unwrap();
    }
    let before = (bytes(&sender.ring), bytes(&sender.record), bytes(&sender.uar));
    let two_wqebbs = Write::new([sge(1); 4], REMOTE).signaled();
    assert_eq!(sender.queue.post(&two_wqebbs, 9), Err(PostError::Full));
    let mut batch = sender.queue.batch();
    assert_eq!(batch.post(&two_wqebbs, 9), Err(PostError::Full));
    batch.ring();
    assert_eq!((bytes(&sender.ring), bytes(&sender.record), bytes(&sender.uar)), before);
    assert_eq!(sender.queue.free(), 1);

    sender.queue.post(&Nop::new().signaled(), 7).unwrap();
    assert_eq!(sender.queue.post(&Nop::new(), 8), Err(PostError::Full));
    let cqe = sender.device.completion(opcode::NOP, 7);
    assert_eq!(sender.queue.complete(cqe).unwrap().cookie, 7);
    assert_eq!(sender.queue.free(), 8, "a completion frees the unsignaled requests before it");
    sender.queue.post(&two_wqebbs, 9).unwrap();
}

/// A datagram's address fills the first wqebb, so an empty SGE after it would lie in the next one.
#[test]
fn empty_datagram_writes_nothing_after_wqebb() {
    let mut sender: Sender<Ud> = Sender::of(Settings { wqebbs: 4, ..Settings::default() });
    let to = to_lid(7).to(Qpn(0x99), QKey(1));
    sender.ring.fill(0xee);
    sender.queue.post(&Send::new(sge(0)).to(&to), 1).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[7], 4, "ds");
    assert!(ring[64..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 3);

    sender.queue.post(&Send::new([sge(8), sge(0), sge(9)]).signaled().to(&to), 2).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[64 + 7], 6, "two SGEs after the address");
    assert_eq!(ring[64 + 16..64 + 64], ring[16..64], "the same address");
    assert_eq!((ring[128 + 3], ring[144 + 3]), (8, 9), "lengths of the SGEs");
    assert!(ring[160..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 1);
}

#[test]
fn request_above_limits_is_rejected_without_change() {
    let mut sender = Sender::new(Settings { max_sges: 2, max_inline: 16, ..Settings::default() });
    let before = bytes(&sender.ring);
    let queue = &mut sender.queue;
    assert_eq!(queue.post(&Write::new([sge(1); 3], REMOTE), 0), Err(PostError::TooManySges));
    assert_eq!(queue.post(&Read::new(&[sge(1); 3][..], REMOTE), 0), Err(PostError::TooManySges));
    assert_eq!(queue.post(&Send::new(Inline(&[0; 17])), 0), Err(PostError::InlineTooLong));
    assert_eq!(queue.post(&Send::new(sge(0x8000_0000)), 0), Err(PostError::SgeTooLong));
    assert_eq!(queue.post(&Send::new([sge(1), sge(u32::MAX)]), 0), Err(PostError::SgeTooLong));
    assert_eq!(queue.post(&FetchAdd::new(sge(4), REMOTE, 1), 0), Err(PostError::AtomicLength));
    assert_eq!(
        queue.post(&CompareSwap::new(sge(16), REMOTE, 1, 2), 0),
        Err(PostError::AtomicLength)
    );
    assert_eq!(queue.free(), queue.capacity());
    assert_eq!(bytes(&sender.ring), before);
    sender.queue.post(&Write::new(sge(0x7fff_ffff), REMOTE), 0).unwrap();
}

#[test]
fn largest_write_has_61_ds() {
    let mut sender = Sender::new(Settings { max_sges: 59, max_inline: 940, ..Settings::default() });
    sender.queue.post(&Write::new([sge(1); 59], REMOTE), 0).unwrap();
    assert_eq!(bytes(&sender.ring)[7], 61);
    let at = (sender.queue.capacity() - sender.queue.free()) as usize * 64;
    sender.queue.post(&Write::new(Inline(&[1; 940]), REMOTE), 0).unwrap();
    assert_eq!(bytes(&sender.ring)[at + 7], 61);
}

#[test]
fn full_receive_queue_rejects_post_without_change() {
    let mut receiver = Receiver::new(5, 4, 32);
    let mut batch = receiver.queue.batch();
    for i in 0..4 {
        batch.post(sge(64), i).unwrap();
    }
    assert_eq!(batch.post(sge(64), 4), Err(PostError::Full));
    batch.ring();
    let before = (bytes(&receiver.ring), bytes(&receiver.record));
    assert_eq!(receiver.queue.post(sge(64), 4), Err(PostError::Full));
    assert_eq!(receiver.queue.post([sge(64); 3], 4), Err(PostError::TooManySges));
    assert_eq!((bytes(&receiver.ring), bytes(&receiver.record)), before);

    let mut device = Completer::new(5);
    for i in 0..4 {
        let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, i as u16);
        assert_eq!(receiver.queue.complete(device.deliver(cqe)).unwrap().cookie, i);
    }
    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 4);
    let error = receiver.queue.complete(device.deliver(cqe)).unwrap_err();
    assert_eq!(error, CompletionError::InvalidCqe(InvalidCqe::Index(WqeIndex(4))));
}

#[test]
fn invalid_queue_parts_are_rejected() {
    let page = || crate::support::uar_page().1;
    let memory = SharedMemory::zeroed(4 << 20);
    let part = |offset: usize, length: usize| memory.slice(offset, length).unwrap();
    let slice = |offset: usize, length: usize| ring_of(&part(offset, length));
    let record = || record_of(&part(0, 8));
    let parts = |ring: RingMemory| SendQueueParts {
        qpn: Qpn(1),
        ring,
        record: record(),
        doorbell: page().doorbell(),
        max_sges: 1,
        max_inline: 0,
        signal_all: false,
        blueflame: Default::default(),
    };
    for (at, length) in [(0, 0), (0, 32), (0, 192), (0, 4 << 20), (8, 64)] {
        assert!(SendQueue::new(parts(slice(at, length))).is_err(), "{length} bytes at {at}");
    }
    let good = || parts(slice(0, 64));
    assert!(SendQueue::new(good()).is_ok());
    assert!(SendQueue::new(SendQueueParts { qpn: Qpn(1 << 24), ..good() }).is_err());
    assert!(SendQueue::new(SendQueueParts { max_sges: 60, ..good() }).is_err());
    assert!(SendQueue::new(SendQueueParts { max_inline: 941, ..good() }).is_err());
    assert!(RecordMemory::new(slice(0, 4)).is_err());
    assert!(RecordMemory::new(slice(2, 8)).is_err());

    let receive = |ring, stride| {
        ReceiveQueue::new(ReceiveQueueParts { qpn: Qpn(1), ring, stride, record: record() })
            .map(drop)
    };
    assert!(receive(slice(0, 64), 16).is_ok());
    for (ring, stride) in
        [(slice(0, 64), 0), (slice(0, 64), 24), (slice(0, 64), 1024), (slice(0, 8), 16)]
    {
        assert!(receive(ring, stride).is_err());
    }

    let cq = |ring, entry_size| {
        let parts =
            CompletionQueueParts { cqn: Cqn(1), ring, entry_size, record: record(), uar: page() };
        CompletionQueue::new(parts).map(drop)
    };
    assert!(cq(slice(0, 128), 64).is_ok());
    for (ring, entry_size) in
        [(slice(0, 128), 32), (slice(0, 64), 128), (slice(0, 192), 64), (slice(32, 64), 64)]
    {
        assert!(cq(ring, entry_size).is_err());
    }
    for (number, fits) in [(0xff_ffff, true), (1 << 24, false)] {
        let cqn = Cqn(number);
        let (ring, record) = (slice(0, 128), record());
        let parts = CompletionQueueParts { cqn, ring, entry_size: 64, record, uar: page() };
        assert_eq!(CompletionQueue::new(parts).is_ok(), fits, "{cqn:?}");
        let with_cqn = Completer::new(1).queue.with_cqn(cqn);
        assert_eq!(with_cqn.is_ok(), fits, "{cqn:?}");
    }
    for bad in [part(64, 4096), part(0, 2048)] {
        // SAFETY: `UarPage::new` refuses the memory, so no page exists.
        #[allow(unsafe_code, reason = "UarPage::new refuses the memory")]
        let refused = unsafe { UarPage::new(bad) };
        assert!(refused.is_err());
    }
}

/// One step of a queue pair.
#[derive(Clone, Debug)]
enum Step {
    Post { sges: usize, inline: usize, signaled: bool },
    Batch(Vec<usize>),
    Complete(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..5, 0usize..200, any::<bool>()).prop_map(|(sges, inline, signaled)| Step::Post {
            sges,
            inline,
            signaled
        }),
        proptest::collection::vec(0usize..5, 0..6).prop_map(Step::Batch),
        (0usize..8).prop_map(Step::Complete),
    ]
}

proptest! {
    /// For any posts and completions, cookies return in order and the count of free WQEBBs is
    /// right. Few cases start before the wrap of the index: the way there takes 65,000 posts.
    #[test]
    fn random_sends_complete_in_order(
        start in prop_oneof![9 => 0u16..64, 1 => 0xffc0..=u16::MAX],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut sender = Sender::new(Settings { wqebbs: 16, ..Settings::default() });
        sender.advance(start, false);
        // (cookie, index, wqebbs, opcode) of the outstanding requests.
        let mut outstanding = std::collections::VecDeque::new();
        let (mut cookie, mut index) = (0, start);
        let four = [sge(9); 4];
        for step in steps {
            let used: u32 = outstanding.iter().map(|&(_, _, wqebbs, _)| wqebbs).sum();
            prop_assert_eq!(sender.queue.free(), 16 - used);
            let mut posted = Vec::new();
            match step {
                Step::Post { sges: 0, inline, signaled } => {
                    let data = vec![0x5a; inline];
                    let write = Write::new(Inline(&data), REMOTE);
                    let write = if signaled { write.signaled() } else { write };
                    let ds = if inline == 0 { 2 } else { 2 + (inline + 4).div_ceil(16) };
                    let result = sender.queue.post(&write, cookie);
                    posted.push((result, ds.div_ceil(4) as u32, opcode::WRITE));
                }
                Step::Post { sges, .. } => {
                    let read = Read::new(&four[..sges], REMOTE).signaled();
                    let result = sender.queue.post(&read, cookie);
                    posted.push((result, (2 + sges).div_ceil(4) as u32, opcode::READ));
                }
                Step::Batch(requests) => {
                    let mut batch = sender.queue.batch();
                    for (i, &sges) in requests.iter().enumerate() {
                        let send = Send::new(&four[..sges]);
                        let result = batch.post(&send, cookie + i as u64);
                        posted.push((result, (1 + sges).div_ceil(4) as u32, opcode::SEND));
                    }
                    batch.ring();
                }
                Step::Complete(which) => {
                    if let Some(&(expected, at, _, opcode)) = outstanding.get(which) {
                        let cqe = sender.device.completion(opcode, at);
                        prop_assert_eq!(sender.queue.complete(cqe).unwrap().cookie, expected);
                        outstanding.drain(..=which);
                    } else if used < 16 {
                        // In a full ring, index mod ring size is that of the oldest request.
                        let cqe = sender.device.completion(opcode::WRITE, index);
                        prop_assert!(sender.queue.complete(cqe).is_err());
                    }
                }
            }
            let mut free = 16 - outstanding.iter().map(|&(_, _, wqebbs, _)| wqebbs).sum::<u32>();
            for (i, (result, wqebbs, opcode)) in posted.into_iter().enumerate() {
                if wqebbs <= free {
                    prop_assert_eq!(result, Ok(WqeIndex(index)));
                    outstanding.push_back((cookie + i as u64, index, wqebbs, opcode));
                    index = index.wrapping_add(wqebbs as u16);
                    free -= wqebbs;
                } else {
                    prop_assert_eq!(result, Err(PostError::Full));
                }
            }
            cookie += 10;
        }
    }

    /// No CQE that a device can write panics or breaks the count of free WQEBBs.
    #[test]
    fn random_cqe_is_completion_or_error(
        cqes in proptest::collection::vec(proptest::array::uniform32(any::<[u8; 2]>()), 1..20),
        opcode in 0u8..15,
        aim in any::<bool>(),
    ) {
        let mut sender = Sender::new(Settings::default());
        let receiver = Receiver::new(0x123, 4, 32);
        sender.queue.post(&Write::new(sge(1), REMOTE), 1).unwrap();
        let Sender { queue, mut device, .. } = sender;
        let mut pair = QueuePair::new(queue, receiver.queue);
        pair.post_receive(sge(1), 2).unwrap();
        for bytes in cqes {
            let mut cqe = *Cqe::from_prefix(bytes.as_flattened()).unwrap();
            if aim {
                // Random bytes rarely name the right queue.
                cqe.set_qpn(0x123);
            }
            cqe.set_opcode(CqeOpcode(opcode));
            let polled = device.deliver(cqe);
            prop_assert!(device.queue.inline_data().len() <= 64);
            let _ = pair.complete(polled);
            prop_assert!(pair.send.free() <= pair.send.capacity());
            prop_assert!(pair.receive.free() <= pair.receive.capacity());
        }
    }
}

#[test]
fn split_queue_pair_works_on_two_threads() {
    const COUNT: u64 = 100;
    let Sender { queue: send, mut device, ring: _sends, record: _sent, uar: _uar } =
        Sender::new(Settings::default());
    let Receiver { queue: receive, ring: _receives, record: _received } =
        Receiver::new(0x123, 8, 16);
    let (mut send, mut receive) = QueuePair::new(send, receive).split();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for cookie in 0..COUNT {
                let index = send.post(&Write::new(sge(64), REMOTE).signaled(), cookie).unwrap();
                let cqe = device.completion(opcode::WRITE, index.0);
                assert_eq!(send.complete(cqe).unwrap().cookie, cookie);
            }
        });
        scope.spawn(move || {
            let mut device = Completer::new(0x123);
            for cookie in 0..COUNT {
                let index = receive.post(sge(64), cookie).unwrap();
                let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, index.0);
                assert_eq!(receive.complete(device.deliver(cqe)).unwrap().cookie, cookie);
            }
        });
    });
}
