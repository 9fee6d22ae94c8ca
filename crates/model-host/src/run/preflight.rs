//! Checks the environment before the program starts: containers, sandboxes and old kernels forbid
//! operations that the supervisor needs. Each error names the operation and the remedy; without the
//! check, the program would find no device, without a visible reason.
//!
//! Behind its filter, the child makes one call before it executes the program (`sys::start`). To
//! answer it, the supervisor uses every system call that it will need.

use std::borrow::Cow;
use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;
use std::{io, thread};

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlink};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, geteuid};

use super::error::RunError;
use super::process;
use super::sys::{self, CallGate, Listener, Notification};
use super::tree::Tree;

const KERNEL: &str = "Linux 5.14 or newer is needed";
const MOUNT: &str = "mount one for this PID namespace: mount -t proc proc /proc";
const WATCHES: &str = "raise fs.inotify.max_user_instances or fs.inotify.max_user_watches";
const PROCESSES: &str =
    "raise the limits of processes and memory (ulimit -u, ulimit -v, a container's --pids-limit)";
const SANDBOX: &str = "the sandbox must allow it; docker and podman do with --cap-add=SYS_PTRACE \
                       or --security-opt seccomp=unconfined";
const YAMA: &str = "set kernel.yama.ptrace_scope to 0 or 1; 2 works for root only";
const SECURITY: &str = "a security module (AppArmor, SELinux) or a user namespace forbids it";
const MEMORY: &str = "raise the limit of address space (ulimit -v), or use fewer devices";
/// Address space reserved per function, mostly UAR pages. The process itself needs as much once
/// more.
const BYTES_PER_FUNCTION: usize = 64 << 20;
/// Yama's restriction of access to other processes.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Time for the child's first call, which it makes at once.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the call to arrive, and for the read of its path's memory.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

fn cannot(what: impl Into<Cow<'static, str>>, remedy: &'static str) -> impl Fn(Errno) -> RunError {
    let what = what.into();
    move |errno| RunError::Preflight { what: what.clone(), errno, remedy }
}

/// Checks what a model with this many functions needs, before the model is built.
pub(super) fn check(functions: usize) -> Result<(), RunError> {
    let room = Vec::<u8>::new().try_reserve_exact(BYTES_PER_FUNCTION.saturating_mul(functions + 1));
    room.map_err(|_| cannot("there is not enough address space", MEMORY)(Errno::ENOMEM))?;
    let started = thread::Builder::new().spawn(|| ()).map_err(|error| no_thread(&error))?;
    started.join().map_err(|_| io::Error::other("a thread failed"))?;
    let own = Pid::this().to_string();
    let shown = readlink("/proc/self").map_err(cannot("/proc cannot be read", MOUNT))?;
    if *shown != *own {
        return Err(cannot("/proc belongs to another PID namespace", MOUNT)(Errno::ESRCH));
    }
    let memory = memfd_create(c"verbless-check", MFdFlags::MFD_CLOEXEC);
    memory.map(drop).map_err(cannot("memfd_create is refused", SANDBOX))
}

/// The error if closes cannot be watched. `check` does not try it, because closing an inotify
/// instance takes milliseconds.
pub(super) fn no_watch(errno: Errno) -> RunError {
    cannot("no file can be watched", WATCHES)(errno)
}

/// Tries a lookup in the tree.
pub(super) fn check_tree(tree: &Tree) -> Result<(), RunError> {
    // A path that is not a node of any model's tree.
    let opened = tree.open(b"/sys", OFlag::O_PATH);
    opened.map(drop).map_err(cannot("openat2 is refused", SANDBOX))
}

