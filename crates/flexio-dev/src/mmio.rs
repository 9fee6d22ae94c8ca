//! Loads and stores at addresses outside of Rust's memory: registers of outboxes, the configuration
//! of windows, memory of windows, and rings and queues of streams.
//!
//! The one invariant here: each address comes from the thread context, which the system writes, or
//! from the control block of a stream, which the host writes, and is a multiple of the access's
//! size. No Rust object is at the address, so an access is a message to the device. An access that
//! the device refuses ends the process before it takes effect.
//!
//! A host can give a window a key over the process's own heap. A program that stores through it
//! then acts like a device that writes memory: code that makes references into the heap, which
//! needs `unsafe`, must ensure that no thread does so.
#![allow(unsafe_code)]

use core::ptr::{
    read_volatile, with_exposed_provenance, with_exposed_provenance_mut, write_volatile,
};
use core::sync::atomic::{Ordering, compiler_fence};

macro_rules! accesses {
    ($($read:ident, $write:ident: $word:ty;)*) => {$(
        #[inline(always)]
        pub(crate) fn $read(address: u64) -> $word {
            // SAFETY: the invariant of this module.
            unsafe { read_volatile(with_exposed_provenance(address as usize)) }
        }

        #[inline(always)]
        pub(crate) fn $write(address: u64, value: $word) {
            // SAFETY: the invariant of this module.
            unsafe { write_volatile(with_exposed_provenance_mut(address as usize), value) }
        }
    )*};
}

accesses! {
    read8, write8: u8;
    read16, write16: u16;
    read32, write32: u32;
    read64, write64: u64;
}

/// Orders all earlier loads and stores, of memory and through windows, before all later ones.
#[inline(always)]
pub(crate) fn in_order() {
    #[cfg(target_arch = "riscv64")]
    // SAFETY: as of `before_doorbell`.
    unsafe {
        core::arch::asm!("fence iorw, iorw", options(nostack, preserves_flags));
    }
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Makes the thread's earlier stores, to memory and through windows, and its read of the control
/// word, complete before the next doorbell.
#[inline(always)]
pub(crate) fn before_doorbell() {
    #[cfg(target_arch = "riscv64")]
    // SAFETY: a barrier touches no memory, register or flag. Without `nomem` it is a compiler
    // barrier too.
    unsafe {
        core::arch::asm!("fence iorw, ow", options(nostack, preserves_flags));
    }
    compiler_fence(Ordering::SeqCst);
}
