//! A file's bytes in this process, shared with the file's other mappings.
#![allow(unsafe_code)] // mapping and unmapping

use std::ffi::c_void;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of a part of a file; unmapped when dropped. It hands out no references.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<c_void>,
    length: NonZero<usize>,
}

// SAFETY: the value is an address and a length; each access through the address is justified where
// it is made.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset` on. EINVAL if `length` is 0, or `offset` is not a multiple
    /// of the page size.
    pub(super) fn of(
        file: impl AsFd,
        offset: u64,
        length: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let length = NonZero::new(length).ok_or(Errno::EINVAL)?;
        let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let write = if writable { ProtFlags::PROT_WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::PROT_READ | write;
        // SAFETY: the kernel chooses an unmapped address range.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, offset) }?;
        Ok(Self { start, length })
    }

    /// The start of the mapping; valid until it is dropped.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Length in bytes; never 0.
    pub(super) fn len(&self) -> usize {
        self.length.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `of` mapped all of it; users keep this value while they use the memory.
        let unmapped = unsafe { munmap(self.start, self.len()) };
        debug_assert_eq!(unmapped, Ok(()), "unmapping what was mapped");
    }
}
