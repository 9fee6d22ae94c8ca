//! Bit fields in big-endian bytes: bit 0 is the most significant bit of the first byte.
//!
//! With this numbering a field is one run of bits, even across dwords, and a 64-bit field is
//! big-endian as a whole. With constant offsets, the inlined functions compile to a load, a byte
//! swap and a mask.

/// The `width` bits (1 to 64) from bit `offset`. Panics if they are not all within `bytes`.
#[inline(always)]
pub const fn get(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let (dword, bit) = (offset / 32 * 4, offset % 32);
    if bit + width <= 32 && dword + 4 <= bytes.len() {
        let word = u32::from_be_bytes(*array(bytes, dword));
        ((word >> (32 - bit - width)) as u64) & mask(width)
    } else if bit == 0 && width == 64 {
        u64::from_be_bytes(*array(bytes, dword))
    } else {
        get_by_byte(bytes, offset, width)
    }
}

/// Sets the `width` bits (1 to 64) from bit `offset` to `value`; other bits stay.
///
/// If the value does not fit, debug builds panic and release builds truncate it. Panics if the bits
/// are not all within `bytes`.
#[inline(always)]
pub const fn set(bytes: &mut [u8], offset: usize, width: usize, value: u64) {
    debug_assert!(value & !mask(width) == 0, "the value does not fit its field");
    set_truncated(bytes, offset, width, value);
}

/// Sets the bits to the lowest `width` bits of `value`.
#[inline(always)]
const fn set_truncated(bytes: &mut [u8], offset: usize, width: usize, value: u64) {
    let value = value & mask(width);
    let (dword, bit) = (offset / 32 * 4, offset % 32);
    if bit + width <= 32 && dword + 4 <= bytes.len() {
        let shift = 32 - bit - width;
        let place = array_mut(bytes, dword);
        let others = u32::from_be_bytes(*place) & !((mask(width) as u32) << shift);
        *place = (others | (value as u32) << shift).to_be_bytes();
    } else if bit == 0 && width == 64 {
        *array_mut(bytes, dword) = value.to_be_bytes();
    } else {
        set_by_byte(bytes, offset, width, value);
    }
}

/// Whether the bit at `offset` is set.
#[inline(always)]
pub const fn flag(bytes: &[u8], offset: usize) -> bool {
    bytes[offset / 8] & (0x80 >> (offset % 8)) != 0
}

/// Sets the bit at `offset` to `value`.
#[inline(always)]
pub const fn set_flag(bytes: &mut [u8], offset: usize, value: bool) {
    let bit = 0x80 >> (offset % 8);
    let old = bytes[offset / 8];
    bytes[offset / 8] = if value { old | bit } else { old & !bit };
}

/// The `N` bytes from byte `at`. Panics if they are not all within `bytes`.
#[inline(always)]
pub const fn array<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    match bytes.split_at(at).1.first_chunk() {
        Some(array) => array,
        None => panic!("the field is not within the structure"),
    }
}

/// The `N` bytes from byte `at`, mutable. Panics if they are not all within `bytes`.
#[inline(always)]
pub const fn array_mut<const N: usize>(bytes: &mut [u8], at: usize) -> &mut [u8; N] {
    match bytes.split_at_mut(at).1.first_chunk_mut() {
        Some(array) => array,
        None => panic!("the field is not within the structure"),
    }
}

/// The first bit of element `index` of an array. Panics if `index` is not less than `count`.
#[inline(always)]
pub const fn element(offset: usize, width: usize, count: usize, index: usize) -> usize {
    assert!(index < count, "the index is beyond the array");
    offset + index * width
}

/// Functions that fit a value to `WIDTH` bits: too large a value panics or is truncated.
#[cfg(feature = "structures")]
macro_rules! fit {
    ($($name:ident: $number:ident),*) => {$(
        /// `value` in `WIDTH` bits. If it has more, debug builds panic and release builds truncate.
        #[inline(always)]
        #[track_caller]
        pub(crate) const fn $name<const WIDTH: u32>(value: $number) -> $number {
            debug_assert!(value >> WIDTH == 0, "the value does not fit its field");
            value & ($number::MAX >> ($number::BITS - WIDTH))
        }
    )*};
}

