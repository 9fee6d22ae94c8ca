//! Copies between memory of ours and memory that others change meanwhile.
//!
//! To the language such a copy is a loop of relaxed atomic accesses to single bytes. So any two of them may race, however their ranges
//! overlap; atomics of wider, differing sizes may not. The compiler makes such a loop one byte at a time, hence the assembly,
//! which does the same in wider steps: each byte is read once and written once, in no promised order.

/// Copies `length` bytes.
///
/// # Safety
/// Both ranges are mapped, the source readable and the target writable; one of them is nobody else's, and they do not overlap. Other
/// threads reach the other one by such copies, or by atomics of one byte, only; or it is the device that does.
#[inline]
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as promised; the direction flag is clear wherever Rust code runs.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rsi") from => _,
            inout("rdi") to => _,
            inout("rcx") length => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as promised. Memory that is registered is normal memory, where any alignment does.
    unsafe {
        core::arch::asm!(
            "subs {n}, {n}, #16",
            "b.lo 3f",
            "2:",
            "ldp {a}, {b}, [{from}], #16",
            "stp {a}, {b}, [{to}], #16",
            "subs {n}, {n}, #16",
            "b.hs 2b",
            "3:",
            "adds {n}, {n}, #16",
            "b.eq 5f",
            "4:",
            "ldrb {a:w}, [{from}], #1",
            "strb {a:w}, [{to}], #1",
            "subs {n}, {n}, #1",
            "b.ne 4b",
            "5:",
            n = inout(reg) length => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(reg) _,
            b = out(reg) _,
            options(nostack),
        );
    }
    #[cfg(miri)]
    for at in 0..length {
        use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
        // SAFETY: as promised; the source is only loaded from.
        unsafe {
            let byte = (*from.add(at).cast::<AtomicU8>()).load(Relaxed);
            (*to.add(at).cast::<AtomicU8>()).store(byte, Relaxed);
        }
    }
}
