//! One file that waits for several channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, ErrorKind, Result};
use crate::sys::Errno;

/// A file that is readable while any of its channels is, or while it is
/// [held readable](Waiter::hold). The channels must outlive it.
#[derive(Debug)]
pub struct Waiter {
    files: Epoll,
    /// Not zero while the file is held readable.
    held: EventFd,
}

impl Waiter {
    /// A file for `channels`.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn new<const N: usize>(channels: [BorrowedFd<'_>; N]) -> Result<Self> {
        let refused = |errno| failed("making a file for several event channels", errno);
        let files = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(refused)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let held = EventFd::from_flags(flags).map_err(refused)?;
        for channel in channels.into_iter().chain([held.as_fd()]) {
            files.add(channel, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(refused)?;
        }
        Ok(Self { files, held })
    }

    /// Holds the file readable until [`Waiter::release`], also for threads that wait already.
    pub fn hold(&self) {
        // Fails only if the counter would overflow.
        let _ = self.held.write(1);
    }

    /// Lets the file be readable only while a channel is.
    pub fn release(&self) {
        // EAGAIN: it was not held.
        let _ = self.held.read();
    }

    /// Waits until a channel is readable; false if `timeout` passes first. `None` waits forever.
    ///
    /// # Errors
    /// The errors of `poll`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        wait(self.files.0.as_fd(), timeout)
            .map_err(|errno| failed("waiting for event channels", errno))
    }
}

/// Waits until a file is readable; false if `timeout` passes first.
pub(super) fn wait(file: BorrowedFd<'_>, timeout: Option<Duration>) -> nix::Result<bool> {
    let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        // Rounded up, so that a wait is never cut short.
        let left = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut [PollFd::new(file, PollFlags::POLLIN)], left) {
            Ok(0) if end.is_none_or(|end| Instant::now() < end) => {}
            Ok(ready) => return Ok(ready != 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn failed(attempted: &'static str, errno: Errno) -> Error {
    Error::new(ErrorKind::Refused, attempted, "").with_errno(errno)
}

impl AsFd for Waiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.files.0.as_fd()
    }
}
