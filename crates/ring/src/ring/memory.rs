//! Memory that the device or a peer may change at any time: copies and atomics access it, never
//! references.

use alloc::sync::Arc;
use core::any::Any;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::{fmt, slice};

use super::copy;

/// A range that is not inside its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u64,
    /// Size of the memory in bytes.
    pub size: u64,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at offset {:#x} exceed the memory, which has {:#x} bytes",
            self.length, self.offset, self.size
        )
    }
}

impl core::error::Error for OutOfBounds {}

/// A range of memory that the device, a peer or another thread may read and write while we do.
///
/// A clone, or a [`SharedMemory::slice`], is another handle to the same bytes; the memory lives as
/// long as any of them. A copy that races with a writer returns each byte old or new: to the
/// language it is an atomic access to each byte, whatever the alignment of the two. Words of a ring
/// or a record are atomics of their own size, and no copy may race with them: a queue is built over
/// [`RingMemory`](super::RingMemory) instead.
#[derive(Clone)]
pub struct SharedMemory {
    base: NonNull<u8>,
    length: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the bytes are only accessed through atomics, and the owner keeps them alive from any
// thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMemory {}

/// A page of atomics, so a reference to it never claims that the bytes do not change.
#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);

impl SharedMemory {
    /// The granularity of [`SharedMemory::zeroed`], in bytes.
    pub const PAGE: usize = 4096;

    /// Fresh zeroed memory of at least `length` bytes, aligned to and rounded up to whole pages (at
    /// least one).
    pub fn zeroed(length: usize) -> Self {
        let pages = length.div_ceil(Self::PAGE).max(1);
        let memory: Arc<[Page]> =
            core::iter::repeat_with(|| Page([const { AtomicU64::new(0) }; 512]))
                .take(pages)
                .collect();
        let base = NonNull::from(&*memory).cast();
        // `[Page]` is unsized, so not `Any`: an `Arc` around its `Arc` is.
        Self { base, length: pages * Self::PAGE, owner: Arc::new(memory) }
    }

    /// Memory that `owner` keeps mapped.
    ///
    /// # Safety
    /// For as long as `owner` lives, `length` bytes from `base` are mapped readable and writable,
    /// and no Rust reference to any of them is used, other than to atomics or through `UnsafeCell`.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        length: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { base, length, owner }
    }

