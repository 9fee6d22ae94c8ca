//! Fake kernels: one answers by a script, one by a function.
#![allow(unsafe_code, reason = "fake kernels read and write where requests point")]
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod fake;
pub(crate) mod replay;
pub(crate) mod tree;

use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

/// Two ends of a channel that keeps record boundaries, as event files do.
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}
