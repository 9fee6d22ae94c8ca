//! Resources of a run on the host, removed however the run ends: processes, a folder, signals.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::workspace::Result;

/// A process that does not outlive its owner.
pub(crate) struct Guarded(Child);

impl Guarded {
    /// Starts `command` without input. With `setpriv`, the process ends even when this one is
    /// killed by SIGKILL.
    pub(crate) fn start(command: &Command, stdout: Stdio, stderr: Stdio) -> Result<Self> {
        let program = command.get_program();
        let setpriv = Path::new("/usr/bin/setpriv");
        let mut words: Vec<OsString> = Vec::new();
        if setpriv.exists() {
            words.extend([setpriv.into(), "--pdeathsig".into(), "KILL".into(), "--".into()]);
        }
        words.push(program.to_owned());
        words.extend(command.get_args().map(ToOwned::to_owned));
        Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map(Self)
            .map_err(|error| format!("cannot run {program:?}: {error}").into())
    }

    /// The process's standard output, if it was piped and not taken before.
    pub(crate) fn take_stdout(&mut self) -> Result<std::process::ChildStdout> {
        self.0.stdout.take().ok_or_else(|| "the process's output was not captured".into())
    }

    /// The exit status, if the process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }

    /// Asks it to end, and waits up to `limit`.
    pub(crate) fn terminate(&mut self, limit: Duration) {
        if let Ok(None) = self.ended() {
            // It may end by itself meanwhile.
            let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
            let _ = self.wait(limit);
        }
    }

    /// Waits up to `limit` for it to end by itself.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + limit;
        loop {
            let status = self.ended()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only for an ended process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder for sockets and the guest's root, removed with its owner. It is in the system's folder
/// for temporary files because a socket's path is limited to 107 bytes.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(nix::unistd::mkdtemp(&std::env::temp_dir().join("verbless-vm-XXXXXX"))?))
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The user has ended the run.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// While it lives, Ctrl-C and similar signals do not end this process: they are read from here, so
/// that started processes end first.
pub(crate) struct Signals {
    descriptor: SignalFd,
    set: SigSet,
}

impl Signals {
    pub(crate) fn catch() -> Result<Self> {
        let set = Self::set();
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self { descriptor: SignalFd::with_flags(&set, flags)?, set })
    }

    /// The signals that end a process from outside.
    pub(crate) fn set() -> SigSet {
        SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
    }

    /// Whether a signal has arrived.
    pub(crate) fn came(&self) -> Result<bool> {
        Ok(self.descriptor.read_signal()?.is_some())
    }

    /// The descriptor to wait on.
    pub(crate) fn descriptor(&self) -> &SignalFd {
        &self.descriptor
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // A failure here is unlikely, and has no remedy.
        let _ = self.set.thread_unblock();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{Guarded, Scratch};

    #[test]
    fn process_is_killed_with_its_guard() {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let mut child =
            Guarded::start(&sleep, Stdio::null(), Stdio::null()).expect("the child starts");
        assert_eq!(child.wait(Duration::from_millis(20)).expect("its state"), None);
        let process = nix::unistd::Pid::from_raw(child.0.id() as i32);
        drop(child);
        assert_eq!(nix::sys::signal::kill(process, None), Err(nix::errno::Errno::ESRCH));
    }

    #[test]
    fn scratch_folder_is_removed_on_drop() {
        let scratch = Scratch::new().expect("a folder");
        let file = scratch.join("file");
        std::fs::write(&file, "x").expect("a file");
        drop(scratch);
        assert!(!file.parent().expect("a folder").exists());
    }
}
