//! Destroyed queues, and the CQEs that they leave in the CQ.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Completer, Receiver, Sender, Settings, memory, record_of, ring_of};
use verbless_prm::hot::{self, cqe_opcode, opcode};
use verbless_ring::completion::{CompletionError, InvalidCqe};
use verbless_ring::srq::SharedReceiveQueueParts;
use verbless_ring::wr::{Nop, PostError};
use verbless_ring::{
    Dispatched, Dispatcher, Lkey, Qpn, QueuePair, Sge, SharedReceiveQueue, WqeIndex,
};

const GONE: u32 = 0x123;
const OTHER: u32 = 0x124;

fn of(mut cqe: hot::Cqe, qpn: u32) -> hot::Cqe {
    cqe.set_qpn(qpn);
    cqe
}

/// Successful and error CQEs of both sides, alternating between two queues; the indices count up.
fn push(device: &mut Completer, count: u16) {
    const OPCODES: [u8; 4] = [
        cqe_opcode::REQUESTER,
        cqe_opcode::RESPONDER_SEND,
        cqe_opcode::REQUESTER_ERROR,
        cqe_opcode::RESPONDER_ERROR,
    ];
    for index in 0..count {
        let cqe = device.cqe(OPCODES[usize::from(index / 2 % 4)], opcode::NOP, index);
        device.push(of(cqe, if index % 2 == 0 { GONE } else { OTHER }));
    }
}

fn left(device: &mut Completer) -> Vec<(u32, u16)> {
    let mut left = Vec::new();
    while let Some(cqe) = device.queue.poll() {
        left.push((cqe.qpn().0, cqe.wqe_index().0));
    }
    left
}

/// Consumer index in the doorbell record.
fn recorded_consumer(device: &Completer) -> u32 {
    u32::from_be(device.record.load32(0).unwrap())
}

#[test]
fn cqes_of_retired_queue_are_skipped() {
    for entry_size in [64, 128] {
        // In the first lap, over the end of the ring, and in a lap whose owner bit is 1.
        for start in [0, 13, 16, 31] {
            let mut device = Completer::with(GONE, 16, entry_size);
            device.advance(start);
            push(&mut device, 16);
            let cleaner = device.queue.cleaner();
            let retired = cleaner.clean(Qpn(GONE));
            assert_eq!((retired.count, retired.end), (8, start + 15), "after the last of eight");
            let again = cleaner.clean(Qpn(GONE));
            assert_eq!((again.count, cleaner.consumed()), (0, start));
            let others: Vec<_> = (0..8).map(|i| (OTHER, 2 * i + 1)).collect();
            assert_eq!(left(&mut device), others, "from {start}");
            assert_eq!((recorded_consumer(&device), cleaner.consumed()), (start + 16, start + 16));
        }
    }
}

#[test]
fn later_cqes_are_not_skipped() {
    let mut device = Completer::with(GONE, 16, 64);
    let cleaner = device.queue.cleaner();
    push(&mut device, 4);
    cleaner.clean(Qpn(GONE));
    push(&mut device, 4);
    let expected = [(OTHER, 1), (OTHER, 3), (GONE, 0), (OTHER, 1), (GONE, 2), (OTHER, 3)];
    assert_eq!(left(&mut device), expected);
}

/// Otherwise the CQ would stay full forever, and the device could write no further CQE.
#[test]
fn fully_skipped_cq_is_freed_to_device() {
    let mut device = Completer::with(GONE, 8, 64);
    for opcode in [cqe_opcode::REQUESTER, cqe_opcode::RESPONDER_SEND] {
        for index in 0..8 {
            let cqe = device.cqe(opcode, opcode::NOP, index);
            device.push(cqe);
        }
        device.queue.cleaner().clean(Qpn(GONE));
        assert!(device.queue.poll().is_none());
        assert_eq!(recorded_consumer(&device), device.queue.consumer_index());
    }
    assert_eq!(recorded_consumer(&device), 16);
}

