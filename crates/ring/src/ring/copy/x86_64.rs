//! Copies on x86-64: short ones by registers, long ones by `rep movsb` or past the caches.
//!
//! `benches/copies.rs` compares the rates with `memcpy`.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Maximum bytes for which a loop beats the startup of `rep movsb`: with 16-byte registers, and
/// with wider ones.
const MAX_LOOP_BYTES: usize = 1 << 10;
const MAX_AVX_LOOP_BYTES: usize = 16 << 10;
/// Minimum bytes for which wider registers are faster.
const WIDE: usize = 2 * STEP;
/// Bytes per step of the wider registers.
const STEP: usize = 128;
/// Minimum bytes for a copy past the caches: through them, it would evict everything else. The C
/// library's `memcpy` switches here on machines with a usual share of the last-level cache.
const PAST_CACHES: usize = 4 << 20;

/// Copies `length` bytes.
///
/// # Safety
/// As [`super::bytes`].
#[inline]
pub(super) unsafe fn bytes(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as promised, and the registers are the CPU's; the direction flag is clear in Rust
    // code.
    unsafe {
        if length < WIDE {
            short(from, to, length);
            return;
        }
        if length <= MAX_AVX_LOOP_BYTES {
            match registers() {
                Registers::Avx512 => return avx512(from, to, length),
                Registers::Avx => return avx(from, to, length),
                Registers::Sse if length <= MAX_LOOP_BYTES => return short(from, to, length),
                Registers::Sse => {}
            }
        }
        if length >= PAST_CACHES {
            past_caches(from, to, length);
        } else {
            asm!(
                "rep movsb",
                inout("rsi") from => _,
                inout("rdi") to => _,
                inout("rcx") length => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies in steps of 64 bytes, and the rest in steps of 32, 16, 8, 4, 2 and 1. `memcpy` copies a
/// rest by two overlapping steps, which would read and write bytes twice.
///
/// # Safety
/// As [`super::bytes`].
#[inline]
unsafe fn short(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: as promised; the low six bits of `n` are the length modulo 64 throughout.
    unsafe {
        asm!(
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

/// Copies in steps of 128 bytes by 32-byte registers, and the rest as [`short`] does.
///
/// # Safety
/// As [`super::bytes`]; at least 128 bytes, and the CPU has AVX.
#[inline]
unsafe fn avx(from: *const u8, to: *mut u8, length: usize) {
    let (steps, rest) = (length / STEP, length % STEP);
    let (mut from, mut to) = (from, to);
    // SAFETY: as promised. `vzeroupper` keeps the lower halves of all registers; their clobbers
    // cover the upper halves.
    unsafe {
        asm!(
            "2:",
            "vmovups ymm0, [{from}]",
            "vmovups ymm1, [{from} + 32]",
            "vmovups ymm2, [{from} + 64]",
            "vmovups ymm3, [{from} + 96]",
            "add {from}, 128",
            "vmovups [{to}], ymm0",
            "vmovups [{to} + 32], ymm1",
            "vmovups [{to} + 64], ymm2",
            "vmovups [{to} + 96], ymm3",
            "add {to}, 128",
            "dec {steps}",
            "jnz 2b",
            // Without it, later code with 16-byte registers is slow.
            "vzeroupper",
            from = inout(reg) from,
            to = inout(reg) to,
            steps = inout(reg) steps => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
        if rest > 0 {
            short(from, to, rest);
        }
    }
}

/// Copies in steps of 128 bytes by 64-byte registers, and the rest as [`short`] does. Registers 16
/// and above need no `vzeroupper`: instructions with 16-byte registers cannot name them.
///
/// # Safety
/// As [`super::bytes`]; at least 128 bytes, and the CPU has AVX-512.
#[inline]
unsafe fn avx512(from: *const u8, to: *mut u8, length: usize) {
    let (steps, rest) = (length / STEP, length % STEP);
    let (mut from, mut to) = (from, to);
    // SAFETY: as promised.
    unsafe {
        asm!(
            "2:",
            "vmovups zmm16, [{from}]",
            "vmovups zmm17, [{from} + 64]",
            "add {from}, 128",
            "vmovups [{to}], zmm16",
            "vmovups [{to} + 64], zmm17",
            "add {to}, 128",
            "dec {steps}",
            "jnz 2b",
            from = inout(reg) from,
            to = inout(reg) to,
            steps = inout(reg) steps => _,
            out("xmm16") _, out("xmm17") _,
            options(nostack),
        );
        if rest > 0 {
            short(from, to, rest);
        }
    }
}

/// The widest registers with which copies are fast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum Registers {
    Sse = 1,
    Avx,
    /// Only on CPUs with AVX512_VBMI (Intel from Ice Lake, AMD from Zen 4): earlier ones lower
    /// their frequency for 64-byte registers.
    Avx512,
}

/// The CPU's registers. CPUID is slow in a virtual machine, so it runs only once.
#[inline]
fn registers() -> Registers {
    static CACHED: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const AVX: u8 = Registers::Avx as u8;
    const AVX512: u8 = Registers::Avx512 as u8;
    match CACHED.load(Relaxed) {
        UNKNOWN => {
            let found = detect();
            CACHED.store(found as u8, Relaxed);
            found
        }
        AVX512 => Registers::Avx512,
        AVX => Registers::Avx,
        _ => Registers::Sse,
    }
}

/// Asks the CPU. Intel's manual, volume 1, 14.3 and 15.2: the instructions, and an operating system
/// that saves their registers.
#[cold]
fn detect() -> Registers {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    /// In EBX of leaf 7.
    const AVX512F: u32 = 1 << 16;
    /// In ECX of leaf 7.
    const AVX512_VBMI: u32 = 1 << 1;
    const SSE_AND_AVX_STATE: u32 = 1 << 1 | 1 << 2;
    const AVX512_STATE: u32 = SSE_AND_AVX_STATE | 1 << 5 | 1 << 6 | 1 << 7;
    if __cpuid(1).ecx & OSXSAVE_AND_AVX != OSXSAVE_AND_AVX {
        return Registers::Sse;
    }
    let saved: u32;
    // SAFETY: with OSXSAVE the CPU has this instruction; it reads a register.
    unsafe {
        asm!(
            "xgetbv",
            in("ecx") 0,
            out("eax") saved,
            out("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    if saved & SSE_AND_AVX_STATE != SSE_AND_AVX_STATE {
        return Registers::Sse;
    }
    if saved & AVX512_STATE != AVX512_STATE || __cpuid(0).eax < 7 {
        return Registers::Avx;
    }
    let features = __cpuid_count(7, 0);
    if features.ebx & AVX512F != 0 && features.ecx & AVX512_VBMI != 0 {
        Registers::Avx512
    } else {
        Registers::Avx
    }
}

/// Copies in steps of 64 bytes with non-temporal stores, and the rest as [`bytes`] does. The stores
/// are visible before later ones, such as a doorbell.
///
/// # Safety
/// As [`super::bytes`]; at least 128 bytes.
#[cold]
unsafe fn past_caches(from: *const u8, to: *mut u8, length: usize) {
    let head = to.align_offset(64).min(length);
    let steps = (length - head) / 64;
    let tail = head + steps * 64;
    // SAFETY: the caller promises the whole of three adjacent ranges; the stores of the middle one
    // are aligned. SSE2 is part of x86-64.
    unsafe {
        bytes(from, to, head);
        asm!(
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

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// Every copy function, with lengths that it permits.
    fn copy_functions() -> Vec<(&'static str, Copy, Vec<usize>)> {
        let up_to_short = (0..=300).chain([1023, 1024]).collect();
        let from_a_step: Vec<usize> = (STEP..=600).chain([1024, 4096, 16383, 16384]).collect();
        let any = (0..=300).chain([1023, 1025, 8191, 16384, 16385, 65537]).collect();
        let mut copy_functions =
            vec![("short", short as Copy, up_to_short), ("any", bytes as Copy, any)];
        if registers() >= Registers::Avx {
            copy_functions.push(("avx", avx as Copy, from_a_step.clone()));
        }
        if registers() >= Registers::Avx512 {
            copy_functions.push(("avx512", avx512 as Copy, from_a_step));
        }
        copy_functions
    }

    #[test]
    fn all_copy_variants_are_exact() {
        for (name, copy, lengths) in copy_functions() {
            for length in lengths {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (16, 31), (33, 64)] {
                    let source: Vec<u8> = (0..from + length).map(|at| (at % 251) as u8).collect();
                    let mut target = vec![0xee; to + length + 40];
                    // SAFETY: both have the length, and only this test accesses them.
                    unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), length) };
                    let whole = target[to..to + length] == source[from..];
                    assert!(whole, "{name}: {length} bytes, from {from} to {to}");
                    let others = target[..to].iter().chain(&target[to + length..]);
                    assert!(others.copied().all(|it| it == 0xee), "{name}: {length} bytes");
                }
            }
        }
    }

    #[test]
    fn registers_match_std_detection() {
        use std::is_x86_feature_detected as has;
        let expected = if has!("avx512f") && has!("avx512vbmi") {
            Registers::Avx512
        } else if has!("avx") {
            Registers::Avx
        } else {
            Registers::Sse
        };
        assert_eq!(registers(), expected);
        assert_eq!(registers(), expected, "the cached answer");
    }
}
