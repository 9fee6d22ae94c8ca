//! File descriptors: one that a client in this process names by number, the sockets of event
//! channels, and an empty file.
#![allow(unsafe_code)] // a descriptor given as a number, and system calls

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};

nix::ioctl_read_bad!(
    /// Bytes that a socket sent and its peer has yet to read, as the kernel accounts for them.
    tiocoutq,
    libc::TIOCOUTQ,
    libc::c_int
);

/// A second descriptor of the file that `fd` refers to; EBADF when `fd` is not open.
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is borrowed for one fcntl only, which checks that it is open and does
    // not change it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed
        .try_clone_to_owned()
        .map_err(|error| error.raw_os_error().map_or(Errno::EBADF, Errno::from_raw))
}

/// An empty file in memory.
pub(crate) fn empty_file() -> Result<OwnedFd, Errno> {
    // SAFETY: the name ends with a zero; the kernel copies it.
    let fd = unsafe { libc::memfd_create(c"verbless-empty".as_ptr(), libc::MFD_CLOEXEC) };
    Errno::result(fd)?;
    // SAFETY: the call above opened it, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The bytes that the peer of `socket` has yet to read, as the kernel accounts for them: records of
/// equal length count equally ([`record_cost`]).
pub(crate) fn unread(socket: &OwnedFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one int to the pointer, which is valid for it; the borrowed
    // descriptor is open.
    match unsafe { tiocoutq(socket.as_raw_fd(), &raw mut bytes) } {
        Ok(_) => usize::try_from(bytes).unwrap_or(0),
        Err(_) => 0,
    }
}

/// The kernel's account of one unread record of `length` bytes, in bytes; 0: unknown.
pub(crate) fn record_cost(length: usize) -> usize {
    static KNOWN: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&cost) = known.get(&length) {
        return cost;
    }
    let probe = || {
        let (ours, theirs) = record_sockets()?;
        send(&ours, &vec![0; length])?;
        let cost = unread(&ours);
        drop(theirs);
        Ok::<_, Errno>(cost)
    };
    let Ok(cost) = probe() else { return 0 };
    known.insert(length, cost);
    cost
}

/// A pair of connected sockets with record boundaries (SOCK_SEQPACKET). The second cannot send:
/// otherwise its holder could send descriptors, and to close the first socket would close them too,
/// which can block (SO_LINGER, FUSE).
pub(crate) fn record_sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: socketpair writes two descriptors to the array, which has room for them.
    Errno::result(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) })?;
    // SAFETY: the call above opened both, and no other code knows them.
    let pair = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
    shutdown(pair.0.as_raw_fd(), Shutdown::Read)?;
    Ok(pair)
}

/// Sends a record, or fails with EAGAIN when the socket is full; no signal when the peer is closed.
pub(crate) fn send(socket: &OwnedFd, record: &[u8]) -> Result<(), Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pointer is valid for as many bytes; the borrowed descriptor is open.
    let sent =
        unsafe { libc::send(socket.as_raw_fd(), record.as_ptr().cast(), record.len(), flags) };
    Errno::result(sent).map(drop)
}

/// Receives a record, cut to the buffer, and returns its length; EAGAIN when there is none. 0: the
/// peer is closed.
pub(crate) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the pointer is valid for as many bytes; the borrowed descriptor is open.
    let length =
        unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
    Errno::result(length).map(|length| length as usize)
}
