//! The kernel's files: the raw ioctls and mmap.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use super::backend::{Errno, OpenDevice, OpenFwctl};
use super::mapping::{Mapping, Protection};
use crate::abi::Header;
use crate::abi::fwctl::{is_whole, structure_bytes};
use crate::abi::request::RDMA_VERBS_IOCTL;
use crate::error::Error;

/// Opens a control file, if there is one.
pub(crate) type FwctlOpener = Box<dyn Fn() -> Result<Option<File>, Error> + Send + Sync>;

/// An open `/dev/infiniband/uverbsN`.
pub(crate) struct UverbsFile {
    pub file: File,
    /// Opens the function's control file, if there is one.
    pub control: FwctlOpener,
}

// SAFETY: the kernel keeps these promises.
unsafe impl OpenDevice for UverbsFile {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        if Header::split(request).is_none() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the header describes exactly the words of `request`, so the kernel stays within
        // them; the caller vouches for the pointers inside.
        let result = unsafe {
            libc::ioctl(self.file.as_raw_fd(), RDMA_VERBS_IOCTL as _, request.as_mut_ptr())
        };
        Errno::result(result).map(drop)
    }

    fn page_size(&self) -> usize {
        crate::page::page_size()
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        Mapping::shared(self.file.as_fd(), offset, length, protection)
    }

    fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
        let file = (self.control)()?;
        Ok(file.map(|file| Arc::new(FwctlFile(file)) as Arc<dyn OpenFwctl>))
    }
}

/// An open `/dev/fwctl/fwctlN`.
struct FwctlFile(File);

// SAFETY: the kernel keeps this promise.
unsafe impl OpenFwctl for FwctlFile {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u64]) -> Result<(), Errno> {
        if structure_bytes(request).is_none() {
            return Err(Errno::ENOTTY);
        }
        if !is_whole(request, argument) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the structure is as long as it says, so the kernel stays within it; the caller
        // vouches for the addresses inside.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument.as_mut_ptr()) };
        Errno::result(result).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::fwctl::{FWCTL_INFO, FWCTL_RPC};
    use crate::abi::method;

    #[test]
    fn uverbs_ioctl_rejects_malformed_request() {
        let file =
            UverbsFile { file: File::open("/dev/null").unwrap(), control: Box::new(|| Ok(None)) };
        let mut words = Header::new(method::DEVX_OTHER, 0).words();
        // SAFETY: the request has no attributes.
        assert_eq!(unsafe { file.ioctl(&mut words) }, Err(Errno::ENOTTY));
        words[0] |= 0xff << 48;
        // SAFETY: the request is refused before its attributes would be read.
        assert_eq!(unsafe { file.ioctl(&mut words) }, Err(Errno::EINVAL));
    }

    #[test]
    fn fwctl_ioctl_rejects_short_structures() {
        let file = FwctlFile(File::open("/dev/null").unwrap());
        // SAFETY: every address in the structures is 0, with length 0.
        let send = |request, words: &mut [u64]| unsafe { file.ioctl(request, words) };
        assert_eq!(send(FWCTL_INFO, &mut [24, 0, 0]), Err(Errno::ENOTTY), "reaches the file");
        assert_eq!(send(FWCTL_RPC, &mut [32, 0, 0, 0]), Err(Errno::ENOTTY), "reaches the file");
        for (request, words) in
            [(FWCTL_INFO, &mut [24, 0][..]), (FWCTL_INFO, &mut [16, 0, 0]), (FWCTL_INFO, &mut [])]
        {
            assert_eq!(send(request, words), Err(Errno::EINVAL));
        }
        assert_eq!(send(FWCTL_RPC, &mut [24, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(send(FWCTL_RPC, &mut [40, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(send(0x9a02, &mut [64; 8]), Err(Errno::ENOTTY));
    }
}
