//! Memory that somebody else may change at any time: reached by copies and atomics, never by reference.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A range that is not inside the memory it was meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// First byte of the range.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes that there are.
    pub size: u64,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {:#x} of {:#x} bytes", self.length, self.offset, self.size)
    }
}

impl std::error::Error for OutOfBounds {}

/// A range of memory that the device, a peer or another thread may read and write while we do.
///
/// A clone, or a [`SharedMemory::slice`], is another handle to the same bytes; the memory lives as long as any of them.
/// A copy that races with a writer returns each byte old or new.
#[derive(Clone)]
pub struct SharedMemory {
    base: NonNull<u8>,
    length: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are only reached through atomics, and the owner keeps them alive from any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMemory {}

/// A page of atomics, so that a reference to it never claims that the bytes stand still.
#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);

impl SharedMemory {
    /// The granularity of [`SharedMemory::zeroed`], in bytes.
    pub const PAGE: usize = 4096;

    /// Fresh zeroed memory of at least `length` bytes, aligned to and rounded up to whole pages (at least one).
    pub fn zeroed(length: usize) -> Self {
        let pages = length.div_ceil(Self::PAGE).max(1);
        let memory: Arc<[Page]> =
            std::iter::repeat_with(|| Page([const { AtomicU64::new(0) }; 512]))
                .take(pages)
                .collect();
        let base = NonNull::from(&*memory).cast();
        // `Arc<[Page]>` is not `Any`, being unsized: an Arc around it is.
        Self { base, length: pages * Self::PAGE, owner: Arc::new(memory) }
    }

    /// Memory that `owner` keeps mapped.
    ///
    /// # Safety
    /// For as long as `owner` lives, `length` bytes from `base` are mapped readable and writable, and no Rust
    /// reference to any of them is used, other than to atomics or through `UnsafeCell`.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        length: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { base, length, owner }
    }

    /// `length` bytes from `offset` on, as a handle of its own.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self, OutOfBounds> {
        self.check(offset, length)?;
        // SAFETY: `offset` is inside the memory, or just behind it.
        let base = unsafe { self.base.add(offset) };
        Ok(Self { base, length, owner: self.owner.clone() })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies `bytes` in, from `offset` on.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: checked above.
        let to = unsafe { self.base.add(offset) };
        let head = to.align_offset(8).min(bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (words, last) = rest.as_chunks::<8>();
        // SAFETY: the three pieces cover the checked range; the middle one starts at a multiple of 8.
        unsafe {
            for (i, &byte) in first.iter().enumerate() {
                AtomicU8::from_ptr(to.add(i).as_ptr()).store(byte, Relaxed);
            }
            for (i, &word) in words.iter().enumerate() {
                let word_at = to.add(head + 8 * i).cast();
                AtomicU64::from_ptr(word_at.as_ptr()).store(u64::from_ne_bytes(word), Relaxed);
            }
            for (i, &byte) in last.iter().enumerate() {
                AtomicU8::from_ptr(to.add(head + 8 * words.len() + i).as_ptr())
                    .store(byte, Relaxed);
            }
        }
        Ok(())
    }

    /// Copies out from `offset` on, as many bytes as `into` takes.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, into.len())?;
        // SAFETY: checked above.
        let from = unsafe { self.base.add(offset) };
        let head = from.align_offset(8).min(into.len());
        let (first, rest) = into.split_at_mut(head);
        let (words, last) = rest.as_chunks_mut::<8>();
        let middle = 8 * words.len();
        // SAFETY: the three pieces cover the checked range; the middle one starts at a multiple of 8.
        unsafe {
            for (i, byte) in first.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(from.add(i).as_ptr()).load(Relaxed);
            }
            for (i, word) in words.iter_mut().enumerate() {
                let word_at = from.add(head + 8 * i).cast();
                *word = AtomicU64::from_ptr(word_at.as_ptr()).load(Relaxed).to_ne_bytes();
            }
            for (i, byte) in last.iter_mut().enumerate() {
                *byte = AtomicU8::from_ptr(from.add(head + middle + i).as_ptr()).load(Relaxed);
            }
        }
        Ok(())
    }

    /// Sets every byte to `byte`.
    pub fn fill(&self, byte: u8) {
        for offset in 0..self.length {
            // SAFETY: `offset` is inside the memory.
            unsafe { AtomicU8::from_ptr(self.base.add(offset).as_ptr()) }.store(byte, Relaxed);
        }
    }

    /// The aligned 32-bit word at `offset`, as it stands in memory.
    pub fn load32(&self, offset: usize) -> Result<u32, OutOfBounds> {
        self.check_aligned(offset, 4)?;
        // SAFETY: inside the memory and aligned.
        Ok(unsafe { AtomicU32::from_ptr(self.base.add(offset).cast().as_ptr()) }.load(Relaxed))
    }

    /// The same bytes, which then keep `owner` alive as well.
    pub(crate) fn held_with(&self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base: self.base, length: self.length, owner: Arc::new((owner, self.owner.clone())) }
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBounds> {
        if offset <= self.length && length <= self.length - offset {
            Ok(())
        } else {
            Err(OutOfBounds {
                offset: offset as u64,
                length: length as u64,
                size: self.length as u64,
            })
        }
    }

    fn check_aligned(&self, offset: usize, length: usize) -> Result<(), OutOfBounds> {
        self.check(offset, length)?;
        if (self.address() as usize + offset).is_multiple_of(length) {
            Ok(())
        } else {
            Err(OutOfBounds {
                offset: offset as u64,
                length: length as u64,
                size: self.length as u64,
            })
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({:#x} bytes at {:p})", self.length, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_alignment_come_back_and_touch_nothing_else() {
        let memory = SharedMemory::zeroed(1);
        for offset in 0..17 {
            for length in 0..40 {
                memory.fill(0xa5);
                let bytes: Vec<u8> = (1..=length as u8).collect();
                memory.write_at(offset, &bytes).unwrap();
                let mut all = [0; 64];
                memory.read_at(0, &mut all).unwrap();
                assert!(all[..offset].iter().all(|&b| b == 0xa5));
                assert_eq!(&all[offset..offset + length], bytes);
                assert!(all[offset + length..].iter().all(|&b| b == 0xa5));
                let mut back = vec![0; length];
                memory.read_at(offset, &mut back).unwrap();
                assert_eq!(back, bytes);
            }
        }
    }

    #[test]
    fn a_range_past_the_end_is_refused_even_when_it_overflows() {
        let memory = SharedMemory::zeroed(4096);
        assert!(memory.write_at(4096, &[]).is_ok());
        assert!(memory.write_at(4096, &[0]).is_err());
        assert!(memory.read_at(usize::MAX, &mut [0; 2]).is_err());
        assert!(memory.slice(1, usize::MAX).is_err());
        assert!(memory.slice(4000, 96).unwrap().write_at(90, &[0; 7]).is_err());
        assert!(memory.load32(2).is_err());
    }

    #[test]
    fn a_slice_keeps_the_memory_alive() {
        let memory = SharedMemory::zeroed(4096);
        let slice = memory.slice(8, 8).unwrap();
        memory.write_at(8, b"verbless").unwrap();
        drop(memory);
        let mut back = [0; 8];
        slice.read_at(0, &mut back).unwrap();
        assert_eq!(&back, b"verbless");
    }
}
