//! Kills the programs when `run` itself is killed, by SIGKILL or the OOM killer.
//!
//! The kernel kills the program that `run` started (`PR_SET_PDEATHSIG`), but not its descendants,
//! which would continue on devices without a model. `run` forks the guardian before all other
//! processes and sends it a pidfd of every process that uses a device. When `run` is gone, the
//! guardian kills the remaining processes and ends.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, sendmsg, setsockopt,
    shutdown, socketpair,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::{process, sys};

/// Limit of the wait for a guardian that does not receive, for example because it was stopped.
const SEND_SECONDS: i64 = 1;

/// Process count from which ended processes are purged.
const PURGE_THRESHOLD: usize = 256;

/// The guardian process. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Guardian {
    pid: Pid,
    socket: Arc<OwnedFd>,
}

/// Sender of pidfds to the guardian.
#[derive(Debug)]
pub(super) struct GuardedProcesses(Arc<OwnedFd>);

impl Guardian {
    /// Starts the guardian. The caller has blocked the signals of `run`, and is the only thread.
    pub(super) fn new() -> Result<Self, Errno> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        setsockopt(&ours, SendTimeout, &TimeVal::seconds(SEND_SECONDS))?;
        let pid = sys::fork_session(theirs, |socket| watch(&socket))?;
        Ok(Self { pid, socket: Arc::new(ours) })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn sender(&self) -> GuardedProcesses {
        GuardedProcesses(self.socket.clone())
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        let _ = waitpid(self.pid, None);
    }
}

impl GuardedProcesses {
    /// A sender whose pidfds a test receives.
    #[cfg(test)]
    pub(super) fn through(socket: OwnedFd) -> Self {
        Self(Arc::new(socket))
    }

    /// Makes the guardian kill this process if it outlives `run`. May wait for the guardian.
    pub(super) fn add(&self, pidfd: BorrowedFd<'_>) {
        let descriptors = [pidfd.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&descriptors)];
        let (bytes, flags) = ([std::io::IoSlice::new(b"p")], MsgFlags::MSG_NOSIGNAL);
        if let Err(errno) = sendmsg::<()>(self.0.as_raw_fd(), &bytes, &control, flags, None) {
            tracing::debug!(%errno, "cannot guard a process: it will survive if `run` is killed");
        }
    }
}

/// Pidfds of processes; ended ones are purged at a threshold.
struct Guarded {
    all: Vec<OwnedFd>,
    purge_at: usize,
}

impl Guarded {
    fn add(&mut self, pidfd: OwnedFd) {
        self.all.push(pidfd);
        if self.all.len() >= self.purge_at {
            self.purge();
        }
    }

    fn purge(&mut self) {
        self.all.retain(|pidfd| !process::has_ended(pidfd.as_fd()));
        self.purge_at = PURGE_THRESHOLD.max(2 * self.all.len());
    }
}

/// The guardian's loop: receives pidfds until the sender is gone.
///
/// A pidfd that finds no free descriptor is lost, and its process survives a killed `run`. The
/// purge makes room for the next.
fn watch(socket: &OwnedFd) {
    process::allow_many_descriptors();
    let mut guarded = Guarded { all: Vec::new(), purge_at: PURGE_THRESHOLD };
    loop {
        match sys::receive_message(socket.as_fd(), 1) {
            Ok((_, pidfds)) if !pidfds.is_empty() => {
                pidfds.into_iter().for_each(|pidfd| guarded.add(pidfd));
            }
            // The pidfd was lost for lack of a free descriptor.
            Ok((message, _)) if !message.is_empty() => guarded.purge(),
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::debug!(%errno, "the guardian's socket fails");
                break;
            }
        }
    }
    guarded.all.iter().for_each(|pidfd| sys::kill_by(pidfd.as_fd()));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::os::unix::thread::JoinHandleExt;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    use super::*;
    use crate::run::rig::is_apart;

    #[test]
    fn ended_processes_are_purged_at_threshold() {
        let mut child = Command::new("true").spawn().unwrap();
        let ended = sys::pidfd(Pid::from_raw(child.id() as i32)).unwrap();
        child.wait().unwrap();
        let own = sys::pidfd(Pid::this()).unwrap();
        let mut guarded = Guarded { all: Vec::new(), purge_at: PURGE_THRESHOLD };
        let mut add = |pidfd: &OwnedFd, count: usize| {
            (0..count).for_each(|_| guarded.add(pidfd.try_clone().unwrap()));
            guarded.all.len()
        };
        assert_eq!(add(&ended, PURGE_THRESHOLD - 1), PURGE_THRESHOLD - 1);
        assert_eq!(add(&own, 1), 1, "all that have ended are gone");
        assert_eq!(add(&own, PURGE_THRESHOLD - 2), PURGE_THRESHOLD - 1);
        assert_eq!(add(&own, 1), PURGE_THRESHOLD, "all of them live");
        assert_eq!(
            add(&ended, PURGE_THRESHOLD - 1),
            2 * PURGE_THRESHOLD - 1,
            "the next purge is at twice as many"
        );
        assert_eq!(add(&ended, 1), PURGE_THRESHOLD);
    }

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    #[allow(unsafe_code, reason = "the watch gets a signal, whose handler does nothing")]
    fn watch_kills_process_when_sender_closes() {
        let action =
            SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: nothing else in this program uses this signal.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .unwrap();
        let watcher = thread::spawn(move || watch(&theirs));
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(5));
            // SAFETY: the thread is not joined yet.
            unsafe { libc::pthread_kill(watcher.as_pthread_t(), libc::SIGURG) };
        }
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = sys::pidfd(Pid::from_raw(child.id() as i32)).unwrap();
        let guarded = GuardedProcesses(Arc::new(ours));
        guarded.add(pidfd.as_fd());
        assert!(child.try_wait().unwrap().is_none(), "the watched child lives");
        drop(guarded);
        watcher.join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn watch_survives_lack_of_descriptors() {
        if !is_apart("run::guardian::tests::watch_survives_lack_of_descriptors") {
            return;
        }
        const LIMIT: u64 = 40;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = sys::pidfd(Pid::from_raw(child.id() as i32)).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, LIMIT, LIMIT).unwrap();
        let watcher = thread::spawn(move || watch(&theirs));
        let guarded = GuardedProcesses(Arc::new(ours));
        (0..3 * LIMIT).for_each(|_| guarded.add(pidfd.as_fd()));
        thread::sleep(Duration::from_millis(100));
        assert!(!watcher.is_finished());
        assert!(child.try_wait().unwrap().is_none());
        drop(guarded);
        watcher.join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
