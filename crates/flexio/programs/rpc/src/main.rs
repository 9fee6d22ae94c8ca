//! Functions with arguments and results of every width, and one for background tasks: the device
//! side of the example `rpc`.

#![no_std]
#![no_main]

mod widths;

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU64, Ordering};

use verbless_flexio_dev::{program, rpc, system};

program!();

/// Eight arguments, the maximum in registers: returns their sum.
#[rpc]
fn sum(a: i8, b: u8, c: i16, d: u16, e: i32, f: u32, g: i64, h: bool) -> i64 {
    i64::from(a)
        + i64::from(b)
        + i64::from(c)
        + i64::from(d)
        + i64::from(e)
        + i64::from(f)
        + g
        + i64::from(h)
}

static CALLS: AtomicU64 = AtomicU64::new(0);

#[rpc]
fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

#[rpc]
fn reset() {
    CALLS.store(0, Ordering::Relaxed);
}

/// Squares the number at `at`, and yields meanwhile.
#[rpc]
fn square(at: u64) {
    // SAFETY: the host passes addresses of words in the heap, a different one to each call.
    let word: &AtomicU64 = unsafe { &*with_exposed_provenance(at as usize) };
    let value = word.load(Ordering::Relaxed);
    system::pause();
    word.store(value.wrapping_mul(value), Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
}
