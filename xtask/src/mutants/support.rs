//! Which mutant is active in this process: its number is in `VERBLESS_MUTANT`. If that is `trace`,
//! none is, and the file that `VERBLESS_MUTANT_TRACE` names gets a line for each mutant that is
//! reached. Nothing here allocates: a test that counts allocations may make the first call.
extern crate std;

use core::ffi::{CStr, c_char};
use core::ops::{BitOr, BitXor};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::OnceLock;

/// The number of mutants; the writer of this file sets it.
const COUNT: usize = 0;
const UNKNOWN: u32 = u32::MAX;
const TRACE: u32 = u32::MAX - 1;
const REACHED: u8 = 1;
const OVERLAPPED: u8 = 2;

static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static OBSERVED: [AtomicU8; COUNT + 1] = [const { AtomicU8::new(0) }; COUNT + 1];
static FILE: OnceLock<Option<File>> = OnceLock::new();

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

/// Whether this mutant is active. When the compiler evaluates the call, no mutant is.
#[inline]
pub(crate) const fn active(number: u32) -> bool {
    core::intrinsics::const_eval_select((number,), in_compiler, at_run_time)
}

const fn in_compiler(_: u32) -> bool {
    false
}

#[inline]
fn at_run_time(number: u32) -> bool {
    let active = ACTIVE.load(Ordering::Relaxed);
    active == number || active >= TRACE && is_active(number)
}

/// `left | right`. Notes whether they have a bit in common: if they never do, `^` does the same.
#[inline]
pub(crate) fn or<T>(number: u32, left: T, right: T) -> T
where
    T: Copy + PartialEq + BitOr<Output = T> + BitXor<Output = T>,
{
    let or = left | right;
    if ACTIVE.load(Ordering::Relaxed) >= TRACE && or != left ^ right {
        note(number, OVERLAPPED);
    }
    or
}

#[cold]
fn is_active(number: u32) -> bool {
    if ACTIVE.load(Ordering::Relaxed) == UNKNOWN {
        let text = variable(c"VERBLESS_MUTANT");
        let active = match text {
            b"trace" => TRACE,
            text => core::str::from_utf8(text).ok().and_then(|it| it.parse().ok()).unwrap_or(0),
        };
        ACTIVE.store(active, Ordering::Relaxed);
    }
    note(number, REACHED);
    ACTIVE.load(Ordering::Relaxed) == number
}

#[cold]
fn note(number: u32, what: u8) {
    if ACTIVE.load(Ordering::Relaxed) != TRACE {
        return;
    }
    let noted = &OBSERVED[number as usize];
    if noted.load(Ordering::Relaxed) & what != 0
        || noted.fetch_or(what, Ordering::Relaxed) & what != 0
    {
        return;
    }
    let file = FILE.get_or_init(|| {
        let path = OsStr::from_bytes(variable(c"VERBLESS_MUTANT_TRACE"));
        File::options().append(true).open(path).ok()
    });
    // `r` or `o`, the number, the end of the line: one write, so that processes do not mix lines.
    let mut line = *b"r0000000000\n";
    if what == OVERLAPPED {
        line[0] = b'o';
    }
    let mut rest = number;
    for digit in line[1..11].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if let Some(mut file) = file.as_ref() {
        let _ = file.write_all(&line);
    }
}

fn variable(name: &CStr) -> &'static [u8] {
    // SAFETY: the name is a C string, and the environment's texts outlive the process's threads
    // unless a test changes this variable, which none does.
    let text = unsafe { getenv(name.as_ptr()) };
    if text.is_null() {
        return b"";
    }
    // SAFETY: as above; getenv returns a C string.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}
