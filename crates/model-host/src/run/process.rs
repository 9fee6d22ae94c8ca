//! The processes behind the filter, as clients of the modelled kernel.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;

use super::exec::Exec;
use super::guardian::Wards;
use super::shared::{Wake, Wakes};
use super::sys::{self, Gate};
use verbless_model::memory::{ClientMemory, Reach, dma_address};
use verbless_model_kernel::remote::{
    Capability, Client, Eventfds, FileId, check_mappings, effective_capabilities, numbers,
    pin_mapped,
};

/// A process that opened a device or sent it an ioctl, for as long as it runs one program.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: Pid,
    /// Readable once it has ended; while it is held, nobody else is meant by it.
    pub pidfd: OwnedFd,
    /// The process's number in [`ClientMemory`].
    number: u16,
    memory: Arc<ClientMemory>,
    pinned: AtomicU64,
    eventfds: Eventfds,
}

impl Process {
    /// The way to its memory; none when it runs another program now.
    fn reach(&self) -> Result<Reach, Errno> {
        self.memory.reach(self.number).ok_or(Errno::EFAULT)
    }

    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.pidfd.as_fd())
    }
}

/// Whether the process of a pidfd has ended.
pub(super) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(pidfd, PollFlags::POLLIN)];
    !matches!(poll(&mut waiting, PollTimeout::ZERO), Ok(0))
}

/// The processes that are known, and which thread belongs to which.
#[derive(Debug)]
pub(super) struct Processes {
    memory: Arc<ClientMemory>,
    /// Wakes the supervisor when a known process ends.
    wakes: Arc<Wakes>,
    known: HashMap<Pid, Arc<Process>>,
    threads: HashMap<u32, Pid>,
    /// Known processes that may be about to run another program.
    leaving: HashMap<Pid, Exec>,
    /// Kills the known processes if we are killed.
    wards: Option<Wards>,
}

impl Processes {
    pub(super) fn new(memory: Arc<ClientMemory>, wakes: Arc<Wakes>) -> Self {
        let (known, threads, leaving) = Default::default();
        Self { memory, wakes, known, threads, leaving, wards: None }
    }

    /// Makes processes that become known from now on be killed together with us.
    pub(super) fn guarded_as(&mut self, wards: Wards) {
        self.wards = Some(wards);
    }

    /// The process of a thread. The caller makes sure afterwards that the thread is still the one
    /// that it was.
    pub(super) fn of_thread(&mut self, tid: u32) -> Result<Arc<Process>, Errno> {
        if let Some(process) = self.threads.get(&tid).and_then(|pid| self.known.get(pid)).cloned()
            && sys::is_thread_of(tid, process.pid)
            && !process.has_ended()
            && !self.has_left(process.pid)
        {
            return Ok(process);
        }
        let status = fs::read_to_string(format!("/proc/{tid}/status")).map_err(|error| {
            let full = error.raw_os_error() == Some(Errno::EMFILE as i32);
            if full { Errno::ENFILE } else { Errno::ESRCH }
        })?;
        let pid = status
            .lines()
            .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
            .map(Pid::from_raw)
            .ok_or(Errno::ESRCH)?;
        self.threads.insert(tid, pid);
        if let Some(process) = self.known.get(&pid).cloned()
            && !process.has_ended()
            && !self.has_left(pid)
        {
            return Ok(process);
        }
        self.forget(pid);
        let pidfd = sys::pidfd(pid)?;
        self.wakes.on_input(pidfd.as_fd(), Wake::Death(pid))?;
        if let Some(wards) = &self.wards {
            wards.add(pidfd.as_fd());
        }
        let number = self.memory.add(pid).ok_or(Errno::EUSERS)?;
        let process = Arc::new(Process {
            pid,
            pidfd,
            number,
            memory: self.memory.clone(),
            pinned: AtomicU64::new(0),
            eventfds: Eventfds::default(),
        });
        self.known.insert(pid, process.clone());
        self.threads.insert(tid, pid);
        Ok(process)
    }

    /// The process of a thread, if it is known.
    pub(super) fn known(&self, tid: u32) -> Option<Pid> {
        self.known.keys().copied().find(|&pid| sys::is_thread_of(tid, pid))
    }

