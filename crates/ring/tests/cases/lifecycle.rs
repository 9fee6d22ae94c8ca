//! Reset, close and open of a queue, and completion of its requests: by the queue's number, or by a
//! caller that knows the next request.

use crate::support::{Completer, Receiver, Sender, Settings, bytes, memory, to_lid};
use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_ring::address::GRH_BYTES;
use verbless_ring::completion::InvalidCqe;
use verbless_ring::qp::BlueFlame;
use verbless_ring::wr::{EthSend, Inline, Nop, PostError, Send, SendImm};
use verbless_ring::{
    CompletionError, Dispatcher, Eth, Lkey, QKey, Qpn, QueuePair, Sge, Ud, WcOpcode, WorkQueue,
    WqeIndex,
};

const OURS: u32 = 0x123;
const OTHER: u32 = 0x456;

fn sge(length: u32) -> Sge {
    Sge::new(0x1000, length, Lkey(7))
}

fn settings(qpn: u32) -> Settings {
    Settings { qpn, wqebbs: 8, register: None, ..Settings::default() }
}

fn malformed<T>(why: InvalidCqe) -> Result<T, CompletionError> {
    Err(CompletionError::InvalidCqe(why))
}

#[test]
fn reset_qp_starts_at_index_0_and_forgets_posts() {
    let Sender { queue, record: sends, mut device, ring: _ring, uar: _uar } =
        Sender::new(settings(OURS));
    let Receiver { queue: receives, record: received, ring: _receives } =
        Receiver::new(OURS, 4, 16);
    let mut pair = QueuePair::new(queue, receives);
    for cookie in 0..3 {
        pair.post(&Nop::new().signaled(), cookie).unwrap();
        pair.post_receive(sge(8), cookie).unwrap();
    }
    assert_eq!((bytes(&sends)[7], bytes(&received)[3]), (3, 3));
    pair.reset();
    assert_eq!((pair.send.free(), pair.receive.free()), (8, 4));
    assert_eq!((bytes(&sends), bytes(&received)), (vec![0; 8], vec![0; 8]));
    for opcode in [cqe_opcode::REQUESTER, cqe_opcode::RESPONDER_SEND] {
        let cqe = device.cqe(opcode, opcode::NOP, 0);
        let completed = pair.complete(device.deliver(cqe));
        assert_eq!(completed, malformed(InvalidCqe::Index(WqeIndex(0))), "the request is dropped");
    }
    assert_eq!(pair.post(&Nop::new().signaled(), 7).unwrap(), WqeIndex(0));
    assert_eq!(pair.post_receive(sge(8), 8).unwrap(), WqeIndex(0));
    assert_eq!((bytes(&sends)[7], bytes(&received)[3]), (1, 1));
    let cqe = device.completion(opcode::NOP, 0);
    assert_eq!(pair.complete(cqe).unwrap().cookie, 7);
}

#[test]
fn closed_sq_rejects_posts_until_open() {
    let Sender { mut queue, mut device, ring: _ring, record: _record, uar: _uar } =
        Sender::new(settings(OURS));
    // From index 0, and from the end of the first round.
    for first in [0, 5] {
        queue.close();
        queue.close();
        assert_eq!(queue.free(), 0);
        assert_eq!(queue.post(&Nop::new(), 0), Err(PostError::NotConnected));
        let long = Send::new([sge(8); 4]);
        assert_eq!(queue.batch().post(&long, 0), Err(PostError::NotConnected));
        queue.open();
        queue.open();
        assert_eq!(queue.free(), 8);
        for index in first..first + 3 {
            assert_eq!(queue.post(&Nop::new().signaled(), 9).unwrap(), WqeIndex(index));
        }
        queue.close();
        // Posted requests complete before or after the open.
        assert_eq!((queue.free(), queue.post(&Nop::new(), 0)), (0, Err(PostError::NotConnected)));
        queue.complete(device.completion(opcode::NOP, first)).unwrap();
        queue.complete(device.completion(opcode::NOP, first)).unwrap_err();
        assert_eq!((queue.free(), queue.post(&Nop::new(), 0)), (0, Err(PostError::NotConnected)));
        queue.open();
        assert_eq!(queue.free(), 6);
        queue.close();
        queue.complete(device.completion(opcode::NOP, first + 2)).unwrap();
        queue.open();
        assert_eq!(queue.free(), 8);
        queue.post(&Nop::new(), 9).unwrap();
        queue.post(&Nop::new().signaled(), 9).unwrap();
        queue.complete(device.completion(opcode::NOP, first + 4)).unwrap();
        assert_eq!(queue.free(), 8);
    }
}

