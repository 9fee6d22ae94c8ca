//! File descriptors of a client in this process: the two things that need its word that a number is open.
#![allow(unsafe_code)] // a descriptor that came as a number, and an ioctl that nix has no wrapper for

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

nix::ioctl_read_bad!(
    /// Bytes that a socket sent and its peer has yet to read, as the kernel accounts for them.
    tiocoutq,
    libc::TIOCOUTQ,
    libc::c_int
);

/// A second descriptor of what `fd` refers to; EBADF when that is not open.
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is borrowed for one fcntl only, which checks that it is open; nothing is done to it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed
        .try_clone_to_owned()
        .map_err(|error| error.raw_os_error().map_or(Errno::EBADF, Errno::from_raw))
}

/// What the peer of `socket` has yet to read, in bytes as the kernel accounts for them: a fixed sum per record of one size.
pub(crate) fn unread(socket: &OwnedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one int to the pointer, which is valid for it; the descriptor is open, it is borrowed.
    match unsafe { tiocoutq(socket.as_raw_fd(), &raw mut bytes) } {
        Ok(_) => usize::try_from(bytes).unwrap_or(0),
        Err(_) => 0,
    }
}
