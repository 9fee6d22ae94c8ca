//! `Debug` and `Display` of queues, memory and completions.

use crate::support::{
    Completer, Receiver, Sender, Settings, memory, record_of, ring_of, to_lid, uar_page,
};
use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_ring::completion::InvalidCqe;
use verbless_ring::srq::{SharedReceiveQueue, SharedReceiveQueueParts};
use verbless_ring::{Qpn, WqeIndex};

/// Checks that the `Debug` text of a value has these parts.
fn shows(value: &dyn std::fmt::Debug, expected: &[&str]) {
    let text = format!("{value:?}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn queues_and_memory_show_names_in_debug() {
    let sender = Sender::new(Settings::default());
    shows(&sender.queue, &["SendQueue"]);
    shows(&sender.ring, &["SharedMemory(0x1000 bytes at 0x"]);
    shows(&sender.device.queue, &["CompletionQueue"]);
    shows(&Receiver::new(0x123, 4, 64).queue, &["ReceiveQueue"]);
    let (ring, record) = (memory(256), memory(8));
    shows(&ring_of(&ring), &["RingMemory"]);
    shows(&record_of(&record), &["RecordMemory"]);
    shows(&uar_page().1, &["UarPage"]);
    shows(&to_lid(7), &["AddressHandle"]);
    let srq = SharedReceiveQueue::new(SharedReceiveQueueParts {
        ring: ring_of(&ring),
        stride: 64,
        record: record_of(&record),
    });
    let srq = srq.unwrap();
    shows(&srq, &["SharedReceiveQueue"]);
    shows(&srq.returns(), &["SrqReturns(0)"]);
    shows(&sender.device.queue.cleaner(), &["CqCleaner(of 256 entries)"]);
    assert_eq!(Completer::with(1, 64, 64).queue.entries(), 64);
    assert_eq!(Receiver::new(0x45, 4, 64).queue.qpn(), Qpn(0x45));
}

#[test]
fn completion_shows_qpn_and_user_index() {
    let mut sender = Sender::new(Settings::default());
    sender.advance(0, false);
    sender.queue.post(&verbless_ring::wr::Nop::new().signaled(), 77).unwrap();
    let mut cqe = sender.device.cqe(cqe_opcode::REQUESTER, opcode::NOP, 0);
    cqe.set_srqn_uidx(0x12_3456);
    let cqe = sender.device.deliver(cqe);
    shows(&cqe, &["Cqe"]);
    let completion = sender.queue.complete(cqe).unwrap();
    assert_eq!((completion.qpn(), completion.user_index()), (Qpn(0x123), 0x12_3456));
    let parts = ["Completion", "cookie: 77", "operation: Nop", "user_index: 1193046"];
    shows(&completion, &parts);
}

#[test]
fn invalid_cqe_reason_has_text() {
    for (invalid, expected) in [
        (InvalidCqe::Opcode(0xe), "opcode 0xe"),
        (InvalidCqe::WorkRequest(8), "work request opcode 0x08 is not the posted one"),
        (InvalidCqe::Index(WqeIndex(9)), "is not outstanding"),
        (InvalidCqe::Format(3), "format 3"),
    ] {
        assert!(invalid.to_string().contains(expected), "{invalid}");
    }
}
