//! System calls that a stopped thread makes for the supervisor: only the thread itself can, for
//! example, change its process's directory.
//!
//! The thread is seized while its own call waits, as by a debugger. It executes its syscall
//! instruction again with other registers, and then gets its own registers back. Its signals are
//! blocked meanwhile. A thread that has a tracer cannot be seized.
#![allow(unsafe_code)] // ptrace

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::zeroed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use nix::errno::Errno;

use super::call_threads::in_program;

/// Bytes of the syscall instruction.
const INSTRUCTION: u64 = 2;

/// Seized threads, each with the status of a stop that another thread received: the kernel reports
/// a child's stop to any thread that waits for children.
static SEIZED: Mutex<BTreeMap<i32, Option<i32>>> = Mutex::new(BTreeMap::new());

fn seized() -> MutexGuard<'static, BTreeMap<i32, Option<i32>>> {
    SEIZED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a stop that another thread's wait for children received.
pub(super) fn stopped(tid: i32, status: i32) {
    if let Some(received) = seized().get_mut(&tid) {
        *received = Some(status);
    }
}

/// Registers a seized thread in `SEIZED` until this is dropped.
struct SeizedEntry(i32);

impl SeizedEntry {
    /// EPERM: another thread has seized it, as for any other tracer.
    fn of(tid: i32) -> Result<Self, Errno> {
        match seized().entry(tid) {
            Entry::Vacant(entry) => {
                entry.insert(None);
                Ok(Self(tid))
            }
            Entry::Occupied(_) => Err(Errno::EPERM),
        }
    }
}

impl Drop for SeizedEntry {
    fn drop(&mut self) {
        seized().remove(&self.0);
    }
}

/// Runs `work`, which seizes a thread, in its own thread. When that ends, the kernel detaches its
/// tracees, including one that did not stop in time: if that one stopped later, nothing would
/// resume it.
pub(super) fn in_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    in_program(|| {
        thread::scope(|scope| {
            let worker = thread::Builder::new().spawn_scoped(scope, work);
            let worker = worker.map_err(|_| Errno::EAGAIN)?;
            worker.join().map_err(|_| Errno::EIO)
        })
    })
}

/// A seized thread; only the thread that seized it can use it.
pub(super) struct Seized {
    tid: i32,
    registers: libc::user_regs_struct,
    mask: u64,
    _entry: SeizedEntry,
}

/// The type of ptrace's requests in the C library's declaration.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

// The libc crate has them as c_uint everywhere.
const GETSIGMASK: Request = libc::PTRACE_GETSIGMASK as Request;
const SETSIGMASK: Request = libc::PTRACE_SETSIGMASK as Request;

fn request(
    request: Request,
    tid: i32,
    address: usize,
    data: *mut libc::c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller passes the pointers that the request takes.
    Errno::result(unsafe { libc::ptrace(request, tid, address, data) }).map(drop)
}

/// Limit for each operation: a system call that does not block, unless another thread of the
/// program has changed its code.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until the thread stops. ESRCH: it ended; ETIMEDOUT: it runs on, or `start` is too long
/// ago.
fn wait(tid: i32, start: Instant) -> Result<i32, Errno> {
    loop {
        if let Some(status) = seized().get_mut(&tid).and_then(Option::take) {
            return Ok(libc::WSTOPSIG(status));
        }
        match stop_of(tid)? {
            Some(signal) => return Ok(signal),
            None if start.elapsed() > STOP_TIMEOUT => return Err(Errno::ETIMEDOUT),
            None if start.elapsed() > STOP_TIMEOUT / 1000 => thread::sleep(STOP_TIMEOUT / 10_000),
            None => thread::yield_now(),
        }
    }
}

/// The stop signal of a tracee of this thread; ESRCH: it has ended. Its exit status is left to its
/// parent, which can be another thread of this process.
fn stop_of(tid: i32) -> Result<Option<i32>, Errno> {
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: plain integers.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    // SAFETY: the kernel writes one structure.
    match Errno::result(unsafe { libc::waitid(libc::P_PID, tid as u32, &raw mut info, flags) }) {
        // SAFETY: the kernel wrote SIGCHLD's fields, or left zeros.
        Ok(_) => Ok(unsafe { (info.si_pid() != 0).then(|| info.si_status() & 0xff) }),
        Err(Errno::EINTR) => Ok(None),
        // The thread has ended.
        Err(Errno::ECHILD) => Err(Errno::ESRCH),
        Err(errno) => Err(errno),
    }
}

