//! `peek_receive` and `try_complete_receive`: they complete the receive with the expected cookie,
//! and leave every other CQE for `poll`.

use crate::support::{Completer, Receiver};
use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_ring::{CompletionQueue, Lkey, Qpn, QueuePair, Sge, WcOpcode};

const OURS: u32 = 0x123;

/// A queue pair with receives of the cookies 70 and up in flight, and its completion queue.
fn receiving(count: u64) -> (QueuePair, Completer) {
    let sender = crate::support::Sender::new(crate::support::Settings {
        qpn: OURS,
        register: None,
        ..crate::support::Settings::default()
    });
    let mut pair = QueuePair::new(sender.queue, Receiver::new(OURS, 8, 16).queue);
    for number in 0..count {
        pair.post_receive(Sge::new(0x1000, 64, Lkey(7)), 70 + number).unwrap();
    }
    (pair, Completer::with(OURS, 16, 64))
}

/// The message, if the next CQE completes the receive of this cookie.
fn try_next(
    pair: &mut QueuePair,
    cq: &mut CompletionQueue,
    cookie: u64,
) -> Option<(WcOpcode, Option<u32>)> {
    let cqe = cq.peek_receive()?;
    let came = (cqe.operation(), cqe.immediate());
    let request = cqe.request();
    pair.try_complete_receive(request, cookie).then(|| {
        cq.consume_peeked();
        came
    })
}

#[test]
fn try_complete_receive_completes_each_receive_once() {
    let (mut pair, mut device) = receiving(3);
    let came = [
        (cqe_opcode::RESPONDER_SEND, WcOpcode::Receive, false),
        (cqe_opcode::RESPONDER_SEND_IMM, WcOpcode::ReceiveImm, true),
        (cqe_opcode::RESPONDER_WRITE_IMM, WcOpcode::ReceiveWriteImm, true),
    ];
    for (index, (opcode, operation, immediate)) in came.into_iter().enumerate() {
        let cookie = 70 + index as u64;
        let cqe = device.cqe(opcode, opcode::NOP, index as u16);
        device.push(cqe);
        assert_eq!(try_next(&mut pair, &mut device.queue, cookie + 1), None, "another receive");
        let (got, number) = try_next(&mut pair, &mut device.queue, cookie).unwrap();
        assert_eq!((got, number.is_some()), (operation, immediate));
    }
    assert!(device.queue.peek_receive().is_none() && device.queue.is_empty());
    // A fourth receive, which was not posted.
    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, opcode::NOP, 3);
    device.push(cqe);
    for cookie in [0, 70, 72, 73] {
        assert_eq!(try_next(&mut pair, &mut device.queue, cookie), None);
    }
    assert!(pair.poll(&mut device.queue).unwrap().is_err());
}

#[test]
fn unmatched_peeked_cqe_remains_for_poll() {
    for opcode in [
        cqe_opcode::REQUESTER,
        cqe_opcode::RESPONDER_SEND_INVALIDATE,
        cqe_opcode::REQUESTER_ERROR,
        cqe_opcode::RESPONDER_ERROR,
    ] {
        let (_, mut device) = receiving(1);
        let cqe = device.cqe(opcode, opcode::NOP, 0);
        device.push(cqe);
        assert!(device.queue.peek_receive().is_none(), "opcode {opcode}");
        assert!(device.queue.poll().is_some());
    }
    // CQEs of another queue, out of order, and cleaned.
    let (mut pair, mut device) = receiving(2);
    let mut cqe = device.cqe(cqe_opcode::RESPONDER_SEND, opcode::NOP, 0);
    cqe.set_qpn(OURS + 1);
    device.push(cqe);
    assert_eq!(try_next(&mut pair, &mut device.queue, 70), None, "of another queue");
    device.queue.cleaner().clean(Qpn(OURS + 1));
    assert!(device.queue.peek_receive().is_none(), "a cleaned CQE");
    assert!(device.queue.poll().is_none());
    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, opcode::NOP, 1);
    device.push(cqe);
    for cookie in [70, 71] {
        assert_eq!(try_next(&mut pair, &mut device.queue, cookie), None, "out of order");
    }
    // After `claim_receives`, for shared receive queues, only `poll` returns a receive.
    let (_, mut device) = receiving(1);
    device.queue.cleaner().claim_receives();
    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, opcode::NOP, 0);
    device.push(cqe);
    assert!(device.queue.peek_receive().is_none());
    assert_eq!(device.queue.poll().unwrap().qpn(), Qpn(OURS));
}
