//! A program for tests whose calls are answered without a filter: its thread, memory and
//! descriptors are the test's.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::unistd::gettid;

use super::answer::{Answer, Answerer};
use super::shared::SharedRun;
use super::sys::{self, CallGate, Notification};
use super::view::View;
use verbless_model::{Model, Profile, Side};

/// Whether pidfd_getfd is allowed. If not, the test is skipped, and says so past the output
/// capture.
pub(super) fn may_take(pidfd: &OwnedFd) -> bool {
    let Err(errno) = sys::take_descriptor(pidfd, 0) else { return true };
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("skipped: {name}: descriptors may not be taken: {errno}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    false
}

/// Runs a test in its own process if it changes process-wide state. True in that process. `name`:
/// the test's name with its module.
pub(super) fn is_apart(name: &str) -> bool {
    const APART: &str = "VERBLESS_TEST_APART";
    if std::env::var(APART).is_ok_and(|test| test == name) {
        return true;
    }
    let program = std::env::current_exe().expect("this test");
    let mut command = std::process::Command::new(program);
    let output = command.args(["--exact", name, "--nocapture"]).env(APART, name).output();
    let output = output.expect("the test program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}\n{said}");
    false
}

/// A FUSE file whose server does not answer GETATTR; the server ends when this is dropped.
pub(super) struct SilentFuse {
    server: std::process::Child,
    path: std::path::PathBuf,
}

impl SilentFuse {
    /// Starts the server; `None`: FUSE cannot be mounted here.
    pub(super) fn start(test: &str) -> Option<Self> {
        const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/fuse.py");
        let path = std::env::temp_dir().join(format!("silent-{test}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        let mut command = std::process::Command::new("python3");
        command.arg(SERVER).arg(&path).arg("silent").stdout(std::process::Stdio::piped());
        let Ok(mut server) = command.spawn() else {
            let _ = std::fs::remove_dir(&path);
            return None;
        };
        let mut word = [0; 3];
        let read = server.stdout.take().expect("piped").read_exact(&mut word);
        let server = Self { server, path };
        if read.is_ok() && &word == b"up\n" {
            return Some(server);
        }
        let line = format!("skipped: {test}: FUSE cannot be mounted here\n");
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
        None
    }

    pub(super) fn open(&self) -> File {
        File::options()
            .read(true)
            .write(true)
            .open(self.path.join("file"))
            .expect("the FUSE file opens")
    }
}

impl Drop for SilentFuse {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let mut umount = std::process::Command::new("umount");
        let _ = umount.arg("-l").arg(&self.path).stderr(std::process::Stdio::null()).status();
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// AT_FDCWD as an argument.
pub(super) const HERE: u64 = libc::AT_FDCWD as u64;

/// A program, and its recorded descriptors.
pub(super) struct Program {
    pub answerer: Answerer,
    pub gate: Arc<Recorder>,
    pub model: Model,
}

/// A descriptor that the program got; the real number differs from `number`.
#[derive(Debug)]
pub(super) struct InstalledFd {
    pub file: OwnedFd,
    pub number: Option<u32>,
    pub close_on_exec: bool,
    pub answer: bool,
}

impl InstalledFd {
    /// The descriptor as an argument.
    pub(super) fn descriptor(&self) -> u64 {
        self.file.as_raw_fd() as u64
    }

    /// Reads the file to its end.
    pub(super) fn text(self) -> String {
        let mut text = String::new();
        File::from(self.file).read_to_string(&mut text).expect("the file can be read");
        text
    }
}

impl Program {
    /// A program on the host of a BlueField-3.
    pub(super) fn new() -> Self {
        let profile = Profile::load("bluefield3").expect("a profile");
        Self::of(&Model::builder().device(profile).build(), Side::Host)
    }

    /// As [`new`](Self::new), if pidfd_getfd is allowed.
    pub(super) fn open_to_all() -> Option<Self> {
        let program = Self::new();
        let process = program.answerer.shared.processes.of_thread(std::process::id(), || true);
        let reach = process.expect("this process").reach().expect("the process is alive");
        may_take(&reach.pidfd).then_some(program)
    }

    pub(super) fn of(model: &Model, side: Side) -> Self {
        let mut shared = SharedRun::new(model, Arc::default(), None).expect("an epoll");
        shared.control_mode = 0o666;
        let shared = Arc::new(shared);
        let view = Arc::new(View::new(model, side).expect("devices"));
        let gate = Arc::new(Recorder::default());
        let answerer = Answerer { shared, gate: gate.clone(), view, pool: Arc::default() };
        Self { answerer, gate, model: model.clone() }
    }

    /// Answers a call with these arguments, padded with zeros.
    pub(super) fn call(&self, number: libc::c_long, arguments: &[u64]) -> Answer {
        self.call_of(gettid().as_raw() as u32, number, arguments)
    }

    /// Answers a call of a thread.
    pub(super) fn call_of(&self, tid: u32, number: libc::c_long, leading: &[u64]) -> Answer {
        let mut arguments = [0; 6];
        arguments[..leading.len()].copy_from_slice(leading);
        self.answerer.answer(&Notification::of(tid, number as i32, arguments))
    }

    /// The last descriptor that was installed.
    pub(super) fn last_installed(&self) -> InstalledFd {
        self.gate.last().expect("a descriptor")
    }

    /// Opens a path, which must succeed with a descriptor.
    pub(super) fn open(&self, path: &CStr, flags: i32) -> InstalledFd {
        let answer = self.call(libc::SYS_openat, &[HERE, at(path), flags as u64]);
        assert_eq!(answer, Answer::Installed, "{path:?}");
        self.last_installed()
    }
}

/// The address of a path.
pub(super) fn at(path: &CStr) -> u64 {
    path.as_ptr() as u64
}

/// Records the installed descriptors, unless the call has ended or the program refuses.
#[derive(Debug)]
pub(super) struct Recorder {
    installed: Mutex<Vec<InstalledFd>>,
    refusals: Mutex<Vec<Errno>>,
    /// Remaining positive NOTIF_ID_VALID checks; negative: unlimited.
    valid_checks: AtomicI64,
    /// `install_fd` blocks until the sender is dropped.
    slow: Mutex<Option<Receiver<()>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        let (installed, refusals, slow) = Default::default();
        Self { installed, refusals, valid_checks: AtomicI64::new(-1), slow }
    }
}

impl Recorder {
    fn installed(&self) -> std::sync::MutexGuard<'_, Vec<InstalledFd>> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last descriptor.
    pub(super) fn last(&self) -> Option<InstalledFd> {
        self.installed().pop()
    }

    /// Makes the next `install_fd` calls fail with these errors, in order.
    pub(super) fn refuse(&self, errnos: &[Errno]) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        *refusals = errnos.iter().rev().copied().collect();
    }

    /// Makes the next `install_fd` block until the sender is dropped, like a thread that does not
    /// run.
    pub(super) fn delay(&self) -> Sender<()> {
        let (sender, receiver) = channel();
        *self.slow.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
        sender
    }

    /// Whether the delayed `install_fd` has begun.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Makes all later NOTIF_ID_VALID checks fail.
    pub(super) fn end(&self) {
        self.end_after(0);
    }

    /// Lets the next `valid_checks` NOTIF_ID_VALID checks succeed and later ones fail, as if the
    /// thread were killed then.
    pub(super) fn end_after(&self, valid_checks: i64) {
        self.valid_checks.store(valid_checks, Ordering::Relaxed);
    }
}

impl CallGate for Recorder {
    fn answer(&self, _: u64, _: Result<i64, Errno>) {}

    fn continue_call(&self, _: u64) {}

    fn is_waiting(&self, _: u64) -> bool {
        let one_less = |valid_checks: i64| (valid_checks > 0).then(|| valid_checks - 1);
        match self.valid_checks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => true,
            Err(valid_checks) => valid_checks < 0,
        }
    }

    fn install_fd(
        &self,
        _: u64,
        file: BorrowedFd<'_>,
        number: Option<u32>,
        close_on_exec: bool,
        answer: bool,
    ) -> Result<i32, Errno> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(slow) = slow {
            let _ = slow.recv();
        }
        let refused = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(errno) = refused {
            return Err(errno);
        }
        let file = file.try_clone_to_owned().expect("a duplicate");
        let descriptor = file.as_raw_fd();
        self.installed().push(InstalledFd { file, number, close_on_exec, answer });
        Ok(descriptor)
    }
}
