//! Answers notifications: the thread that receives them, and the dispatch by system call.
//!
//! Most trapped calls do not concern the devices: a BPF filter sees the pointer to a path, not the
//! path. Their cost is the cost of `run` for a program that uses no device, so they take four
//! steps: receive the notification, read the path, check NOTIF_ID_VALID, continue the call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use super::call_threads::{CallThreads, REPLACE_AFTER, REPLACE_AFTER_PENDING, StallAction};
use super::file_closer::FileClosers;
use super::filter;
use super::open_how::OpenHow;
use super::process::{self, Caller};
use super::shared::SharedRun;
use super::sys::{self, CallGate, Listener, Notification, Stat};
use super::view::View;

/// Number of checks at short intervals after a call hung.
const FAST_CHECKS: u32 = 100;

/// The answer to a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The kernel executes the call (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
    Kernel,
    Ours(Result<i64, Errno>),
    /// [`CallGate::install_fd`] installed a descriptor and answered the call.
    Installed,
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::Ours(Err(errno))
    }
}

/// Answers the notifications of one filter.
#[derive(Clone)]
pub(super) struct Answerer {
    pub shared: Arc<SharedRun>,
    pub gate: Arc<dyn CallGate>,
    pub view: Arc<View>,
    /// Closes files that were taken from the filter's programs.
    pub pool: Arc<FileClosers>,
}

/// Starts the threads that answer a filter's notifications. They end with the filter's last
/// process.
///
/// One thread receives at a time. The kernel wakes all receivers of a listener, and one of them
/// gets the notification. If it stays in a call too long, another thread replaces it
/// (`call_threads`).
pub(super) fn spawn(
    shared: &Arc<SharedRun>,
    listener: &Arc<Listener>,
    view: &Arc<View>,
) -> io::Result<()> {
    let gate: Arc<dyn CallGate> = listener.clone();
    let (shared, view, pool) = (shared.clone(), view.clone(), Arc::default());
    let answerer = Answerer { shared, gate, view, pool };
    let calls = Arc::new(FilterCalls {
        answerer,
        listener: listener.clone(),
        turns: CallThreads::default(),
    });
    let watched = Arc::downgrade(&calls);
    Builder::new().name("verbless-watch".into()).spawn(move || watch(&watched))?;
    calls.start_thread(0)
}

/// A filter with its answering threads.
struct FilterCalls {
    answerer: Answerer,
    listener: Arc<Listener>,
    turns: CallThreads,
}

impl FilterCalls {
    /// Starts the answering thread with this number.
    fn start_thread(self: Arc<Self>, number: u64) -> io::Result<()> {
        Builder::new().spawn(move || self.answer_all(number)).map(drop)
    }

    fn answer_all(&self, number: u64) {
        let answerer = &self.answerer;
        loop {
            match self.listener.receive() {
                Ok(call) => {
                    self.turns.begin(number, call);
                    match answerer.answer_catching_panics(&call) {
                        Answer::Kernel => answerer.gate.continue_call(call.id),
                        Answer::Ours(result) => answerer.gate.answer(call.id, result),
                        Answer::Installed => {}
                    }
                    if !self.turns.end(number) {
                        return;
                    }
                }
                // The caller was killed, or no task is left behind the filter (before Linux 6.11,
                // the receive does not end then).
                Err(Errno::ENOENT) if every_task_has_left(self.listener.as_fd()) => return,
                Err(Errno::ENOENT | Errno::EINTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "cannot receive notifications: calls hang");
                    return;
                }
            }
        }
    }

    /// The process of a call; `None`: the call no longer waits.
    fn process_of(&self, call: &Notification) -> Option<Pid> {
        let pid = process::process_of(call.tid).ok()?;
        self.answerer.gate.is_waiting(call.id).then_some(pid)
    }
}

