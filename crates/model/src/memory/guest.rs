//! Host memory that is a virtual machine's: a DMA address is a guest-physical address.
//!
//! The machine's monitor hands over its memory as files, range by range. What of it is mapped here, and nothing else,
//! can be reached; every access is checked against it.
#![allow(unsafe_code)] // memory that a running guest writes is reached by raw pointer

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::process::racing_copy;
use super::{Fault, HostMemory, copy_through};
use crate::world::World;

/// A guest's memory as a DMA space.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// By first guest-physical address; they do not overlap.
    ranges: RwLock<BTreeMap<u64, Range>>,
}

/// A range of guest memory, mapped here for as long as the value lives.
#[derive(Debug)]
struct Range {
    base: NonNull<u8>,
    length: NonZeroUsize,
    writable: bool,
}

// SAFETY: `base` is a shared mapping that lives as long as the value; all access to it may race.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this length. Nobody uses it: accesses hold the lock of `ranges`, and pointers
        // that `direct` gave are used under the lock of the world only, which whoever removes a range holds.
        let _ = unsafe { munmap(self.base.cast(), self.length.get()) };
    }
}

impl GuestMemory {
    /// Maps `length` bytes of `file` from `offset` on at guest-physical `address`.
    ///
    /// # Errors
    /// What the system says; `EEXIST` if a part of the range is there already, `EINVAL` if it wraps or is empty.
    pub fn map(
        &self,
        address: u64,
        length: u64,
        file: &File,
        offset: u64,
        writable: bool,
    ) -> io::Result<()> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let end = address.checked_add(length).ok_or_else(invalid)?;
        let size = usize::try_from(length).ok().and_then(NonZeroUsize::new).ok_or_else(invalid)?;
        let offset = offset.try_into().map_err(|_| invalid())?;
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let before = ranges.range(..end).next_back();
        if before.is_some_and(|(&start, range)| start + range.length.get() as u64 > address) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, offset) }?;
        ranges.insert(address, Range { base: base.cast(), length: size, writable });
        Ok(())
    }

    /// Takes away every range that lies within the `length` bytes from `address`. The world is there to show that its
    /// lock is held, so that no pointer that [`HostMemory::direct`] gave is in use.
    pub(crate) fn unmap(&self, _held: &mut World, address: u64, length: u64) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.retain(|&start, range| {
            let end = start + range.length.get() as u64;
            start < address || end > address.saturating_add(length)
        });
    }

    /// Calls `each` with the piece that holds `address` and at most `length` bytes from there; gives its length.
    fn piece<R>(
        &self,
        address: u64,
        length: u64,
        write: bool,
        each: impl FnOnce(NonNull<u8>, u64) -> R,
    ) -> Result<R, Fault> {
        let fault = Fault { address, length };
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (&start, range) = ranges.range(..=address).next_back().ok_or(fault)?;
        let at = address - start;
        let room = (range.length.get() as u64).checked_sub(at).filter(|&room| room > 0);
        let room = room.ok_or(fault)?;
        if write && !range.writable {
            return Err(fault);
        }
        // SAFETY: within the mapping, as just checked.
        let pointer = unsafe { range.base.add(at as usize) };
        Ok(each(pointer, room.min(length)))
    }

    /// Calls `each` with all pieces that make up a range, and the offset of each in it.
    fn pieces(
        &self,
        address: u64,
        length: usize,
        write: bool,
        mut each: impl FnMut(NonNull<u8>, usize, usize),
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < length {
            let here = address.checked_add(done as u64);
            let here = here.ok_or(Fault { address, length: length as u64 })?;
            done += self.piece(here, (length - done) as u64, write, |pointer, size| {
                each(pointer, done, size as usize);
                size as usize
            })?;
        }
        Ok(())
    }

    /// Calls `each` with a pointer to an aligned word of `size` bytes.
    fn word<R>(
        &self,
        address: u64,
        size: u64,
        write: bool,
        each: impl FnOnce(NonNull<u8>) -> R,
    ) -> Result<R, Fault> {
        let fault = Fault { address, length: size };
        if !address.is_multiple_of(size) {
            return Err(fault);
        }
        self.piece(address, size, write, |pointer, room| (room == size).then(|| each(pointer)))?
            .ok_or(fault)
    }
}