#[test]
fn dispatcher_polls_cqe_into_its_queue() {
    let [ours, other] = [OURS, OTHER].map(|qpn| {
        let mut pair =
            QueuePair::new(Sender::new(settings(qpn)).queue, Receiver::new(qpn, 4, 16).queue);
        for cookie in 0..2 {
            pair.post(&Nop::new().signaled(), u64::from(qpn) + cookie).unwrap();
            pair.post_receive(sge(8), u64::from(qpn) + 2 + cookie).unwrap();
        }
        pair
    });
    let mut plain = Dispatcher::new();
    plain.insert(OURS, ours).unwrap();
    let mut boxed: Dispatcher<Box<dyn WorkQueue>> = Dispatcher::new();
    boxed.insert(OTHER, Box::new(other)).unwrap();
    let mut device = Completer::with(0, 16, 64);
    assert!(plain.poll(&mut device.queue).is_none() && boxed.poll(&mut device.queue).is_none());
    for qpn in [OURS, OTHER] {
        let mut polled = |opcode, number, index| {
            let mut cqe = device.cqe(opcode, opcode::NOP, index);
            cqe.set_qpn(number);
            device.push(cqe);
            let (number, completed) = match qpn {
                OURS => plain.poll(&mut device.queue),
                _ => boxed.poll(&mut device.queue),
            }
            .unwrap();
            assert!(device.queue.is_empty(), "the CQE is consumed");
            (number, completed.map(|completion| completion.cookie))
        };
        let cookie = u64::from(qpn);
        assert_eq!(polled(cqe_opcode::REQUESTER, qpn, 0), (qpn, Ok(cookie)));
        assert_eq!(polled(cqe_opcode::RESPONDER_SEND, qpn, 0), (qpn, Ok(cookie + 2)));
        let twice = malformed(InvalidCqe::Index(WqeIndex(0)));
        assert_eq!(polled(cqe_opcode::REQUESTER, qpn, 0), (qpn, twice));
        let (number, strange) = polled(cqe_opcode::REQUESTER, 0x777, 1);
        let of = |error| match error {
            CompletionError::OtherQueue(cqe) => (cqe.qpn(), cqe.wqe_index()),
            other => panic!("{other}"),
        };
        assert_eq!((number, of(strange.unwrap_err())), (0x777, (Qpn(0x777), WqeIndex(1))));
        let (number, failed) = polled(cqe_opcode::REQUESTER_ERROR, qpn, 1);
        let of = |error| matches!(error, CompletionError::Failed(it) if it.cookie == cookie + 1);
        assert!(number == qpn && failed.is_err_and(of));
    }
    // Each consumed CQE updated the doorbell record.
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 10]);
}

