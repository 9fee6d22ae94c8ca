//! The processes behind the filter, as clients of the modelled kernel.

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;

use super::exec::{Exec, memory_of};
use super::guardian::Wards;
use super::place;
use super::shared::{Wake, Wakes};
use super::sys::{self, Gate, Notification};
use verbless_model::memory::{ClientMemory, Reach, dma_address};
use verbless_model_kernel::remote::{
    Capability, Client, Eventfds, FileId, check_mappings, effective_capabilities, numbers,
    pin_mapped,
};

/// A process that opened a device or sent it an ioctl, for as long as it runs one program.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: Pid,
    /// Readable once it has ended. Until then the process's number is no other's.
    pub pidfd: OwnedFd,
    /// The process's number in [`ClientMemory`].
    number: u16,
    /// The memory of its program, which no other process has that gets its number later.
    program: Reach,
    /// The mappings of that memory.
    maps: File,
    memory: Arc<ClientMemory>,
    pinned: AtomicU64,
    eventfds: Eventfds,
}

impl Process {
    /// The way to its memory; none when it has ended or runs another program now.
    fn reach(&self) -> Result<&Reach, Errno> {
        self.memory.reach(self.number).map(|_| &self.program).ok_or(Errno::EFAULT)
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

    /// The process of a thread whose call waits; `waits`: whether it does still. EINTR: not any
    /// more, and nothing is known of a process that has the thread's number instead.
    pub(super) fn of_thread(
        &mut self,
        tid: u32,
        waits: impl Fn() -> bool,
    ) -> Result<Arc<Process>, Errno> {
        if let Some(process) = self.threads.get(&tid).and_then(|pid| self.known.get(pid)).cloned()
            && sys::is_thread_of(tid, process.pid)
            && !process.has_ended()
            && !self.has_left(process.pid)
        {
            return if waits() { Ok(process) } else { Err(Errno::EINTR) };
        }
        let pid = process_of(tid)?;
        let is_known = |process: &&Arc<Process>| !process.has_ended() && !self.has_left(pid);
        if let Some(process) = self.known.get(&pid).filter(is_known).cloned() {
            if !waits() {
                return Err(Errno::EINTR);
            }
            self.threads.insert(tid, pid);
            return Ok(process);
        }
        let (pidfd, program, maps) = (sys::pidfd(pid)?, memory_of(pid)?, maps_of(tid)?);
        // The thread waited all the time, so that these are of its process.
        if !waits() {
            return Err(Errno::EINTR);
        }
        self.forget(pid);
        let number = self.memory.add(pid).ok_or(Errno::EUSERS)?;
        if let Err(errno) = self.wakes.on_input(pidfd.as_fd(), Wake::Death(pid)) {
            self.memory.remove(number);
            return Err(errno);
        }
        if let Some(wards) = &self.wards {
            wards.add(pidfd.as_fd());
        }
        let process = Arc::new(Process {
            pid,
            pidfd,
            number,
            program,
            maps,
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

    /// Whether a process may be about to run another program.
    #[cfg(test)]
    pub(super) fn may_be_leaving(&self, pid: Pid) -> bool {
        self.leaving.contains_key(&pid)
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

/// The process that a thread is of.
pub(super) fn process_of(tid: u32) -> Result<Pid, Errno> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).map_err(|error| {
        let full = error.raw_os_error() == Some(Errno::EMFILE as i32);
        if full { Errno::ENFILE } else { Errno::ESRCH }
    })?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .map(Pid::from_raw)
        .ok_or(Errno::ESRCH)
}

/// The mappings of the memory that a thread has now, whatever its process runs later.
fn maps_of(tid: u32) -> Result<File, Errno> {
    File::open(format!("/proc/{tid}/maps")).map_err(|error| {
        let full = error.raw_os_error().map(Errno::from_raw);
        if matches!(full, Some(Errno::EMFILE | Errno::ENFILE)) {
            Errno::ENFILE
        } else {
            Errno::ESRCH
        }
    })
}

/// Whether a program may write a range of its memory itself: a write by `/proc/PID/mem` goes past
/// the protection of pages, which a system call heeds. EFAULT: some page forbids it. Where nothing
/// is mapped, the write finds that out.
fn may_write(maps: &File, address: u64, length: usize) -> Result<(), Errno> {
    let end = address.checked_add(length as u64).ok_or(Errno::EFAULT)?;
    let mut text = None;
    let mut at = address;
    while at < end {
        let found = match (&text, sys::mapping_from(maps, at)) {
            (None, Ok(found)) => found,
            _ => mapping_of(text.get_or_insert(whole(maps)?), at),
        };
        match found {
            Some((mapped, writable)) if mapped.start < end => {
                if !writable {
                    return Err(Errno::EFAULT);
                }
                at = mapped.end;
            }
            _ => break,
        }
    }
    Ok(())
}

/// All of a file below `/proc`, from its start.
fn whole(file: &File) -> Result<String, Errno> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match file.read_at(&mut piece, text.len() as u64) {
            Ok(0) => return String::from_utf8(text).map_err(|_| Errno::EFAULT),
            Ok(count) => text.extend(&piece[..count]),
            Err(_) => return Err(Errno::EFAULT),
        }
    }
}

/// The first mapping that ends above an address, and whether it may be written, where the kernel
/// does not say it of one (before 6.11).
fn mapping_of(maps: &str, address: u64) -> Option<(Range<u64>, bool)> {
    let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        Some((number(start)?..number(end)?, rest.as_bytes().get(1) == Some(&b'w')))
    };
    maps.lines().filter_map(parse).find(|(mapped, _)| mapped.end > address)
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

/// Reads memory of the process whose thread waits in a call. The call still waits afterwards, so
/// that the thread's number was no other's meanwhile; else nothing of what was read is left.
pub(super) fn read_of_caller(
    gate: &dyn Gate,
    call: &Notification,
    address: u64,
    into: &mut [u8],
) -> Result<(), Errno> {
    let read = read(Pid::from_raw(call.tid as i32), address, into);
    if !gate.is_waiting(call.id) {
        into.fill(0);
        return Err(Errno::EINTR);
    }
    read
}

/// Writes memory of the process whose thread waits in a call, and no other's: what is opened stays
/// that process's, and the call still waits then, so that its thread's number was not another's.
pub(super) fn write_to_caller(
    gate: &dyn Gate,
    call: &Notification,
    address: u64,
    from: &[u8],
) -> Result<(), Errno> {
    let memory = File::options().write(true).open(format!("/proc/{}/mem", call.tid));
    let memory = memory.map_err(|_| Errno::EFAULT)?;
    let maps = maps_of(call.tid).map_err(|_| Errno::EFAULT)?;
    if !gate.is_waiting(call.id) {
        return Err(Errno::EINTR);
    }
    may_write(&maps, address, from.len())?;
    memory.write_all_at(from, address).map_err(|_| Errno::EFAULT)
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
    /// The process between its calls, as which it has no rights.
    pub(super) fn between_calls(self) -> Self {
        Self { call: None, ..self }
    }

    /// What `look` finds out by a number of this process, which was no other's meanwhile: the
    /// thread's, whose call waits afterwards, or between calls that of the process, which has not
    /// ended.
    fn by_number<T>(&self, look: impl FnOnce(u32) -> Result<T, Errno>) -> Result<T, Errno> {
        match &self.call {
            Some((gate, id)) => {
                let found = look(self.tid);
                if gate.is_waiting(*id) { found } else { Err(Errno::ESRCH) }
            }
            None => {
                let found = look(self.process.pid.as_raw() as u32);
                if self.process.has_ended() { Err(Errno::ESRCH) } else { found }
            }
        }
    }

    /// A file below `/proc` of the thread whose call waits; ESRCH: none does.
    fn proc_file(&self, name: &str) -> Result<String, Errno> {
        self.call.as_ref().ok_or(Errno::ESRCH)?;
        self.by_number(|tid| {
            fs::read_to_string(format!("/proc/{tid}/{name}")).map_err(|_| Errno::ESRCH)
        })
    }
}

impl Client for Caller {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        read_by(self.process.reach()?, address, into).map_err(|_| Errno::EFAULT)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let reach = self.process.reach()?;
        may_write(&self.process.maps, address, from.len())?;
        write_by(reach, address, from).map_err(|_| Errno::EFAULT)
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

    fn capable(&self, wanted: Capability) -> bool {
        // Those of another user namespace are none over our devices.
        self.by_number(|tid| Ok(place::has_our_users(tid))) == Ok(true)
            && capable(&self.proc_file("status").unwrap_or_default(), wanted)
    }

    fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
        let (listener, call) = self.call.as_ref().ok_or(Errno::EBADF)?;
        listener.give(*call, fd.as_fd(), None, true, false)
    }

    fn identify(&self, fd: i32) -> Result<FileId, Errno> {
        self.by_number(|tid| identify(tid, fd)).map_err(|_| Errno::EBADF)
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
        self.by_number(|tid| Ok(numbers(&format!("/proc/{tid}/fd")))).unwrap_or_default()
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
    let status = sys::status_at(&format!("/proc/{tid}/fd/{fd}")).map_err(|_| Errno::EBADF)?;
    Ok(FileId(status.device, status.inode))
}

/// Whether the process of `/proc/PID/status` has a capability.
fn capable(status: &str, capability: Capability) -> bool {
    effective_capabilities(status) >> capability as u32 & 1 == 1
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
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::super::rig::Recorder;
    use super::*;
    use crate::said::said;

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
        assert_eq!(own(None).memlock(), 0, "it makes no call");
        let own = own(waiting()).memlock();
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).expect("it has one").0;
        assert_eq!(own, limit);
    }

