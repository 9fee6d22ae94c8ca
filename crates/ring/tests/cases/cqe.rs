//! CQEs: errors, invalid ones, inline data, and polling.

use crate::support::{Completer, REMOTE, Receiver, Sender, Settings, bytes, sge};
use verbless_prm::hot::{cqe_format, cqe_opcode, opcode};
use verbless_prm::{Cqe, CqeFormat, CqeOpcode, WqeOpcode};
use verbless_ring::completion::{FailedRequest, InvalidCqe};
use verbless_ring::wr::Write;
use verbless_ring::{CompletionError, Qpn, QueuePair, WcOpcode, WcStatus, WqeIndex};

#[test]
fn error_cqe_reports_failure_and_frees_slots() {
    let mut sender = Sender::new(Settings::default());
    for i in 0..3 {
        sender.queue.post(&Write::new(sge(64), REMOTE), 10 + i).unwrap();
    }
    let mut cqe = sender.device.cqe(cqe_opcode::REQUESTER_ERROR, opcode::WRITE, 1);
    cqe.set_timestamp(0x8813).set_srqn_uidx(0x77_8899).set_lro_num_seg(0xff);
    let polled = sender.device.deliver(cqe);
    let error = sender.queue.complete(polled).unwrap_err();
    let failure = FailedRequest {
        cookie: 11,
        status: WcStatus::RemoteAccess,
        vendor_syndrome: 0x88,
        wqe_index: WqeIndex(1),
        receive: false,
        qpn: Qpn(0x123),
        user_index: 0x77_8899,
    };
    assert_eq!(error, CompletionError::Failed(failure));
    assert!(error.to_string().contains("rkey"), "{error}");
    assert_eq!(sender.queue.free(), sender.queue.capacity() - 1);
}

#[test]
fn invalid_cqe_completes_nothing() {
    let mut sender = Sender::new(Settings::default());
    sender.queue.post(&Write::new([sge(1); 4], REMOTE).signaled(), 1).unwrap();
    let free = sender.queue.free();
    let mut try_one = |edit: &dyn Fn(&mut Cqe)| {
        let mut cqe = sender.device.cqe(cqe_opcode::REQUESTER, opcode::WRITE, 0);
        edit(&mut cqe);
        let polled = sender.device.deliver(cqe);
        match sender.queue.complete(polled) {
            Err(CompletionError::InvalidCqe(malformed)) => malformed,
            other => panic!("{other:?}"),
        }
    };
    // The second wqebb of the request, and an index that was never posted; the index counts modulo
    // the ring.
    for index in [1, 2, 63, 65, 0x8001, 0xffff] {
        let edit = |cqe: &mut Cqe| _ = cqe.set_wqe_counter(index);
        assert_eq!(try_one(&edit), InvalidCqe::Index(WqeIndex(index)));
    }
    for opcode in [0x1, 0x2, 0x5, 0x6, 0x7, 0x8, 0x9, 0xa, 0xb, 0xc] {
        let edit = |cqe: &mut Cqe| _ = cqe.set_opcode(CqeOpcode(opcode));
        assert_eq!(try_one(&edit), InvalidCqe::Opcode(opcode));
    }
    for unknown in [0x02, 0x7f, 0xff, opcode::READ] {
        let edit = |cqe: &mut Cqe| _ = cqe.set_wqe_opcode(WqeOpcode(unknown));
        assert_eq!(try_one(&edit), InvalidCqe::WorkRequest(unknown));
    }
    let compressed = |cqe: &mut Cqe| _ = cqe.set_format(CqeFormat::COMPRESSED);
    assert_eq!(try_one(&compressed), InvalidCqe::Format(cqe_format::COMPRESSED));
    assert_eq!(sender.queue.free(), free);
    let cqe = sender.device.completion(opcode::WRITE, 0);
    assert_eq!(sender.queue.complete(cqe).unwrap().operation(), WcOpcode::Write);
}

