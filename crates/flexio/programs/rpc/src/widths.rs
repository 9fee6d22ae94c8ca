//! A function for each width of an argument and a result.

use verbless_flexio_dev::rpc;

/// A function of one argument for each width; it returns the argument plus one.
macro_rules! next {
    ($($name:ident $word:ident)*) => {$(
        #[rpc]
        fn $name(value: $word) -> $word {
            value.wrapping_add(1)
        }
    )*};
}

next! {
    next_u8 u8 next_u16 u16 next_u32 u32 next_u64 u64 next_usize usize
    next_i8 i8 next_i16 i16 next_i32 i32 next_i64 i64 next_isize isize
}

#[rpc]
fn not(value: bool) -> bool {
    !value
}