fn stop(tid: i32) -> Result<(), Errno> {
    request(libc::PTRACE_INTERRUPT, tid, 0, ptr::null_mut())?;
    wait(tid, Instant::now()).map(drop)
}

impl Seized {
    /// Seizes a thread whose call waits, within [`in_own_thread`]. `waits`: whether it still does,
    /// checked once it is seized, because the tid cannot be reused from then on. `answer` makes the
    /// call return.
    pub(super) fn new(
        tid: u32,
        waits: impl FnOnce() -> bool,
        answer: impl FnOnce(),
    ) -> Result<Self, Errno> {
        let tid = tid as i32;
        let entry = SeizedEntry::of(tid)?;
        let options = libc::PTRACE_O_TRACESYSGOOD as usize as *mut libc::c_void;
        request(libc::PTRACE_SEIZE, tid, 0, options)?;
        // The thread stops when its call returns; a thread that reused the tid stops at once.
        request(libc::PTRACE_INTERRUPT, tid, 0, ptr::null_mut())?;
        let is_ours = waits();
        if is_ours {
            answer();
        }
        wait(tid, Instant::now())?;
        if !is_ours {
            let _ = request(libc::PTRACE_DETACH, tid, 0, ptr::null_mut());
            return Err(Errno::ESRCH);
        }
        // SAFETY: plain integers.
        let mut registers: libc::user_regs_struct = unsafe { zeroed() };
        let mut mask = 0u64;
        request(libc::PTRACE_GETREGS, tid, 0, (&raw mut registers).cast())?;
        request(GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask).cast())?;
        let mut all = u64::MAX;
        request(SETSIGMASK, tid, size_of::<u64>(), (&raw mut all).cast())?;
        Ok(Self { tid, registers, mask, _entry: entry })
    }

    /// Makes the thread call `number` with one argument. Returns its result register, with an error
    /// as negative number.
    pub(super) fn call(&mut self, number: i64, argument: u64) -> Result<u64, Errno> {
        let mut registers = self.registers;
        registers.rip -= INSTRUCTION;
        registers.rax = number as u64;
        // -1: no interrupted call is restarted.
        registers.orig_rax = u64::MAX;
        registers.rdi = argument;
        request(libc::PTRACE_SETREGS, self.tid, 0, (&raw mut registers).cast())?;
        let start = Instant::now();
        // Syscall entry, then syscall exit.
        for _ in 0..2 {
            loop {
                request(libc::PTRACE_SYSCALL, self.tid, 0, ptr::null_mut())?;
                match wait(self.tid, start) {
                    Ok(signal) if signal == libc::SIGTRAP | 0x80 => break,
                    // A fault that repeats.
                    Ok(_) if start.elapsed() > STOP_TIMEOUT => return Err(Errno::ETIMEDOUT),
                    Ok(_) => {}
                    Err(errno) => {
                        // Stops it again to restore its registers.
                        let _ = stop(self.tid);
                        return Err(errno);
                    }
                }
            }
        }
        request(libc::PTRACE_GETREGS, self.tid, 0, (&raw mut registers).cast())?;
        Ok(registers.rax)
    }

    /// Detaches from the thread; its own call returns `result`.
    pub(super) fn detach_with(mut self, result: Result<u64, Errno>) {
        self.registers.orig_rax = u64::MAX;
        self.registers.rax = match result {
            Ok(value) => value,
            Err(errno) => -(errno as i64) as u64,
        };
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        // Fails if the thread has ended.
        let _ = request(libc::PTRACE_SETREGS, self.tid, 0, (&raw mut self.registers).cast());
        let mask = (&raw mut self.mask).cast();
        let _ = request(SETSIGMASK, self.tid, size_of::<u64>(), mask);
        let _ = request(libc::PTRACE_DETACH, self.tid, 0, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that cannot stop, because it waits in vfork for its child.
    fn stuck() -> i32 {
        // SAFETY: the child only makes system calls; its own child is a fork with separate memory,
        // and ends with it.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                let flags = libc::CLONE_VFORK | libc::SIGCHLD;
                if libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                    loop {
                        libc::pause();
                    }
                }
                libc::_exit(0);
            }
            pid
        }
    }

    fn status(pid: i32, name: &str) -> String {
        let status =
            std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is alive");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("there is such a line").trim().to_string()
    }

    #[test]
    fn unstoppable_thread_is_detached() {
        let pid = stuck();
        let start = Instant::now();
        while !status(pid, "State:").starts_with('D') && start.elapsed() < 10 * STOP_TIMEOUT {
            thread::yield_now();
        }
        let seized = in_own_thread(|| {
            let seized = Seized::new(pid as u32, || true, || {}).map(drop);
            (seized, status(pid, "TracerPid:") != "0")
        });
        assert_eq!(seized, Ok((Err(Errno::ETIMEDOUT), true)));
        let start = Instant::now();
        while status(pid, "TracerPid:") != "0" && start.elapsed() < STOP_TIMEOUT {
            thread::yield_now();
        }
        let tracer = status(pid, "TracerPid:");
        // SAFETY: integers, and the kernel writes no status.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, ptr::null_mut(), 0);
        }
        assert_eq!(tracer, "0", "the thread has no tracer");
    }

    #[test]
    fn wait_reaps_no_child_that_ends() {
        use std::os::unix::process::ExitStatusExt;
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("the command runs");
        let pid = child.id() as i32;
        let waited = in_own_thread(|| {
            let _seized = Seized::new(pid as u32, || true, || {})?;
            // SAFETY: integers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            wait(pid, Instant::now())
        });
        assert_eq!(waited, Ok(Err(Errno::ESRCH)));
        let status = child.wait().expect("the child was not waited for");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn seized_threads_hold_up_no_other() {
        let (stuck, mut child) = (stuck(), std::process::Command::new("sleep"));
        let mut child = child.arg("60").spawn().expect("the command runs");
        let tid = child.id();
        // A tracee makes our calls at its syscall instruction; until `sleep` sleeps, it runs other
        // code.
        let sleeps = format!("{} ", libc::SYS_clock_nanosleep);
        let call = || {
            std::fs::read_to_string(format!("/proc/{tid}/syscall")).expect("the process is alive")
        };
        let start = Instant::now();
        while !call().starts_with(&sleeps) {
            assert!(start.elapsed() < 10 * STOP_TIMEOUT, "it does not sleep: {}", call());
            thread::yield_now();
        }
        let number = thread::scope(|scope| {
            // Before the first thread's own start: it times out later than this suggests.
            let start = Instant::now();
            let waits = scope
                .spawn(|| in_own_thread(|| Seized::new(stuck as u32, || true, || {}).map(drop)));
            while status(stuck, "TracerPid:") == "0" && start.elapsed() < 10 * STOP_TIMEOUT {
                thread::yield_now();
            }
            let other = scope.spawn(move || {
                in_own_thread(|| Seized::new(tid, || true, || {})?.call(libc::SYS_getpid, 0))
            });
            // This thread waits for children meanwhile, and receives their stops.
            while !other.is_finished() {
                let ended = crate::run::sys::wait_for_child(libc::WNOHANG);
                assert_eq!(ended, None, "no child has ended");
            }
            // On a busy machine, the first may have timed out.
            let is_over = waits.is_finished();
            assert!(!is_over || start.elapsed() > STOP_TIMEOUT, "the call has not waited");
            other.join().expect("no panic")
        });
        child.kill().and_then(|()| child.wait()).expect("the child exists");
        // SAFETY: integers, and the kernel writes no status.
        unsafe {
            libc::kill(stuck, libc::SIGKILL);
            libc::waitpid(stuck, ptr::null_mut(), 0);
        }
        assert_eq!(number, Ok(Ok(u64::from(tid))));
    }
}
