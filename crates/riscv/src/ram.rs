//! Memory that harts and other agents use at the same time.
//!
//! RAM is an array of atomic 64-bit words, so that other agents may race with a hart without
//! undefined behaviour. A narrower access goes to its part of a word, as an atomic of its own width
//! ([`Page::cell`]). That and zeroed memory are the only unsafe code of this crate. Rust promises
//! nothing about racing accesses of different widths; the supported processors keep each of them
//! whole, and RISC-V guarantees no more.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of a page: regions of an address space begin and end at multiples of it.
pub const PAGE: u64 = 4096;

const WORDS: usize = PAGE as usize / 8;

#[cfg(not(target_endian = "little"))]
compile_error!("the host must be little-endian, as RISC-V is: words are stored unchanged");

/// One page. Its alignment makes each aligned word of the hart an aligned word of the host. With a
/// larger alignment the allocator would write the zeros instead of taking zeroed pages of the OS.
#[repr(C, align(16))]
struct Page([AtomicU64; WORDS]);

/// An integer that a hart loads or stores with one access.
pub(crate) trait Value: Copy {
    /// The atomic type of the same width.
    type Atomic;
    /// Bytes.
    const SIZE: u64;
    fn load(cell: &Self::Atomic) -> Self;
    fn store(cell: &Self::Atomic, value: Self);
    /// Zero-extends the value.
    fn widen(self) -> u64;
    /// The low bits.
    fn narrow(value: u64) -> Self;
}

macro_rules! values {
    ($($int:ty, $atomic:ty;)*) => {$(
        impl Value for $int {
            type Atomic = $atomic;
            const SIZE: u64 = size_of::<$int>() as u64;
            #[inline(always)]
            fn load(cell: &$atomic) -> Self {
                cell.load(Ordering::Relaxed)
            }
            #[inline(always)]
            fn store(cell: &$atomic, value: Self) {
                cell.store(value, Ordering::Relaxed);
            }
            #[inline(always)]
            fn widen(self) -> u64 {
                self.into()
            }
            #[inline(always)]
            fn narrow(value: u64) -> Self {
                value as Self
            }
        }
    )*};
}

