//! Barriers, named by what they order. Each is a compiler barrier at the least, on every architecture.
//!
//! On x86-64 ordinary stores are seen in order, and so are ordinary loads, so most need no instruction; stores to
//! write-combining memory are not, hence the `sfence` around a doorbell. BlueField's Arm cores need one each.
//!
//! This file needs nothing but `core`, so that it can be compiled for another architecture by itself.

use core::sync::atomic::{Ordering, compiler_fence};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this architecture's barriers are not written yet");

/// One instruction of Arm, which the compiler moves no access across.
#[cfg(target_arch = "aarch64")]
macro_rules! arm {
    ($instruction:literal) => {
        // SAFETY: a barrier touches no memory, register or flag. Without `nomem` it is a compiler barrier too.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) }
    };
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sfence() {
    // SAFETY: every x86-64 has SSE.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

/// WQEs in the ring are visible before the doorbell record that counts them.
#[inline(always)]
pub fn before_doorbell_record() {
    #[cfg(target_arch = "aarch64")]
    arm!("dmb oshst");
    compiler_fence(Ordering::SeqCst);
}

/// The doorbell record is visible before the doorbell; and earlier stores to the UAR stay before it.
#[inline(always)]
pub fn before_doorbell() {
    #[cfg(target_arch = "x86_64")]
    sfence();
    #[cfg(target_arch = "aarch64")]
    arm!("dsb st");
    compiler_fence(Ordering::SeqCst);
}

/// The doorbell leaves the CPU now, and before whatever is stored to the UAR next.
#[inline(always)]
pub fn after_doorbell() {
    #[cfg(target_arch = "x86_64")]
    sfence();
    #[cfg(target_arch = "aarch64")]
    arm!("dsb st");
    compiler_fence(Ordering::SeqCst);
}

/// The owner bit of a CQE is read before the rest of it, and before the payload that it announces.
#[inline(always)]
pub fn after_owner_bit() {
    #[cfg(target_arch = "aarch64")]
    arm!("dmb oshld");
    compiler_fence(Ordering::SeqCst);
}

/// CQEs have been read before the consumer record gives their slots back to the device.
#[inline(always)]
pub fn before_consumer_record() {
    #[cfg(target_arch = "aarch64")]
    arm!("dmb oshld");
    compiler_fence(Ordering::SeqCst);
}