#[test]
fn every_poll_variant_skips_cleaned_cqes() {
    let settings = Settings { qpn: OTHER, register: None, ..Settings::default() };
    for way in 0..4 {
        let mut sender = Sender::new(settings);
        let receive = Receiver::new(OTHER, 16, 16).queue;
        for _ in 0..4 {
            sender.queue.post(&Nop::new().signaled(), 9).unwrap();
        }
        let mut pair = QueuePair::new(sender.queue, receive);
        let mut device = sender.device;
        for index in 0..4 {
            for opcode in [cqe_opcode::REQUESTER, cqe_opcode::RESPONDER_SEND] {
                let cqe = device.cqe(opcode, opcode::NOP, 0);
                device.push(of(cqe, GONE));
            }
            let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, index);
            device.push(of(cqe, OTHER));
        }
        let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, 0);
        device.push(of(cqe, GONE));
        device.queue.cleaner().clean(Qpn(GONE));
        let mut done = 0;
        match way {
            0 => {
                while let Some(polled) = pair.poll(&mut device.queue) {
                    assert_eq!(polled.unwrap().cookie, 9);
                    done += 1;
                }
            }
            1 => {
                let mut into = [const { None }; 16];
                done = pair.poll_into(&mut device.queue, &mut into);
                assert!(into[..done].iter().all(|polled| matches!(polled, Some(Ok(_)))));
                assert_eq!(pair.poll_into(&mut device.queue, &mut into), 0);
            }
            2 => {
                while let Some(cqe) = device.queue.poll() {
                    pair.complete(cqe).unwrap();
                    done += 1;
                }
            }
            _ => {
                for cqe in device.queue.drain(100) {
                    pair.complete(cqe).unwrap();
                    done += 1;
                }
            }
        }
        assert_eq!((done, recorded_consumer(&device)), (4, 13), "way {way}");
        assert_eq!(pair.send.free(), pair.send.capacity());
    }
}

#[test]
fn receive_completes_by_its_index() {
    let mut receiver = Receiver::new(GONE, 4, 16);
    let mut device = Completer::new(GONE);
    let mut index = 0u16;
    for turn in 0..10 {
        receiver.queue.post(Sge::new(0, 8, Lkey(1)), turn).unwrap();
        receiver.queue.post(Sge::new(0, 8, Lkey(1)), turn).unwrap();
        for opcode in [cqe_opcode::RESPONDER_SEND, cqe_opcode::RESPONDER_ERROR] {
            for wrong in [index.wrapping_add(1), index.wrapping_sub(1)] {
                let cqe = device.cqe(opcode, 0, wrong);
                let error = receiver.queue.complete(device.deliver(cqe)).unwrap_err();
                let expected = InvalidCqe::Index(WqeIndex(wrong));
                assert_eq!(error, CompletionError::InvalidCqe(expected));
            }
        }
        // The device continues its count, or starts over with the ring.
        for at in [index, index.wrapping_add(1) % 4] {
            let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, at);
            assert_eq!(receiver.queue.complete(device.deliver(cqe)).unwrap().cookie, turn);
        }
        index += 2;
    }
}

fn srq(count: usize) -> SharedReceiveQueue {
    let (ring, record) = (ring_of(&memory(count * 32)), record_of(&memory(8)));
    SharedReceiveQueue::new(SharedReceiveQueueParts { ring, stride: 32, record }).unwrap()
}

#[test]
fn srq_gets_receives_of_retired_qp_back() {
    let mut srq = srq(128);
    let mut device = Completer::new(GONE);
    let cleaner = device.queue.cleaner();
    for cookie in 0..127 {
        srq.post(Sge::new(0, 8, Lkey(1)), cookie).unwrap();
    }
    for (index, qpn) in [(3, GONE), (5, OTHER), (64, GONE), (126, GONE), (999, GONE)] {
        let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, index);
        device.push(of(cqe, qpn));
    }
    let request = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, 7);
    device.push(of(request, GONE));
    assert_eq!(srq.post([], 0), Err(PostError::Full));
    cleaner.clean_with_srq(Qpn(GONE), &srq.returns());
    cleaner.clean_with_srq(Qpn(GONE), &srq.returns());
    assert_eq!(srq.free(), 3);
    assert_eq!(srq.take_returned(), Some(3));
    assert_eq!(srq.free(), 3, "the WQE is free without a call");
    // Without `take_returned`, the post that needs the WQEs takes them back.
    for _ in 0..3 {
        srq.post([], 0).unwrap();
    }
    assert_eq!((srq.post([], 0), srq.free()), (Err(PostError::Full), 0));
    assert_eq!(srq.take_returned(), None);
    let cqe = device.queue.poll().unwrap();
    assert_eq!(srq.complete(cqe).unwrap().cookie, 5);
}