#[test]
fn fast_path_completes_only_own_requests() {
    let mut queue = Sender::new(settings(OURS)).queue;
    queue.post(&Nop::new().signaled(), 5).unwrap();
    let mut pair =
        QueuePair::new(Sender::new(settings(OURS)).queue, Receiver::new(OURS, 4, 16).queue);
    pair.post(&Nop::new().signaled(), 6).unwrap();
    let mut device = Completer::new(OURS);
    let mut boxed: Box<dyn WorkQueue> = Box::new(pair);
    // CQEs of a request that was not posted, of the posted one, and of the same one again.
    for (index, completes) in [(1, false), (0, true), (0, false)] {
        let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, index);
        device.push(cqe);
        let one = queue.complete_success(device.queue.peek_send().unwrap());
        let other = boxed.complete_success(device.queue.peek_send().unwrap());
        device.queue.consume_peeked();
        let cookies = [one, other].map(|it| it.map(|it| (it.cookie, it.operation())));
        let expected = [5, 6].map(|cookie| completes.then_some((cookie, WcOpcode::Nop)));
        assert_eq!(cookies, expected, "index {index}");
    }
    assert_eq!(queue.free(), 8);
    // A receive queue has no fast path.
    let mut receives = Receiver::new(OURS, 4, 16).queue;
    receives.post(sge(8), 0).unwrap();
    let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, 0);
    device.push(cqe);
    assert!(receives.complete_success(device.queue.peek_send().unwrap()).is_none());
}

#[test]
fn try_complete_completes_request_once() {
    let mut queue = Sender::new(settings(OURS)).queue;
    queue.post(&Nop::new(), 70).unwrap();
    queue.post(&Nop::new().signaled(), 71).unwrap();
    let mut device = Completer::new(OURS);
    assert!(device.queue.peek_send().is_none(), "no CQE");
    let mut cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, 1);
    cqe.set_srqn_uidx(0x12_3456);
    device.push(cqe);
    let peeked = device.queue.peek_send().unwrap();
    let request = peeked.request();
    assert_eq!(peeked.user_index(), 0x12_3456);
    assert!(!queue.try_complete(request, 70), "the cookie of another request");
    assert_eq!(queue.free(), 6);
    assert!(queue.try_complete(request, 71));
    assert_eq!(queue.free(), 8, "the earlier request is done too");
    assert!(!queue.try_complete(request, 71), "the request has completed");
    device.queue.consume_peeked();
    assert!(device.queue.is_empty());
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 1]);
    // CQEs of another queue, and of another operation.
    queue.post(&Nop::new().signaled(), 72).unwrap();
    for (qpn, opcode) in [(OTHER, opcode::NOP), (OURS, opcode::SEND)] {
        let mut cqe = device.cqe(cqe_opcode::REQUESTER, opcode, 2);
        cqe.set_qpn(qpn);
        device.push(cqe);
        let request = device.queue.peek_send().unwrap().request();
        assert!(!queue.try_complete(request, 72), "QP {qpn:#x}, opcode {opcode}");
        device.queue.consume_peeked();
    }
    // `peek_send` skips CQEs that do not complete a request successfully.
    for opcode in [cqe_opcode::RESPONDER_SEND, cqe_opcode::REQUESTER_ERROR] {
        let cqe = device.cqe(opcode, opcode::NOP, 2);
        device.push(cqe);
        assert!(device.queue.peek_send().is_none(), "opcode {opcode}");
        assert!(device.queue.poll().is_some());
    }
}

#[test]
fn peeked_receive_has_length_and_user_index() {
    let mut device = Completer::new(OURS);
    let mut cqe = device.cqe(cqe_opcode::RESPONDER_SEND_IMM, 0, 9);
    cqe.set_srqn_uidx(0x12_3456).set_byte_cnt(0x0102_0304);
    device.push(cqe);
    let peeked = device.queue.peek_receive().unwrap();
    assert_eq!((peeked.user_index(), peeked.byte_len()), (0x12_3456, 0x0102_0304));
}

#[test]
fn raw_sq_polls_and_starts_over() {
    let Sender { mut queue, mut device, record, ring: _ring, uar: _uar } =
        Sender::<Eth>::of(settings(OURS));
    assert!(queue.poll(&mut device.queue).is_none());
    let frame = EthSend::new(&[0; 18], sge(64)).signaled();
    for cookie in 0..2 {
        queue.post(&frame, cookie).unwrap();
    }
    let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::SEND, 0);
    device.push(cqe);
    assert_eq!(queue.poll(&mut device.queue).unwrap().unwrap().cookie, 0);
    queue.start_over();
    assert_eq!((queue.free(), bytes(&record)), (8, vec![0; 8]));
    assert_eq!(queue.post(&frame, 5).unwrap(), WqeIndex(0));
}

