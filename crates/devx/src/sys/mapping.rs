//! Memory shared with a device by mmap.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Loads only.
    Read,
    /// Stores only, as UAR pages are mapped (x86-64 and aarch64 then allow loads too).
    Write,
    /// Loads and stores.
    ReadWrite,
}

/// A shared mapping, unmapped when dropped. It hands out no references, since the other side may write at any time:
/// users go through [`as_ptr`](Self::as_ptr) with volatile or atomic accesses.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: NonZeroUsize,
}

// SAFETY: the mapping belongs to the process, not to a thread; the type gives no access to the memory by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` yields an address and a length only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file` from byte `offset`, shared.
    ///
    /// # Errors
    /// EINVAL when `length` is 0 or the offset is not a multiple of the page size, and whatever mmap answers.
    pub fn shared(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        protection: Protection,
    ) -> Result<Self, Errno> {
        let length = NonZeroUsize::new(length).ok_or(Errno::EINVAL)?;
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let protection = match protection {
            Protection::Read => ProtFlags::PROT_READ,
            Protection::Write => ProtFlags::PROT_WRITE,
            Protection::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: no address is asked for, so no existing mapping is replaced.
        let address =
            unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, offset) }?;
        Ok(Self { address: address.cast(), length })
    }

    /// Start of the mapping; page-aligned. Valid until this value is dropped.
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.address
    }

    /// Bytes mapped; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub const fn len(&self) -> usize {
        self.length.get()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `shared` mapped exactly this range, and nobody else unmaps it. Failure would leave it mapped, which
        // harms nobody.
        let _ = unsafe { munmap(self.address.cast(), self.length.get()) };
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
