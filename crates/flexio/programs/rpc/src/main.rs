//! Functions with arguments and results of every width, and one for the background: the device side
//! of the example `rpc`.

#![no_std]
#![no_main]

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU64, Ordering};

use verbless_flexio_dev::{program, rpc, system};

program!();

/// A function of one argument for each width, which returns what is one more.
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

/// Eight arguments, as many as there may be: their sum.
#[rpc]
fn sum(a: i8, b: u8, c: i16, d: u16, e: i32, f: u32, g: i64, h: bool) -> i64 {
    i64::from(a)
        + i64::from(b)
        + i64::from(c)
        + i64::from(d)
        + i64::from(e)
        + i64::from(f)
        + g
        + i64::from(h)
}

static CALLS: AtomicU64 = AtomicU64::new(0);

#[rpc]
fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

#[rpc]
fn reset() {
    CALLS.store(0, Ordering::Relaxed);
}

/// Makes of the number at `at` its square, and lets others go on meanwhile.
#[rpc]
fn square(at: u64) {
    // SAFETY: the host gives addresses of words in the heap, a different one to each call.
    let word: &AtomicU64 = unsafe { &*with_exposed_provenance(at as usize) };
    let value = word.load(Ordering::Relaxed);
    system::pause();
    word.store(value.wrapping_mul(value), Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
}