    /// This process as one that made a call, through which it can be given something.
    fn own(call: Option<(Arc<dyn Gate>, u64)>) -> Caller {
        let process = processes().of_thread(std::process::id(), || true).expect("this process");
        Caller { process, tid: std::process::id(), call }
    }

    /// A call that waits.
    fn waiting() -> Option<(Arc<dyn Gate>, u64)> {
        Some((Arc::new(Recorder::default()), 7))
    }

    #[test]
    fn caller_that_was_killed_has_no_rights() {
        let recorder = Arc::new(Recorder::default());
        let caller = own(Some((recorder.clone(), 7)));
        let null = File::open("/dev/null").expect("it is there");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&null);
        let bytes = [0_u8; 4];
        let pin = |caller: &Caller| caller.pin(bytes.as_ptr() as u64, 4, false);
        let status = fs::read_to_string("/proc/self/status").expect("our own");
        let mine = capable(&status, Capability::NetRaw);
        assert_eq!((caller.capable(Capability::NetRaw), pin(&caller)), (mine, Ok(())));
        assert!(caller.identify(fd).is_ok() && caller.descriptors().contains(&fd));
        // Its number may be another's now.
        recorder.end();
        assert!(!caller.capable(Capability::NetRaw));
        // Between the looks at its namespace and at its capabilities.
        recorder.end_after(1);
        assert!(!caller.capable(Capability::NetRaw));
        assert_eq!((caller.memlock(), pin(&caller)), (0, Err(Errno::ESRCH)));
        assert_eq!(caller.identify(fd), Err(Errno::EBADF));
        assert!(caller.descriptors().is_empty());
        // What was open is found without a call as well, of the process.
        let owner = Caller { tid: u32::MAX, ..caller.between_calls() };
        assert!(owner.identify(fd).is_ok() && owner.descriptors().contains(&fd));
        assert!(!owner.capable(Capability::NetRaw));
        assert_eq!((owner.memlock(), pin(&owner)), (0, Err(Errno::ESRCH)));
    }

    #[test]
    fn owner_that_has_ended_has_no_descriptors() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let process = processes().of_thread(child.id(), || true).expect("it lives");
        child.wait().expect("it ends");
        // As if its number were ours now.
        let process = Arc::into_inner(process).expect("the only reference");
        let process = Arc::new(Process { pid: Pid::this(), ..process });
        let owner = Caller { process, tid: std::process::id(), call: None };
        assert_eq!(owner.identify(0), Err(Errno::EBADF));
        assert!(owner.descriptors().is_empty());
    }

    #[test]
    fn capabilities_are_those_in_force() {
        use Capability::{IpcLock, NetRaw, SysRawio};
        for (mask, expected) in [
            (0, [false, false, false]),
            (1 << 13, [true, false, false]),
            (1 << 14, [false, true, false]),
            (1 << 17, [false, false, true]),
            (!(1_u64 << 14), [true, false, true]),
        ] {
            let status = format!("CapPrm:\t{:016x}\nCapEff:\t{mask:016x}\n", u64::MAX);
            let found = [NetRaw, IpcLock, SysRawio].map(|it| capable(&status, it));
            assert_eq!(found, expected, "{mask:#x}");
        }
        let status = fs::read_to_string("/proc/self/status").expect("our own");
        assert_eq!(own(waiting()).capable(NetRaw), capable(&status, NetRaw));
    }

    #[test]
    fn foreign_userns_has_no_capability() {
        use super::super::place::tests::apart;
        let Some(mut child) = apart(&["--user", "--map-root-user"]) else { return };
        let process = processes().of_thread(child.id(), || true).expect("a child");
        let caller = Caller { process, tid: child.id(), call: waiting() };
        let status = caller.proc_file("status").expect("it lives");
        let found = caller.capable(Capability::NetRaw);
        child.kill().and_then(|()| child.wait()).expect("it is there");
        assert!(capable(&status, Capability::NetRaw), "it has all there are, over itself");
        assert!(!found);
    }

    #[test]
    fn write_to_caller_needs_a_waiting_call() {
        let (recorder, place) = (Recorder::default(), [AtomicU8::new(1), AtomicU8::new(2)]);
        let call = Notification::of(std::process::id(), 0, [0; 6]);
        let address = place.as_ptr() as u64;
        let write = |bytes: &[u8]| write_to_caller(&recorder, &call, address, bytes);
        let now = || place.each_ref().map(|byte| byte.load(Ordering::Relaxed));
        assert_eq!((write(&[3, 4]), now()), (Ok(()), [3, 4]));
        assert_eq!(write_to_caller(&recorder, &call, 16, &[5]), Err(Errno::EFAULT));
        recorder.end();
        assert_eq!((write(&[6, 7]), now()), (Err(Errno::EINTR), [3, 4]));
        let gone = Notification::of(u32::MAX, 0, [0; 6]);
        assert_eq!(write_to_caller(&recorder, &gone, address, &[8]), Err(Errno::EFAULT));
    }

    /// Two pages, of which the second may not be written; the address of the second.
    #[allow(unsafe_code, reason = "a page that may not be written")]
    fn half_read_only(second: nix::sys::mman::ProtFlags) -> u64 {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
        let bytes = std::num::NonZeroUsize::new(2 * 4096).expect("not zero");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: fresh memory, which nothing else refers to.
        unsafe {
            let memory = mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE).expect("some");
            mprotect(memory.byte_add(4096), 4096, second).expect("it is there");
            memory.as_ptr() as u64 + 4096
        }
    }

    #[test]
    fn write_heeds_the_protection_of_pages() {
        use nix::sys::mman::ProtFlags;
        let (recorder, caller) = (Recorder::default(), own(waiting()));
        let call = Notification::of(std::process::id(), 0, [0; 6]);
        let executable = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        for second in [ProtFlags::PROT_READ, ProtFlags::PROT_NONE, executable] {
            let place = half_read_only(second);
            for (address, expected) in [
                (place - 8, Ok(())),
                (place - 4, Err(Errno::EFAULT)),
                (place, Err(Errno::EFAULT)),
                (16, Err(Errno::EFAULT)),
                (u64::MAX - 3, Err(Errno::EFAULT)),
            ] {
                let written = write_to_caller(&recorder, &call, address, &[7; 8]);
                assert_eq!(written, expected, "{second:?} {address:#x}");
                assert_eq!(caller.write(address, &[7; 8]), expected, "{second:?} {address:#x}");
            }
            if second != ProtFlags::PROT_NONE {
                let mut now = [1; 4];
                assert_eq!(read(Pid::this(), place, &mut now), Ok(()));
                assert_eq!(now, [0; 4], "{second:?}");
            }
        }
    }

    #[test]
    fn mappings_are_found_in_either_form() {
        let place = half_read_only(nix::sys::mman::ProtFlags::PROT_READ);
        let maps = maps_of(std::process::id()).expect("our own");
        let text = whole(&maps).expect("it can be read");
        for (address, writable) in [(place - 4096, true), (place - 1, true), (place, false)] {
            let (range, found) = mapping_of(&text, address).expect("it is there");
            assert!(range.contains(&address) && found == writable, "{address:#x} {range:?}");
            match sys::mapping_from(&maps, address) {
                Err(Errno::ENOTTY) => {}
                found => assert_eq!(found, Ok(Some((range, writable))), "{address:#x}"),
            }
        }
        assert_eq!(mapping_of(&text, u64::MAX), None);
        assert!(mapping_of(&text, 0).is_some_and(|(range, _)| range.start > 0), "the next one");
    }

    #[test]
    fn read_of_caller_needs_a_waiting_call() {
        let recorder = Recorder::default();
        let call = Notification::of(std::process::id(), 0, [0; 6]);
        let (place, mut into) = ([1_u8, 2], [9; 2]);
        let address = place.as_ptr() as u64;
        assert_eq!(read_of_caller(&recorder, &call, address, &mut into), Ok(()));
        assert_eq!(into, place);
        assert_eq!(read_of_caller(&recorder, &call, 16, &mut into), Err(Errno::EFAULT));
        recorder.end();
        assert_eq!(read_of_caller(&recorder, &call, address, &mut into), Err(Errno::EINTR));
        assert_eq!(into, [0; 2], "it may be another's");
    }

    #[test]
    fn client_memory_is_fixed_when_opened() {
        let mut child = shell();
        let mut processes = processes();
        let process = processes.of_thread(child.id(), || true).expect("a child");
        let caller = Caller { process: process.clone(), tid: child.id(), call: waiting() };
        let maps = caller.proc_file("maps").expect("it lives");
        let (address, _) = maps.split_once('-').expect("a range");
        let address = u64::from_str_radix(address, 16).expect("an address");
        assert_eq!(caller.read(address, &mut [0; 4]), Ok(()));
        // As if another process had its number by now, which the model has not heard of.
        becomes_sleep(&mut child);
        assert_eq!(caller.read(address, &mut [0; 4]), Err(Errno::EFAULT));
        assert_eq!(caller.write(address, &[0; 4]), Err(Errno::EFAULT));
        child.kill().and_then(|()| child.wait()).expect("it is there");
    }

    #[test]
    fn a_descriptor_is_given_at_a_call_and_what_there_is_is_found() {
        let recorder = Arc::new(Recorder::default());
        let caller = own(Some((recorder.clone(), 7)));
        let file = fs::File::open("/dev/null").expect("it is there");
        let number = caller.install(file.try_clone().expect("a duplicate").into());
        let given = recorder.last().expect("it was given");
        assert_eq!(number, Ok(given.descriptor() as i32));
        assert_eq!((given.number, given.close_on_exec, given.answer), (None, true, false));
        use std::os::fd::AsRawFd;
        let fd = file.as_raw_fd();
        let metadata = file.metadata().expect("it is open");
        assert_eq!(caller.identify(fd), Ok(FileId(metadata.dev(), metadata.ino())));
        assert!(caller.descriptors().contains(&fd));
        assert_eq!(caller.thread(), std::process::id());
        assert!(threads().contains(&nix::unistd::gettid().as_raw()));
        if let Ok(copy) = caller.borrow(fd) {
            let copy = fs::File::from(copy).metadata().expect("it is open");
            assert_eq!(copy.rdev(), metadata.rdev());
        }
        assert!(said(warn_of_descriptors).contains("pidfd_getfd is forbidden here"));
        assert_eq!(said(warn_of_descriptors), "", "it is said once");
    }

    #[test]
    fn what_a_process_has_in_all_its_calls_is_kept_with_it() {
        let caller = own(None);
        caller.pinned().store(5, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(caller.pinned().load(std::sync::atomic::Ordering::Relaxed), 5);
        assert!(std::ptr::eq(caller.eventfds(), caller.eventfds()));
        let (first, second) = (caller.dma_address(0x1000), caller.dma_address(0x3000));
        assert_eq!(second - first, 0x2000);
        assert_eq!(caller.dma_address(u64::MAX), u64::MAX << 12, "nobody's");
    }

    #[test]
    fn this_process_may_have_as_many_descriptors_as_it_is_allowed() {
        allow_many_descriptors();
        let (now, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("it has one");
        assert_eq!(now, most);
    }

    #[test]
    #[allow(unsafe_code, reason = "a page behind which nothing is mapped")]
    fn memory_that_is_only_partly_there_is_none() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let bytes = std::num::NonZeroUsize::new(2 * 4096).expect("not zero");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: fresh memory, of which the second page is nobody's.
        let memory = unsafe {
            let memory = mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE).expect("some");
            munmap(memory.byte_add(4096), 4096).expect("it is there");
            memory
        };
        let (own, end) = (Pid::this(), memory.as_ptr() as u64 + 4096);
        let mut room = [0; 8];
        assert_eq!(read(own, end - 8, &mut room), Ok(()));
        assert_eq!(write(own, end - 8, &room), Ok(()));
        assert_eq!(read(own, end - 4, &mut room), Err(Errno::EFAULT));
        assert_eq!(write(own, end - 4, &room), Err(Errno::EFAULT));
        assert_eq!(read(own, u64::MAX - 3, &mut room), Err(Errno::EFAULT));
    }

    /// A shell that becomes another program when it reads a line.
    fn shell() -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read line; exec sleep 60"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        // What starts it goes on while it still becomes the shell.
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it writes");
        child
    }

    fn becomes_sleep(child: &mut Child) {
        child.stdin.as_mut().expect("piped").write_all(b"go\n").expect("it reads");
        let name = format!("/proc/{}/comm", child.id());
        let start = std::time::Instant::now();
        while fs::read_to_string(&name).expect("it lives") != "sleep\n" {
            assert!(start.elapsed().as_secs() < 20, "it goes on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_runs_another_program_is_another() {
        let mut processes = processes();
        let mut child = shell();
        let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
        let before = processes.of_thread(tid, || true).expect("a child");
        assert_eq!(processes.known(tid), Some(pid));
        assert_eq!(processes.known(std::process::id()), None);
        let is_whole = |process: &Process| {
            matches!(process.memory.reach(process.number), Some(Reach::Process(_)))
        };
        assert!(is_whole(&before));
        // Two threads begin, and the program stays what it is.
        processes.may_leave(pid, tid);
        processes.may_leave(pid, tid);
        processes.may_leave(pid, tid + 1);
        assert!(!is_whole(&before), "its memory is that of the program alone");
        let same = processes.of_thread(tid, || true).expect("a child");
        assert!(Arc::ptr_eq(&before, &same), "it has not left");
        processes.heard(std::process::id());
        processes.heard(tid);
        assert!(!is_whole(&before), "the other thread may leave yet");
        processes.heard(tid + 1);
        assert!(is_whole(&before), "both calls failed");
        processes.may_leave(pid, tid);
        becomes_sleep(&mut child);
        let after = processes.of_thread(tid, || true).expect("a child");
        assert!(!Arc::ptr_eq(&before, &after), "it is another program");
        assert!(is_whole(&after));
        // That it left shows at its next call, too.
        processes.may_leave(pid, tid);
        child.kill().and_then(|()| child.wait()).expect("it is there");
        processes.heard(tid);
        assert_eq!(processes.known.len(), 0);
    }

    #[test]
    fn process_of_a_killed_caller_is_not_registered() {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
        let mut processes = processes();
        let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_NONBLOCK);
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).expect("a pair");
        processes.guarded_as(Wards::through(ours));
        let warded = || sys::receive_message(theirs.as_fd(), 1).is_ok_and(|(_, fd)| fd.is_some());
        let mut stranger = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let tid = stranger.id();
        let refused = processes.of_thread(tid, || false);
        assert_eq!(refused.map(|it| it.pid), Err(Errno::EINTR));
        assert!(processes.known.is_empty() && processes.threads.is_empty() && !warded());
        assert!((1..=u16::MAX).all(|number| processes.memory.reach(number).is_none()));
        // One that is known is not taken for the caller either, and a thread of its is not kept.
        let known = processes.of_thread(std::process::id(), || true).expect("this process");
        assert!(warded());
        for tid in [std::process::id(), nix::unistd::gettid().as_raw() as u32] {
            let refused = processes.of_thread(tid, || false);
            assert_eq!(refused.map(|it| it.pid), Err(Errno::EINTR));
        }
        assert_eq!(processes.threads.len(), 1);
        // Its end wakes no wait.
        drop(stranger.stdin.take());
        stranger.wait().expect("it ends");
        assert_eq!(processes.wakes.wait(Some(std::time::Duration::ZERO)), Ok(vec![]));
        assert!(!known.has_ended());
    }

    #[test]
    fn a_thread_belongs_to_its_process_and_a_process_that_ended_is_told_from_a_live_one() {
        let mut processes = processes();
        let own = std::process::id();
        let process = processes.of_thread(own, || true).expect("this process");
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32);
        let _ = tid.join();
        assert_eq!(process.pid.as_raw() as u32, own);
        assert!(!process.has_ended());
        let again =
            processes.of_thread(nix::unistd::gettid().as_raw() as u32, || true).expect("a thread");
        assert!(Arc::ptr_eq(&process, &again));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let gone = processes.of_thread(child.id(), || true).expect("it lives");
        child.wait().expect("it ends");
        assert!(gone.has_ended());
        assert!(processes.of_thread(child.id(), || true).is_err());
        processes.bury(process.pid);
        processes.bury(gone.pid);
        assert_eq!(processes.known.len(), 1, "the live one is still known");
        assert!(processes.threads.values().all(|&of| of == process.pid), "with its threads");
    }

    #[test]
    fn memory_and_descriptors_of_another_process_are_reached_or_refused() {
        let mut processes = processes();
        let process = processes.of_thread(std::process::id(), || true).expect("this process");
        let call: Option<(Arc<dyn Gate>, u64)> = waiting();
        let mut caller = Caller { process, tid: std::process::id(), call };
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
        caller.call = None;
        assert_eq!(
            caller.install(std::io::stdin().as_fd().try_clone_to_owned().expect("a copy")),
            Err(Errno::EBADF)
        );
    }
}
