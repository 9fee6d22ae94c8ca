//! System calls without a safe wrapper in nix: the seccomp filter and its notifications,
//! descriptors of other processes, and starting a program behind the filter.
#![allow(unsafe_code)] // raw system calls, and code between fork and exec

use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::Pid;

use super::call_threads::in_program;
use verbless_model_kernel::remote::FileId;

/// `struct seccomp_notif`: a system call that waits for an answer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Notification {
    pub id: u64,
    /// The calling thread.
    pub tid: u32,
    flags: u32,
    pub number: i32,
    /// AUDIT_ARCH of the call: native or 32-bit.
    pub architecture: u32,
    instruction: u64,
    pub arguments: [u64; 6],
}

#[cfg(any(test, fuzzing))]
impl Notification {
    /// A notification of a call that no thread made, for tests and fuzzers.
    pub(super) fn of(tid: u32, number: i32, arguments: [u64; 6]) -> Self {
        let architecture = super::filter::ARCHITECTURE;
        Self { id: 1, tid, flags: 0, number, architecture, instruction: 0, arguments }
    }
}

/// Starts a process that shares this one's descriptors, maps files at given addresses, and idles
/// until this one ends.
#[cfg(fuzzing)]
pub(super) fn idle_process(memory: &[(&std::fs::File, u64, u64, bool)]) -> io::Result<u32> {
    // SAFETY: a fork that shares the descriptors; the child only makes system calls.
    unsafe {
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        let pid = Errno::result(libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0))?;
        if pid != 0 {
            return Ok(pid as u32);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        for &(file, address, length, writable) in memory {
            let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
            let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
            let (fd, none) = (file.as_raw_fd(), 0);
            let number = libc::SYS_mmap;
            if libc::syscall(number, address, length, protection, flags, fd, none) < 0 {
                libc::syscall(libc::SYS_exit_group, 1);
            }
        }
        loop {
            libc::syscall(libc::SYS_pause);
        }
    }
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    descriptor_flags: u32,
}

nix::ioctl_readwrite!(notif_recv, b'!', 0, Notification);
nix::ioctl_readwrite!(notif_send, b'!', 1, Response);
nix::ioctl_write_ptr!(notif_id_valid, b'!', 2, u64);
nix::ioctl_write_ptr!(notif_addfd, b'!', 3, AddFd);
nix::ioctl_write_int_bad!(notif_set_flags, nix::request_code_write!(b'!', 4, 8));

const ADDFD_SETFD: u32 = 1;
const ADDFD_SEND: u32 = 2;
const USER_NOTIF_CONTINUE: u32 = 1;
const SYNC_WAKE_UP: i32 = 1;

/// The link text of a listener in `/proc/self/fd`.
const LISTENER_LINK: &str = "anon_inode:seccomp notify";

/// Answers the notifications of a filter.
pub(super) trait CallGate: Send + Sync {
    /// Makes the call return this result.
    fn answer(&self, id: u64, result: Result<i64, Errno>);
    /// Makes the kernel execute the call.
    fn continue_call(&self, id: u64);
    /// Whether the call still waits, which proves that its tid was not reused.
    fn is_waiting(&self, id: u64) -> bool;
    /// Installs a descriptor of `file` in the caller, at `number` or the lowest free one. `answer`:
    /// the call returns its number.
    fn install_fd(
        &self,
        id: u64,
        file: BorrowedFd<'_>,
        number: Option<u32>,
        close_on_exec: bool,
        answer: bool,
    ) -> Result<i32, Errno>;
}

