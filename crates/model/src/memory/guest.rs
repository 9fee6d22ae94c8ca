//! Host memory of a virtual machine: a DMA address is a guest-physical address.
//!
//! The machine's monitor hands over its memory as files, range by range. Only the mapped part can
//! be accessed; every access is checked against it.
//!
//! An access past the end of a mapped file is SIGBUS. So pointers go only into files that are
//! sealed against shrinking; the code tries to seal every file. It reaches the pages of other files
//! by system calls on its own mapping (`process_vm_readv`), which answer EFAULT. They are slower,
//! and an atomic there is atomic among accesses of the model only.
#![allow(unsafe_code)] // raw pointers into memory that a running guest writes

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;

use super::host::{DmaStopped, Fault, HostMemory, copy_through};
use super::mapping::Mapping;
use super::process::racing_copy;
use super::remote::{RemoteMemory, settled_word};
use crate::numbered::Numbered;

/// The granularity of file offsets.
const PAGE: u64 = 4096;

/// A guest's memory as a DMA space.
#[derive(Debug, Default)]
pub struct GuestMemory {
    space: RwLock<GuestSpace>,
}

#[derive(Debug, Default)]
struct GuestSpace {
    /// By first guest-physical address; ranges do not overlap.
    ranges: Numbered<u64, Range>,
    /// Whether no memory can be accessed, because the function is not a bus master.
    cut_off: bool,
}

/// A range of guest memory, mapped here for as long as the value lives.
///
/// No code uses the mapping when it is unmapped. Accesses hold the lock of `space`. Only a thread
/// that holds a function of the model uses pointers from `direct`, and a thread that removes a
/// range, or cuts off all memory, holds all functions.
#[derive(Debug)]
struct Range {
    mapping: Mapping,
    writable: bool,
    /// The file cannot shrink, so every page of the mapping stays.
    sealed: bool,
    /// The lock of an atomic in an unsealed file.
    atomic: Mutex<()>,
}

/// The memory of an access.
#[derive(Clone, Copy)]
enum Pointer<'a> {
    /// Memory of a sealed file: it exists as long as the range.
    Sealed(NonNull<u8>),
    /// An address in our mapping of a file that may have shrunk, and the lock of its atomics.
    Unsealed(usize, &'a Mutex<()>),
}

/// The memory of this process, accessed by system calls.
fn ourselves() -> RemoteMemory {
    RemoteMemory::Process(Pid::this())
}

/// Whether a file of at least `end` bytes cannot shrink; seals it if possible.
fn seal(file: &File, end: u64) -> bool {
    // A monitor that wants its memory to shrink forbids further seals (F_SEAL_SEAL).
    let _ = fcntl(file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK));
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
    seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK))
        && file.metadata().is_ok_and(|about| about.len() >= end)
}

