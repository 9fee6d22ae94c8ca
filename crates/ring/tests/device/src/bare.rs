//! Entry point, memory allocation and panics, which the standard library provides elsewhere.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{Given, Program};

/// Entry point for the host: writes 64 bytes, and returns the address that they reached.
///
/// # Safety
/// As [`Program::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn device_main(given: &Given, lkey: u32, to: u64, rkey: u32) -> u64 {
    // SAFETY: as promised.
    let Ok(mut program) = (unsafe { Program::new(given) }) else {
        return u64::MAX;
    };
    if !program.write(given.cqes.as_ptr() as u64, 64, lkey, to, rkey) {
        return u64::MAX;
    }
    loop {
        if let Some(reached) = program.written() {
            return reached;
        }
    }
}

const BYTES: usize = 64 << 10;

/// Memory for the tables of new queues; nothing is freed.
#[repr(align(64))]
struct Arena {
    bytes: UnsafeCell<[u8; BYTES]>,
    used: AtomicUsize,
}

// SAFETY: each byte is allocated once.
unsafe impl Sync for Arena {}

#[global_allocator]
static ARENA: Arena = Arena { bytes: UnsafeCell::new([0; BYTES]), used: AtomicUsize::new(0) };

// SAFETY: ranges do not overlap, as the counter only grows, and are inside the array.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Padded for an alignment of up to 64, that of the array.
        if layout.align() > 64 || layout.size() > BYTES {
            return null_mut();
        }
        let at = self.used.fetch_add(layout.size().next_multiple_of(64), Ordering::Relaxed);
        if at > BYTES - layout.size() {
            return null_mut();
        }
        // SAFETY: `at` is inside the array.
        unsafe { self.bytes.get().cast::<u8>().add(at) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
