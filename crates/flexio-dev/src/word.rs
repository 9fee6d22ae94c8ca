//! Words in registers: addresses, arguments and results of calls.
#![allow(unsafe_code, reason = "arguments are taken out of the host's buffer")]

use core::ptr::with_exposed_provenance;

/// An address of the process, or one through a window (`flexio_uintptr_t`).
pub type Address = u64;

/// A type that fits a word in a register. Wider words of a host are truncated to the type's width.
pub trait Word {
    /// Makes the value of a word.
    fn from_word(word: u64) -> Self;
    /// The value as a word; signed types are sign-extended.
    fn to_word(self) -> u64;
}

macro_rules! words {
    ($($word:ty),*) => {$(
        impl Word for $word {
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                word as Self
            }

            #[inline(always)]
            fn to_word(self) -> u64 {
                self as u64
            }
        }
    )*};
}

words!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

impl Word for bool {
    fn from_word(word: u64) -> Self {
        word != 0
    }

    fn to_word(self) -> u64 {
        self.into()
    }
}

impl Word for () {
    fn from_word(_: u64) -> Self {}

    fn to_word(self) -> u64 {
        0
    }
}

/// Unpacks the arguments of a call with more than registers hold from the host's buffer, 8 bytes
/// each (`flexio_dev_arg_unpack_func_t`). The entry points of [`rpc`](crate::rpc) call it.
///
/// # Safety
/// `N` words are at `address`, aligned to 8 bytes, and nothing writes them meanwhile.
pub unsafe fn unpack<const N: usize>(address: Address) -> [u64; N] {
    // SAFETY: the caller promises the same.
    unsafe { with_exposed_provenance::<[u64; N]>(address as usize).read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_unpacked_in_order() {
        let packed: [u64; 9] = [9, 8, 7, 6, 5, 4, 3, 2, u64::MAX];
        let address = packed.as_ptr().expose_provenance() as u64;
        // SAFETY: the words are in `packed`.
        assert_eq!(unsafe { unpack::<9>(address) }, packed);
    }

    #[test]
    fn words_round_trip() {
        assert_eq!(i8::from_word((-3_i8).to_word()), -3);
        assert_eq!((-3_i8).to_word(), u64::MAX - 2);
        assert_eq!((u32::from_word(0xffff_ffff_0000_0001), bool::from_word(2)), (1, true));
        assert_eq!(
            [u64::MAX.to_word(), true.to_word(), false.to_word(), ().to_word()],
            [u64::MAX, 1, 0, 0]
        );
    }
}
