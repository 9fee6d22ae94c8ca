//! State shared by all programs of one model: devices, known processes, open files.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::descriptor_locks::DescriptorLocks;
use super::open::{MAX_POLL_PERIOD, OpenTable};
use super::processes::Processes;
use super::wakes::{Wake, Wakes};
use crate::log::TraceLines;
use verbless_model::memory::ClientMemory;
use verbless_model::{Model, Resources};
use verbless_model_kernel::InProcess;
use verbless_model_kernel::remote::FileId;

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