/// A seccomp listener.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// Wraps a descriptor from another process; returns it if it is not a listener.
    pub(super) fn new(fd: OwnedFd) -> Result<Self, OwnedFd> {
        // A FUSE file could answer the ioctls and forge calls of any thread. The link text of a
        // file starts with a slash.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if !link.is_ok_and(|link| link.as_os_str() == LISTENER_LINK) {
            return Err(fd);
        }
        let no_call = 0u64;
        // SAFETY: the kernel reads the integer. No call of a filter has id 0; the ioctl does not
        // exist on other files.
        match unsafe { notif_id_valid(fd.as_raw_fd(), &raw const no_call) } {
            Err(Errno::ENOENT) => Ok(Self(fd)),
            _ => Err(fd),
        }
    }

    /// Makes the kernel wake the answering thread on the caller's CPU (since 6.6).
    pub(super) fn set_sync_wake_up(&self) {
        // SAFETY: the argument is an integer.
        let _ = unsafe { notif_set_flags(self.0.as_raw_fd(), SYNC_WAKE_UP) };
    }

    /// Receives the next notification. ENOENT: its caller is gone.
    pub(super) fn receive(&self) -> Result<Notification, Errno> {
        // SAFETY: plain integers; the kernel requires zeros.
        let mut notification: Notification = unsafe { zeroed() };
        // SAFETY: the kernel writes one structure of this layout.
        unsafe { notif_recv(self.0.as_raw_fd(), &raw mut notification) }?;
        Ok(notification)
    }

    fn send(&self, id: u64, value: i64, error: i32, flags: u32) {
        let mut response = Response { id, value, error, flags };
        // Fails if the caller has died.
        // SAFETY: the kernel reads one structure of this layout.
        let _ = unsafe { notif_send(self.0.as_raw_fd(), &raw mut response) };
    }
}

impl CallGate for Listener {
    fn answer(&self, id: u64, result: Result<i64, Errno>) {
        match result {
            Ok(value) => self.send(id, value, 0, 0),
            Err(errno) => self.send(id, 0, -(errno as i32), 0),
        }
    }

    fn continue_call(&self, id: u64) {
        self.send(id, 0, 0, USER_NOTIF_CONTINUE);
    }

    fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads the integer.
        unsafe { notif_id_valid(self.0.as_raw_fd(), &raw const id) }.is_ok()
    }

    fn install_fd(
        &self,
        id: u64,
        file: BorrowedFd<'_>,
        number: Option<u32>,
        close_on_exec: bool,
        answer: bool,
    ) -> Result<i32, Errno> {
        let mut flags = 0;
        if number.is_some() {
            flags |= ADDFD_SETFD;
        }
        if answer {
            flags |= ADDFD_SEND;
        }
        let addfd = AddFd {
            id,
            flags,
            source: file.as_raw_fd() as u32,
            number: number.unwrap_or(0),
            descriptor_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // The ioctl returns after the caller's thread has run.
        in_program(|| {
            // SAFETY: the kernel reads one structure of this layout.
            unsafe { notif_addfd(self.0.as_raw_fd(), &raw const addfd) }
        })
    }
}

/// A pidfd, readable once the process has ended.
pub(super) fn pidfd(pid: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: the arguments are integers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Kills a process, unless it has ended.
pub(super) fn kill_by(pidfd: BorrowedFd<'_>) {
    let _ = signal_by(pidfd, Signal::SIGKILL);
}

/// Sends a signal to a process. ESRCH: it has ended.
pub(super) fn signal_by(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    send_signal(pidfd, signal, 0)
}

/// Signals the process group that the process leads or led. EINVAL: before Linux 6.9.
pub(super) fn signal_group_by(pidfd: BorrowedFd<'_>, signal: Signal) -> Result<(), Errno> {
    const PROCESS_GROUP: libc::c_uint = 1 << 2;
    send_signal(pidfd, signal, PROCESS_GROUP)
}

fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal, flags: libc::c_uint) -> Result<(), Errno> {
    let (none, pidfd) = (std::ptr::null::<libc::siginfo_t>(), pidfd.as_raw_fd());
    // SAFETY: integers, and no `siginfo`.
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal as libc::c_int, none, flags)
    };
    Errno::result(sent).map(drop)
}

/// Forks a process in its own session, with `keep` as its only descriptor, which runs `work` and
/// exits. The calling process must be single-threaded.
pub(super) fn fork_session(keep: OwnedFd, work: impl FnOnce(OwnedFd)) -> Result<Pid, Errno> {
    // SAFETY: without another thread, no lock is held in the child.
    match Errno::result(unsafe { libc::fork() })? {
        0 => {}
        pid => return Ok(Pid::from_raw(pid)),
    }
    let kept = keep.as_raw_fd() as libc::c_uint;
    // SAFETY: the child uses no other descriptor; the name is NUL-terminated.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"verbless-guard".as_ptr());
        if let Some(last) = kept.checked_sub(1) {
            libc::syscall(libc::SYS_close_range, 0, last, 0);
        }
        libc::syscall(libc::SYS_close_range, kept + 1, libc::c_uint::MAX, 0);
    }
    // No process reads a panic message.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(keep)));
    // SAFETY: `_exit` runs no destructor or exit handler of the parent.
    unsafe { libc::_exit(0) }
}

