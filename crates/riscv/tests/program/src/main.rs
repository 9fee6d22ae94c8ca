//! A RISC-V program for the tests of the hart: a test sets the registers as for a call of `_start`,
//! and runs the hart until `_start` returns.

#![no_std]
#![no_main]

mod work;

/// The entry point: runs function number `which` of `work::WORK`. The caller sets the stack
/// pointer.
#[unsafe(no_mangle)]
pub extern "C" fn _start(which: u64, seed: u64) -> u64 {
    work::WORK[which as usize].1(seed)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // PAUSE, which the host reports as the end of the call.
    loop {
        core::hint::spin_loop();
    }
}