fn no_thread(error: &io::Error) -> RunError {
    let errno = errno_of(error);
    let remedy = match errno {
        // After unshare(CLONE_NEWPID), a process outside the new namespace cannot start threads.
        Errno::EINVAL => "use unshare --pid with --fork",
        _ => PROCESSES,
    };
    cannot("no thread can be started", remedy)(errno)
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The error if no child with a filter can be started.
pub(super) fn no_filter(error: io::Error) -> RunError {
    let errno = errno_of(&error);
    let (what, remedy) = match errno {
        Errno::EBUSY => (
            "another supervisor already handles this process's system calls",
            "if this is within another run, start both programs from one",
        ),
        Errno::EINVAL | Errno::ENOSYS => (
            "the kernel has no seccomp user notification",
            "Linux 5.14 or newer is needed, with CONFIG_SECCOMP_FILTER",
        ),
        Errno::EPERM | Errno::EACCES => ("seccomp filters are refused", SANDBOX),
        Errno::EAGAIN | Errno::ENOMEM => ("no process can be started", PROCESSES),
        _ => return RunError::System(error),
    };
    cannot(what, remedy)(errno)
}

/// Answers the child's first call: reads and writes the child's memory, and installs a descriptor.
pub(super) fn check_call(listener: &Listener) -> Result<(), RunError> {
    check_call_of(listener, |_| ())
}

/// As [`check_call`]; `seen` gets the call before the child's memory is accessed.
pub(super) fn check_call_of(
    listener: &Listener,
    seen: impl FnOnce(&Notification),
) -> Result<(), RunError> {
    let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    if poll(&mut waiting, FIRST_CALL_TIMEOUT.as_millis() as u16)? == 0 {
        return Err(cannot(
            format!("the child made no call within {} s", FIRST_CALL_TIMEOUT.as_secs()),
            "it may have been stopped; try again",
        )(Errno::ETIMEDOUT));
    }
    let call =
        listener.receive().map_err(cannot("the program's calls cannot be received", KERNEL))?;
    seen(&call);
    let done = check_access(listener, &call).and_then(|()| {
        // A descriptor without a path: a joining program may have another root.
        let file = memfd_create(c"verbless-check", MFdFlags::MFD_CLOEXEC)?;
        let installed = listener.install_fd(call.id, file.as_fd(), None, true, true);
        installed.map(drop).map_err(cannot("the program cannot be given a descriptor", KERNEL))
    });
    if done.is_err() {
        listener.answer(call.id, Err(Errno::ECANCELED));
    }
    done
}

/// The error if a child's first call, or its memory, did not arrive in time.
pub(super) fn no_memory() -> RunError {
    cannot(
        format!(
            "the program's first call, or the memory of its path, did not arrive within {} s",
            CHECK_TIMEOUT.as_secs()
        ),
        "the program's memory is on a userfaultfd, or on a FUSE or NFS server that does not \
         answer; the process was killed",
    )(Errno::ETIMEDOUT)
}

fn check_access(listener: &Listener, call: &Notification) -> Result<(), RunError> {
    if call.tid == 0 {
        let (what, remedy) =
            ("the program is in another container's PID namespace", "start both in one container");
        return Err(cannot(what, remedy)(Errno::ESRCH));
    }
    let child = Pid::from_raw(call.tid as i32);
    let [_, path, _, answer, ..] = call.arguments;
    let mut name = [0; sys::FIRST_PATH.to_bytes().len()];
    process::read_of_caller(listener, call, path, &mut name).map_err(|errno| {
        cannot(
            "the program's memory cannot be read (process_vm_readv)",
            remedy_for_unreadable_memory(errno),
        )(errno)
    })?;
    if name != *sys::FIRST_PATH.to_bytes() {
        return Err(cannot("the program's first call arrived with other arguments", KERNEL)(
            Errno::EPROTO,
        ));
    }
    let mut own = 0u8;
    process::write(Pid::this(), &raw mut own as u64, &[1])
        .map_err(cannot("this process's memory cannot be written (process_vm_writev)", SANDBOX))?;
    process::write_to_caller(listener, call, answer, &[1])
        .map_err(cannot("the program's memory cannot be written (/proc/PID/mem)", SANDBOX))?;
    sys::pidfd(child)
        .map_err(cannot("the program's end cannot be watched (pidfd_open)", SANDBOX))?;
    // If this directory is visible, an absent descriptor is closed, not hidden.
    let descriptors = fs::metadata(format!("/proc/{child}/fd/."));
    descriptors.map(drop).map_err(|error| {
        cannot("/proc does not show the program's descriptors", MOUNT)(errno_of(&error))
    })
}

/// The remedy if another process's memory cannot be read: a filter forbids the call, or a security
/// module forbids the access.
fn remedy_for_unreadable_memory(errno: Errno) -> &'static str {
    let own = 0u8;
    let own = process::read(Pid::this(), &raw const own as u64, &mut [0]);
    // Without the call, this process reads its own memory in another way.
    if errno == Errno::ENOSYS || own.is_err() {
        return SANDBOX;
    }
    yama_remedy(&ptrace_scope())
}

