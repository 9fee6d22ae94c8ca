//! RPCs that post requests to queue pairs with rings and records in this process's heap.

use core::sync::atomic::{AtomicU64, Ordering};

use verbless_flexio_dev::calls::{self, with_context};
use verbless_flexio_dev::segment::{self, CompletionMode};
use verbless_flexio_dev::{Request, Segment, ThreadContext, record, rpc};

use super::word;

/// Stores the segments of a WQE from `wqe` on.
fn put(wqe: u64, segments: &[Segment]) {
    for (address, segment) in (wqe..).step_by(segment::BYTES).zip(segments) {
        for (at, value) in segment::words(address, segment.as_bytes()) {
            word::<AtomicU64>(at).store(value, Ordering::Relaxed);
        }
    }
}

/// Posts an RDMA WRITE at WQEBB `pi`.
#[rpc]
fn post_write(
    wqe: u64,
    qpn: u32,
    pi: u16,
    record: u64,
    from: u64,
    to: u64,
    keys: u64,
    length: u32,
) {
    let segments = [
        Segment::ctrl(pi, qpn, CompletionMode::Always, Request::RdmaWrite),
        Segment::rdma(keys as u32, to),
        Segment::data(length, (keys >> 32) as u32, from),
    ];
    put(wqe, &segments);
    // For an odd `pi` skip the doorbell record: the device takes the index from the doorbell
    // (`Outbox::send`).
    if pi.is_multiple_of(2) {
        record::sq_set_pi(word(record), pi.wrapping_add(1));
    }
    if pi.is_multiple_of(4) {
        let _ = with_context::qp_sq_ring_db(ThreadContext::current(), pi.wrapping_add(1), qpn);
    } else {
        calls::qp_sq_ring_db(pi.wrapping_add(1), qpn);
    }
}

/// Bytes of an extended address vector. Without the ext bit the device reads only the first 16.
const ADDRESS_BYTES: usize = 48;
/// Byte and bit of ext.
const EXTENDED: (usize, u8) = (8, 0x80);
/// Offset of ds in the control segment.
const DS: usize = 7;

/// Posts a datagram to the address vector at `address`; returns its number of WQEBBs.
#[rpc]
fn post_datagram(
    wqe: u64,
    qpn: u32,
    pi: u16,
    record: u64,
    address: u64,
    from: u64,
    lkey: u32,
    length: u32,
) -> u16 {
    let mut vector = [0; ADDRESS_BYTES];
    for (at, part) in (address..).step_by(8).zip(vector.as_chunks_mut::<8>().0) {
        *part = word::<AtomicU64>(at).load(Ordering::Relaxed).to_ne_bytes();
    }
    let (control, count) = match vector[EXTENDED.0] & EXTENDED.1 != 0 {
        true => (with_segments(datagram(pi, qpn), 5), 3),
        false => (datagram(pi, qpn), 1),
    };
    let mut segments = [Segment::default(); 5];
    segments[0] = control;
    for (segment, part) in segments[1..=count].iter_mut().zip(vector.as_chunks().0) {
        *segment = Segment::bytes(*part);
    }
    segments[1 + count] = Segment::data(length, lkey, from);
    let used = &segments[..2 + count];
    put(wqe, used);
    let wqebbs = used.len().div_ceil(4) as u16;
    record::sq_set_pi(word(record), pi.wrapping_add(wqebbs));
    calls::qp_sq_ring_db(pi.wrapping_add(wqebbs), qpn);
    wqebbs
}

fn datagram(pi: u16, qpn: u32) -> Segment {
    Segment::ctrl(pi, qpn, CompletionMode::Always, Request::DatagramSend)
}

/// Sets ds to `count`: FlexIO's `DatagramSend` assumes a 16-byte address vector.
fn with_segments(control: Segment, count: u8) -> Segment {
    let mut bytes = *control.as_bytes();
    bytes[DS] = count;
    Segment::bytes(bytes)
}
