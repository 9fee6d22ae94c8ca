//! A function that reports its progress by messages and trace records, and one that ends its
//! process by a fault: the device side of the example `tracing`.

#![no_std]
#![no_main]

use core::ptr::with_exposed_provenance_mut;

use verbless_flexio_dev::{Level, Stream, event_handler, msg, msg_err, print, program, rpc, tp};

program!();

/// The trace points: a number of the sequence, and the count of steps.
const LOOKED_AT: u32 = 1;
const TOOK: u32 = 2;

/// The number of Collatz steps from `start` to 1: an even number is halved, an odd one becomes 3n +
/// 1.
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

/// Increments a counter at an address, which must be in the process's memory.
#[inline(never)]
fn count_at(address: u64) {
    let counter = with_exposed_provenance_mut::<u64>(address as usize);
    // SAFETY: the caller ensures it; otherwise the process ends here.
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