#[test]
fn cqe_without_outstanding_wqe_is_rejected() {
    let sender = Sender::new(Settings::default());
    let receiver = Receiver::new(0x123, 4, 32);
    let Sender { queue, mut device, .. } = sender;
    let mut pair = QueuePair::new(queue, receiver.queue);
    for index in [0, 1, 15, 16, 0x7fff, 0xffff] {
        for number in [
            cqe_opcode::REQUESTER,
            cqe_opcode::RESPONDER_SEND,
            cqe_opcode::REQUESTER_ERROR,
            cqe_opcode::RESPONDER_ERROR,
        ] {
            let cqe = device.cqe(number, opcode::NOP, index);
            let completed = pair.complete(device.deliver(cqe));
            let rejected = matches!(completed, Err(CompletionError::InvalidCqe(_)));
            assert!(rejected, "CQE opcode {number}, WQE {index:#x}: {completed:?}");
        }
    }
}

#[test]
fn inline_data_never_exceeds_cqe() {
    let mut short = Completer::with(9, 4, 64);
    let mut cqe = short.cqe(cqe_opcode::RESPONDER_SEND, 0, 0);
    cqe.set_byte_cnt(u32::MAX);
    for (format, length) in
        [(CqeFormat::INLINE_32, 32), (CqeFormat::INLINE_64, 0), (CqeFormat::COMPRESSED, 0)]
    {
        cqe.set_format(format);
        short.deliver(cqe);
        assert_eq!(short.queue.inline_data().len(), length);
    }
    let mut long = Completer::with(9, 4, 128);
    cqe.set_format(CqeFormat::INLINE_64);
    let data: [u8; 64] = std::array::from_fn(|i| i as u8);
    long.push_with(&data, cqe);
    long.queue.poll().unwrap();
    assert_eq!(long.queue.inline_data(), data);
}

#[test]
fn inline_32_is_in_cqe_proper_of_any_entry_size() {
    let data: [u8; 32] = std::array::from_fn(|i| 0x40 + i as u8);
    for entry_size in [64, 128] {
        let mut device = Completer::with(9, 4, entry_size);
        let mut cqe = device.cqe(cqe_opcode::REQUESTER, opcode::READ, 0);
        cqe.set_format(CqeFormat::INLINE_32).set_byte_cnt(32);
        cqe.as_bytes_mut()[..32].copy_from_slice(&data);
        device.push_with(&vec![0xa5; entry_size - 64], cqe);
        device.queue.poll().unwrap();
        assert_eq!(device.queue.inline_data(), data, "entries of {entry_size} bytes");
    }
}

#[test]
fn owner_bit_toggles_every_lap() {
    let mut device = Completer::with(9, 4, 64);
    for _ in 0..11 {
        assert!(device.queue.poll().is_none());
        device.completion(opcode::NOP, 0);
    }
}

#[test]
fn is_solicited_follows_cqe_bit() {
    let mut device = Completer::new(1);
    for solicited in [true, false] {
        for opcode in [cqe_opcode::REQUESTER, cqe_opcode::RESPONDER_SEND] {
            let mut cqe = device.cqe(opcode, 0, 0);
            cqe.set_se(solicited);
            assert_eq!(device.deliver(cqe).is_solicited(), solicited);
        }
    }
}

#[test]
fn drain_returns_inline_data_of_last_cqe() {
    let mut device = Completer::with(9, 4, 64);
    for byte in [0x11, 0x22] {
        let mut cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 0);
        cqe.set_format(CqeFormat::INLINE_32).set_byte_cnt(3);
        cqe.as_bytes_mut()[..3].fill(byte);
        device.push(cqe);
    }
    let mut drain = device.queue.drain(2);
    for byte in [0x11, 0x22] {
        assert!(drain.next().is_some());
        assert_eq!(drain.inline_data(), [byte; 3]);
    }
}

#[test]
fn poll_into_fills_the_slice() {
    let mut device = Completer::new(1);
    for index in 0..5 {
        let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, index);
        device.push(cqe);
    }
    let mut places = [const { None }; 3];
    let mut found = Vec::new();
    for expected in [3, 2, 0] {
        assert_eq!(device.queue.poll_into(&mut places), expected);
        found.extend(places.iter_mut().take(expected).flatten().map(|cqe| cqe.wqe_index().0));
    }
    assert_eq!(found, [0, 1, 2, 3, 4]);
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 5], "the doorbell record counts all of them");
}