/// Duplicates a descriptor of another process.
pub(super) fn take_descriptor(pidfd: &OwnedFd, number: i32) -> Result<OwnedFd, Errno> {
    // Blocks while the process is in `execve`.
    let fd = in_program(|| {
        // SAFETY: the arguments are integers.
        Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) })
    })?;
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Domain and protocol of a socket.
pub(super) fn socket_kind(socket: &OwnedFd) -> Result<(i32, i32), Errno> {
    let option = |name| {
        let (mut value, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the kernel writes one int, of at most the given length.
        Errno::result(unsafe {
            let (level, value) = (libc::SOL_SOCKET, (&raw mut value).cast());
            libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut length)
        })?;
        Ok(value)
    };
    Ok((option(libc::SO_DOMAIN)?, option(libc::SO_PROTOCOL)?))
}

/// The cookie of a socket's network namespace.
pub(super) fn network_of(socket: &OwnedFd) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: i32 = 71;
    let (mut cookie, mut length) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes one integer, of at most the given length.
    Errno::result(unsafe {
        let (fd, value) = (socket.as_raw_fd(), (&raw mut cookie).cast());
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, value, &raw mut length)
    })?;
    Ok(cookie)
}

/// Allows a process to access this one's memory under Yama.
pub(super) fn allow_ptrace_by(pid: i32) {
    // SAFETY: the arguments are integers.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
}

/// Whether `tid` is a thread of the process `pid`.
pub(super) fn is_thread_of(tid: u32, pid: Pid) -> bool {
    // SAFETY: the arguments are integers; signal 0 is not delivered.
    unsafe { libc::syscall(libc::SYS_tgkill, pid.as_raw(), tid, 0) == 0 }
}

/// Makes this process a child subreaper: it stays an ancestor of orphaned descendants, and can
/// access their memory.
pub(super) fn adopt_orphans() {
    // SAFETY: the arguments are integers.
    let _ = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Gives a thread short, frequent time slices. Otherwise a program that spins until the thread's
/// result arrives would keep the CPU for a whole default slice. Kernels before 6.12 ignore the
/// slice length. The thread also gets nice -20 if allowed; a real-time thread is left unchanged.
pub(super) fn shorten_time_slices(tid: i32) {
    const TURN_NANOSECONDS: u64 = 100_000;
    const FIRST: i32 = -20;
    /// `struct sched_attr`, up to the used fields.
    #[repr(C)]
    struct SchedAttributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    // SAFETY: the argument is an integer.
    if unsafe { libc::sched_getscheduler(tid) } != libc::SCHED_OTHER {
        return;
    }
    // SAFETY: the arguments are integers.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, tid as _) };
    let mut attributes = SchedAttributes {
        size: size_of::<SchedAttributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: FIRST,
        priority: 0,
        runtime: TURN_NANOSECONDS,
        deadline: 0,
        period: 0,
    };
    for nice in [FIRST, nice] {
        attributes.nice = nice;
        // SAFETY: the kernel reads as many bytes as the structure says.
        let set = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) };
        if set == 0 {
            break;
        }
    }
}

/// The path that a child opens behind its filter before it executes the program, to test the
/// supervisor.
pub(super) const FIRST_PATH: &std::ffi::CStr = c"/dev/infiniband/verbless-check";

/// Reason why a start failed.
pub(super) enum StartError<E> {
    /// The filter was not installed. EBUSY: a listener exists already; EINVAL, ENOSYS: the kernel
    /// is too old; EPERM.
    Filter(io::Error),
    /// The child's first call was not answered.
    Check(E),
    /// The program was not executed.
    Program(io::Error),
}