/// The remedy under this setting of Yama.
fn yama_remedy(ptrace_scope: &str) -> &'static str {
    match ptrace_scope.trim() {
        "2" | "3" => YAMA,
        _ => SECURITY,
    }
}

fn ptrace_scope() -> String {
    fs::read_to_string(SCOPE).unwrap_or_default()
}

fn hides_children(ptrace_scope: &str, by_root: bool) -> bool {
    ptrace_scope.trim() == "1" && !by_root
}

/// Warns that this run cannot access the children of a joining program: it is not their ancestor.
pub(super) fn warn_of_children() {
    if hides_children(&ptrace_scope(), geteuid().is_root()) {
        tracing::warn!(
            "kernel.yama.ptrace_scope is 1: the program that joins sees devices, but its child \
             processes see none; with 0 they do"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preflight_errors_name_cause_and_remedy() {
        let system = |errno: Errno| io::Error::from(errno);
        let thread = |errno| no_thread(&system(errno)).to_string();
        let filter = |errno| no_filter(system(errno)).to_string();
        for (text, parts) in [
            (
                thread(Errno::EINVAL),
                ["no thread can be started (EINVAL", "unshare --pid with --fork"],
            ),
            (thread(Errno::EAGAIN), ["no thread can be started (EAGAIN", "ulimit -u"]),
            (filter(Errno::EBUSY), ["another supervisor", "start both programs from one"]),
            (filter(Errno::EINVAL), ["no seccomp user notification", "CONFIG_SECCOMP_FILTER"]),
            (filter(Errno::ENOSYS), ["no seccomp user notification", "CONFIG_SECCOMP_FILTER"]),
            (filter(Errno::EPERM), ["seccomp filters are refused", "--cap-add=SYS_PTRACE"]),
            (filter(Errno::EACCES), ["seccomp filters are refused", "--cap-add=SYS_PTRACE"]),
            (filter(Errno::EAGAIN), ["no process can be started", "ulimit -u"]),
            (filter(Errno::ENOMEM), ["no process can be started", "ulimit -u"]),
            (no_watch(Errno::EMFILE).to_string(), ["no file can be watched", "max_user_instances"]),
        ] {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        assert_eq!(filter(Errno::ENOENT), "No such file or directory (os error 2)");
        assert_eq!(errno_of(&io::Error::other("something")), Errno::EIO);
    }

    #[test]
    fn ptrace_scope_selects_remedy() {
        for (scope, remedy, hides) in [
            ("", SECURITY, false),
            ("0\n", SECURITY, false),
            ("1\n", SECURITY, true),
            ("2\n", YAMA, false),
            ("3\n", YAMA, false),
        ] {
            assert_eq!(yama_remedy(scope), remedy, "{scope:?}");
            assert_eq!(hides_children(scope, false), hides, "{scope:?}");
            assert!(!hides_children(scope, true), "{scope:?}: root sees all");
        }
        assert_eq!(ptrace_scope(), fs::read_to_string(SCOPE).unwrap_or_default());
        assert_eq!(
            remedy_for_unreadable_memory(Errno::EPERM),
            yama_remedy(&ptrace_scope()),
            "our own memory can be read"
        );
        assert_eq!(remedy_for_unreadable_memory(Errno::ENOSYS), SANDBOX);
    }

    #[test]
    fn check_rejects_too_little_address_space() {
        assert!(check(2).is_ok());
        let error = check(usize::MAX >> 27).expect_err("that is too much").to_string();
        assert!(error.contains("address space (ENOMEM") && error.contains("ulimit -v"), "{error}");
    }
}
