//! Memory shared with a device by mmap.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::page::page_size;

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Loads only.
    Read,
    /// Stores only, as UAR pages are used (the mapping allows loads too).
    Write,
    /// Loads and stores.
    ReadWrite,
}

/// A shared mapping, unmapped when dropped. It hands out no references, since the other side may
/// write at any time: users go through [`as_ptr`](Self::as_ptr) with volatile or atomic accesses.
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `length` bytes of `file` from byte `offset`, shared.
    ///
    /// # Errors
    /// EINVAL when `length` is 0 or the offset is not a multiple of the page size, and whatever
    /// mmap answers.
    pub fn shared(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        protection: Protection,
    ) -> Result<Self, Errno> {
        let aligned = offset.is_multiple_of(page_size() as u64);
        if length == 0 || !aligned || i64::try_from(offset).is_err() {
            return Err(Errno::EINVAL);
        }
        let mut options = MmapOptions::new();
        options.offset(offset).len(length);
        let mapped = match protection {
            Protection::Read => options.map_raw_read_only(&file),
            Protection::Write | Protection::ReadWrite => options.map_raw(&file),
        };
        mapped
            .map(Self)
            .map_err(|error| error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw))
    }

    /// Start of the mapping; page-aligned. Valid until this value is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr()).expect("no mapping is at address 0")
    }

    /// Bytes mapped; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn memory() -> std::os::fd::OwnedFd {
        let file =
            nix::sys::memfd::memfd_create(c"mapping", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
                .unwrap();
        nix::unistd::ftruncate(&file, 8192).unwrap();
        file
    }

    #[test]
    fn two_mappings_of_a_file_see_the_same_bytes() {
        let file = memory();
        let written = Mapping::shared(file.as_fd(), 4096, 4096, Protection::ReadWrite).unwrap();
        let read = Mapping::shared(file.as_fd(), 0, 8192, Protection::Read).unwrap();
        assert_eq!((written.len(), read.len()), (4096, 8192));
        // SAFETY: both addresses lie in live mappings.
        let seen = unsafe {
            written.as_ptr().add(7).write_volatile(0x5a);
            read.as_ptr().add(4096 + 7).read_volatile()
        };
        assert_eq!(seen, 0x5a);
    }

    #[test]
    fn lengths_and_offsets_that_cannot_be_are_refused() {
        let file = memory();
        for (offset, length) in [(0, 0), (1, 4096), (u64::MAX, 4096), (0, usize::MAX)] {
            assert!(
                Mapping::shared(file.as_fd(), offset, length, Protection::Read).is_err(),
                "{offset} {length}"
            );
        }
    }
}