impl HostMemory for GuestMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let length = into.len();
        self.pieces(address, length, false, |from, at, size| {
            let to = &mut into[at..at + size];
            // SAFETY: `piece` vouches for the source while the closure runs; the target is ours.
            unsafe { racing_copy(from.as_ptr(), to.as_mut_ptr(), size) };
        })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.pieces(address, from.len(), true, |to, at, size| {
            let from = &from[at..at + size];
            // SAFETY: as in `read`, the other way.
            unsafe { racing_copy(from.as_ptr(), to.as_ptr(), size) };
        })
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        // SAFETY: mapped and aligned, as `word` checked; only touched by atomics on our side.
        self.word(address, 4, false, |at| unsafe {
            AtomicU32::from_ptr(at.as_ptr().cast()).load(Ordering::Acquire)
        })
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        // SAFETY: as in `load32`.
        self.word(address, 4, true, |at| unsafe {
            AtomicU32::from_ptr(at.as_ptr().cast()).store(value, Ordering::Release);
        })
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        // SAFETY: as in `load32`.
        self.word(address, 1, true, |at| unsafe {
            AtomicU8::from_ptr(at.as_ptr()).store(value, Ordering::Release);
        })
    }

    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        self.word(address, 8, true, |at| {
            // SAFETY: as in `load32`.
            let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
            word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|found| found)
        })
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        let whole =
            self.piece(address, length, false, |from, size| (size == length).then_some(from));
        if let (Some(from), Some(to)) = (whole?, target.direct(target_address, length)) {
            // SAFETY: both are mapped here in one piece, and stay so while the world's lock is held.
            unsafe { racing_copy(from.as_ptr(), to.as_ptr(), length as usize) };
            return Ok(());
        }
        copy_through(&mut [0; 4096], self, address, target, target_address, length)
    }

    fn direct(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        self.piece(address, length, true, |at, size| (size == length).then_some(at)).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    fn file(pages: i64) -> File {
        let fd = memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&fd, pages * 4096).unwrap();
        fd.into()
    }

    fn guest() -> GuestMemory {
        let memory = GuestMemory::default();
        let ram = file(4);
        memory.map(0x1_0000, 0x2000, &ram, 0, true).unwrap();
        memory.map(0x1_2000, 0x1000, &ram, 0x3000, true).unwrap();
        memory.map(0x8_0000, 0x1000, &ram, 0x2000, false).unwrap();
        memory
    }

    #[test]
    fn an_access_may_span_neighbouring_ranges_and_no_hole() {
        let memory = guest();
        let sent: Vec<u8> = (0..100).collect();
        memory.write(0x1_2000 - 50, &sent).unwrap();
        let mut back = vec![0; 100];
        memory.read(0x1_2000 - 50, &mut back).unwrap();
        assert_eq!(back, sent);
        for (address, length) in [(0xffff, 2), (0x1_2fff, 2), (0, 1), (u64::MAX, 1), (0x9_0000, 8)]
        {
            assert!(memory.read(address, &mut vec![0; length]).is_err(), "{address:#x}");
            assert!(memory.write(address, &vec![0; length]).is_err(), "{address:#x}");
        }
        assert!(memory.direct(0x1_1000, 0x1000).is_some());
        assert!(memory.direct(0x1_1000, 0x1001).is_none(), "two files in a row are no one piece");
    }

    #[test]
    fn read_only_memory_is_not_written() {
        let memory = guest();
        assert!(memory.read(0x8_0000, &mut [0; 8]).is_ok());
        assert!(memory.write(0x8_0000, &[1]).is_err());
        assert!(memory.store8(0x8_0000, 1).is_err());
        assert!(memory.store32(0x8_0000, 1).is_err());
        assert!(memory.compare_exchange64(0x8_0000, 0, 1).is_err());
        assert!(memory.direct(0x8_0000, 8).is_none());
        assert!(memory.load32(0x8_0000).is_ok());
    }

    #[test]
    fn words_are_aligned_and_whole() {
        let memory = guest();
        memory.store32(0x1_0004, 0x1122_3344u32.to_be()).unwrap();
        memory.store8(0x1_0007, 0x55).unwrap();
        assert_eq!(memory.load32(0x1_0004).map(u32::from_be), Ok(0x1122_3355));
        assert!(memory.load32(0x1_0002).is_err());
        assert_eq!(memory.compare_exchange64(0x1_0008, 0, 7), Ok(0));
        assert_eq!(memory.compare_exchange64(0x1_0008, 0, 9), Ok(7));
        assert!(memory.compare_exchange64(0x1_000c, 0, 9).is_err());
    }

    #[test]
    fn copies_between_guests_arrive_whole_whatever_the_pieces() {
        let (from, to) = (guest(), guest());
        let sent: Vec<u8> = (0..0x2800).map(|i| (i * 7 % 251) as u8).collect();
        from.write(0x1_0100, &sent).unwrap();
        for (target, length) in [(0x1_0000, 0x2800), (0x1_0003, 0x1f00), (0x1_0700, 0x2800)] {
            from.copy_to(0x1_0100, &to, target, length).unwrap();
            let mut back = vec![0; length as usize];
            to.read(target, &mut back).unwrap();
            assert_eq!(back, sent[..length as usize]);
        }
        assert!(from.copy_to(0x1_0100, &to, 0x1_0900, 0x2800).is_err());
        assert!(from.copy_to(0x1_2f00, &to, 0x1_0000, 0x200).is_err());
    }

    #[test]
    fn ranges_do_not_overlap() {
        let memory = guest();
        let ram = file(4);
        for (address, length) in
            [(0x1_0000, 0x1000), (0xf000, 0x2000), (0x1_2000, 0x4000), (0xf000, 0x10_0000)]
        {
            assert!(memory.map(address, length, &ram, 0, true).is_err(), "{address:#x}");
        }
        assert!(memory.map(0x2_0000, 0, &ram, 0, true).is_err());
        assert!(memory.map(u64::MAX - 0xfff, 0x2000, &ram, 0, true).is_err());
        memory.map(0x1_3000, 0x1000, &ram, 0, true).unwrap();
    }
}
