//! Memory shared with a device by mmap.

use std::ffi::c_void;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::page::page_size;

/// How a mapping may be accessed.
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
pub struct Mapping {
    start: NonNull<c_void>,
    length: NonZero<usize>,
}

// SAFETY: the value is an address and a length; each access through the address is justified where
// it is made.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from byte `offset`, shared.
    ///
    /// # Errors
    /// EINVAL when `length` is 0 or the offset is not a multiple of the page size, and the errnos
    /// of mmap.
    pub fn shared(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        protection: Protection,
    ) -> Result<Self, Errno> {
        let length = NonZero::new(length).ok_or(Errno::EINVAL)?;
        let aligned = offset.is_multiple_of(page_size() as u64);
        let offset = i64::try_from(offset).ok().filter(|_| aligned).ok_or(Errno::EINVAL)?;
        let protection = match protection {
            Protection::Read => ProtFlags::PROT_READ,
            Protection::Write | Protection::ReadWrite => {
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
            }
        };
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, offset) }?;
        Ok(Self { start, length })
    }

    /// Start of the mapping; page-aligned. Valid until this value is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Bytes mapped; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.length.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `shared`, all of it; users keep this value for as long as they use it.
        let unmapped = unsafe { munmap(self.start, self.len()) };
        debug_assert_eq!(unmapped, Ok(()), "munmap of a live mapping");
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
    fn shared_mappings_see_same_bytes() {
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
    fn shared_mapping_rejects_invalid_range() {
        let file = memory();
        for (offset, length) in [(0, 0), (1, 4096), (u64::MAX, 4096), (0, usize::MAX)] {
            assert!(
                Mapping::shared(file.as_fd(), offset, length, Protection::Read).is_err(),
                "{offset} {length}"
            );
        }
    }
}