/// A queue that ignores overruns: half of its CQEs belong to another lap than the consumer's.
#[test]
fn overwriting_cq_is_cleaned_of_every_lap() {
    for start in [0, 5, 8, 15] {
        let mut srq = srq(32);
        let mut device = Completer::with(GONE, 8, 64);
        device.advance(start);
        for cookie in 0..31 {
            srq.post(Sge::new(0, 8, Lkey(1)), cookie).unwrap();
        }
        // Three CQEs more than the queue holds.
        for index in 0..11 {
            let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, index);
            device.push(of(cqe, if index % 4 == 3 { OTHER } else { GONE }));
        }
        let cleaner = device.queue.cleaner().overwriting(true);
        cleaner.clean_with_srq(Qpn(GONE), &srq.returns());
        cleaner.clean_with_srq(Qpn(GONE), &srq.returns());
        let mut back: Vec<_> = std::iter::from_fn(|| srq.take_returned()).collect();
        back.sort_unstable();
        assert_eq!(back, [4, 5, 6, 8, 9, 10], "from {start}");
        // One lap later the consumer and the device agree again.
        for index in 11..16 {
            let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, index);
            device.push(of(cqe, OTHER));
        }
        assert!(left(&mut device).iter().all(|&(qpn, _)| qpn == OTHER), "from {start}");
    }
}

/// A CQE that was never written is not a receive, whatever its other bytes hold.
#[test]
fn overwriting_cq_returns_no_unwritten_receives() {
    let mut srq = srq(8);
    srq.post(Sge::new(0, 8, Lkey(1)), 1).unwrap();
    let device = Completer::with(0, 8, 64);
    let cleaner = device.queue.cleaner().overwriting(true);
    cleaner.clean_with_srq(Qpn(0), &srq.returns());
    assert_eq!(srq.take_returned(), None);
}

#[test]
fn dispatcher_routes_receives_to_srq_and_sends_to_qp() {
    let settings = Settings { qpn: OTHER, register: None, ..Settings::default() };
    let Sender { mut queue, mut device, .. } = Sender::new(settings);
    let mut srq = srq(8);
    for cookie in 10..14 {
        queue.post(&Nop::new().signaled(), cookie).unwrap();
        srq.post(Sge::new(0, 8, Lkey(1)), 10 * cookie).unwrap();
    }
    let mut queues = Dispatcher::new();
    queues.insert(OTHER, queue).unwrap();
    assert!(queues.poll_with_srq(&mut device.queue, &mut srq).is_none());
    for (opcode, index, qpn) in [
        (cqe_opcode::RESPONDER_SEND, 2, OTHER),
        (cqe_opcode::REQUESTER, 0, OTHER),
        // All queues share the SRQ, including one that is not in the table.
        (cqe_opcode::RESPONDER_SEND, 0, GONE),
        (cqe_opcode::REQUESTER, 1, GONE),
        (cqe_opcode::RESPONDER_ERROR, 1, OTHER),
        (cqe_opcode::RESPONDER_SEND, 1, OTHER),
        (cqe_opcode::REQUESTER, 1, OTHER),
    ] {
        let cqe = device.cqe(opcode, opcode::NOP, index);
        device.push(of(cqe, qpn));
    }
    let mut next = || queues.poll_with_srq(&mut device.queue, &mut srq).unwrap();
    let cookie = |(qpn, done): Dispatched| (qpn, done.unwrap().cookie);
    assert_eq!(cookie(next()), (OTHER, 120));
    assert_eq!(cookie(next()), (OTHER, 10));
    assert_eq!(cookie(next()), (GONE, 100));
    let (qpn, strange) = next();
    let is_its = |error| matches!(error, CompletionError::OtherQueue(cqe) if cqe.qpn().0 == GONE);
    assert!(qpn == GONE && strange.is_err_and(is_its));
    let (qpn, failed) = next();
    assert!(
        matches!(
            failed,
            Err(CompletionError::Failed(failure)) if failure.receive && failure.cookie == 110
        ),
        "{qpn:#x}: {failed:?}"
    );
    let twice = CompletionError::InvalidCqe(InvalidCqe::Index(WqeIndex(1)));
    assert_eq!(next(), (OTHER, Err(twice)));
    assert_eq!(cookie(next()), (OTHER, 11));
    assert!(queues.poll_with_srq(&mut device.queue, &mut srq).is_none());
    assert_eq!((srq.free(), recorded_consumer(&device)), (6, 7));

    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 3);
    device.push(of(cqe, OTHER));
    device.queue.cleaner().clean_with_srq(Qpn(OTHER), &srq.returns());
    assert!(queues.poll_with_srq(&mut device.queue, &mut srq).is_none(), "the CQE's queue is gone");
    assert_eq!(srq.take_returned(), Some(130));
}

