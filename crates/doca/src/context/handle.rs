//! The file that signals a work queue's events.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, Result};

/// An epoll descriptor: readable if one of its files is readable. So it stays the same while
/// devices are added and removed.
#[derive(Debug)]
pub(super) struct Handle {
    epoll: Epoll,
    /// Signals events without a device.
    own: EventFd,
}

fn refused(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| {
        Error::new(ErrorKind::OperatingSystem, format!("{what}: {errno}")).with_source(errno)
    }
}

impl Handle {
    pub(super) fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let own = EventFd::from_value_and_flags(0, flags).map_err(refused("making an eventfd"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let this = Self { epoll: epoll.map_err(refused("making an epoll descriptor"))?, own };
        this.add(this.own.as_fd())?;
        Ok(this)
    }

    pub(super) fn add(&self, file: BorrowedFd<'_>) -> Result<()> {
        let added = self.epoll.add(file, EpollEvent::new(EpollFlags::EPOLLIN, 0));
        added.map_err(refused("adding a file to an epoll descriptor"))
    }

    pub(super) fn remove(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.epoll.delete(file).map_err(refused("taking a file from an epoll descriptor"))
    }

    /// Makes the descriptor readable.
    pub(super) fn signal(&self) -> Result<()> {
        self.own.write(1).map(drop).map_err(refused("writing to an eventfd"))
    }

    /// Undoes [`Handle::signal`].
    pub(super) fn clear(&self) -> Result<()> {
        match self.own.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(refused("reading an eventfd")(errno)),
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