impl GuestMemory {
    /// Maps `length` bytes of `file` from `offset` on at guest-physical `address`.
    ///
    /// # Errors
    /// The system's errors; `EEXIST` if a part of the range is mapped, `EINVAL` if it wraps or is
    /// empty.
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
        let size = usize::try_from(length).ok().filter(|&size| size != 0).ok_or_else(invalid)?;
        let file_end = offset.checked_add(length).filter(|&end| i64::try_from(end).is_ok());
        let file_end = file_end.filter(|_| offset.is_multiple_of(PAGE)).ok_or_else(invalid)?;
        let ranges = &mut self.space.write().unwrap_or_else(PoisonError::into_inner).ranges;
        let before = ranges.range(..end).next_back();
        if before.is_some_and(|(&start, range)| start + range.mapping.len() as u64 > address) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let mapping = Mapping::of(file, offset, size, writable)?;
        let sealed = seal(file, file_end);
        if !sealed {
            tracing::warn!(
                address,
                length,
                "the guest's memory is in a file that may get shorter, so every access to it is a \
                 system call; use a memfd that can be sealed (QEMU: memory-backend-memfd)"
            );
        }
        ranges.insert(address, Range { mapping, writable, sealed, atomic: Mutex::new(()) });
        Ok(())
    }

    /// Removes every range that lies within the `length` bytes from `address`. `_held` proves that
    /// no pointer of [`HostMemory::direct`] is in use. The public method is
    /// [`Function::unmap`](crate::function::Function::unmap).
    pub(crate) fn unmap(&self, _held: &DmaStopped<'_>, address: u64, length: u64) {
        let ranges = &mut self.space.write().unwrap_or_else(PoisonError::into_inner).ranges;
        ranges.retain(|&start, range| {
            let end = start + range.mapping.len() as u64;
            start < address || end > address.saturating_add(length)
        });
    }

    /// Cuts off all memory, so that each access is a fault, or restores it. `_held` as above. The
    /// public method is [`Function::set_bus_master`](crate::function::Function::set_bus_master).
    pub(crate) fn cut_off(&self, _held: &DmaStopped<'_>, cut_off: bool) {
        self.space.write().unwrap_or_else(PoisonError::into_inner).cut_off = cut_off;
    }

    /// Calls `each` with a pointer to the memory at `address`, and the number of bytes there:
    /// `length`, or fewer if the range ends earlier. Returns the result of `each`.
    fn in_range<R>(
        &self,
        address: u64,
        length: u64,
        write: bool,
        each: impl FnOnce(Pointer<'_>, u64) -> R,
    ) -> Result<R, Fault> {
        let fault = Fault { address, length };
        let space = self.space.read().unwrap_or_else(PoisonError::into_inner);
        if space.cut_off {
            return Err(fault);
        }
        let (&start, range) = space.ranges.range(..=address).next_back().ok_or(fault)?;
        let at = address - start;
        let room = (range.mapping.len() as u64).checked_sub(at).filter(|&room| room > 0);
        let room = room.ok_or(fault)?;
        if write && !range.writable {
            return Err(fault);
        }
        let pointer = range.mapping.as_ptr().wrapping_add(at as usize);
        let pointer = match NonNull::new(pointer).filter(|_| range.sealed) {
            Some(pointer) => Pointer::Sealed(pointer),
            None => Pointer::Unsealed(pointer.expose_provenance(), &range.atomic),
        };
        Ok(each(pointer, room.min(length)))
    }

    /// Calls `each` for each mapped range of `length` bytes, with the offset of its first byte.
    fn by_range(
        &self,
        address: u64,
        length: usize,
        write: bool,
        mut each: impl FnMut(Pointer<'_>, usize, usize) -> bool,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < length {
            let here = address.checked_add(done as u64);
            let fault = Fault { address, length: length as u64 };
            let here = here.ok_or(fault)?;
            let moved = self.in_range(here, (length - done) as u64, write, |pointer, size| {
                each(pointer, done, size as usize).then_some(size as usize)
            })?;
            done += moved.ok_or(fault)?;
        }
        Ok(())
    }

    /// Calls `each` with the pointer to an aligned word of `size` bytes; `None` from it is a fault.
    fn word<R>(
        &self,
        address: u64,
        size: u64,
        write: bool,
        each: impl FnOnce(Pointer<'_>) -> Option<R>,
    ) -> Result<R, Fault> {
        let fault = Fault { address, length: size };
        if !address.is_multiple_of(size) {
            return Err(fault);
        }
        self.in_range(address, size, write, |pointer, room| {
            (room == size).then(|| each(pointer)).flatten()
        })?
        .ok_or(fault)
    }
}

/// Writes memory that may be absent; `None` if it is.
fn write_unsealed(base: usize, bytes: &[u8]) -> Option<()> {
    let whole = RemoteIoVec { base, len: bytes.len() };
    (ourselves().write(bytes, &[whole]) == Ok(bytes.len())).then_some(())
}

impl HostMemory for GuestMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let length = into.len();
        self.by_range(address, length, false, |from, at, size| {
            let to = &mut into[at..at + size];
            match from {
                Pointer::Sealed(from) => {
                    // SAFETY: `in_range` guarantees the source while the closure runs; the target
                    // is ours.
                    unsafe { racing_copy(from.as_ptr(), to.as_mut_ptr(), size) };
                    true
                }
                Pointer::Unsealed(base, _) => {
                    ourselves().read(to, &[RemoteIoVec { base, len: size }]) == Ok(size)
                }
            }
        })
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.by_range(address, from.len(), true, |to, at, size| {
            let from = &from[at..at + size];
            match to {
                Pointer::Sealed(to) => {
                    // SAFETY: as in `read`, the other way.
                    unsafe { racing_copy(from.as_ptr(), to.as_ptr(), size) };
                    true
                }
                Pointer::Unsealed(base, _) => write_unsealed(base, from).is_some(),
            }
        })
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        self.word(address, 4, false, |at| match at {
            Pointer::Sealed(at) => {
                // SAFETY: mapped and aligned, as `word` checked; our side accesses it by atomics
                // only.
                let word = unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) };
                Some(word.load(Ordering::Acquire))
            }
            Pointer::Unsealed(base, _) => {
                let word = settled_word(&ourselves(), base & !7)?.to_ne_bytes();
                word[base & 4..].first_chunk().map(|half| u32::from_ne_bytes(*half))
            }
        })
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        self.word(address, 4, true, |at| match at {
            Pointer::Sealed(at) => {
                // SAFETY: as in `load32`.
                let word = unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) };
                word.store(value, Ordering::Release);
                Some(())
            }
            Pointer::Unsealed(base, _) => write_unsealed(base, &value.to_ne_bytes()),
        })
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        self.word(address, 1, true, |at| match at {
            Pointer::Sealed(at) => {
                // SAFETY: as in `load32`.
                let byte = unsafe { AtomicU8::from_ptr(at.as_ptr()) };
                byte.store(value, Ordering::Release);
                Some(())
            }
            Pointer::Unsealed(base, _) => write_unsealed(base, &[value]),
        })
    }

    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        self.word(address, 8, true, |at| match at {
            Pointer::Sealed(at) => {
                // SAFETY: as in `load32`.
                let word = unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) };
                let order = (Ordering::AcqRel, Ordering::Acquire);
                Some(
                    word.compare_exchange(expected, new, order.0, order.1)
                        .unwrap_or_else(|found| found),
                )
            }
            Pointer::Unsealed(base, atomic) => {
                let _only = atomic.lock().unwrap_or_else(PoisonError::into_inner);
                let found = settled_word(&ourselves(), base)?;
                if found == expected {
                    write_unsealed(base, &new.to_ne_bytes())?;
                }
                Some(found)
            }
        })
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        let whole = self.in_range(address, length, false, |from, size| match from {
            Pointer::Sealed(from) if size == length => Some(from),
            _ => None,
        });
        if let (Some(from), Some(to)) = (whole?, target.direct(target_address, length)) {
            // SAFETY: both are mapped here in one range each, and stay so: the caller holds a
            // function, and only a thread that holds all functions removes a range.
            unsafe { racing_copy(from.as_ptr(), to.as_ptr(), length as usize) };
            return Ok(());
        }
        copy_through(&mut [0; 4096], self, address, target, target_address, length)
    }

    fn direct(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        self.in_range(address, length, true, |at, size| match at {
            Pointer::Sealed(at) if size == length => Some(at),
            _ => None,
        })
        .ok()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    /// Memory that can be sealed, and memory that cannot.
    const KINDS: [MFdFlags; 2] = [MFdFlags::MFD_ALLOW_SEALING, MFdFlags::empty()];

    fn file_of(kind: MFdFlags, pages: i64) -> File {
        let fd = memfd_create(c"guest", MFdFlags::MFD_CLOEXEC | kind).unwrap();
        nix::unistd::ftruncate(&fd, pages * 4096).unwrap();
        fd.into()
    }

    fn file(pages: i64) -> File {
        file_of(MFdFlags::MFD_ALLOW_SEALING, pages)
    }

    fn guest() -> GuestMemory {
        guest_of(MFdFlags::MFD_ALLOW_SEALING)
    }

    fn guest_of(kind: MFdFlags) -> GuestMemory {
        let memory = GuestMemory::default();
        let ram = file_of(kind, 4);
        memory.map(0x1_0000, 0x2000, &ram, 0, true).unwrap();
        memory.map(0x1_2000, 0x1000, &ram, 0x3000, true).unwrap();
        memory.map(0x8_0000, 0x1000, &ram, 0x2000, false).unwrap();
        memory
    }

    #[test]
    fn access_spans_adjacent_ranges_but_no_hole() {
        for memory in KINDS.map(guest_of) {
            let sent: Vec<u8> = (0..100).collect();
            memory.write(0x1_2000 - 50, &sent).unwrap();
            let mut back = vec![0; 100];
            memory.read(0x1_2000 - 50, &mut back).unwrap();
            assert_eq!(back, sent);
            for (address, length) in
                [(0xffff, 2), (0x1_2fff, 2), (0, 1), (u64::MAX, 1), (0x9_0000, 8)]
            {
                assert!(memory.read(address, &mut vec![0; length]).is_err(), "{address:#x}");
                assert!(memory.write(address, &vec![0; length]).is_err(), "{address:#x}");
            }
        }
        let memory = guest();
        assert!(memory.direct(0x1_1000, 0x1000).is_some());
        assert!(memory.direct(0x1_1000, 0x1001).is_none(), "two adjacent files are not one range");
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
        for memory in KINDS.map(guest_of) {
            memory.store32(0x1_0004, 0x1122_3344u32.to_be()).unwrap();
            memory.store8(0x1_0007, 0x55).unwrap();
            assert_eq!(memory.load32(0x1_0004).map(u32::from_be), Ok(0x1122_3355));
            assert!(memory.load32(0x1_0002).is_err());
            assert_eq!(memory.compare_exchange64(0x1_0008, 0, 7), Ok(0));
            assert_eq!(memory.compare_exchange64(0x1_0008, 0, 9), Ok(7));
            assert!(memory.compare_exchange64(0x1_000c, 0, 9).is_err());
        }
    }

    /// Every kind of access to three pages of which only the first is present; a SIGBUS fails the
    /// test.
    fn all_accesses_fault(memory: &GuestMemory, address: u64) {
        assert!(memory.read(address, &mut [0; 8]).is_err());
        assert!(memory.read(address - 8, &mut [0; 16]).is_err());
        assert!(memory.write(address, &[1; 8]).is_err());
        assert!(memory.write_entry(address, &[1; 64]).is_err());
        assert!(memory.load32(address).is_err());
        assert!(memory.store32(address, 1).is_err());
        assert!(memory.store8(address, 1).is_err());
        assert!(memory.compare_exchange64(address, 0, 1).is_err());
        assert!(memory.direct(address, 8).is_none());
        let other = guest();
        assert!(memory.copy_to(address, &other, 0x1_0000, 64).is_err());
        assert!(other.copy_to(0x1_0000, memory, address, 64).is_err());
        assert!(memory.read(address - 8, &mut [0; 8]).is_ok());
    }

    #[test]
    fn file_truncated_after_map_faults_safely() {
        let ram = file_of(MFdFlags::empty(), 3);
        let memory = GuestMemory::default();
        memory.map(0x1_0000, 0x3000, &ram, 0, true).unwrap();
        memory.write(0x1_1000, &[7; 8]).unwrap();
        ram.set_len(4096).unwrap();
        all_accesses_fault(&memory, 0x1_1000);
        ram.set_len(3 * 4096).unwrap();
        assert_eq!(
            memory.load32(0x1_1000),
            Ok(0),
            "pages of a file that grows again are accessible"
        );
    }

    #[test]
    fn file_shorter_than_its_range_faults() {
        for kind in KINDS {
            let ram = file_of(kind, 1);
            let memory = GuestMemory::default();
            memory.map(0x1_0000, 0x3000, &ram, 0, true).unwrap();
            all_accesses_fault(&memory, 0x1_1000);
        }
    }

    #[test]
    fn mapped_sealable_file_cannot_be_truncated() {
        let ram = file(3);
        let memory = GuestMemory::default();
        memory.map(0x1_0000, 0x3000, &ram, 0, true).unwrap();
        assert!(ram.set_len(4096).is_err());
        assert!(memory.direct(0x1_1000, 0x1000).is_some());
    }

    #[test]
    fn copies_between_guests_span_ranges() {
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