    /// A handle to `length` bytes from `offset` on.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self, OutOfBounds> {
        self.check(offset, length)?;
        // SAFETY: `offset` is inside the memory, or at its end.
        let base = unsafe { self.base.add(offset) };
        Ok(Self { base, length, owner: self.owner.clone() })
    }

    /// A handle to the same bytes that keeps `guard` alive. `guard` is dropped with the last clone
    /// of this handle, after the owner of the mapping.
    pub fn guarded(&self, guard: impl Any + Send + Sync) -> Self {
        let owner = Arc::new((self.owner.clone(), guard));
        Self { base: self.base, length: self.length, owner }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
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

    /// The owner of the mapping.
    pub(super) fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.owner.clone()
    }

    /// The first byte, for code that keeps the rules of this memory itself: atomics, volatile
    /// accesses or copies that may race, within [`SharedMemory::len`] bytes, while a handle lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The memory as 64-bit words in host byte order, from its first byte on, without a rest of
    /// less than 8 bytes. Memory that does not begin at a multiple of 8 has none.
    ///
    /// The device and a peer may change them at any time, each aligned word as a whole.
    ///
    /// # Safety
    /// While the words are used, no access of another size reaches the same bytes at the same time:
    /// no copy, and no view in bytes, through this handle or another one.
    pub unsafe fn words(&self) -> &[AtomicU64] {
        let base = self.base.cast::<AtomicU64>();
        if !base.is_aligned() {
            return &[];
        }
        // SAFETY: aligned, and inside the memory, which the owner keeps mapped as long as this
        // handle. All references to it are to atomics, and the device's accesses have the effect
        // of atomic accesses. The caller keeps accesses of other sizes away.
        unsafe { slice::from_raw_parts(base.as_ptr(), self.length / 8) }
    }

    /// The memory in place as bytes, whatever its alignment. The device, a peer and copies may
    /// change each byte at any time.
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: inside the memory, as in `words`; a copy is an atomic access to each byte.
        unsafe { slice::from_raw_parts(self.base.cast::<AtomicU8>().as_ptr(), self.length) }
    }

    /// Copies `bytes` to the memory from `offset` on.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range is checked; `bytes` does not overlap it, as no slice borrows this
        // memory.
        unsafe { copy::bytes(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        Ok(())
    }

    /// Fills `into` with the bytes from `offset` on.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, into.len())?;
        // SAFETY: as in `write_at`.
        unsafe { copy::bytes(self.base.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Sets every byte to `byte`.
    pub fn fill(&self, byte: u8) {
        let bytes = [byte; 256];
        let mut offset = 0;
        while offset < self.length {
            let length = bytes.len().min(self.length - offset);
            // SAFETY: inside the memory.
            unsafe { copy::bytes(bytes.as_ptr(), self.base.as_ptr().add(offset), length) };
            offset += length;
        }
    }

    /// The aligned 32-bit word at `offset`, in memory order.
    pub fn load32(&self, offset: usize) -> Result<u32, OutOfBounds> {
        self.check_aligned(offset, 4)?;
        // SAFETY: inside the memory and aligned.
        Ok(unsafe { AtomicU32::from_ptr(self.base.add(offset).cast().as_ptr()) }.load(Relaxed))
    }

    /// A handle to the same bytes that keeps `owner` alive as well.
    pub fn held_with(&self, owner: Arc<dyn Any + Send + Sync>) -> Self {
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
    use std::vec;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn copies_of_any_alignment_are_exact() {
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

    /// Copies race on several threads: every byte is one that some writer wrote there.
    #[test]
    fn concurrent_copies_never_tear_bytes() {
        const ROUNDS: usize = if cfg!(miri) { 4 } else { 2000 };
        let memory = SharedMemory::zeroed(4096);
        std::thread::scope(|scope| {
            for (writer, offset) in [(1u8, 0), (2, 3), (4, 9)] {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        memory.write_at(offset + round % 5, &[writer; 200]).unwrap();
                    }
                });
            }
            for offset in [0, 1, 6] {
                let memory = &memory;
                scope.spawn(move || {
                    let mut found = [0; 230];
                    for _ in 0..ROUNDS {
                        memory.read_at(offset, &mut found).unwrap();
                        assert!(found.iter().all(|byte| [0, 1, 2, 4].contains(byte)));
                    }
                });
            }
        });
    }

    #[test]
    fn fill_covers_whole_slice_only() {
        let memory = SharedMemory::zeroed(4096);
        for length in [0, 1, 255, 256, 257, 300, 1024] {
            memory.fill(0);
            let part = memory.slice(8, length).unwrap();
            assert_eq!(part.is_empty(), length == 0);
            part.fill(0x5a);
            let mut bytes = [0; 2048];
            memory.read_at(0, &mut bytes).unwrap();
            for (at, byte) in bytes.into_iter().enumerate() {
                let inside = (8..8 + length).contains(&at);
                assert_eq!(byte, if inside { 0x5a } else { 0 }, "{length} bytes: byte {at}");
            }
        }
    }

    #[test]
    fn out_of_bounds_or_overflowing_range_is_rejected() {
        let memory = SharedMemory::zeroed(4096);
        assert!(memory.write_at(4096, &[]).is_ok());
        assert!(memory.write_at(4096, &[0]).is_err());
        assert!(memory.read_at(usize::MAX, &mut [0; 2]).is_err());
        assert!(memory.slice(1, usize::MAX).is_err());
        assert!(memory.slice(4000, 96).unwrap().write_at(90, &[0; 7]).is_err());
        assert!(memory.load32(2).is_err());
        // The address counts, not the offset.
        let odd = memory.slice(1, 8).unwrap();
        assert!(odd.load32(3).is_ok() && odd.load32(1).is_err() && odd.load32(4).is_err());
    }

    #[test]
    fn words_are_whole_aligned_u64s_of_slice() {
        let memory = SharedMemory::zeroed(4096);
        let part = memory.slice(8, 30).unwrap();
        // SAFETY: this test has one thread.
        let count = |part: SharedMemory| unsafe { part.words().len() };
        assert_eq!(count(part.clone()), 3);
        // SAFETY: as above.
        let words = unsafe { part.words() };
        words[2].store(0x0102_0304_0506_0708, Relaxed);
        let mut bytes = [0; 8];
        memory.read_at(8 + 16, &mut bytes).unwrap();
        assert_eq!(bytes, 0x0102_0304_0506_0708u64.to_ne_bytes());
        assert_eq!(count(memory.slice(4, 64).unwrap()), 0);
        assert_eq!(count(memory.slice(4096, 0).unwrap()), 0);
    }

    /// Long enough for the copy past the caches.
    #[test]
    fn long_copies_of_any_alignment_are_exact() {
        let length = if cfg!(miri) { 4096 } else { (4 << 20) + 4096 };
        let memory = SharedMemory::zeroed(length + 256);
        let bytes: Vec<u8> = (0..length + 64).map(|at| (at * 7 + (at >> 8)) as u8).collect();
        for (from, to, cut) in [(0, 0, 0), (1, 0, 1), (0, 3, 63), (7, 16, 64), (5, 63, 129)] {
            memory.fill(0xa5);
            let bytes = &bytes[from..from + length - cut];
            memory.write_at(to, bytes).unwrap();
            let mut back = vec![0; bytes.len() + 2 * 64];
            memory.read_at(to.saturating_sub(64), &mut back).unwrap();
            let begin = to.min(64);
            assert!(back[..begin].iter().all(|&byte| byte == 0xa5), "in front of {to}");
            assert!(&back[begin..begin + bytes.len()] == bytes, "from {from} to {to} less {cut}");
            let rest = &back[begin + bytes.len()..];
            assert!(rest.iter().all(|&byte| byte == 0xa5), "behind {to} less {cut}");
        }
    }

    #[test]
    fn slice_keeps_memory_alive() {
        let memory = SharedMemory::zeroed(4096);
        let slice = memory.slice(8, 8).unwrap();
        memory.write_at(8, b"verbless").unwrap();
        drop(memory);
        let mut back = [0; 8];
        slice.read_at(0, &mut back).unwrap();
        assert_eq!(&back, b"verbless");
    }
}
