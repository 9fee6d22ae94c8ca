//! Barriers, named by what they order. Each is at least a compiler barrier on every architecture.
//!
//! | barrier | x86-64 | aarch64 | riscv64 |
//! |---|---|---|---|
//! | [`before_doorbell_record`] | none | `dmb oshst` | `fence w, w` |
//! | [`before_doorbell`] | `sfence` | `dsb st` | `fence ow, ow` |
//! | [`after_doorbell`] | `sfence` | `dsb st` | `fence ow, ow` |
//! | [`after_owner_bit`] | none | `dmb oshld` | `fence r, r` |
//! | [`before_consumer_record`] | none | `dmb oshld` | `fence r, w` |
//!
//! x86-64 keeps ordinary stores in order, and ordinary loads, so most barriers need no instruction;
//! it does not order stores to write-combining memory, hence the `sfence` around a doorbell.
//! BlueField's Arm cores and RISC-V's memory model (RVWMO) need an instruction for each barrier.
//! RISC-V distinguishes memory (`r`, `w`) from device registers (`i`, `o`): a doorbell is a store
//! to a register or, on a write-combining page, to memory, so the barrier orders both. Any other
//! 64-bit architecture gets the compiler's strongest fence everywhere, which is a full barrier of
//! the machine; if that does not order registers, as on RISC-V, the architecture needs its own
//! body.
//!
//! Two kinds of architecture cannot ring a doorbell by a plain store of 8 bytes and do not compile:
//! 32-bit ones, where it becomes two stores, and s390x, where a store to a device has its own
//! instruction.
//!
//! This file needs only `core`, so it compiles by itself for another architecture.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
use core::sync::atomic::compiler_fence as fence;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
use core::sync::atomic::fence;

use core::sync::atomic::Ordering;

#[cfg(any(not(target_pointer_width = "64"), target_arch = "s390x"))]
compile_error!(
    "verbless-ring rings doorbells by one plain store of 8 bytes, which 32-bit architectures split \
     in two and s390x does not pass to a device: compile for a 64-bit architecture other than s390x"
);

/// A barrier instruction that is also a compiler barrier.
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
macro_rules! barrier {
    ($instruction:literal) => {
        // SAFETY: a barrier touches no memory, register or flag. Without `nomem` it is a compiler
        // barrier too.
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
    barrier!("dmb oshst");
    #[cfg(target_arch = "riscv64")]
    barrier!("fence w, w");
    fence(Ordering::SeqCst);
}

/// The doorbell record is visible before the doorbell; and earlier stores to the UAR stay before
/// it.
#[inline(always)]
pub fn before_doorbell() {
    #[cfg(target_arch = "x86_64")]
    sfence();
    #[cfg(target_arch = "aarch64")]
    barrier!("dsb st");
    #[cfg(target_arch = "riscv64")]
    barrier!("fence ow, ow");
    fence(Ordering::SeqCst);
}

/// Orders the doorbell before later stores to the UAR; on x86-64 and aarch64 it also flushes the
/// doorbell from a write-combining buffer.
#[inline(always)]
pub fn after_doorbell() {
    #[cfg(target_arch = "x86_64")]
    sfence();
    #[cfg(target_arch = "aarch64")]
    barrier!("dsb st");
    #[cfg(target_arch = "riscv64")]
    barrier!("fence ow, ow");
    fence(Ordering::SeqCst);
}

/// The owner bit of a CQE is read before the rest of it, and before the payload that it announces.
#[inline(always)]
pub fn after_owner_bit() {
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb oshld");
    #[cfg(target_arch = "riscv64")]
    barrier!("fence r, r");
    fence(Ordering::SeqCst);
}

/// CQEs have been read before the consumer record gives their slots back to the device.
#[inline(always)]
pub fn before_consumer_record() {
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb oshld");
    #[cfg(target_arch = "riscv64")]
    barrier!("fence r, w");
    fence(Ordering::SeqCst);
}
