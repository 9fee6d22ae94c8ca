//! Arguments and results of the system call wrappers.

use std::fs::File;
use std::process::Command;

use libc::{
    AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_STATX_DONT_SYNC, AT_STATX_FORCE_SYNC, AT_SYMLINK_FOLLOW,
    AT_SYMLINK_NOFOLLOW,
};
use nix::sys::prctl::get_child_subreaper;
use nix::unistd::gettid;
use verbless_model_kernel::remote::effective_capabilities;

use super::super::proc_stat::ProcStat;
use super::*;

#[test]
fn stat_flags_match_linux() {
    let (plain, extended) = (Stat::Plain(0), Stat::Extended(libc::STATX_ALL, 0));
    let both = AT_STATX_DONT_SYNC | AT_STATX_FORCE_SYNC;
    for (flags, of_plain, of_extended) in [
        (0, true, true),
        (AT_SYMLINK_NOFOLLOW, true, true),
        (AT_NO_AUTOMOUNT, true, true),
        (AT_EMPTY_PATH, true, true),
        (AT_STATX_DONT_SYNC, true, true),
        (AT_STATX_FORCE_SYNC, true, true),
        (AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH, true, true),
        (both, true, false),
        (AT_SYMLINK_FOLLOW, false, false),
        (1, false, false),
        (AT_EMPTY_PATH | 1 << 30, false, false),
    ] {
        assert_eq!(plain.accepts_flags(flags), of_plain, "{flags:#x}");
        assert_eq!(extended.accepts_flags(flags), of_extended, "{flags:#x}");
    }
    for (mask, expected) in [(0, true), (u32::MAX >> 1, true), (1 << 31, false)] {
        assert_eq!(Stat::Extended(mask, 0).accepts_flags(0), expected, "{mask:#x}");
    }
}

#[test]
fn thread_belongs_to_own_process_only() {
    let tid = std::thread::scope(|scope| {
        let it = scope.spawn(|| {
            let tid = gettid().as_raw() as u32;
            (tid, is_thread_of(tid, Pid::this()))
        });
        it.join().expect("the thread ends")
    });
    assert!(tid.1, "while it lives");
    let mut child = Command::new("sleep").arg("60").spawn().expect("the command runs");
    assert!(!is_thread_of(child.id(), Pid::this()));
    assert!(is_thread_of(child.id(), Pid::from_raw(child.id() as i32)));
    child.kill().and_then(|()| child.wait()).expect("the child exists");
}

#[test]
fn is_directory_rejects_files() {
    for (path, expected) in [("/", true), ("/proc/self/status", false), ("/dev/null", false)] {
        let file = OwnedFd::from(File::open(path).expect("the path exists"));
        assert_eq!(is_directory(&file), Ok(expected), "{path}");
    }
}

#[test]
fn adopt_orphans_sets_child_subreaper() {
    adopt_orphans();
    assert_eq!(get_child_subreaper(), Ok(true));
}

#[test]
fn short_turn_thread_gets_highest_priority() {
    let stat = std::thread::spawn(|| {
        shorten_time_slices(gettid().as_raw());
        ProcStat::read("thread-self").expect("our own")
    });
    let stat = stat.join().expect("the thread ends");
    let nice = stat.field(19).expect("a priority");
    let status = std::fs::read_to_string("/proc/self/status").expect("our own");
    const SYS_NICE: u32 = 23;
    if effective_capabilities(&status) >> SYS_NICE & 1 == 1 {
        assert_eq!(nice, "-20");
    }
}

/// Sets the limit of descriptors of another process.
pub(in super::super) fn limit_descriptors(pid: u32, limit: libc::rlimit) {
    let (pid, none) = (pid as libc::pid_t, std::ptr::null_mut());
    // SAFETY: the kernel reads one structure, and writes none.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, none) };
    assert_eq!(set, 0, "{}", Errno::last());
}

#[test]
fn stopped_traced_child_has_not_ended() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("the command runs");
    let pid = child.id() as i32;
    let (none, zero) = (std::ptr::null_mut::<libc::c_void>(), 0_usize);
    // SAFETY: requests with integers only; the kernel writes one plain structure.
    let stopped = unsafe {
        let seized = libc::ptrace(libc::PTRACE_SEIZE, pid, zero, none) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, pid, zero, none) == 0;
        let mut about: libc::siginfo_t = zeroed();
        let flags = libc::WSTOPPED | libc::WNOWAIT;
        seized && libc::waitid(libc::P_PID, pid as u32, &raw mut about, flags) == 0
    };
    assert!(stopped, "{}", Errno::last());
    assert_eq!(wait_for_child(libc::WNOHANG), None, "it has not ended");
    child.kill().expect("the process is alive");
    assert_eq!(wait_for_child(0), Some((Pid::from_raw(pid), libc::SIGKILL)));
    assert!(child.wait().is_err(), "it was waited for");
}