/// Starts another answering thread whenever one stays in a call too long.
fn watch(calls: &Weak<FilterCalls>) {
    let (mut refused, mut exhausted, mut quick) = (false, false, 0_u32);
    loop {
        // Hanging calls come in groups.
        std::thread::sleep(if quick == 0 { REPLACE_AFTER } else { REPLACE_AFTER_PENDING });
        let Some(calls) = calls.upgrade() else { return };
        let waits = call_waits(calls.listener.as_fd());
        match calls.turns.next_step(Instant::now(), waits, |call| calls.process_of(call)) {
            StallAction::Nothing => {
                quick = quick.saturating_sub(1);
                continue;
            }
            StallAction::Replace => {}
            StallAction::Exhausted => {
                quick = 0;
                if !std::mem::replace(&mut exhausted, true) {
                    tracing::error!(
                        "too many threads wait for memory of ended processes (a FUSE server does \
                         not answer): this filter gets no new thread, its calls wait"
                    );
                }
                continue;
            }
            StallAction::Kill(hung) => {
                tracing::error!(
                    calls = hung.len(),
                    "memory with the arguments of these calls does not arrive (userfaultfd, \
                     FUSE, NFS), and no thread is left for other calls: killing their processes"
                );
                hung.iter().for_each(|busy| kill_caller(&*calls.answerer.gate, &busy.call));
            }
        }
        quick = FAST_CHECKS;
        let started = calls.turns.replace(|number| calls.clone().start_thread(number));
        match started {
            Ok(()) => (refused, exhausted) = (false, false),
            Err(error) => {
                if !std::mem::replace(&mut refused, true) {
                    tracing::error!(%error, "cannot start an answering thread: calls wait");
                }
                quick = 0;
            }
        }
    }
}

impl Answerer {
    /// Answers a call even if [`Answerer::answer`] panics. The bug then fails only this call; other
    /// callers still get answers.
    fn answer_catching_panics(&self, call: &Notification) -> Answer {
        let answer = catch_unwind(AssertUnwindSafe(|| self.answer(call)));
        answer.unwrap_or_else(|_| {
            tracing::error!(call = call.number, "answering a call panicked: this is a bug");
            Errno::EIO.into()
        })
    }