/// One thread polls, another cleans, and the device keeps writing: every CQE of the remaining queue
/// arrives, and none of the destroyed queue arrives after the cleaning.
#[test]
fn cq_is_cleaned_while_another_thread_polls() {
    const ENTRIES: usize = 64;
    const ROUNDS: u16 = if cfg!(miri) { 8 } else { 2000 };
    let Completer { mut queue, ring, record, .. } = Completer::with(GONE, ENTRIES, 64);
    let cleaner = queue.cleaner();
    let done = Arc::new(AtomicBool::new(false));
    let poller = std::thread::spawn({
        let done = done.clone();
        move || {
            let mut next = 0;
            loop {
                let last = done.load(Ordering::Acquire);
                while let Some(cqe) = queue.poll() {
                    if cqe.qpn().0 == OTHER {
                        assert_eq!(cqe.wqe_index().0, next);
                        next += 1;
                    }
                }
                if last {
                    return next;
                }
                std::hint::spin_loop();
            }
        }
    });
    let mut device = Device { ring, record, produced: 0 };
    for round in 0..ROUNDS {
        for _ in 0..round % 7 {
            device.push(GONE, round);
        }
        device.push(OTHER, round);
        cleaner.clean(Qpn(GONE));
        assert_eq!(device.unpolled(GONE), 0);
    }
    done.store(true, Ordering::Release);
    assert_eq!(poller.join().unwrap(), ROUNDS);

    /// A device that waits for free slots.
    struct Device {
        ring: verbless_ring::ring::SharedMemory,
        record: verbless_ring::ring::SharedMemory,
        produced: u32,
    }

    impl Device {
        fn consumed(&self) -> u32 {
            u32::from_be(self.record.load32(0).unwrap())
        }

        fn push(&mut self, qpn: u32, index: u16) {
            while self.produced - self.consumed() >= ENTRIES as u32 {
                std::thread::yield_now();
            }
            let mut cqe = hot::Cqe::zeroed();
            cqe.set_qpn(qpn).set_wqe_counter(index);
            let owner = self.produced as usize & ENTRIES != 0;
            cqe.set_owner(owner);
            let at = self.produced as usize % ENTRIES * 64;
            let bytes = cqe.as_bytes();
            self.ring.write_at(at, &bytes[..63]).unwrap();
            std::sync::atomic::fence(Ordering::Release);
            self.ring.write_at(at + 63, &bytes[63..]).unwrap();
            self.produced += 1;
        }

        /// Unconsumed CQEs of this number.
        fn unpolled(&self, qpn: u32) -> usize {
            let numbers = (self.consumed()..self.produced).map(|index| {
                let word = self.ring.load32(index as usize % ENTRIES * 64 + 0x38).unwrap();
                u32::from_be(word) & 0xff_ffff
            });
            numbers.filter(|&number| number == qpn).count()
        }
    }
}
