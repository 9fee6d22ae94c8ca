//! Tests of a send queue from within: indexes that no test gets to by posting.

use super::*;
use crate::ring::{RecordMemory, RingMemory, SharedMemory};
use crate::types::{Lkey, RemoteAddr, Rkey, Sge};
use crate::uar::UarPage;
use crate::wr::Write;

fn memory(length: usize) -> SharedMemory {
    SharedMemory::zeroed(length).slice(0, length).unwrap()
}

#[allow(unsafe_code, reason = "ordinary memory stands in for rings and a UAR page")]
fn ring(length: usize) -> RingMemory {
    // SAFETY: nobody else has a handle to this memory.
    unsafe { RingMemory::new(memory(length)) }
}

#[allow(unsafe_code, reason = "a page of ordinary memory takes the doorbells")]
fn queue() -> SendQueue {
    // SAFETY: the memory is this page's alone.
    let page = unsafe { UarPage::new(memory(4096)) }.unwrap();
    SendQueue::new(SendQueueParts {
        qpn: Qpn(7),
        ring: ring(64 * 8),
        record: RecordMemory::new(ring(8)).unwrap(),
        doorbell: page.doorbell(),
        max_sges: 1,
        max_inline: 0,
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