/// Starts a program behind a filter, which its threads and children inherit, with `mask` as signal
/// mask.
///
/// `check` answers the child's first call, an open of [`FIRST_PATH`]: it writes a 1 to the address
/// in the fourth argument, and installs a descriptor. `supervisor`: the process that reads the
/// program's memory, if not this one. `filter` gets the environment pointer of the child's first
/// `execve`, which no supervisor answers.
///
/// # Errors
/// The system's error for the filter or the program, or the error of `check`.
pub(super) fn start<E: Send>(
    mut command: Command,
    filter: impl FnOnce(u64) -> Vec<libc::sock_filter>,
    mask: SigSet,
    supervisor: Option<i32>,
    check: impl FnOnce(&Listener) -> Result<(), E> + Send,
) -> Result<(Child, Listener), StartError<E>> {
    let flag = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flag)
        .map_err(|errno| StartError::Filter(errno.into()))?;
    let socket = theirs.as_raw_fd();
    let environment = environment();
    let filter = filter(environment.as_ptr() as u64);
    // SAFETY: between fork and exec, the child only makes system calls, on memory allocated before
    // the fork.
    unsafe {
        command.pre_exec(move || {
            // Without the supervisor, the program's calls would fail with ENOSYS.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            if let Some(pid) = supervisor {
                allow_ptrace_by(pid);
            }
            let listener = install(&filter)?;
            send_descriptor(socket, listener)?;
            libc::close(listener);
            make_first_call()?;
            environ = environment.as_ptr().cast();
            if IGNORES_CHILDREN.load(Ordering::Relaxed) {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            mask.thread_set_mask()?;
            Ok(())
        });
    }
    std::thread::scope(|scope| {
        // `spawn` returns once the program is executed, so another thread answers the first call.
        let checking = std::thread::Builder::new().spawn_scoped(scope, || {
            let listener = Listener(receive_descriptor(&ours).ok()?);
            Some(check(&listener).map(|()| listener))
        });
        let checking = checking.map_err(StartError::Filter)?;
        let child = command.spawn();
        // Ends the wait for a child that sent no listener.
        drop(theirs);
        match (child, checking.join().ok().flatten()) {
            (Ok(child), Some(Ok(listener))) => Ok((child, listener)),
            (_, Some(Err(error))) => Err(StartError::Check(error)),
            (Err(error), Some(Ok(_))) => Err(StartError::Program(error)),
            (Err(error), None) => Err(StartError::Filter(error)),
            (Ok(_), None) => Err(StartError::Filter(io::ErrorKind::UnexpectedEof.into())),
        }
    })
}

unsafe extern "C" {
    static mut environ: *const *const libc::c_char;
}

/// A copy of the environment's pointers, at a separate address.
fn environment() -> Vec<usize> {
    let mut copy = Vec::new();
    // SAFETY: the list ends with a null pointer, and this program never changes its environment.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            copy.push(*at as usize);
            at = at.add(1);
        }
    }
    copy.push(0);
    copy
}

/// Opens [`FIRST_PATH`], with the address of a byte that the supervisor sets to 1. Does not
/// allocate.
fn make_first_call() -> io::Result<()> {
    let (path, flags) = (FIRST_PATH.as_ptr(), libc::O_CLOEXEC);
    let mut answer = 0u8;
    let place = &raw mut answer;
    // SAFETY: the path is NUL-terminated; the kernel ignores the fourth argument.
    let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, place) };
    let opened = Errno::result(opened)?;
    // SAFETY: no other code has this descriptor or this byte.
    let answer = unsafe {
        libc::close(opened as RawFd);
        place.read_volatile()
    };
    if answer == 1 { Ok(()) } else { Err(Errno::EPROTO.into()) }
}

/// Installs the filter in this thread.
///
/// Without WAIT_KILLABLE_RECV (before 5.19), a signal may interrupt a call that is being answered.
fn install(filter: &[libc::sock_filter]) -> io::Result<RawFd> {
    const NEW_LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    const WAIT_KILLABLE_RECV: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let set = |flags: libc::c_ulong| {
        // SAFETY: the program outlives the call, and the kernel does not write it.
        unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        }
    };
    // SAFETY: the arguments are integers.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let listener = match Errno::result(set(NEW_LISTENER | WAIT_KILLABLE_RECV)) {
        Err(Errno::EINVAL) => Errno::result(set(NEW_LISTENER)),
        other => other,
    }?;
    Ok(listener as RawFd)
}

/// Bytes of a control message with one descriptor, aligned for its header.
#[repr(C, align(8))]
struct ControlMessage([u8; 32]);

/// Sends a descriptor with one byte. Does not allocate.
pub(super) fn send_descriptor(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    let mut byte = 0u8;
    let mut data = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = ControlMessage([0; 32]);
    // SAFETY: plain data.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    // SAFETY: arithmetic only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    // SAFETY: the control buffer is aligned and has room for one header and one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
        Errno::result(libc::sendmsg(socket, &raw const message, 0))?;
    }
    Ok(())
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let (_, mut descriptors) = receive_message(socket.as_fd(), 1)?;
    descriptors.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// SCM_MAX_FD of Linux.
