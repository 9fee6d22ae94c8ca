//! The kernel's uverbs file: the raw ioctl and mmap.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use super::backend::{Errno, OpenDevice};
use super::mapping::{Mapping, Protection};
use crate::abi::Header;
use crate::abi::frame::RDMA_VERBS_IOCTL;

/// An open `/dev/infiniband/uverbsN`.
pub(crate) struct UverbsFile(pub(crate) File);

impl OpenDevice for UverbsFile {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        if Header::split(request).is_none() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the header describes exactly the words of `request`, so the kernel stays within
        // them; the caller vouches for the pointers inside.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), RDMA_VERBS_IOCTL as _, request.as_mut_ptr()) };
        Errno::result(result).map(drop)
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        Mapping::shared(self.0.as_fd(), offset, length, protection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::method;

    #[test]
    fn a_file_that_is_no_uverbs_file_answers_enotty_and_a_malformed_request_never_reaches_it() {
        let file = UverbsFile(File::open("/dev/null").unwrap());
        let mut words = [0; 3];
        zerocopy::IntoBytes::write_to(
            &Header::new(method::DEVX_OTHER, 0),
            zerocopy::IntoBytes::as_mut_bytes(&mut words),
        )
        .unwrap();
        // SAFETY: the request has no attributes.
        assert_eq!(unsafe { file.ioctl(&mut words) }, Err(Errno::ENOTTY));
        words[0] |= 0xff << 48;
        // SAFETY: the request is refused before its attributes would be read.
        assert_eq!(unsafe { file.ioctl(&mut words) }, Err(Errno::EINVAL));
    }
}