#[cfg(feature = "structures")]
fit! { fit_u8: u8, fit_u16: u16, fit_u32: u32 }

const fn mask(width: usize) -> u64 {
    u64::MAX >> (64 - width)
}

const fn get_by_byte(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let (mut at, end, mut value) = (offset, offset + width, 0);
    while at < end {
        let in_byte = at % 8;
        let rest = end - at;
        let take = if rest < 8 - in_byte { rest } else { 8 - in_byte };
        let part = (bytes[at / 8] >> (8 - in_byte - take)) as u64 & mask(take);
        value = value << take | part;
        at += take;
    }
    value
}

const fn set_by_byte(bytes: &mut [u8], offset: usize, width: usize, value: u64) {
    let (mut at, end) = (offset, offset + width);
    while at < end {
        let in_byte = at % 8;
        let rest = end - at;
        let take = if rest < 8 - in_byte { rest } else { 8 - in_byte };
        let shift = 8 - in_byte - take;
        let part = (value >> (rest - take) & mask(take)) as u8;
        bytes[at / 8] = bytes[at / 8] & !((mask(take) as u8) << shift) | part << shift;
        at += take;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that `get` must return, computed bit by bit.
    fn plain(bytes: &[u8], offset: usize, width: usize) -> u64 {
        (offset..offset + width).fold(0, |value, bit| value << 1 | u64::from(flag(bytes, bit)))
    }

    #[test]
    fn get_reads_any_bit_range() {
        let bytes: [u8; 18] = core::array::from_fn(|i| (i as u8).wrapping_mul(0x9d) ^ 0x5a);
        for width in 1..=64 {
            for offset in 0..=bytes.len() * 8 - width {
                assert_eq!(
                    get(&bytes, offset, width),
                    plain(&bytes, offset, width),
                    "{width} bits at {offset}"
                );
            }
        }
    }

    #[test]
    fn set_writes_range_and_preserves_neighbours() {
        for width in 1..=64 {
            for offset in 0..=18 * 8 - width {
                for fill in [0x00, 0xff, 0xa5] {
                    let value = 0x9e37_79b9_7f4a_7c15 >> (64 - width);
                    let mut bytes = [fill; 18];
                    set(&mut bytes, offset, width, value);
                    assert_eq!(get(&bytes, offset, width), value);
                    for bit in (0..offset).chain(offset + width..18 * 8) {
                        assert_eq!(flag(&bytes, bit), flag(&[fill; 18], bit));
                    }
                }
            }
        }
    }

    #[test]
    fn field_of_64_bits_is_big_endian() {
        let mut bytes = [0; 12];
        set(&mut bytes, 32, 64, 0x0102_0304_0506_0708);
        assert_eq!(bytes, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn field_in_partial_dword_reads_and_writes() {
        let mut bytes = [0xa5; 2];
        set(&mut bytes, 4, 12, 0x123);
        assert_eq!(bytes, [0xa1, 0x23]);
        assert_eq!(get(&bytes, 4, 12), 0x123);
    }

    #[test]
    fn truncated_value_preserves_neighbours() {
        for (offset, width) in [(0, 3), (4, 12), (29, 3), (32, 32), (37, 9), (60, 40), (64, 64)] {
            let (mut bytes, mut fitting) = ([0xa5; 18], [0xa5; 18]);
            set_truncated(&mut bytes, offset, width, 0x9e37_79b9_7f4a_7c15);
            set(&mut fitting, offset, width, 0x9e37_79b9_7f4a_7c15 & mask(width));
            assert_eq!(bytes, fitting, "{width} bits at {offset}");
        }
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "does not fit"))]
    fn oversized_value_panics_in_debug_builds_only() {
        let mut bytes = [0xff; 4];
        set(&mut bytes, 0, 3, 8);
        assert_eq!(bytes, [0x1f, 0xff, 0xff, 0xff]);
    }
}