    /// A thread of a known process waits with a call that may be the last of its program. No access
    /// to its memory is under way.
    pub(super) fn may_leave(&mut self, pid: Pid, tid: u32) {
        if let Some(exec) = self.leaving.get_mut(&pid) {
            return exec.and(tid);
        }
        let Some(process) = self.known.get(&pid) else { return };
        match Exec::new(pid, tid) {
            Ok(exec) => {
                self.memory.set_reach(process.number, exec.program());
                self.leaving.insert(pid, exec);
            }
            // Rather none than the next program's.
            Err(_) => self.forget(pid),
        }
    }

    /// A thread made a call, so whatever program it may have been about to leave for, it is there
    /// or stayed.
    pub(super) fn heard(&mut self, tid: u32) {
        let Some((&pid, exec)) = self.leaving.iter_mut().find(|(_, exec)| exec.is_of(tid)) else {
            return;
        };
        if exec.succeeded(pid) {
            self.forget(pid);
        } else if exec.failed(tid) {
            self.leaving.remove(&pid);
            if let Some(process) = self.known.get(&pid) {
                self.memory.set_reach(process.number, Reach::Process(pid));
            }
        }
    }

    /// Whether a process runs another program than the one that is known.
    fn has_left(&self, pid: Pid) -> bool {
        self.leaving.get(&pid).is_some_and(|exec| exec.succeeded(pid))
    }

    /// Forgets a process if it has ended.
    pub(super) fn bury(&mut self, pid: Pid) {
        if self.known.get(&pid).is_some_and(|process| process.has_ended()) {
            self.forget(pid);
        }
    }

    /// A process, or its program, is no more: its memory is none from now on.
    pub(super) fn forget(&mut self, pid: Pid) {
        if let Some(process) = self.known.remove(&pid) {
            self.wakes.forget(process.pidfd.as_fd());
            self.memory.remove(process.number);
        }
        self.leaving.remove(&pid);
        self.threads.retain(|_, of| *of != pid);
    }
}

/// Lets this process have as many descriptors as it may: every open device takes some, of all
/// programs.
pub(super) fn allow_many_descriptors() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// The threads of this process.
pub(super) fn threads() -> Vec<i32> {
    numbers("/proc/self/task")
}

/// Reads memory of a process or of one of its threads.
pub(super) fn read(pid: Pid, address: u64, into: &mut [u8]) -> Result<(), Errno> {
    read_by(&Reach::Process(pid), address, into)
}

/// Writes memory of a process or of one of its threads.
pub(super) fn write(pid: Pid, address: u64, from: &[u8]) -> Result<(), Errno> {
    write_by(&Reach::Process(pid), address, from)
}

fn read_by(reach: &Reach, address: u64, into: &mut [u8]) -> Result<(), Errno> {
    let remote = remote(address, into.len())?;
    match reach.read(into, &[remote])? {
        done if done == into.len() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

fn write_by(reach: &Reach, address: u64, from: &[u8]) -> Result<(), Errno> {
    let remote = remote(address, from.len())?;
    match reach.write(from, &[remote])? {
        done if done == from.len() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

fn remote(address: u64, len: usize) -> Result<RemoteIoVec, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    base.checked_add(len).ok_or(Errno::EFAULT)?;
    Ok(RemoteIoVec { base, len })
}

/// A process at one call of its: what it may be given is given through that call.
pub(super) struct Caller {
    pub process: Arc<Process>,
    pub tid: u32,
    /// `None`: between its calls.
    pub call: Option<(Arc<dyn Gate>, u64)>,
}

impl Caller {
    fn proc_file(&self, name: &str) -> Result<String, Errno> {
        fs::read_to_string(format!("/proc/{}/{name}", self.tid)).map_err(|_| Errno::ESRCH)
    }
}

impl Client for Caller {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        read_by(&self.process.reach()?, address, into).map_err(|_| Errno::EFAULT)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        write_by(&self.process.reach()?, address, from).map_err(|_| Errno::EFAULT)
    }

    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
        pin_mapped(|| check_mappings(&self.proc_file("maps")?, address, length, writable))
    }

    fn dma_address(&self, address: u64) -> u64 {
        // What is no address of a process is one of nobody's.
        dma_address(self.process.number, address).unwrap_or(u64::MAX << 12)
    }

    fn memlock(&self) -> u64 {
        let limits = self.proc_file("limits").unwrap_or_default();
        memlock(&limits)
    }

    fn pinned(&self) -> &AtomicU64 {
        &self.process.pinned
    }

    fn eventfds(&self) -> &Eventfds {
        &self.process.eventfds
    }

    fn capable(&self, capability: Capability) -> bool {
        let status = self.proc_file("status").unwrap_or_default();
        effective_capabilities(&status) >> capability as u32 & 1 == 1
    }

    fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
        let (listener, call) = self.call.as_ref().ok_or(Errno::EBADF)?;
        listener.give(*call, fd.as_fd(), None, true, false)
    }

    fn identify(&self, fd: i32) -> Result<FileId, Errno> {
        identify(self.tid, fd)
    }

    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno> {
        sys::take_descriptor(&self.process.pidfd, fd).map_err(|errno| {
            if matches!(errno, Errno::EPERM | Errno::ENOSYS) {
                warn_of_descriptors();
            }
            Errno::EBADF
        })
    }

    fn descriptors(&self) -> Vec<i32> {
        numbers(&format!("/proc/{}/fd", self.tid))
    }

    fn thread(&self) -> u32 {
        self.tid
    }
}

