//! Copies between our memory and memory that the device or another thread may change at the same
//! time.
//!
//! To the language such a copy is a loop of relaxed atomic accesses to single bytes, so any two
//! copies may race, however their ranges overlap. The compiler would copy one byte at a time; the
//! assembly does the same in wider steps: it reads and writes each byte once, in no promised order.
//! Beside atomics of words ([`SharedMemory::words`]), the assembly counts as a device access:
//! outside of the language, byte by byte. Without assembly (Miri, other architectures) the copy is
//! the loop itself. The language defines no race of atomics of different sizes: the result then
//! depends on the machine, and Miri reports it.
//!
//! [`SharedMemory::words`]: super::SharedMemory::words

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

/// Copies `length` bytes.
///
/// # Safety
/// Both ranges are mapped, the source readable and the target writable, and they do not overlap.
/// Only the caller accesses one of them meanwhile. Only the device, such copies and atomics access
/// the other: atomics of one byte, or of the aligned 8-byte words of
/// [`SharedMemory::words`](super::SharedMemory::words).
#[inline]
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as promised.
    unsafe {
        x86_64::bytes(from, to, length);
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", not(miri)))]
    // SAFETY: as promised. Registered memory is normal memory, which permits any alignment. The low
    // six bits of `n` are the length modulo 64 throughout.
    unsafe {
        core::arch::asm!(
            "subs {n}, {n}, #64",
            "b.lo 3f",
            "2:",
            "ldp {x:q}, {y:q}, [{from}]",
            "ldp {z:q}, {w:q}, [{from}, #32]",
            "add {from}, {from}, #64",
            "stp {x:q}, {y:q}, [{to}]",
            "stp {z:q}, {w:q}, [{to}, #32]",
            "add {to}, {to}, #64",
            "subs {n}, {n}, #64",
            "b.hs 2b",
            "3:",
            "tst {n}, #63",
            "b.eq 9f",
            "tbz {n}, #5, 4f",
            "ldp {x:q}, {y:q}, [{from}], #32",
            "stp {x:q}, {y:q}, [{to}], #32",
            "4:",
            "tbz {n}, #4, 5f",
            "ldr {x:q}, [{from}], #16",
            "str {x:q}, [{to}], #16",
            "5:",
            "tbz {n}, #3, 6f",
            "ldr {a}, [{from}], #8",
            "str {a}, [{to}], #8",
            "6:",
            "tbz {n}, #2, 7f",
            "ldr {a:w}, [{from}], #4",
            "str {a:w}, [{to}], #4",
            "7:",
            "tbz {n}, #1, 8f",
            "ldrh {a:w}, [{from}], #2",
            "strh {a:w}, [{to}], #2",
            "8:",
            "tbz {n}, #0, 9f",
            "ldrb {a:w}, [{from}]",
            "strb {a:w}, [{to}]",
            "9:",
            n = inout(reg) length => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(reg) _,
            x = out(vreg) _,
            y = out(vreg) _,
            z = out(vreg) _,
            w = out(vreg) _,
            options(nostack),
        );
    }
    #[cfg(all(target_arch = "riscv64", not(miri)))]
    // SAFETY: as promised. Words are aligned, because not every core permits others.
    unsafe {
        core::arch::asm!(
            "or {a}, {from}, {to}",
            "andi {a}, {a}, 7",
            "bnez {a}, 3f",
            "2:",
            "sltiu {a}, {n}, 8",
            "bnez {a}, 3f",
            "ld {a}, 0({from})",
            "sd {a}, 0({to})",
            "addi {from}, {from}, 8",
            "addi {to}, {to}, 8",
            "addi {n}, {n}, -8",
            "j 2b",
            "3:",
            "beqz {n}, 4f",
            "lbu {a}, 0({from})",
            "sb {a}, 0({to})",
            "addi {from}, {from}, 1",
            "addi {to}, {to}, 1",
            "addi {n}, {n}, -1",
            "j 3b",
            "4:",
            n = inout(reg) length => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(any(
        miri,
        not(any(
            target_arch = "x86_64",
            all(target_arch = "aarch64", target_feature = "neon"),
            target_arch = "riscv64"
        ))
    ))]
    for at in 0..length {
        use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
        // SAFETY: as promised; the source is only loaded from.
        unsafe {
            let byte = (*from.add(at).cast::<AtomicU8>()).load(Relaxed);
            (*to.add(at).cast::<AtomicU8>()).store(byte, Relaxed);
        }
    }
}
