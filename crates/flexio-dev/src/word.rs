//! Words in registers: addresses, and what arguments and results of calls are.

/// An address of the process, or one through a window (`flexio_uintptr_t`).
pub type Address = u64;

/// A type that a word in a register holds. Words of other hosts are cut to the type's width.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_as_they_were() {
        assert_eq!(i8::from_word((-3_i8).to_word()), -3);
        assert_eq!((-3_i8).to_word(), u64::MAX - 2);
        assert_eq!((u32::from_word(0xffff_ffff_0000_0001), bool::from_word(2)), (1, true));
        assert_eq!(
            [u64::MAX.to_word(), true.to_word(), false.to_word(), ().to_word()],
            [u64::MAX, 1, 0, 0]
        );
    }
}
