//! State shared by all programs of one model: devices, known processes, open files.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::Pid;

use super::descriptor_locks::DescriptorLocks;
use super::open::{MAX_POLL_PERIOD, OpenTable};
use super::processes::Processes;
use crate::log::TraceLines;
use verbless_model::memory::ClientMemory;
use verbless_model::{Model, Resources};
use verbless_model_kernel::InProcess;
use verbless_model_kernel::remote::FileId;

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

/// State shared by all programs of one model.
pub(super) struct SharedRun {
    model: Model,
    pub backend: InProcess,
    /// Trace of ioctls.
    pub printed: Option<TraceLines>,
    /// Mode of `/dev/fwctl/fwctlN`.
    pub control_mode: u32,
    pub wakes: Arc<Wakes>,
    pub processes: Processes,
    opens: Mutex<OpenTable>,
    /// Number of closed devices whose objects are being destroyed.
    destroying: Arc<AtomicUsize>,
    descriptor_locks: DescriptorLocks,
    warned: AtomicBool,
}

impl SharedRun {
    pub(super) fn new(
        model: &Model,
        memory: Arc<ClientMemory>,
        printed: Option<TraceLines>,
    ) -> Result<Self, Errno> {
        let (wakes, opens) = (Arc::new(Wakes::new()?), OpenTable::new()?);
        wakes.on_input(opens.as_fd(), Wake::Close)?;
        wakes.on_input(opens.poll_request.as_fd(), Wake::Close)?;
        Ok(Self {
            model: model.clone(),
            backend: InProcess::of(model),
            printed,
            control_mode: 0o600,
            processes: Processes::new(memory, wakes.clone()),
            wakes,
            opens: Mutex::new(opens),
            destroying: Arc::default(),
            descriptor_locks: DescriptorLocks::default(),
            warned: AtomicBool::new(false),
        })
    }

    /// The objects of a device that belong to programs.
    pub(super) fn resources(&self, device: usize) -> Resources {
        let own = self.backend.own_context(device);
        let mut all = self.model.resources(device);
        all.contexts.retain(|&uid| Some(uid) != own);
        all
    }

    /// Records that a thread waits in `execve` or `execveat`; `waits`: whether it still does.
    pub(super) fn note_execve(&self, tid: u32, waits: impl Fn() -> bool) {
        // First: the process may become known at a call of another thread meanwhile.
        self.processes.note_early_execve(tid);
        if let Some(pid) = self.processes.known(tid) {
            self.processes.note_execve((pid, tid), || self.model.pause(), waits);
        }
    }

    /// The open devices. First ends the devices that a client has closed, as its `close` would do;
    /// a separate thread destroys the objects of a device with many.
    pub(super) fn opens(&self) -> MutexGuard<'_, OpenTable> {
        let lock = || self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        let mut opens = lock();
        let ended = opens.take_closed();
        if ended.is_empty() {
            return opens;
        }
        let ended = ended.count(&self.destroying);
        drop(opens);
        ended.finish();
        lock()
    }

    /// How often the supervisor must call [`opens`](Self::opens), because no event reports the
    /// close of some device. It waits with this timeout next.
    pub(super) fn poll_period(&self) -> Option<Duration> {
        let opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        opens.clear_poll_request().then_some(MAX_POLL_PERIOD)
    }

    /// Closes an open device.
    pub(super) fn end_open(&self, id: FileId) {
        let mut opens = self.opens();
        let ended = opens.end(id).count(&self.destroying);
        drop(opens);
        ended.finish();
    }

    /// Whether objects of closed devices are being destroyed.
    pub(super) fn is_destroying(&self) -> bool {
        self.destroying.load(Ordering::Acquire) != 0
    }

    /// Whether every device is closed and its objects are destroyed.
    pub(super) fn is_closed(&self) -> bool {
        self.opens().is_empty() && !self.is_destroying()
    }

    /// The lock of a process's descriptor numbers, held while a descriptor is installed at a free
    /// number.
    pub(super) fn descriptor_lock(&self, pid: Pid) -> Arc<Mutex<()>> {
        self.descriptor_locks.of(pid)
    }

    /// Warns once that a program's memory cannot be accessed.
    pub(super) fn warn_of_a_closed_process(&self, tid: u32) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                tid,
                "the memory of a program cannot be accessed (it changed its identity, or it is not \
                 dumpable, as a program whose file is not readable): it sees no modelled device, \
                 unless `run` runs as root"
            );
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn closed_process_warning_is_logged_once() {
        let profile = verbless_model::Profile::load("bluefield3").expect("a profile");
        let model = Model::builder().device(profile).build();
        let run = SharedRun::new(&model, Arc::default(), None).expect("an epoll");
        let said = crate::captured_log::captured_log(|| {
            (0..3).for_each(|tid| run.warn_of_a_closed_process(tid))
        });
        assert_eq!(said.matches("cannot be accessed").count(), 1, "{said}");
        assert!(said.contains("tid=0"), "{said}");
    }
}
