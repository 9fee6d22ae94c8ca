//! The program: the host sets the registers of a call of `_start` and runs it until it returns.

#![no_std]
#![no_main]

mod work;

/// The entry point. It is called with a stack, as any function.
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
