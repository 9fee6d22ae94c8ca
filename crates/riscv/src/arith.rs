//! Multiplication and division with the results that RISC-V defines for zero and for overflow.
//!
//! Source: The RISC-V Instruction Set Manual, volume I, version 20240411, chapter 13, table 11.

/// Sign-extends 32 bits to 64.
#[inline(always)]
pub(crate) fn extend(value: u32) -> u64 {
    value as i32 as u64
}

#[inline(always)]
pub(crate) fn mulh(a: u64, b: u64) -> u64 {
    ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
}

#[inline(always)]
pub(crate) fn mulhsu(a: u64, b: u64) -> u64 {
    ((i128::from(a as i64) * i128::from(b)) >> 64) as u64
}

#[inline(always)]
pub(crate) fn mulhu(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// Signed division: all ones if the divisor is 0; the dividend on overflow.
#[inline(always)]
pub(crate) fn div(a: u64, b: u64) -> u64 {
    if b == 0 { u64::MAX } else { (a as i64).wrapping_div(b as i64) as u64 }
}

/// Unsigned division: all ones if the divisor is 0.
#[inline(always)]
pub(crate) fn divu(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(u64::MAX)
}

/// Signed remainder: the dividend if the divisor is 0; 0 on overflow.
#[inline(always)]
pub(crate) fn rem(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
}

/// Unsigned remainder: the dividend if the divisor is 0.
#[inline(always)]
pub(crate) fn remu(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

#[inline(always)]
pub(crate) fn divw(a: u64, b: u64) -> u64 {
    let (a, b) = (a as i32, b as i32);
    if b == 0 { u64::MAX } else { a.wrapping_div(b) as u64 }
}

#[inline(always)]
pub(crate) fn divuw(a: u64, b: u64) -> u64 {
    extend((a as u32).checked_div(b as u32).unwrap_or(u32::MAX))
}

#[inline(always)]
pub(crate) fn remw(a: u64, b: u64) -> u64 {
    let (a, b) = (a as i32, b as i32);
    if b == 0 { a as u64 } else { a.wrapping_rem(b) as u64 }
}

#[inline(always)]
pub(crate) fn remuw(a: u64, b: u64) -> u64 {
    extend((a as u32).checked_rem(b as u32).unwrap_or(a as u32))
}