/// Says once what does not work because of what the place forbids.
fn warn_of_descriptors() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "pidfd_getfd is forbidden here: events of a CQ that is destroyed stay to be read, and \
             no eventfd can be subscribed (docker allows it with --cap-add=SYS_PTRACE)"
        );
    });
}

/// Which file a descriptor of a thread refers to; EBADF when it is not open.
pub(super) fn identify(tid: u32, fd: i32) -> Result<FileId, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    let metadata = fs::metadata(format!("/proc/{tid}/fd/{fd}")).map_err(|_| Errno::EBADF)?;
    Ok(FileId(metadata.dev(), metadata.ino()))
}

/// The soft limit of locked memory in `/proc/PID/limits`, in bytes.
fn memlock(limits: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => u64::MAX,
        Some(bytes) => bytes.parse().unwrap_or(0),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes() -> Processes {
        let wakes = Wakes::new().expect("an epoll");
        Processes::new(Arc::default(), Arc::new(wakes))
    }

    #[test]
    fn the_limit_of_locked_memory_is_read_as_the_kernel_prints_it() {
        let table = "\
Limit                     Soft Limit           Hard Limit           Units
Max address space         unlimited            unlimited            bytes
Max locked memory         8388608              16777216             bytes
Max processes             95932                95932                processes";
        assert_eq!(memlock(table), 8 << 20);
        assert_eq!(memlock(&table.replace("8388608", "unlimited")), u64::MAX);
        assert_eq!(memlock(""), 0);
    }

    #[test]
    fn a_thread_belongs_to_its_process_and_a_process_that_ended_is_told_from_a_live_one() {
        let mut processes = processes();
        let own = std::process::id();
        let process = processes.of_thread(own).expect("this process");
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32);
        let _ = tid.join();
        assert_eq!(process.pid.as_raw() as u32, own);
        assert!(!process.has_ended());
        let again = processes.of_thread(nix::unistd::gettid().as_raw() as u32).expect("a thread");
        assert!(Arc::ptr_eq(&process, &again));
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let gone = processes.of_thread(child.id()).expect("it is not reaped yet");
        child.wait().expect("it ends");
        assert!(gone.has_ended());
        assert!(processes.of_thread(child.id()).is_err());
        processes.bury(process.pid);
        processes.bury(gone.pid);
        assert_eq!(processes.known.len(), 1, "the live one is still known");
    }

    #[test]
    fn memory_and_descriptors_of_another_process_are_reached_or_refused() {
        let mut processes = processes();
        let process = processes.of_thread(std::process::id()).expect("this process");
        let caller = Caller { process, tid: std::process::id(), call: None };
        let bytes = [1u8, 2, 3, 4];
        let mut back = [0; 4];
        assert_eq!(caller.read(bytes.as_ptr() as u64, &mut back), Ok(()));
        assert_eq!(back, bytes);
        assert_eq!(caller.read(16, &mut back), Err(Errno::EFAULT));
        assert_eq!(caller.write(16, &back), Err(Errno::EFAULT));
        assert_eq!(caller.pin(bytes.as_ptr() as u64, 4, false), Ok(()));
        assert_eq!(caller.pin(16, 4, false), Err(Errno::EFAULT));
        assert_eq!(caller.identify(-1), Err(Errno::EBADF));
        assert!(caller.borrow(1 << 20).is_err());
        assert_eq!(
            caller.install(std::io::stdin().as_fd().try_clone_to_owned().expect("a copy")),
            Err(Errno::EBADF)
        );
    }
}
