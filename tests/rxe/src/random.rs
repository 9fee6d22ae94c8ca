//! The bytes that perftest fills its memory with: the lowest eight bits of the numbers of glibc's
//! `rand`, one after the other.
//!
//! Each number is the sum of the one 31 before it and the one 3 before it, in 32 bits, and `rand`
//! returns its upper 31 bits: so a byte is the sum of those two bytes, or one more.

const FAR_LAG: usize = 31;
const NEAR_LAG: usize = 3;

/// The first offset at which `bytes`, a part of such memory, differ, if any.
pub(crate) fn first_mismatch(bytes: &[u8]) -> Option<usize> {
    (FAR_LAG..bytes.len()).find(|&at| {
        let sum = bytes[at - FAR_LAG].wrapping_add(bytes[at - NEAR_LAG]);
        !matches!(bytes[at].wrapping_sub(sum), 0 | 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From srand(1) on, the first numbers: 1804289383, 846930886, 1681692777, …
    fn glibc(count: usize) -> Vec<u8> {
        let mut state: Vec<u32> = vec![1];
        for at in 1..31 {
            let next = 16807 * i64::from(state[at - 1] as i32) % 0x7fff_ffff;
            state.push(if next < 0 { next + 0x7fff_ffff } else { next } as u32);
        }
        for at in 31..34 {
            state.push(state[at - 31]);
        }
        for at in 34..344 + count {
            state.push(state[at - 31].wrapping_add(state[at - 3]));
        }
        state[344..].iter().map(|number| (number >> 1) as u8).collect()
    }

    #[test]
    fn glibc_rand_numbers_are_reproduced() {
        let bytes = glibc(5000);
        assert_eq!(bytes[..3], [1_804_289_383_u32, 846_930_886, 1_681_692_777].map(|it| it as u8));
        assert_eq!(first_mismatch(&bytes), None);
        assert_eq!(first_mismatch(&bytes[100..]), None, "from anywhere on");
    }

    #[test]
    fn misplaced_or_missing_packet_is_found() {
        let bytes = glibc(4096);
        let mut swapped = bytes.clone();
        swapped[..2048].rotate_left(1024);
        assert!(first_mismatch(&swapped).is_some());
        let mut missing = bytes.clone();
        missing[1024..2048].fill(0xa5);
        assert!(matches!(first_mismatch(&missing), Some(1024..1100)));
        assert!(first_mismatch(&[0xa5; 64]).is_some());
    }
}