values! {
    u8, AtomicU8;
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

impl Page {
    /// The `V` at byte `at % PAGE` of the page, rounded down to the width of `V`.
    #[inline(always)]
    fn cell<V: Value>(&self, at: u64) -> &V::Atomic {
        let offset = (at & (PAGE - 1) & !(V::SIZE - 1)) as usize;
        // SAFETY: `offset` is a multiple of the width and less than the size of the page, so that
        // the cell lies within the page and is aligned. The page is atomics, whose memory may
        // change behind shared references; every value of its bits is a value of another atomic
        // integer.
        unsafe { &*std::ptr::from_ref(&self.0).cast::<u8>().add(offset).cast::<V::Atomic>() }
    }
}

/// RAM: zero at first, shared by its clones.
#[derive(Clone)]
pub struct Ram {
    pages: Arc<[Page]>,
}

impl std::fmt::Debug for Ram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ram({:#x} bytes)", self.len())
    }
}

impl Ram {
    /// RAM of at least `bytes`, rounded up to whole pages.
    pub fn new(bytes: u64) -> Self {
        let pages = bytes.div_ceil(PAGE) as usize;
        let pages = Arc::<[Page]>::new_zeroed_slice(pages);
        // SAFETY: a page is an array of atomic integers, for which zero bytes are a value.
        Self { pages: unsafe { pages.assume_init() } }
    }

    /// Size in bytes, a multiple of [`PAGE`].
    pub fn len(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Whether the RAM has no bytes.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The address of the memory in this process, for agents that move data by address. Their
    /// accesses must be atomic or allowed to race, and end while a clone of this value lives.
    pub fn as_ptr(&self) -> *const AtomicU64 {
        self.pages.as_ptr().cast()
    }

    /// The `V` at offset `at`, rounded down to its width; `None` beyond the end.
    #[inline(always)]
    pub(crate) fn cell<V: Value>(&self, at: u64) -> Option<&V::Atomic> {
        self.cell_of_page::<V>((at / PAGE) as usize, at)
    }

    /// The `V` at byte `at % PAGE` of page `page`, rounded down to its width.
    #[inline(always)]
    pub(crate) fn cell_of_page<V: Value>(&self, page: usize, at: u64) -> Option<&V::Atomic> {
        Some(self.pages.get(page)?.cell::<V>(at))
    }

    /// Copies the bytes from `at` on into `bytes`; returns false and copies nothing unless the
    /// whole range is inside.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> bool {
        if !self.holds(at, bytes.len()) {
            return false;
        }
        self.by_cell(at, bytes.len(), |at, range, whole| {
            if whole && let Some(word) = self.cell::<u64>(at) {
                bytes[range].copy_from_slice(&u64::load(word).to_le_bytes());
            } else if let Some(byte) = self.cell::<u8>(at) {
                bytes[range.start] = u8::load(byte);
            }
        });
        true
    }

    /// Copies `bytes` to `at`; returns false and copies nothing unless the whole range is inside.
    /// Aligned words are each written with one access.
    pub fn write(&self, at: u64, bytes: &[u8]) -> bool {
        if !self.holds(at, bytes.len()) {
            return false;
        }
        self.by_cell(at, bytes.len(), |at, range, _| {
            if let (Ok(value), Some(word)) = (bytes[range.clone()].try_into(), self.cell::<u64>(at))
            {
                u64::store(word, u64::from_le_bytes(value));
            } else if let Some(byte) = self.cell::<u8>(at) {
                u8::store(byte, bytes[range.start]);
            }
        });
        true
    }

    /// Loads the aligned 32-bit word at `at` with acquire ordering, little-endian as harts see it;
    /// `None` if there is none.
    pub fn load32(&self, at: u64) -> Option<u32> {
        Some(self.aligned::<u32>(at)?.load(Ordering::Acquire))
    }

    /// Stores an aligned 32-bit word with release ordering; false if there is none at `at`.
    pub fn store32(&self, at: u64, value: u32) -> bool {
        self.aligned::<u32>(at).map(|cell| cell.store(value, Ordering::Release)).is_some()
    }

    /// Stores a byte with release ordering; false if there is none at `at`.
    pub fn store8(&self, at: u64, value: u8) -> bool {
        self.aligned::<u8>(at).map(|cell| cell.store(value, Ordering::Release)).is_some()
    }

    /// Compares and exchanges an aligned 64-bit word; returns the old value, or `None` if there is
    /// no such word.
    pub fn compare_exchange64(&self, at: u64, expected: u64, new: u64) -> Option<u64> {
        let (seq, cell) = (Ordering::SeqCst, self.aligned::<u64>(at)?);
        Some(cell.compare_exchange(expected, new, seq, seq).unwrap_or_else(|found| found))
    }

    fn aligned<V: Value>(&self, at: u64) -> Option<&V::Atomic> {
        self.cell::<V>(at).filter(|_| at.is_multiple_of(V::SIZE))
    }

    fn holds(&self, at: u64, length: usize) -> bool {
        at.checked_add(length as u64).is_some_and(|end| end <= self.len())
    }

    /// Calls `each` for all aligned words of a range, and for the single bytes at its ends.
    fn by_cell(
        &self,
        at: u64,
        length: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>, bool),
    ) {
        let mut done = 0;
        while done < length {
            let from = at + done as u64;
            let whole = from.is_multiple_of(8) && length - done >= 8;
            let step = if whole { 8 } else { 1 };
            each(from, done..done + step, whole);
            done += step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back_as_little_endian_words() {
        let ram = Ram::new(1);
        assert_eq!(ram.len(), PAGE);
        assert!(ram.write(5, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]));
        assert_eq!(u64::load(ram.cell::<u64>(8).unwrap()), 0x0b0a_0908_0706_0504);
        assert_eq!(u32::load(ram.cell::<u32>(4).unwrap()), 0x0302_0100);
        assert_eq!(u16::load(ram.cell::<u16>(16).unwrap()), 0x0c);
        u8::store(ram.cell::<u8>(6).unwrap(), 0xff);
        let mut bytes = [0; 12];
        assert!(ram.read(5, &mut bytes));
        assert_eq!(bytes, [1, 0xff, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    }

    #[test]
    fn aligned_words_are_accessed_whole() {
        let ram = Ram::new(PAGE);
        assert!(ram.store32(8, 0x0403_0201) && ram.store8(12, 5));
        assert_eq!(ram.load32(8), Some(0x0403_0201));
        assert_eq!(ram.compare_exchange64(8, 0, 1), Some(0x5_0403_0201));
        assert_eq!(ram.compare_exchange64(8, 0x5_0403_0201, 7), Some(0x5_0403_0201));
        assert_eq!(ram.compare_exchange64(8, 0, 1), Some(7));
        assert_eq!((ram.load32(10), ram.load32(PAGE)), (None, None));
        assert!(!ram.store32(PAGE - 2, 1) && !ram.store8(PAGE, 1));
        assert_eq!(ram.compare_exchange64(4, 0, 1), None);
    }

    #[test]
    fn access_past_end_fails() {
        let ram = Ram::new(PAGE);
        assert!(ram.write(PAGE - 2, &[1, 2]));
        assert!(!ram.write(PAGE - 2, &[7, 7, 7]));
        assert!(!ram.write(u64::MAX, &[7, 7]));
        let mut bytes = [9; 3];
        assert!(!ram.read(PAGE - 2, &mut bytes));
        assert_eq!(bytes, [9; 3]);
        assert!(ram.read(PAGE - 2, &mut bytes[..2]));
        assert_eq!(bytes, [1, 2, 9]);
        assert!(ram.cell::<u8>(PAGE).is_none());
    }
}