    /// Determines the answer to a call.
    pub(super) fn answer(&self, call: &Notification) -> Answer {
        #[cfg(target_arch = "x86_64")]
        const HERE: u64 = libc::AT_FDCWD as u64;
        let [first, second, third, fourth, ..] = call.arguments;
        self.shared.processes.note_call(call.tid, || self.gate.is_waiting(call.id));
        if filter::is_foreign(call.architecture, call.number) {
            self.shared.note_execve(call.tid, || self.gate.is_waiting(call.id));
            return Answer::Kernel;
        }
        match i64::from(call.number) {
            libc::SYS_ioctl => self.ioctl(call),
            libc::SYS_execve | libc::SYS_execveat => {
                self.shared.note_execve(call.tid, || self.gate.is_waiting(call.id));
                Answer::Kernel
            }
            libc::SYS_socket => self.socket(call),
            libc::SYS_sendto | libc::SYS_sendmsg => self.send(call),
            libc::SYS_chdir => self.chdir(call),
            libc::SYS_getcwd => self.getcwd(call),
            libc::SYS_dup => self.duplicate(call, 0, false),
            libc::SYS_fcntl => self.duplicate(call, third, second as i32 == libc::F_DUPFD_CLOEXEC),
            libc::SYS_mmap => self.mmap(call),
            libc::SYS_ftruncate => self.refuse_on_device(call, Errno::EINVAL),
            libc::SYS_fallocate => self.refuse_on_device(call, Errno::ENODEV),
            libc::SYS_openat => self.open(call, first, second, &OpenHow::from_flags(third)),
            libc::SYS_openat2 => self.openat2(call),
            libc::SYS_newfstatat => self.stat(call, first, second, fourth, Stat::Plain(third)),
            libc::SYS_statx => {
                let [_, _, flags, mask, buffer, _] = call.arguments;
                self.stat(call, first, second, flags, Stat::Extended(mask as u32, buffer))
            }
            libc::SYS_fstat => {
                self.stat(call, first, 0, libc::AT_EMPTY_PATH as u64, Stat::Plain(second))
            }
            libc::SYS_faccessat => self.access(call, first, second, third, 0),
            libc::SYS_faccessat2 => self.access(call, first, second, third, fourth),
            libc::SYS_getxattr | libc::SYS_lgetxattr => self.no_xattr(call, Err(Errno::ENODATA)),
            libc::SYS_listxattr | libc::SYS_llistxattr => self.no_xattr(call, Ok(0)),
            libc::SYS_readlinkat => self.readlink(call, first, second, third, fourth),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => self.open(call, HERE, first, &OpenHow::from_flags(second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => self.stat(call, HERE, first, 0, Stat::Plain(second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => {
                let flags = libc::AT_SYMLINK_NOFOLLOW as u64;
                self.stat(call, HERE, first, flags, Stat::Plain(second))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => self.access(call, HERE, first, second, 0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => self.readlink(call, HERE, first, second, third),
            _ => Answer::Kernel,
        }
    }

    /// The process that made the call. EINTR: the call no longer waits.
    pub(super) fn caller(&self, call: &Notification) -> Result<Caller, Errno> {
        let waits = || self.gate.is_waiting(call.id);
        let process = self.shared.processes.behind(call.tid, &self.pool, waits)?;
        let through = Some((self.gate.clone(), call.id));
        Ok(Caller { process, tid: call.tid, call: through })
    }

    /// Reads the caller's memory. EINTR: the call no longer waits.
    pub(super) fn read(
        &self,
        call: &Notification,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Errno> {
        process::read_of_caller(&*self.gate, call, address, into)
    }
}

pub(super) fn kill_caller(gate: &dyn CallGate, call: &Notification) {
    let Ok(pid) = process::process_of(call.tid) else { return };
    let Ok(pidfd) = sys::pidfd(pid) else { return };
    if gate.is_waiting(call.id) {
        sys::kill_by(pidfd.as_fd());
    }
}

/// Whether a notification is pending.
fn call_waits(listener: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(listener, PollFlags::POLLIN)];
    poll(&mut waiting, PollTimeout::ZERO).is_ok()
        && waiting[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
}

fn every_task_has_left(listener: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(listener, PollFlags::empty())];
    let ended = PollFlags::POLLHUP | PollFlags::POLLERR;
    poll(&mut waiting, PollTimeout::ZERO).is_ok()
        && waiting[0].revents().is_some_and(|events| events.intersects(ended))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use nix::unistd::Pid;

    use super::super::rig::Program;
    use super::*;

    #[test]
    fn i386_execve_marks_process_as_in_execve() {
        let (native, narrow) = (filter::ARCHITECTURE, 0x4000_0003);
        for (architecture, number, leaves) in [
            (native, libc::SYS_execve as i32, true),
            // execve and execveat of i386; on x86-64 these numbers are other calls.
            (narrow, 11, true),
            (narrow, 358, true),
            (native, libc::SYS_getcwd as i32, false),
        ] {
            let program = Program::new();
            let shared = &program.answerer.shared;
            let tid = std::process::id();
            shared.processes.of_thread(tid, || true).expect("this process");
            let mut call = Notification::of(tid, number, [0; 6]);
            call.architecture = architecture;
            assert_eq!(program.answerer.answer(&call), Answer::Kernel);
            let found = shared.processes.may_be_leaving(Pid::this());
            assert_eq!(found, leaves, "{architecture:#x} {number}");
        }
    }

    #[test]
    fn every_task_has_left_only_after_hangup() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        assert!(!every_task_has_left(ours.as_fd()));
        theirs.write_all(b"!").expect("the socket is open");
        assert!(!every_task_has_left(ours.as_fd()));
        drop(theirs);
        assert!(every_task_has_left(ours.as_fd()));
    }
}