const MAX_RIGHTS: usize = 253;

/// A message of at most `longest` bytes, and its descriptors. Empty: the peer closed the
/// connection. Descriptors for which no number was free are missing.
pub(super) fn receive_message(
    socket: BorrowedFd<'_>,
    longest: usize,
) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut bytes = vec![0; longest];
    let mut data = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: longest };
    // Room for all descriptors of a message: the kernel would close the rest in this thread.
    // SAFETY: arithmetic only.
    let room = unsafe { libc::CMSG_SPACE((MAX_RIGHTS * size_of::<RawFd>()) as u32) } as usize;
    let mut control = vec![0_u64; room.div_ceil(size_of::<u64>())];
    // SAFETY: plain data.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = room as _;
    // SAFETY: both buffers outlive the call and are as long as the header says. The control buffer
    // is aligned as a control message's header.
    let length = Errno::result(unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC)
    })?;
    bytes.truncate(length as usize);
    Ok((bytes, rights(&message)))
}

/// The descriptors of a message that the kernel wrote, also of one that it truncated (MSG_CTRUNC).
/// nix discards such a message as ENOBUFS, and with it the descriptors that did arrive.
fn rights(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel wrote the control buffer and its length; these functions stay within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            if (part.cmsg_level, part.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                // The type of `cmsg_len` depends on the C library.
                let length: usize = part.cmsg_len as _;
                let bytes = length - libc::CMSG_LEN(0) as usize;
                let numbers = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    // A new descriptor without another owner.
                    descriptors.push(OwnedFd::from_raw_fd(numbers.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

/// Identity of a file, from cached data: no FUSE or NFS server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status {
    pub device: u64,
    pub inode: u64,
    mount: u64,
}

impl Status {
    /// The identity in the form of the modelled kernel.
    pub(super) fn id(&self) -> FileId {
        FileId(self.device, self.inode)
    }
}

/// The file at a path whose last link may be a magic link of `/proc`.
pub(super) fn status_at(path: &str) -> Result<Status, Errno> {
    status_from(libc::AT_FDCWD, path)
}

/// The file of a descriptor, or at a path relative to it.
pub(super) fn status(from: BorrowedFd<'_>, path: &str) -> Result<Status, Errno> {
    status_from(from.as_raw_fd(), path)
}

fn status_from(directory: RawFd, path: &str) -> Result<Status, Errno> {
    // Cached data only: no server is asked, and no automount is triggered.
    const KNOWN: libc::c_int =
        libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
    /// `STATX_INO` and `STATX_MNT_ID`.
    const WANTED: libc::c_uint = 0x100 | 0x1000;
    let path = std::ffi::CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: plain integers.
    let mut status: libc::statx = unsafe { zeroed() };
    // SAFETY: the path is NUL-terminated; the kernel writes one structure.
    Errno::result(unsafe {
        libc::statx(directory, path.as_ptr(), KNOWN, WANTED, &raw mut status)
    })?;
    Ok(Status {
        device: libc::makedev(status.stx_dev_major, status.stx_dev_minor),
        inode: status.stx_ino,
        mount: status.stx_mnt_id,
    })
}

/// STATX__RESERVED.
const RESERVED: u32 = 1 << 31;

/// The `stat` of a device node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Special {
    /// Major and minor.
    pub number: (u32, u32),
    /// Permission bits.
    pub mode: u32,
}

/// A `stat` call, with the caller's address of the result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stat {
    /// `struct stat`.
    Plain(u64),
    /// `struct statx`, with the requested mask.
    Extended(u32, u64),
}

impl Stat {
    /// Whether the kernel accepts these flags.
    pub(super) fn accepts_flags(self, flags: i32) -> bool {
        let fresh = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
        let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | fresh;
        let is_valid = match self {
            Self::Plain(_) => true,
            Self::Extended(mask, _) => flags & fresh != fresh && mask & RESERVED == 0,
        };
        flags & !known == 0 && is_valid
    }

    /// The result for an open file; `special`: as this character device, owned by root.
    pub(super) fn of(
        self,
        file: &OwnedFd,
        special: Option<Special>,
    ) -> Result<(u64, Vec<u8>), Errno> {
        let (fd, empty) = (file.as_raw_fd(), c"".as_ptr());
        match self {
            Self::Plain(address) => {
                let mut bytes = vec![0u8; size_of::<libc::stat>()];
                // SAFETY: the kernel writes one structure into as many bytes.
                Errno::result(unsafe {
                    libc::syscall(
                        libc::SYS_newfstatat,
                        fd,
                        empty,
                        bytes.as_mut_ptr(),
                        libc::AT_EMPTY_PATH,
                    )
                })?;
                if let Some(Special { number: (major, minor), mode }) = special {
                    let number = libc::makedev(major, minor);
                    let mode = libc::S_IFCHR | mode;
                    put(&mut bytes, offset_of!(libc::stat, st_mode), &mode.to_ne_bytes());
                    put(&mut bytes, offset_of!(libc::stat, st_uid), &[0; 4]);
                    put(&mut bytes, offset_of!(libc::stat, st_gid), &[0; 4]);
                    put(&mut bytes, offset_of!(libc::stat, st_rdev), &number.to_ne_bytes());
                }
                Ok((address, bytes))
            }
            Self::Extended(mask, address) => {
                let mut bytes = vec![0u8; size_of::<libc::statx>()];
                // SAFETY: as above.
                Errno::result(unsafe {
                    libc::syscall(
                        libc::SYS_statx,
                        fd,
                        empty,
                        libc::AT_EMPTY_PATH,
                        mask,
                        bytes.as_mut_ptr(),
                    )
                })?;
                if let Some(Special { number: (major, minor), mode }) = special {
                    let mode = (libc::S_IFCHR | mode) as u16;
                    put(&mut bytes, offset_of!(libc::statx, stx_mode), &mode.to_ne_bytes());
                    put(&mut bytes, offset_of!(libc::statx, stx_uid), &[0; 4]);
                    put(&mut bytes, offset_of!(libc::statx, stx_gid), &[0; 4]);
                    let at = offset_of!(libc::statx, stx_rdev_major);
                    put(&mut bytes, at, &major.to_ne_bytes());
                    put(&mut bytes, at + 4, &minor.to_ne_bytes());
                }
                Ok((address, bytes))
            }
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Whether an open file is a directory.
pub(super) fn is_directory(file: &OwnedFd) -> Result<bool, Errno> {
    let mode = nix::sys::stat::fstat(file)?.st_mode;
    Ok(mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Whether SIGCHLD was ignored at start; the program then ignores it too.
static IGNORES_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Makes the kernel keep the status of ended children, which it discards while SIGCHLD is ignored.
pub(super) fn keep_child_statuses() -> Result<(), Errno> {
    // SAFETY: this program has set no handler that this replaces.
    let before = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    IGNORES_CHILDREN.store(matches!(before, SigHandler::SigIgn), Ordering::Relaxed);
    Ok(())
}

/// Waits until one descriptor is readable, or for `timeout`.
pub(super) fn wait_for_input(of: &[BorrowedFd<'_>], timeout: Option<Duration>) {
    // One millisecond more: poll's timeout excludes the current partial one.
    let timeout = timeout.map(|it| it + Duration::from_millis(1));
    let timeout = timeout.and_then(|it| it.try_into().ok()).unwrap_or(PollTimeout::NONE);
    let mut waiting: Vec<_> = of.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let _ = poll(&mut waiting, timeout);
}

/// Waits for an ended child of this thread; returns its wait status. `None` with WNOHANG: no child
/// has ended. Passes a stop on to the thread that traces the child.
pub(super) fn wait_for_child(flags: i32) -> Option<(Pid, i32)> {
    let mut status = 0;
    let flags = flags & libc::WNOHANG | libc::__WNOTHREAD;
    loop {
        // SAFETY: the kernel writes one int.
        let pid = Errno::result(unsafe { libc::waitpid(-1, &raw mut status, flags) });
        match pid {
            Ok(0) => return None,
            // A tracer gets the stops of its processes even without WUNTRACED.
            Ok(_tid) if libc::WIFSTOPPED(status) => {
                #[cfg(target_arch = "x86_64")]
                super::ptrace::stopped(_tid, status);
            }
            Ok(_) if libc::WIFCONTINUED(status) => {}
            Ok(pid) => return Some((Pid::from_raw(pid), status)),
            Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
