//! Tests of the order of the data path's memory accesses: ring, record, fence, UAR; owner bit,
//! fence, the rest of the CQE.

use std::vec::Vec;

use verbless_prm::{self as prm, CqeOpcode, WqeOpcode};

use crate::cq::{CollapsedCompletionQueue, CompletionQueue, CompletionQueueParts, Notify};
use crate::qp::{BlueFlame, QueuePair, ReceiveQueue, ReceiveQueueParts, SendQueue, SendQueueParts};
use crate::ring::{RecordMemory, RingMemory, SharedMemory};
use crate::srq::{SharedReceiveQueue, SharedReceiveQueueParts};
use crate::trace::{Event, take};
use crate::types::{Cqn, Lkey, Qpn, RemoteAddr, Rkey, Sge};
use crate::uar::UarPage;
use crate::wr::{Inline, Nop, Write};

fn memory(length: usize) -> SharedMemory {
    SharedMemory::zeroed(length).slice(0, length).unwrap()
}

/// `memory` as a ring of a queue.
#[allow(unsafe_code, reason = "the test acts as the device")]
fn ring_of(memory: &SharedMemory) -> RingMemory {
    // SAFETY: the code that acts as the device runs on the queue's thread, or stores single bytes,
    // the last of which publishes the others.
    unsafe { RingMemory::new(memory.clone()) }
}

/// `memory` as a doorbell record.
fn record_of(memory: &SharedMemory) -> RecordMemory {
    RecordMemory::new(ring_of(memory)).unwrap()
}

/// A page of ordinary memory.
#[allow(unsafe_code, reason = "the test acts as the device")]
fn uar_page() -> UarPage {
    // SAFETY: only this page has the memory.
    unsafe { UarPage::new(memory(4096)) }.unwrap()
}

fn sender(blueflame: bool) -> SendQueue {
    let page = uar_page();
    let doorbell = if blueflame { page.blueflame(0x800, 256).unwrap() } else { page.doorbell() };
    SendQueue::new(SendQueueParts {
        qpn: Qpn(1),
        ring: ring_of(&memory(64 * 8)),
        record: record_of(&memory(8)),
        doorbell,
        max_sges: 4,
        max_inline: 256,
        signal_all: false,
        blueflame: BlueFlame::Always,
    })
    .unwrap()
}

fn write() -> Write<Sge> {
    Write::new(Sge::new(0, 64, Lkey(1)), RemoteAddr::new(0, Rkey(2)))
}

/// The kinds of events in order, with runs of the same kind shortened to one.
fn steps(events: &[Event]) -> Vec<&'static str> {
    let mut steps: Vec<&'static str> = events
        .iter()
        .map(|event| match event {
            Event::Ring(_) => "ring",
            Event::Record(_) => "record",
            Event::Uar(_) => "UAR",
            Event::Owner => "owner bit",
            Event::Cqe(_) => "CQE",
            Event::Barrier(name) => name,
        })
        .collect();
    steps.dedup();
    steps
}

const DOORBELL: [&str; 6] =
    ["ring", "before_doorbell_record", "record", "before_doorbell", "UAR", "after_doorbell"];

#[test]
fn post_orders_ring_record_and_doorbell_with_barriers() {
    let mut queue = sender(false);
    take();
    queue.post(&write(), 0).unwrap();
    let events = take();
    assert_eq!(steps(&events), DOORBELL);
    let uar: Vec<_> = events.iter().filter(|event| matches!(event, Event::Uar(_))).collect();
    assert_eq!(uar, [&Event::Uar(0x800)]);
    assert!(events.contains(&Event::Record(1)));
}

/// The stores of words to a UAR page, as they are recorded: on Arm, a block of BlueFlame is one.
fn stores(at: u32, words: u32) -> Vec<Event> {
    let step = if cfg!(target_arch = "aarch64") { 8 } else { 1 };
    (0..words).step_by(step).map(|word| Event::Uar(at + 8 * word)).collect()
}

