//! A function that tells what it does, by messages and by trace records, and one that ends its
//! process by a mistake: the device side of the example `tracing`.

#![no_std]
#![no_main]

use core::ptr::with_exposed_provenance_mut;

use verbless_flexio_dev::{Level, Stream, event_handler, msg, msg_err, print, program, rpc, tp};

program!();

/// The trace points: a number was looked at, and how many steps it took.
const LOOKED_AT: u32 = 1;
const TOOK: u32 = 2;

/// How many steps a number takes to 1, halved or tripled and one more.
#[rpc]
fn steps(start: u64) -> u64 {
    print!("from {start} on");
    let (mut number, mut count) = (start, 0);
    while number != 1 {
        tp!(LOOKED_AT, count, number);
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        count += 1;
    }
    tp!(TOOK, start, count);
    msg!(Stream::DEFAULT, Level::Warn, "it took {count} steps");
    count
}

/// Counts where an address says, which must be one of the process's.
#[inline(never)]
fn count_at(address: u64) {
    let counter = with_exposed_provenance_mut::<u64>(address as usize);
    // SAFETY: as the caller says; if not, the process ends here.
    unsafe {
        *counter += 1; // The faulting line.
    }
}

#[rpc]
fn count(address: u64, times: u64) {
    for _ in 0..times {
        count_at(address);
    }
}

/// Runs before an error ends the process.
#[event_handler]
fn on_error(status: u64) {
    msg_err!(Stream::DEFAULT, "the process ends with status {status}");
}
