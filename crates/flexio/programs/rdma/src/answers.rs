//! An event handler that answers each message of a host peer by an RDMA write to the peer's memory.

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbless_flexio_dev::event::CqRing;
use verbless_flexio_dev::segment::CompletionMode;
use verbless_flexio_dev::{Request, Segment, calls, event_handler, record, system};

/// The handler's setup: the host writes it into the heap.
#[repr(C)]
struct Setup {
    /// Addresses of the ring and the doorbell record of the CQ of receives.
    cqes: u64,
    cq_record: u64,
    /// Addresses of the send queue and of the queue pair's doorbell record.
    send_queue: u64,
    record: u64,
    /// Addresses of the receive buffers, and of the answers.
    messages: u64,
    answers: u64,
    /// Address of the host's memory for answers.
    host: u64,
    cqn: u32,
    qpn: u32,
    /// The mkey of messages and answers, and the mkey of the host's memory.
    lkey: u32,
    rkey: u32,
    log_depth: u32,
    message_bytes: u32,
    consumer: AtomicU32,
    posted: AtomicU32,
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

/// Answers each received message: inverts all its bits, and writes it to the message's slot in the
/// host's memory by an RDMA write, whose immediate data is the slot.
#[event_handler]
fn answers(setup: u64) {
    let setup: &Setup = at(setup);
    let depth = 1_usize << setup.log_depth;
    let consumer = setup.consumer.load(Ordering::Relaxed);
    let Some(mut cqes) = CqRing::new(words(setup.cqes, 8 * depth), consumer) else {
        system::error(201)
    };
    let bytes = u64::from(setup.message_bytes);
    let in_words = setup.message_bytes as usize / 8;
    while let Some(cqe) = cqes.poll() {
        if cqe.byte_cnt() != setup.message_bytes {
            system::error(202);
        }
        let slot = u64::from(cqe.wqe_counter()) & (depth as u64 - 1);
        let message = words(setup.messages + slot * bytes, in_words);
        let answer = words(setup.answers + slot * bytes, in_words);
        for (from, to) in message.iter().zip(answer) {
            to.store(!from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        cqes.set_record(at(setup.cq_record));
        record::rq_inc_pi(at(setup.record));
        post(setup, slot, bytes);
    }
    setup.consumer.store(cqes.consumer(), Ordering::Relaxed);
    calls::cq_arm(cqes.consumer(), setup.cqn);
}

fn post(setup: &Setup, slot: u64, bytes: u64) {
    let pi = setup.posted.load(Ordering::Relaxed) as u16;
    setup.posted.store(u32::from(pi.wrapping_add(1)), Ordering::Relaxed);
    let (from, to) = (setup.answers + slot * bytes, setup.host + slot * bytes);
    let imm = slot as u32;
    let mode = CompletionMode::OnError;
    let segments = [
        Segment::ctrl_with_imm(pi, setup.qpn, mode, Request::RdmaWriteImm, imm),
        Segment::rdma(setup.rkey, to),
        Segment::data(setup.message_bytes, setup.lkey, from),
    ];
    let wqe = setup.send_queue + 64 * (u64::from(pi) & ((1 << setup.log_depth) - 1));
    let bytes = segments.iter().flat_map(|segment| segment.as_bytes().as_chunks::<8>().0);
    for (word, bytes) in words(wqe, 6).iter().zip(bytes) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    record::sq_set_pi(at(setup.record + 4), pi.wrapping_add(1));
    calls::qp_sq_ring_db(pi.wrapping_add(1), setup.qpn);
}