#[test]
fn blueflame_copies_whole_blocks_in_order() {
    let mut queue = sender(true);
    take();
    let data = [7; 60];
    for buffer in [0x800, 0x900, 0x800] {
        queue.post(&Write::new(Inline(&data), RemoteAddr::new(0, Rkey(2))), 0).unwrap();
        let events = take();
        assert_eq!(steps(&events), DOORBELL);
        let uar: Vec<_> =
            events.into_iter().filter(|event| matches!(event, Event::Uar(_))).collect();
        assert_eq!(uar, stores(buffer, 16));
    }
}

/// 16 ds are 256 bytes: the smallest buffer. The other buffer follows; a copy must not reach it.
#[test]
fn blueflame_copies_at_most_16_ds() {
    let data = [7; 221];
    for (bytes, words) in [(0, 8), (220, 32), (221, 1)] {
        for batch in [false, true] {
            let mut queue = sender(true);
            let write = Write::new(Inline(&data[..bytes]), RemoteAddr::new(0, Rkey(2)));
            take();
            if batch {
                let mut batch = queue.batch();
                batch.post(&write, 0).unwrap();
                batch.ring();
            } else {
                queue.post(&write, 0).unwrap();
            }
            let is_store = |event: &Event| matches!(event, Event::Uar(_));
            let uar: Vec<_> = take().into_iter().filter(is_store).collect();
            assert_eq!(uar, stores(0x800, words), "{bytes} bytes inline, batch: {batch}");
        }
    }
    let mut queue = sender(true);
    take();
    queue.post(&Nop::new(), 0).unwrap();
    let uar = take().into_iter().filter(|event| matches!(event, Event::Uar(_))).count();
    assert_eq!(uar, 1, "only a control segment");
}

#[test]
fn batch_writes_ring_then_rings_once() {
    let mut queue = sender(true);
    take();
    let mut batch = queue.batch();
    for _ in 0..3 {
        batch.post(&write(), 0).unwrap();
    }
    batch.ring();
    assert_eq!(steps(&take()), DOORBELL);
}

#[test]
fn dropped_batch_rings_nothing_and_frees_slots() {
    let mut queue = sender(true);
    let mut batch = queue.batch();
    for _ in 0..8 {
        batch.post(&write(), 0).unwrap();
    }
    assert!(batch.post(&write(), 0).is_err());
    take();
    drop(batch);
    assert_eq!(take(), []);
    assert_eq!(queue.free(), 8);
    queue.batch().ring();
    assert_eq!(take(), [], "an empty batch rings nothing");
}

#[test]
fn receive_is_in_ring_before_record() {
    let mut queue = ReceiveQueue::new(ReceiveQueueParts {
        qpn: Qpn(1),
        ring: ring_of(&memory(256)),
        stride: 32,
        record: record_of(&memory(8)),
    })
    .unwrap();
    take();
    queue.post(Sge::new(0, 64, Lkey(1)), 0).unwrap();
    assert_eq!(steps(&take()), ["ring", "before_doorbell_record", "record"]);
}

#[test]
fn publish_rewrites_receive_count() {
    let record = memory(8);
    let receive = ReceiveQueue::new(ReceiveQueueParts {
        qpn: Qpn(1),
        ring: ring_of(&memory(64 * 8)),
        stride: 64,
        record: record_of(&record),
    })
    .unwrap();
    let mut pair = QueuePair::new(sender(false), receive);
    for cookie in 0..3 {
        pair.post_receive(Sge::new(0, 64, Lkey(1)), cookie).unwrap();
    }
    // As if a device had ignored the record.
    record.fill(0);
    pair.publish_receives();
    assert_eq!(record.load32(0).map(u32::from_be), Ok(3));
}

#[test]
fn srq_receive_is_in_ring_before_record() {
    let mut queue = SharedReceiveQueue::new(SharedReceiveQueueParts {
        ring: ring_of(&memory(256)),
        stride: 32,
        record: record_of(&memory(8)),
    })
    .unwrap();
    take();
    queue.post(Sge::new(0, 64, Lkey(1)), 0).unwrap();
    assert_eq!(steps(&take()), ["ring", "before_doorbell_record", "record"]);
}