#[test]
fn received_datagram_has_source() {
    let Sender { queue, mut device, ring, record: _record, uar: _uar } =
        Sender::<Ud>::of(settings(OURS));
    let mut pair = QueuePair::new(queue, Receiver::new(OURS, 4, 16).queue);
    assert!(pair.poll_datagram(&mut device.queue).is_none());
    let to = to_lid(7).to(Qpn(0x99), QKey(1));
    assert_eq!(to.as_bytes().len(), 48);
    assert_eq!(to.as_bytes()[14..16], [0, 7], "the LID");
    pair.post(&SendImm::new(sge(8), 0x0a0b_0c0d).signaled().to(&to), 1).unwrap();
    let wqe = bytes(&ring);
    assert_eq!(wqe[..16], [0, 0, 0, 0x0b, 0, 1, 0x23, 5, 0, 0, 0, 8, 0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(&wqe[16..64], to.as_bytes());
    assert_eq!(wqe[64..80], [0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    pair.post_receive(sge(100), 2).unwrap();
    let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::SEND_IMM, 0);
    device.push(cqe);
    let mut cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 0);
    cqe.set_rqpn(0x99_aabb).set_byte_cnt(GRH_BYTES as u32 + 5);
    device.push(cqe);
    let sent = pair.poll_datagram(&mut device.queue).unwrap().unwrap();
    assert_eq!((sent.completion.cookie, sent.source, sent.message_len()), (1, None, 0));
    let came = pair.poll_datagram(&mut device.queue).unwrap().unwrap();
    assert_eq!((came.completion.cookie, came.message_len()), (2, 5));
    assert_eq!(came.source.unwrap().qpn(), Qpn(0x99_aabb));
}

#[test]
fn dropped_batch_posts_no_receives() {
    let Receiver { mut queue, record, ring: _ring } = Receiver::new(OURS, 4, 16);
    let mut batch = queue.batch();
    for cookie in 0..3 {
        batch.post(sge(8), cookie).unwrap();
    }
    drop(batch);
    assert_eq!((queue.free(), bytes(&record)[3]), (4, 0));
    let mut batch = queue.batch();
    assert_eq!(batch.post(sge(8), 7).unwrap(), WqeIndex(0));
    batch.ring();
    assert_eq!((queue.free(), bytes(&record)[3]), (3, 1));
}

#[test]
fn single_request_batch_uses_blueflame_like_post() {
    for (blueflame, copies) in [
        (BlueFlame::Always, [true, true]),
        (BlueFlame::Inline, [false, true]),
        (BlueFlame::Never, [false, false]),
    ] {
        for (inline, copied) in [false, true].into_iter().zip(copies) {
            let settings = Settings { blueflame, ..Settings::default() };
            let mut sender = Sender::new(settings);
            let mut batch = sender.queue.batch();
            if inline {
                batch.post(&Send::new(Inline(&[7; 12])), 0).unwrap();
            } else {
                batch.post(&Send::new(sge(8)), 0).unwrap();
            }
            batch.ring();
            let (uar, ring) = (bytes(&sender.uar), bytes(&sender.ring));
            let length = if copied { 32 } else { 8 };
            assert_eq!(uar[0x800..0x800 + length], ring[..length]);
            let rest = &uar[0x800 + length..];
            assert!(rest.iter().all(|&byte| byte == 0), "{blueflame:?}, inline {inline}");
        }
    }
}

#[test]
fn wqe_index_displays_as_hex() {
    assert_eq!(format!("{:?} {}", WqeIndex(0x1f), WqeIndex(0x1f)), "WqeIndex(0x1f) 0x1f");
}

#[test]
fn memory_slice_beyond_end_names_range() {
    let memory = memory(16);
    assert_eq!(memory.as_ptr().expose_provenance() as u64, memory.address());
    let refused = memory.slice(9, 8).unwrap_err().to_string();
    assert_eq!(refused, "8 bytes at offset 0x9 exceed the memory, which has 0x10 bytes");
}
