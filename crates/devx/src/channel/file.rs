//! Common parts of all channels: a file from the kernel, read one record at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::waiter::wait;
use crate::abi::Method;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::{Errno, IoctlOutputs};

/// A file of records, returned by an ioctl.
#[derive(Debug)]
pub(super) struct Channel {
    // Field order: the file closes before the context.
    file: OwnedFd,
    pub(super) context: Context,
    what: &'static str,
}

impl Channel {
    /// Takes the file out of an ioctl's outputs and makes it non-blocking.
    pub(super) fn new(
        context: &Context,
        what: &'static str,
        method: Method,
        answer: &IoctlOutputs,
        id: u16,
    ) -> Result<Self> {
        let file = answer.descriptor(id)?;
        fcntl(&file, FcntlArg::F_GETFL)
            .and_then(|flags| {
                fcntl(&file, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK))
            })
            .map_err(|errno| Error::refused(method, errno))?;
        Ok(Self { file, context: context.clone(), what })
    }

    /// Reads one record into `record`; returns its length, or `None` if there is none yet or a
    /// signal interrupted the read.
    pub(super) fn read(&self, record: &mut [u8]) -> Result<Option<usize>> {
        let read = self.context.device().read_channel(self.file.as_fd(), record);
        outcome(self.what, read, || self.is_closed())
    }

    /// Reads one record that has exactly the length of `record`; false if there is none yet.
    pub(super) fn read_exact(&self, record: &mut [u8]) -> Result<bool> {
        match self.read(record)? {
            None => Ok(false),
            Some(length) if length == record.len() => Ok(true),
            Some(length) => Err(self
                .malformed(format_args!("a record of {length} bytes instead of {}", record.len()))),
        }
    }

    /// Whether the kernel has closed its side; does not wait.
    fn is_closed(&self) -> bool {
        let hung_up = PollFlags::from_bits_retain(libc::POLLRDHUP);
        let mut files = [PollFd::new(self.file.as_fd(), hung_up)];
        // `PollFlags` does not know POLLRDHUP: `revents` is `None` when poll returns it.
        let closed = |seen: PollFlags| seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        poll(&mut files, PollTimeout::ZERO) == Ok(1) && files[0].revents().is_none_or(closed)
    }

    /// Waits for a record or end of file; false if `timeout` passes first.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        wait(self.file.as_fd(), timeout)
            .map_err(|errno| failed(self.what, ErrorKind::Refused, errno, ""))
    }

    pub(super) fn malformed(&self, what: impl std::fmt::Display) -> Error {
        Error::new(
            ErrorKind::InvalidResponse,
            format!("reading from {}: {what}", self.what),
            "the kernel, or the software that answers in its place, violates the uverbs ABI",
        )
    }
}

fn outcome(
    what: &'static str,
    read: Result<usize, Errno>,
    is_closed: impl FnOnce() -> bool,
) -> Result<Option<usize>> {
    const GONE: &str = "the device was removed or reset; open it again";
    match read {
        Ok(0) => Err(failed(what, ErrorKind::DeviceGone, Errno::EIO, GONE)),
        Ok(length) => Ok(Some(length)),
        // A non-blocking read returns EAGAIN even after the device was removed; only poll shows the
        // removal.
        Err(Errno::EAGAIN) if is_closed() => {
            Err(failed(what, ErrorKind::DeviceGone, Errno::EIO, GONE))
        }
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(errno @ (Errno::EIO | Errno::ENODEV | Errno::ENXIO)) => {
            Err(failed(what, ErrorKind::DeviceGone, errno, GONE))
        }
        Err(errno @ Errno::EOVERFLOW) => {
            let hint = "events were lost: poll every queue of this channel, and arm it again";
            Err(failed(what, ErrorKind::EventsLost, errno, hint))
        }
        Err(errno @ (Errno::EINVAL | Errno::ENOSPC)) => {
            Err(failed(what, ErrorKind::Refused, errno, "the record is longer than the buffer"))
        }
        Err(errno) => Err(failed(what, ErrorKind::Refused, errno, "")),
    }
}

fn failed(what: &'static str, kind: ErrorKind, errno: Errno, hint: &'static str) -> Error {
    Error::new(kind, format!("reading from {what}"), hint).with_errno(errno)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Methods of every channel: access to its file, and waiting on it.
macro_rules! channel {
    ($name:ident) => {
        impl $name {
            /// Waits for a record or end of file; false if `timeout` passes first. `None` waits
            /// forever.
            ///
            /// # Errors
            /// As poll(2).
            pub fn wait(&self, timeout: Option<std::time::Duration>) -> crate::error::Result<bool> {
                self.channel.wait(timeout)
            }

            /// The context in which the channel was made.
            #[must_use]
            pub const fn context(&self) -> &crate::context::Context {
                &self.channel.context
            }
        }

        impl std::os::fd::AsFd for $name {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.channel.as_fd()
            }
        }

        /// The raw descriptor, for reactors such as tokio's `AsyncFd`: the file is non-blocking,
        /// and readable while [`read`](Self::read) has an event or the device was removed.
        impl std::os::fd::AsRawFd for $name {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(self))
            }
        }
    };
}
pub(super) use channel;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_outcome_maps_each_result() {
        let kind = |read, closed| outcome("x", read, || closed).map_err(|error| error.kind());
        assert_eq!(kind(Ok(8), false), Ok(Some(8)));
        assert_eq!(kind(Ok(0), false), Err(ErrorKind::DeviceGone), "end of file");
        assert_eq!(kind(Err(Errno::EAGAIN), false), Ok(None));
        assert_eq!(
            kind(Err(Errno::EAGAIN), true),
            Err(ErrorKind::DeviceGone),
            "removed, non-blocking"
        );
        assert_eq!(kind(Err(Errno::EINTR), false), Ok(None));
        assert_eq!(kind(Err(Errno::EIO), false), Err(ErrorKind::DeviceGone));
        assert_eq!(kind(Err(Errno::EOVERFLOW), false), Err(ErrorKind::EventsLost));
        assert_eq!(kind(Err(Errno::EINVAL), false), Err(ErrorKind::Refused));
    }
}