#[test]
fn cqe_is_read_owner_bit_first_and_freed_last() {
    let ring = memory(64 * 4);
    let page = uar_page();
    let parts = CompletionQueueParts {
        cqn: Cqn(1),
        ring: ring_of(&ring),
        entry_size: 64,
        record: record_of(&memory(8)),
        uar: page,
    };
    let mut queue = CompletionQueue::new(parts).unwrap();
    take();
    assert!(queue.poll().is_none());
    assert_eq!(take(), [Event::Owner], "nothing but the owner bit of an empty entry is read");
    let mut cqe = prm::Cqe::zeroed();
    cqe.set_wqe_opcode(WqeOpcode::WRITE).set_qpn(1).set_opcode(CqeOpcode::REQUESTER);
    for offset in [0, 64] {
        ring.write_at(offset, cqe.as_bytes()).unwrap();
    }
    assert!(queue.poll().is_some());
    let one = ["owner bit", "after_owner_bit", "CQE", "before_consumer_record", "record"];
    assert_eq!(steps(&take()), one);

    assert_eq!(queue.drain(5).count(), 1);
    let last =
        ["owner bit", "after_owner_bit", "CQE", "owner bit", "before_consumer_record", "record"];
    assert_eq!(steps(&take()), last);

    assert_eq!(queue.drain(5).count(), 0);
    assert_eq!(take(), [Event::Owner], "no CQE taken, no consumer index written");
}

/// The WQE counter and the opcode come from one load, so they are of one CQE; the rest follows the
/// barrier.
#[test]
fn collapsed_cqe_is_read_tail_first_and_once() {
    let entry = memory(64);
    let queue = CollapsedCompletionQueue::new(ring_of(&entry), record_of(&memory(8))).unwrap();
    take();
    assert!(queue.newest().is_none());
    assert_eq!(take(), [Event::Owner], "nothing but the owner bit of an empty entry is read");
    let mut cqe = prm::Cqe::zeroed();
    cqe.set_wqe_opcode(WqeOpcode::WRITE).set_qpn(1).set_opcode(CqeOpcode::REQUESTER);
    entry.write_at(0, cqe.as_bytes()).unwrap();
    assert!(queue.newest().is_some());
    // Bytes 0x34: syndromes; 0x38: opcode and QPN; 0x3c: WQE counter, signature, opcode and owner.
    let expected = [
        Event::Owner,
        Event::Cqe(0x3c),
        Event::Barrier("after_owner_bit"),
        Event::Cqe(0x34),
        Event::Cqe(0x38),
    ];
    assert_eq!(take(), expected);
}

#[test]
fn arm_writes_record_before_doorbell() {
    let page = uar_page();
    let parts = CompletionQueueParts {
        cqn: Cqn(1),
        ring: ring_of(&memory(256)),
        entry_size: 64,
        record: record_of(&memory(8)),
        uar: page,
    };
    let mut queue = CompletionQueue::new(parts).unwrap();
    take();
    queue.arm(Notify::Next);
    assert_eq!(
        take(),
        [
            Event::Record(0),
            Event::Barrier("before_doorbell"),
            Event::Uar(0x20),
            Event::Barrier("after_doorbell"),
        ]
    );
    queue.event_received();
    // A second event for the same request does not count.
    queue.event_received();
    queue.arm(Notify::Next);
    assert_eq!(take()[0], Event::Record(0x1000_0000), "the sequence number is 1");
    for _ in 0..2 {
        queue.event_received();
        queue.arm(Notify::Next);
    }
    take();
    queue.arm(Notify::Solicited);
    assert_eq!(take()[0], Event::Record(0x3100_0000), "the sequence is in bits 29:28");
    queue.event_received();
    queue.arm(Notify::Next);
    assert_eq!(take()[0], Event::Record(0), "and wraps");
}
