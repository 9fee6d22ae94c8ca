//! Copies between memory of ours and memory that others change meanwhile.
//!
//! To the language such a copy is a loop of relaxed atomic accesses to single bytes. So any two of
//! them may race, however their ranges overlap. The compiler makes such a loop one byte at a time,
//! hence the assembly, which does the same in wider steps: each byte is read once and written once,
//! in no promised order. Where it races with atomics of words ([`SharedMemory::words`]), it is what
//! the device is: somebody outside of the program who reads and writes the same memory, byte by
//! byte. Where there is no assembly (Miri, other architectures), it is the loop itself, and the
//! language defines no race of atomics of different sizes: what comes out then is the machine's
//! business, and Miri reports it.
//!
//! [`SharedMemory::words`]: super::SharedMemory::words

/// Copies `length` bytes.
///
/// # Safety
/// Both ranges are mapped, the source readable and the target writable; one of them is nobody
/// else's, and they do not overlap. Meanwhile the other one is reached by nobody but the device,
/// such copies, and atomics: of one byte, or of the aligned 8-byte words of
/// [`SharedMemory::words`](super::SharedMemory::words).
#[inline]
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if length <= SHORT {
        // SAFETY: as promised. SSE2 is part of x86-64.
        unsafe { short(from, to, length) };
        return;
    } else if length >= PAST_CACHES {
        // SAFETY: as promised.
        unsafe { past_caches(from, to, length) };
        return;
    }
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
    #[cfg(all(target_arch = "riscv64", not(miri)))]
    // SAFETY: as promised. Words are aligned, because not every core takes others.
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
        not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))
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

/// Bytes up to which a loop is faster than the time that `rep movsb` takes to begin.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 1024;

/// Copies in steps of 64 bytes, and the rest in steps of 32, 16, 8, 4, 2 and 1. What `memcpy` does
/// with a rest, two steps that overlap, would read and write bytes twice.
///
/// # Safety
/// As [`bytes`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn short(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as promised; what is below 64 of the length stands in its low six bits, throughout.
    unsafe {
        core::arch::asm!(
            "sub {n}, 64",
            "jb 3f",
            "2:",
            "movups {x}, [{from}]",
            "movups {y}, [{from} + 16]",
            "movups {z}, [{from} + 32]",
            "movups {w}, [{from} + 48]",
            "movups [{to}], {x}",
            "movups [{to} + 16], {y}",
            "movups [{to} + 32], {z}",
            "movups [{to} + 48], {w}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {n}, 64",
            "jae 2b",
            "3:",
            "test {n:e}, 63",
            "jz 7f",
            "test {n:e}, 32",
            "jz 8f",
            "movups {x}, [{from}]",
            "movups {y}, [{from} + 16]",
            "movups [{to}], {x}",
            "movups [{to} + 16], {y}",
            "add {from}, 32",
            "add {to}, 32",
            "8:",
            "test {n:e}, 16",
            "jz 9f",
            "movups {x}, [{from}]",
            "movups [{to}], {x}",
            "add {from}, 16",
            "add {to}, 16",
            "9:",
            "test {n:e}, 8",
            "jz 4f",
            "mov {a}, [{from}]",
            "mov [{to}], {a}",
            "add {from}, 8",
            "add {to}, 8",
            "4:",
            "test {n:e}, 4",
            "jz 5f",
            "mov {a:e}, [{from}]",
            "mov [{to}], {a:e}",
            "add {from}, 4",
            "add {to}, 4",
            "5:",
            "test {n:e}, 2",
            "jz 6f",
            "mov {a:x}, [{from}]",
            "mov [{to}], {a:x}",
            "add {from}, 2",
            "add {to}, 2",
            "6:",
            "test {n:e}, 1",
            "jz 7f",
            "mov {b}, [{from}]",
            "mov [{to}], {b}",
            "7:",
            n = inout(reg) length => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(reg) _,
            b = out(reg_byte) _,
            x = out(xmm_reg) _,
            y = out(xmm_reg) _,
            z = out(xmm_reg) _,
            w = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Bytes from which on a copy is written past the caches, which it would only empty: where the C
/// library's `memcpy` changes over on machines with a usual share of the last cache.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAST_CACHES: usize = 4 << 20;

/// Copies in steps of 64 bytes, with stores that do not read the target first, and the rest as
/// [`bytes`] does. All of it is done before what comes after, such as a doorbell.
///
/// # Safety
/// As [`bytes`]; at least 128 bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[cold]
unsafe fn past_caches(from: *const u8, to: *mut u8, length: usize) {
    let head = to.align_offset(64).min(length);
    let steps = (length - head) / 64;
    let tail = head + steps * 64;
    // SAFETY: three ranges, one behind the other, of what the caller promises; the stores of the
    // middle one are aligned. SSE2 is part of x86-64.
    unsafe {
        bytes(from, to, head);
        core::arch::asm!(
            "2:",
            "prefetcht0 [{from} + 512]",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movntps [{to}], {a}",
            "movntps [{to} + 16], {b}",
            "movntps [{to} + 32], {c}",
            "movntps [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {steps}",
            "jnz 2b",
            "sfence",
            from = inout(reg) from.add(head) => _,
            to = inout(reg) to.add(head) => _,
            steps = inout(reg) steps => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
        bytes(from.add(tail), to.add(tail), length - tail);
    }
}
