//! The device side of the example `guide`, explained in `docs/flexio.md`: a function that makes
//! events, and an event handler that consumes them.

#![no_std]
#![no_main]

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbless_flexio_dev::event::CqRing;
use verbless_flexio_dev::{ThreadContext, calls, event_handler, print, program, rpc, system};

program!();

/// The host writes this into the heap for the handler: its CQ, and its counter.
#[repr(C)]
struct Work {
    ring: u64,
    record: u64,
    cqn: u32,
    log_depth: u32,
    consumer: AtomicU32,
    handled: AtomicU32,
}

/// Writes `times` CQEs of zeros to CQ `cqn` through outbox `outbox`; returns the thread's errno.
#[rpc]
fn make_events(outbox: u16, cqn: u32, times: u32) -> u32 {
    if calls::outbox_config(outbox).is_err() {
        return u32::MAX;
    }
    for _ in 0..times {
        calls::zcqe_gen(cqn);
    }
    print!("made {times} events");
    ThreadContext::current().errno()
}

/// Ends the process with an error code, which the host gets as the status.
#[rpc]
fn give_up(code: u8) -> u64 {
    system::error(code)
}

/// Consumes the new CQEs, counts them, and arms the CQ for the next one.
#[event_handler]
fn on_event(work: u64) {
    // SAFETY: the host has written a `Work` there, and frees it when the handler is destroyed.
    let work: &Work = unsafe { &*with_exposed_provenance(work as usize) };
    let words = 8_usize << work.log_depth;
    // SAFETY: the CQ's ring and record are in the heap for as long as the CQ, which keeps its
    // handler alive.
    let (ring, record) = unsafe {
        let ring = with_exposed_provenance::<AtomicU64>(work.ring as usize);
        let record = with_exposed_provenance::<AtomicU32>(work.record as usize);
        (core::slice::from_raw_parts(ring, words), &*record)
    };
    let Some(mut cqes) = CqRing::new(ring, work.consumer.load(Ordering::Relaxed)) else {
        system::error(128)
    };
    while cqes.poll().is_some() {
        work.handled.fetch_add(1, Ordering::Relaxed);
    }
    cqes.set_record(record);
    work.consumer.store(cqes.consumer(), Ordering::Relaxed);
    calls::cq_arm(cqes.consumer(), work.cqn);
}
