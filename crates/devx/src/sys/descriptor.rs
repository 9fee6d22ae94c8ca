//! Taking ownership of file descriptors that a device hands over.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes over the descriptor that a request wrote back. `None` if the number is not a descriptor,
/// or not open.
pub(crate) fn adopt(number: u64) -> Option<OwnedFd> {
    let number = RawFd::try_from(number.cast_signed()).ok().filter(|number| *number >= 0)?;
    // SAFETY: F_GETFD has no effect on memory; a stale number is answered with EBADF.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: the number names an open file, and `OpenDevice` promises that it is new and the
    // caller's.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn adopt_rejects_invalid_fd_numbers() {
        for number in
            [u64::MAX, (-2i64).cast_unsigned(), i32::MAX as u64, 1 << 31, 1 << 32, 1 << 63]
        {
            assert!(adopt(number).is_none(), "{number:#x}");
        }
    }

    #[test]
    fn adopt_takes_over_open_fd() {
        let file = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        assert!(adopt(file as u64).is_some());
    }
}
