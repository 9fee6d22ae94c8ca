//! What wakes the supervisor: descriptors, and the event that each stands for.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::Pid;

/// An event for the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// A signal arrived.
    Signal,
    /// A device's descriptor was closed.
    Close,
    /// The process ended.
    Death(Pid),
    /// No process is left behind the filter with this number.
    FilterUnused(u32),
    /// A guest or `ctl` wants to connect.
    JoinSocket,
    /// The guest with this number sent a message.
    Guest(u32),
    /// The check of a guest's program has ended.
    Checked,
}

impl Wake {
    const SIGNAL: u64 = 0;
    const CLOSE: u64 = 1;
    const DEATH: u64 = 2;
    const FILTER_UNUSED: u64 = 3;
    const JOIN_SOCKET: u64 = 4;
    const GUEST: u64 = 5;
    const CHECKED: u64 = 6;

    fn to_bits(self) -> u64 {
        match self {
            Self::Signal => Self::SIGNAL,
            Self::Close => Self::CLOSE,
            Self::Death(pid) => Self::DEATH | u64::from(pid.as_raw() as u32) << 32,
            Self::FilterUnused(number) => Self::FILTER_UNUSED | u64::from(number) << 32,
            Self::JoinSocket => Self::JOIN_SOCKET,
            Self::Guest(number) => Self::GUEST | u64::from(number) << 32,
            Self::Checked => Self::CHECKED,
        }
    }

    fn of_bits(bits: u64) -> Self {
        let number = (bits >> 32) as u32;
        match bits & u64::from(u32::MAX) {
            Self::SIGNAL => Self::Signal,
            Self::CLOSE => Self::Close,
            Self::DEATH => Self::Death(Pid::from_raw(number as i32)),
            Self::JOIN_SOCKET => Self::JoinSocket,
            Self::GUEST => Self::Guest(number),
            Self::CHECKED => Self::Checked,
            _ => Self::FilterUnused(number),
        }
    }
}

/// The descriptors that wake the supervisor; any thread may add one.
#[derive(Debug)]
pub(super) struct Wakes(Epoll);

impl Wakes {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Wakes when `fd` is readable.
    pub(super) fn on_input(&self, fd: BorrowedFd<'_>, wake: Wake) -> Result<(), Errno> {
        self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, wake.to_bits()))
    }

    /// Wakes when the peer of `fd` is closed.
    pub(super) fn on_end(&self, fd: BorrowedFd<'_>, wake: Wake) -> Result<(), Errno> {
        self.0.add(fd, EpollEvent::new(EpollFlags::empty(), wake.to_bits()))
    }

    /// Stops waiting for a descriptor.
    pub(super) fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = self.0.delete(fd);
    }

    /// Waits for events, at most for `timeout`.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Wake>, Errno> {
        let mut events = [EpollEvent::empty(); 16];
        // One millisecond more: epoll's timeout excludes the current partial one.
        let timeout = timeout.map(|it| it + Duration::from_millis(1));
        let timeout = timeout.and_then(|it| it.try_into().ok()).unwrap_or(EpollTimeout::NONE);
        match self.0.wait(&mut events, timeout) {
            Ok(ready) => Ok(events[..ready].iter().map(|it| Wake::of_bits(it.data())).collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn wake_bits_round_trip() {
        let reasons = [
            Wake::Signal,
            Wake::Close,
            Wake::Death(Pid::from_raw(77)),
            Wake::FilterUnused(0),
            Wake::FilterUnused(9),
            Wake::JoinSocket,
            Wake::Guest(3),
            Wake::Checked,
        ];
        for wake in reasons {
            assert_eq!(Wake::of_bits(wake.to_bits()), wake);
        }
    }

    #[test]
    fn end_wakes_reader_without_data() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let wakes = Wakes::new().expect("an epoll");
        wakes
            .on_end(ours.as_fd(), Wake::FilterUnused(5))
            .expect("the supervisor watches the descriptor");
        drop(theirs);
        assert_eq!(wakes.wait(None), Ok(vec![Wake::FilterUnused(5)]));
    }

    #[test]
    fn readable_input_wakes_until_forgotten() {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let wakes = Wakes::new().expect("an epoll");
        wakes
            .on_input(ours.as_fd(), Wake::Guest(2))
            .expect("the supervisor watches the descriptor");
        assert_eq!(wakes.wait(Some(Duration::ZERO)), Ok(vec![]));
        std::io::Write::write_all(&mut theirs, b"!").expect("the socket is open");
        assert_eq!(wakes.wait(Some(Duration::from_secs(20))), Ok(vec![Wake::Guest(2)]));
        wakes.forget(ours.as_fd());
        assert_eq!(wakes.wait(Some(Duration::ZERO)), Ok(vec![]));
    }
}
