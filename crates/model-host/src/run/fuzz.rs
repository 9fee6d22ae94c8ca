//! Drives the supervisor for fuzzers, without a filter: a program makes arbitrary calls, changes
//! its memory at any time, and shares this process's descriptors.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

use super::answer::{Answer, Answerer};
use super::shared::SharedRun;
use super::sys::{self, CallGate, Notification};
use super::view::View;
use verbless_model::memory::ClientMemory;
use verbless_model::{Model, Side};

/// An idle process that maps the given files as its memory.
#[derive(Debug, Clone, Copy)]
pub struct IdleProcess {
    pid: u32,
}

impl IdleProcess {
    /// Starts a process that maps each file at its address, writable or read-only. It ends with
    /// this process.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(memory: &[(&File, u64, u64, bool)]) -> std::io::Result<Self> {
        sys::idle_process(memory).map(|pid| Self { pid })
    }
}

/// The device tree of a model; reusable for models with the same devices, because building it is
/// slow.
#[derive(Clone)]
pub struct DeviceTree(Arc<View>);

impl DeviceTree {
    /// Builds the tree for this model and models like it.
    ///
    /// # Errors
    /// The files cannot be made.
    pub fn new(model: &Model) -> Result<Self, super::error::RunError> {
        View::new(model, Side::Host).map(|view| Self(Arc::new(view)))
    }
}

/// A program, seen by the supervisor.
pub struct FuzzProgram {
    answerer: Answerer,
    held: Arc<Descriptors>,
    process: IdleProcess,
}

impl FuzzProgram {
    /// A program that has made no call yet. `memory` is the model's.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(
        model: &Model,
        memory: Arc<ClientMemory>,
        tree: &DeviceTree,
        process: IdleProcess,
    ) -> Result<Self, Errno> {
        let shared = Arc::new(SharedRun::new(model, memory, None)?);
        let held = Arc::new(Descriptors::default());
        let (gate, view) = (held.clone() as Arc<dyn CallGate>, tree.0.clone());
        Ok(Self { answerer: Answerer { shared, gate, view, pool: Arc::default() }, held, process })
    }

    /// Makes a call. Its thread is killed after `valid_checks` checks of NOTIF_ID_VALID. Returns
    /// the result; `None`: the kernel executes the call.
    pub fn call(
        &self,
        number: i64,
        arguments: [u64; 6],
        valid_checks: u32,
    ) -> Option<Result<i64, i32>> {
        self.held.valid_checks.store(valid_checks, Ordering::Relaxed);
        let call = Notification::of(self.process.pid, number as i32, arguments);
        match self.answerer.answer(&call) {
            Answer::Kernel => None,
            Answer::Ours(result) => Some(result.map_err(|errno| errno as i32)),
            Answer::Installed => self.descriptors().last().map(|&last| Ok(last.into())),
        }
    }

    /// Descriptors that the program received and has not closed.
    pub fn descriptors(&self) -> Vec<i32> {
        self.held.installed().iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Closes one of its descriptors.
    pub fn close(&self, index: usize) {
        let mut installed = self.held.installed();
        if !installed.is_empty() {
            let index = index % installed.len();
            drop(installed.remove(index));
        }
    }

    /// Stores a doorbell word into a device page that the program has mapped.
    pub fn store(&self, index: usize, offset: u64, word: u64) {
        let installed = self.held.installed();
        let of = |fd: &OwnedFd| fd.try_clone().map(File::from);
        if let Some(Ok(file)) = installed.get(index % installed.len().max(1)).map(of) {
            let _ = file.write_at(&word.to_ne_bytes(), offset & !7);
        }
    }

    /// Closes all descriptors; returns how many devices are still open.
    pub fn end(self) -> usize {
        self.held.installed().clear();
        self.answerer.shared.opens().len()
    }
}

/// A program's descriptors, and the remaining NOTIF_ID_VALID checks.
#[derive(Debug, Default)]
struct Descriptors {
    installed: Mutex<Vec<OwnedFd>>,
    valid_checks: AtomicU32,
}

impl Descriptors {
    fn installed(&self) -> std::sync::MutexGuard<'_, Vec<OwnedFd>> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallGate for Descriptors {
    fn answer(&self, _: u64, _: Result<i64, Errno>) {}

    fn continue_call(&self, _: u64) {}

    fn is_waiting(&self, _: u64) -> bool {
        let less = |valid_checks: u32| valid_checks.checked_sub(1);
        self.valid_checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn install_fd(
        &self,
        _: u64,
        file: BorrowedFd<'_>,
        _: Option<u32>,
        _: bool,
        _: bool,
    ) -> Result<i32, Errno> {
        if self.valid_checks.load(Ordering::Relaxed) == 0 {
            return Err(Errno::ENOENT);
        }
        let copy = file.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
        let number = copy.as_raw_fd();
        self.installed().push(copy);
        Ok(number)
    }
}
