//! Sends Ethernet frames back with their addresses swapped. The example `packets` and the program
//! of the device API's tests use it.

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbless_flexio_dev::event::{CqRing, CqeOpcode};
use verbless_flexio_dev::segment::CompletionMode;
use verbless_flexio_dev::{Request, Segment, calls, event_handler, record, system};

/// The handler's setup: the host writes it into the heap.
#[repr(C)]
struct Setup {
    /// Addresses of the ring and the doorbell record of the CQ of received frames.
    cqes: u64,
    cq_record: u64,
    /// Addresses of the doorbell records of the receive queue and the send queue, and of the send
    /// queue.
    rq_record: u64,
    sq_record: u64,
    send_queue: u64,
    /// Addresses of the receive buffers and of the send buffers.
    received: u64,
    sent: u64,
    /// Addresses of the ring and the doorbell record of the CQ of sent frames.
    send_cqes: u64,
    send_cq_record: u64,
    cqn: u32,
    sqn: u32,
    /// The mkey of the receive and send buffers.
    lkey: u32,
    /// log2 of the CQEs of either CQ, of the receives, and of the WQEBBs.
    log_depth: u32,
    /// Bytes of a frame buffer, a multiple of 8.
    frame_bytes: u32,
    consumer: AtomicU32,
    posted: AtomicU32,
    sends: AtomicU32,
}

/// Memory of the process at an address from the host.
fn at<T>(address: u64) -> &'static T {
    // SAFETY: the host gives addresses in the heap, which nothing else uses meanwhile.
    unsafe { &*with_exposed_provenance(address as usize) }
}

fn words(address: u64, count: usize) -> &'static [AtomicU64] {
    // SAFETY: as above; the words are atomics.
    unsafe { core::slice::from_raw_parts(with_exposed_provenance(address as usize), count) }
}

/// Swaps the MAC addresses, a frame's first 12 bytes: `first`, and the first 4 bytes of `second`.
fn swap(first: u64, second: u64) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h] = first.to_ne_bytes();
    let [i, j, k, l, rest @ ..] = second.to_ne_bytes();
    let [m, n, o, p] = rest;
    let first = u64::from_ne_bytes([g, h, i, j, k, l, a, b]);
    [first, u64::from_ne_bytes([c, d, e, f, m, n, o, p])]
}

/// Sends each received frame back to its sender.
#[event_handler]
fn reflects(setup: u64) {
    let setup: &Setup = at(setup);
    let depth = 1_usize << setup.log_depth;
    let consumer = setup.consumer.load(Ordering::Relaxed);
    let Some(mut cqes) = CqRing::new(words(setup.cqes, 8 * depth), consumer) else {
        system::error(201)
    };
    let bytes = u64::from(setup.frame_bytes);
    while let Some(cqe) = cqes.poll() {
        let length = cqe.byte_cnt();
        if cqe.opcode() != CqeOpcode::RESPONDER_SEND || u64::from(length) > bytes {
            system::error(202);
        }
        let slot = u64::from(cqe.wqe_counter()) & (depth as u64 - 1);
        let posted = wait_for_room(setup, depth);
        let index = u64::from(posted) & (depth as u64 - 1);
        let count = length.div_ceil(8) as usize;
        let from = words(setup.received + slot * bytes, count);
        let to = words(setup.sent + index * bytes, count);
        for (from, to) in from.iter().zip(to) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let [first, second] = [0, 1].map(|word: usize| to[word].load(Ordering::Relaxed));
        for (word, value) in to.iter().zip(swap(first, second)) {
            word.store(value, Ordering::Relaxed);
        }
        // The frame is copied out of its receive buffer, which is posted again.
        cqes.set_record(at(setup.cq_record));
        record::rq_inc_pi(at(setup.rq_record));
        send(setup, posted, setup.sent + index * bytes, length);
    }
    setup.consumer.store(cqes.consumer(), Ordering::Relaxed);
    calls::cq_arm(cqes.consumer(), setup.cqn);
}

/// Consumes send CQEs until a WQEBB and its frame buffer are free; returns the count of posted
/// frames.
fn wait_for_room(setup: &Setup, depth: usize) -> u32 {
    let consumer = setup.sends.load(Ordering::Relaxed);
    let Some(mut cqes) = CqRing::new(words(setup.send_cqes, 8 * depth), consumer) else {
        system::error(203)
    };
    let posted = setup.posted.load(Ordering::Relaxed);
    loop {
        while let Some(cqe) = cqes.poll() {
            if cqe.opcode() != CqeOpcode::REQUESTER {
                system::error(204);
            }
        }
        cqes.set_record(at(setup.send_cq_record));
        if posted.wrapping_sub(cqes.consumer()) < depth as u32 {
            setup.sends.store(cqes.consumer(), Ordering::Relaxed);
            return posted;
        }
    }
}

fn send(setup: &Setup, posted: u32, frame: u64, length: u32) {
    let pi = posted as u16;
    let segments = [
        Segment::ctrl(pi, setup.sqn, CompletionMode::Always, Request::EthernetSend),
        Segment::eth(0, 0, 0, [0; 2]),
        Segment::data(length, setup.lkey, frame),
    ];
    let wqe = setup.send_queue + 64 * (u64::from(pi) & ((1 << setup.log_depth) - 1));
    let bytes = segments.iter().flat_map(|segment| segment.as_bytes().as_chunks::<8>().0);
    for (word, bytes) in words(wqe, 6).iter().zip(bytes) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    let posted = posted.wrapping_add(1);
    setup.posted.store(posted, Ordering::Relaxed);
    record::sq_set_pi(at(setup.sq_record + 4), posted as u16);
    calls::qp_sq_ring_db(posted as u16, setup.sqn);
}
