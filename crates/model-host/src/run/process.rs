//! A process behind the filter, as a client of the modelled kernel.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource as Limit, getrlimit, setrlimit};
use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;

use super::call_threads::in_program;
use super::file_closer::{self, FileClosers};
use super::holders;
use super::namespaces;
use super::proc_stat::{ProcStat, text_of};
use super::sys::{self, CallGate, Notification};
use verbless_model::memory::{ClientMemory, RemoteClient, RemoteMemory, dma_address};
use verbless_model_kernel::remote::{
    Account, Capability, Charge, Client, DescriptorClaim, Eventfds, FileId, Mappings, Resource,
    check_pin, effective_capabilities, mapping_from, numbers,
};

/// A process that opened a device or sent it an ioctl, while it runs one program.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: Pid,
    /// `None` after [`Process::forget`]. Registrations hold the `Process` beyond that, but no
    /// descriptor.
    files: Mutex<Option<Arc<ProcFiles>>>,
    /// Its DMA number in [`ClientMemory`].
    number: u16,
    memory: Arc<ClientMemory>,
    /// Registrations hold the `Process`, and so keep the number taken.
    _taken: ProcessNumber,
    /// Start time, see [`start_of`].
    pub start: u64,
    /// State that outlives `execve`.
    pub claims: Arc<Claims>,
}

/// Resources of `run` that a process holds.
#[derive(Debug)]
pub(super) struct Claims {
    /// The process's account.
    account: Arc<Account>,
    /// Counts descriptors that were taken from the process and are about to be closed.
    strays: DescriptorClaim,
    /// Pages that count as pinned.
    pinned: AtomicU64,
    /// The eventfds that its subscriptions signal.
    eventfds: Eventfds,
    /// Closes files of the programs behind its filter.
    pool: Arc<FileClosers>,
}

impl Claims {
    /// Claims of a process that holds nothing yet.
    pub(super) fn behind(pool: &Arc<FileClosers>) -> Self {
        Self {
            account: Arc::new(pool.account.of_process()),
            strays: DescriptorClaim::default(),
            pinned: AtomicU64::new(0),
            eventfds: Eventfds::default(),
            pool: pool.clone(),
        }
    }
}

/// End of the addresses that [`dma_address`] accepts. A process has higher ones (57 bits on x86-64,
/// 52 on arm64) only if it asks for them.
const MAX_DMA: u64 = 1 << 48;
/// Maximum number of descriptors taken from a process that are about to be closed.
const MAX_STRAYS: usize = 8;

/// The descriptors by which a process becomes known.
#[derive(Debug)]
pub(super) struct ProcFiles {
    /// Access to its memory. Its pidfd is readable once it has ended; until then, its pid is not
    /// reused.
    pub reach: Arc<RemoteClient>,
    /// `/proc/PID/maps` of that memory.
    maps: File,
    pub start: u64,
    /// Counts the descriptors, once the process is a client.
    charge: Option<Charge>,
}

/// Descriptors in [`ProcFiles`].
const PROC_FILES: usize = 3;

impl ProcFiles {
    /// Opens the descriptors for the process of a thread. That may block forever, because `execve`
    /// of the process can lock others out: the caller must hold no lock.
    pub(super) fn of(pid: Pid, tid: u32) -> Result<Self, Errno> {
        let open = || Ok((sys::pidfd(pid)?, memory_of(pid)?, maps_of(tid)?, start_of(pid)?));
        let (pidfd, memory, maps, start) = in_program(open)?;
        let reach = Arc::new(RemoteClient { pid, pidfd, memory: Arc::new(memory) });
        Ok(Self { reach, maps, start, charge: None })
    }

    /// Makes the process a client. EUSERS: too many clients exist, or too many behind its filter,
    /// including ended processes with registrations. ENFILE: clients behind its filter use too many
    /// descriptors. `claims`: those of the same process before `execve`, over which descriptors
    /// stay open.
    pub(super) fn into_client(
        mut self,
        memory: &Arc<ClientMemory>,
        claims: Arc<Claims>,
    ) -> Result<Process, Errno> {
        let account = &claims.pool.account;
        self.charge = Some(account.charge(Resource::Descriptors, PROC_FILES)?);
        let charge = account.charge(Resource::DmaNumbers, 1)?;
        let number = memory.add(RemoteMemory::Client(self.reach.clone())).ok_or(Errno::EUSERS)?;
        Ok(Process {
            pid: self.reach.pid,
            number,
            memory: memory.clone(),
            _taken: ProcessNumber { memory: memory.clone(), number, _charge: charge },
            start: self.start,
            files: Mutex::new(Some(Arc::new(self))),
            claims,
        })
    }
}

/// The DMA number of a process; free once this is dropped.
#[derive(Debug)]
struct ProcessNumber {
    memory: Arc<ClientMemory>,
    number: u16,
    _charge: Charge,
}

impl Drop for ProcessNumber {
    fn drop(&mut self) {
        self.memory.free(self.number);
    }
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<ProcFiles>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its descriptors; `None` after [`Process::forget`].
    fn files(&self) -> Option<Arc<ProcFiles>> {
        self.lock().clone()
    }

    /// Access to the memory of its current program only.
    pub(super) fn program(&self) -> Option<RemoteMemory> {
        Some(RemoteMemory::Program(self.files()?.reach.memory.clone()))
    }

    /// The process may be in `execve`: restricts the device to the current program's memory.
    pub(super) fn note_execve(&self) {
        if let Some(program) = self.program() {
            self.memory.set_remote_memory(self.number, program);
        }
    }

    /// Restores access to the whole memory: the `execve` of the process failed.
    pub(super) fn exec_failed(&self) {
        if let Some(files) = self.files() {
            let whole = RemoteMemory::Client(files.reach.clone());
            self.memory.set_remote_memory(self.number, whole);
        }
    }

    /// Ends access to the memory of a process that has ended or runs another program. Its DMA
    /// number is free once no registration is left.
    pub(super) fn forget(&self) {
        self.memory.remove(self.number);
        *self.lock() = None;
    }

    /// The device's current access.
    #[cfg(test)]
    pub(super) fn remote_memory(&self) -> Option<RemoteMemory> {
        self.memory.remote(self.number)
    }

    /// Access to the process by its pidfd; `None` after [`Process::forget`].
    pub(super) fn reach(&self) -> Option<Arc<RemoteClient>> {
        Some(self.files()?.reach.clone())
    }

    /// Duplicates one of its descriptors, if `is_wanted` accepts the file. EINVAL: another file,
    /// which [`file_closer`] closes, because that may block.
    pub(super) fn take(
        &self,
        fd: i32,
        is_wanted: impl FnOnce(&OwnedFd) -> bool,
    ) -> Result<OwnedFd, Errno> {
        let reach = self.reach().ok_or(Errno::ESRCH)?;
        self.take_of(&reach.pidfd, fd, (MAX_STRAYS, file_closer::MAX_FILES), is_wanted)
    }

    /// As [`take`](Self::take), for calls that programs make with arbitrary files: uses at most
    /// half of the slots for closing.
    pub(super) fn take_unknown(
        &self,
        fd: i32,
        is_wanted: impl FnOnce(&OwnedFd) -> bool,
    ) -> Result<OwnedFd, Errno> {
        let reach = self.reach().ok_or(Errno::ESRCH)?;
        self.take_from(&reach.pidfd, fd, is_wanted)
    }

    /// As [`take_unknown`](Self::take_unknown), from any process, in the slots of this one.
    pub(super) fn take_from(
        &self,
        pidfd: &OwnedFd,
        fd: i32,
        is_wanted: impl FnOnce(&OwnedFd) -> bool,
    ) -> Result<OwnedFd, Errno> {
        self.take_of(pidfd, fd, (MAX_STRAYS / 2, file_closer::MAX_FILES / 2), is_wanted)
    }

    /// `most`: slots of this process, and of all programs behind its filter. EAGAIN: all are taken.
    fn take_of(
        &self,
        pidfd: &OwnedFd,
        fd: i32,
        most: (usize, usize),
        is_wanted: impl FnOnce(&OwnedFd) -> bool,
    ) -> Result<OwnedFd, Errno> {
        let Claims { strays, pool, .. } = &*self.claims;
        let stray = strays.one_of(most.0).ok_or(Errno::EAGAIN)?;
        let place = pool.claim_slot(most.1).ok_or(Errno::EAGAIN)?;
        let taken = sys::take_descriptor(pidfd, fd)?;
        if is_wanted(&taken) {
            return Ok(taken);
        }
        pool.close((taken, stray, place));
        Err(Errno::EINVAL)
    }

    /// Whether the process has ended, or [`Process::forget`] was called.
    pub(super) fn has_ended(&self) -> bool {
        self.reach().is_none_or(|reach| reach.has_ended())
    }
}

/// Whether the process of a pidfd has ended.
pub(super) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut waiting = [PollFd::new(pidfd, PollFlags::POLLIN)];
    !matches!(poll(&mut waiting, PollTimeout::ZERO), Ok(0))
}

/// The process of a thread.
pub(super) fn process_of(tid: u32) -> Result<Pid, Errno> {
    let status = text_of(&format!("/proc/{tid}/status")).map_err(proc_error)?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        .map(Pid::from_raw)
        .ok_or(Errno::ESRCH)
}

/// Start time of a process in ticks since boot, which `execve` keeps. ESRCH: the process does not
/// exist.
pub(super) fn start_of(pid: Pid) -> Result<u64, Errno> {
    let stat = ProcStat::read(pid).map_err(proc_error)?;
    stat.start().ok_or(Errno::ESRCH)
}

/// The errno of a failed open below `/proc`: ENFILE if no descriptor is free.
fn proc_error(error: std::io::Error) -> Errno {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE | Errno::ENFILE) => Errno::ENFILE,
        _ => Errno::ESRCH,
    }
}

/// `/proc/PID/mem` of the process's current program.
fn memory_of(pid: Pid) -> Result<File, Errno> {
    let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    file.map_err(proc_error)
}

/// `/proc/TID/maps` of the thread's current memory, also after `execve`.
fn maps_of(tid: u32) -> Result<File, Errno> {
    File::open(format!("/proc/{tid}/maps")).map_err(proc_error)
}

/// Whether a program may write this range itself: a write to `/proc/PID/mem` ignores page
/// protection, which a system call heeds. EFAULT: a page is not writable. The write itself detects
/// unmapped pages.
fn may_write(maps: &File, address: u64, length: usize) -> Result<(), Errno> {
    let end = address.checked_add(length as u64).ok_or(Errno::EFAULT)?;
    // Without PROCMAP_QUERY, reads the list of all mappings.
    match may_write_by(address..end, |at| mapping_from(maps, at)) {
        Err(Errno::ENOTTY) => {
            let mut all = Mappings::of(FromStart(maps, 0));
            may_write_by(address..end, |at| mapping_of(&mut all, at))
        }
        found => found,
    }
}

/// Range of a mapping, and whether it is writable.
type Mapped = (Range<u64>, bool);

/// `mapping_from`: the first mapping that ends above an address; addresses rise from call to call.
fn may_write_by(
    range: Range<u64>,
    mut mapping_from: impl FnMut(u64) -> Result<Option<Mapped>, Errno>,
) -> Result<(), Errno> {
    let mut at = range.start;
    while at < range.end {
        match mapping_from(at)? {
            Some((mapped, writable)) if mapped.start < range.end => {
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

/// Reads a file below `/proc` from its start, independent of its offset.
struct FromStart<'a>(&'a File, u64);

impl Read for FromStart<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read_at(into, self.1)?;
        self.1 += count as u64;
        Ok(count)
    }
}

/// The first of the remaining mappings that ends above an address (before Linux 6.11).
fn mapping_of(all: &mut Mappings<impl Read>, address: u64) -> Result<Option<Mapped>, Errno> {
    while let Some((mapped, writable)) = all.next_range().map_err(|_| Errno::EFAULT)? {
        if mapped.end > address {
            return Ok(Some((mapped, writable)));
        }
    }
    Ok(None)
}

/// Raises the limit of descriptors to the hard limit: each open device of every program takes some.
pub(super) fn allow_many_descriptors() {
    if let Ok((_, most)) = getrlimit(Limit::RLIMIT_NOFILE) {
        let _ = setrlimit(Limit::RLIMIT_NOFILE, most, most);
    }
}

/// The threads of this process.
pub(super) fn threads() -> Vec<i32> {
    numbers("/proc/self/task").unwrap_or_default()
}

/// Reads memory of a process or thread.
pub(super) fn read(pid: Pid, address: u64, into: &mut [u8]) -> Result<(), Errno> {
    read_by(&RemoteMemory::Process(pid), address, into)
}

/// Writes memory of a process or thread.
pub(super) fn write(pid: Pid, address: u64, from: &[u8]) -> Result<(), Errno> {
    write_by(&RemoteMemory::Process(pid), address, from)
}

/// Reads memory of a caller. The call must still wait afterwards, which proves that the tid was not
/// reused; otherwise the bytes are cleared.
pub(super) fn read_of_caller(
    gate: &dyn CallGate,
    call: &Notification,
    address: u64,
    into: &mut [u8],
) -> Result<(), Errno> {
    let read = in_program(|| read(Pid::from_raw(call.tid as i32), address, into));
    if !gate.is_waiting(call.id) {
        into.fill(0);
        return Err(Errno::EINTR);
    }
    read
}

/// Writes memory of a caller. The opened file stays that process's, and the call must still wait
/// once it is open, which proves that the tid was not reused.
pub(super) fn write_to_caller(
    gate: &dyn CallGate,
    call: &Notification,
    address: u64,
    from: &[u8],
) -> Result<(), Errno> {
    in_program(|| {
        let memory = File::options().write(true).open(format!("/proc/{}/mem", call.tid));
        let memory = memory.map_err(|_| Errno::EFAULT)?;
        let maps = maps_of(call.tid).map_err(|_| Errno::EFAULT)?;
        if !gate.is_waiting(call.id) {
            return Err(Errno::EINTR);
        }
        may_write(&maps, address, from.len())?;
        memory.write_all_at(from, address).map_err(|_| Errno::EFAULT)
    })
}

fn read_by(reach: &RemoteMemory, address: u64, into: &mut [u8]) -> Result<(), Errno> {
    let remote = remote(address, into.len())?;
    match reach.read(into, &[remote])? {
        done if done == into.len() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

fn write_by(reach: &RemoteMemory, address: u64, from: &[u8]) -> Result<(), Errno> {
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

/// A process at one of its calls, through which it can get descriptors.
pub(super) struct Caller {
    pub process: Arc<Process>,
    pub tid: u32,
    /// `None`: between its calls.
    pub call: Option<(Arc<dyn CallGate>, u64)>,
}

impl Caller {
    /// The process between its calls; it has no rights then.
    pub(super) fn between_calls(self) -> Self {
        Self { call: None, ..self }
    }

    /// Looks up a property by tid or pid, and checks that the number was not reused: the thread's
    /// call still waits, or, between calls, the process has not ended.
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

    /// Whether it has root's rights on files: fsuid 0, or CAP_DAC_OVERRIDE.
    pub(super) fn is_root(&self) -> bool {
        let of_files = |status: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
            line.and_then(|line| line.split_whitespace().nth(3)).is_some_and(|uid| uid == "0")
        };
        self.capable(Capability::DacOverride)
            || self.proc_file("status").is_ok_and(|status| of_files(&status))
    }

    /// Duplicates one of its descriptors; EINVAL: not the wanted kind of file.
    fn take(&self, fd: i32, is_wanted: impl FnOnce(&OwnedFd) -> bool) -> Result<OwnedFd, Errno> {
        self.process.take(fd, is_wanted).map_err(|errno| {
            if matches!(errno, Errno::EPERM | Errno::ENOSYS) {
                warn_of_descriptors();
            }
            if errno == Errno::EINVAL { errno } else { Errno::EBADF }
        })
    }

    /// The text of a file below `/proc/TID`; ESRCH: no call waits.
    fn proc_file(&self, name: &str) -> Result<String, Errno> {
        self.call.as_ref().ok_or(Errno::ESRCH)?;
        self.by_number(|tid| {
            let file = format!("/proc/{tid}/{name}");
            in_program(|| text_of(&file)).map_err(|_| Errno::ESRCH)
        })
    }
}

impl Client for Caller {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let program = self.process.program().ok_or(Errno::EFAULT)?;
        in_program(|| read_by(&program, address, into)).map_err(|_| Errno::EFAULT)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let files = self.process.files().ok_or(Errno::EFAULT)?;
        in_program(|| {
            may_write(&files.maps, address, from.len())?;
            let program = RemoteMemory::Program(files.reach.memory.clone());
            write_by(&program, address, from).map_err(|_| Errno::EFAULT)
        })
    }

    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
        // Above MAX_DMA, DMA addresses belong to another client.
        let end = address.checked_add(length).filter(|&end| end <= MAX_DMA);
        end.ok_or(Errno::EFAULT)?;
        self.call.as_ref().ok_or(Errno::ESRCH)?;
        self.by_number(|tid| {
            let open = |name: &str| File::open(format!("/proc/{tid}/{name}")).map_err(proc_error);
            in_program(|| check_pin(open, || Ok(()), (address, length), writable))
        })
    }

    fn dma_address(&self, address: u64) -> u64 {
        // An address above every process's addresses maps to a DMA address that no process has.
        dma_address(self.process.number, address).unwrap_or(u64::MAX << 12)
    }

    fn memlock(&self) -> u64 {
        let limits = self.proc_file("limits").unwrap_or_default();
        soft_limit(&limits, "Max locked memory")
    }

    fn pinned(&self) -> &AtomicU64 {
        &self.process.claims.pinned
    }

    fn eventfds(&self) -> &Eventfds {
        &self.process.claims.eventfds
    }

    fn capable(&self, wanted: Capability) -> bool {
        // Capabilities in another user namespace do not count on the modelled devices.
        self.by_number(|tid| Ok(namespaces::has_our_user_namespace(tid))) == Ok(true)
            && capable(&self.proc_file("status").unwrap_or_default(), wanted)
    }

    fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
        let (listener, call) = self.call.as_ref().ok_or(Errno::EBADF)?;
        listener.install_fd(*call, fd.as_fd(), None, true, false)
    }

    fn identify(&self, fd: i32) -> Result<FileId, Errno> {
        self.by_number(|tid| identify(tid, fd)).map_err(|_| Errno::EBADF)
    }

    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno> {
        self.take(fd, is_eventfd)
    }

    fn find(&self, file: FileId) -> Result<Option<OwnedFd>, Errno> {
        let mut numbers = self.descriptors()?.into_iter();
        let Some(number) = numbers.find(|&fd| self.identify(fd) == Ok(file)) else {
            return holders::find(&self.process, file);
        };
        match self.process.take(number, |fd| is_file(fd, file)) {
            Ok(found) => Ok(Some(found)),
            // The process has ended, or the number refers to another file by now.
            Err(Errno::ESRCH | Errno::EBADF | Errno::EINVAL) => holders::find(&self.process, file),
            Err(Errno::EPERM | Errno::ENOSYS) => {
                warn_of_descriptors();
                Ok(None)
            }
            Err(_) => Err(Errno::EAGAIN),
        }
    }

    fn wait_for_client(&self, work: &mut dyn FnMut()) {
        in_program(work);
    }

    fn account(&self) -> &Arc<Account> {
        &self.process.claims.account
    }

    /// Limit: the process's RLIMIT_NOFILE, and its account's share.
    fn claim(&self) -> Result<Charge, Errno> {
        let most = soft_limit(&self.proc_file("limits")?, "Max open files") as usize;
        self.account().charge_up_to(most, Resource::Descriptors, 1)
    }

    fn descriptors(&self) -> Result<Vec<i32>, Errno> {
        match self.by_number(|tid| numbers(&format!("/proc/{tid}/fd"))) {
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => Err(Errno::EAGAIN),
            // The process has ended, or its files cannot be looked at.
            listed => Ok(listed.unwrap_or_default()),
        }
    }

    fn thread(&self) -> u32 {
        self.tid
    }
}

/// Warns once that pidfd_getfd is forbidden.
fn warn_of_descriptors() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "pidfd_getfd is forbidden here: unread events of a destroyed CQ stay readable, and no \
             eventfd can be subscribed (docker allows it with --cap-add=SYS_PTRACE)"
        );
    });
}

/// The file of a thread's descriptor. EBADF: it is closed; other errors: unknown.
pub(super) fn identify(tid: u32, fd: i32) -> Result<FileId, Errno> {
    let status = sys::status_at(&format!("/proc/{tid}/fd/{fd}")).map_err(|errno| match errno {
        Errno::ENOENT => Errno::EBADF,
        other => other,
    })?;
    Ok(status.id())
}

/// Whether a process with this `/proc/PID/status` has a capability.
fn capable(status: &str, capability: Capability) -> bool {
    effective_capabilities(status) >> capability as u32 & 1 == 1
}

/// A soft limit in `/proc/PID/limits`.
fn soft_limit(limits: &str, name: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => u64::MAX,
        Some(number) => number.parse().unwrap_or(0),
        None => 0,
    }
}

/// Whether a descriptor refers to a file, without asking a FUSE or NFS server.
pub(super) fn is_file(fd: &OwnedFd, file: FileId) -> bool {
    sys::status(fd.as_fd(), "").is_ok_and(|status| status.id() == file)
}

/// Whether a descriptor is an eventfd.
fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::thread;

    use super::super::guardian::GuardedProcesses;
    use super::super::processes::tests::processes;
    use super::super::rig::{Recorder, SilentFuse, is_apart, may_take};
    use super::*;
    use crate::captured_log::captured_log;
    use verbless_model_kernel::remote::ResourcePool;

    #[test]
    fn memlock_limit_parses_proc_limits() {
        let table = "\
Limit                     Soft Limit           Hard Limit           Units
Max address space         unlimited            unlimited            bytes
Max locked memory         8388608              16777216             bytes
Max processes             95932                95932                processes";
        assert_eq!(soft_limit(table, "Max locked memory"), 8 << 20);
        assert_eq!(
            soft_limit(&table.replace("8388608", "unlimited"), "Max locked memory"),
            u64::MAX
        );
        assert_eq!(soft_limit("", "Max locked memory"), 0);
        assert_eq!(own(None).memlock(), 0, "the caller makes no call");
        let own = own(waiting()).memlock();
        let limit = getrlimit(Limit::RLIMIT_MEMLOCK).expect("the process has the limit").0;
        assert_eq!(own, limit);
    }

    /// This process as a caller, which can get descriptors.
    fn own(call: Option<(Arc<dyn CallGate>, u64)>) -> Caller {
        let process = processes().of_thread(std::process::id(), || true).expect("this process");
        Caller { process, tid: std::process::id(), call }
    }

    /// A waiting call.
    pub(in super::super) fn waiting() -> Option<(Arc<dyn CallGate>, u64)> {
        Some((Arc::new(Recorder::default()), 7))
    }

    #[test]
    fn killed_caller_loses_rights() {
        let recorder = Arc::new(Recorder::default());
        let caller = own(Some((recorder.clone(), 7)));
        let null = File::open("/dev/null").expect("/dev/null exists");
        let fd = null.as_raw_fd();
        let bytes = [0_u8; 4];
        let pin = |caller: &Caller| caller.pin(bytes.as_ptr() as u64, 4, false);
        let status = fs::read_to_string("/proc/self/status").expect("our own");
        let mine = capable(&status, Capability::NetRaw);
        assert_eq!((caller.capable(Capability::NetRaw), pin(&caller)), (mine, Ok(())));
        assert!(caller.identify(fd).is_ok() && caller.descriptors().expect("a list").contains(&fd));
        // The tid may be reused from here on.
        recorder.end();
        assert!(!caller.capable(Capability::NetRaw));
        // Between the checks of its namespace and of its capabilities.
        recorder.end_after(1);
        assert!(!caller.capable(Capability::NetRaw));
        assert_eq!((caller.memlock(), pin(&caller)), (0, Err(Errno::ESRCH)));
        assert_eq!(caller.identify(fd), Err(Errno::EBADF));
        assert_eq!(caller.descriptors(), Ok(Vec::new()));
        // Between calls, descriptors are looked up by pid.
        let owner = Caller { tid: u32::MAX, ..caller.between_calls() };
        assert!(owner.identify(fd).is_ok() && owner.descriptors().expect("a list").contains(&fd));
        assert!(!owner.capable(Capability::NetRaw));
        assert_eq!((owner.memlock(), pin(&owner)), (0, Err(Errno::ESRCH)));
    }

    #[test]
    fn ended_owner_has_no_descriptors() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let process = processes().of_thread(child.id(), || true).expect("the process is alive");
        child.wait().expect("the child ends");
        // As if its pid were reused for this process.
        let process = Arc::into_inner(process).expect("the only reference");
        let process = Arc::new(Process { pid: Pid::this(), ..process });
        let owner = Caller { process, tid: std::process::id(), call: None };
        assert_eq!(owner.identify(0), Err(Errno::EBADF));
        assert_eq!(owner.descriptors(), Ok(Vec::new()));
    }

    #[test]
    fn capabilities_are_read_from_effective_set() {
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
        use super::super::namespaces::tests::spawn_unshared;
        let Some(mut child) = spawn_unshared(&["--user", "--map-root-user"]) else { return };
        let process = processes().of_thread(child.id(), || true).expect("a child");
        let caller = Caller { process, tid: child.id(), call: waiting() };
        let status = caller.proc_file("status").expect("the process is alive");
        let found = caller.capable(Capability::NetRaw);
        child.kill().and_then(|()| child.wait()).expect("the child exists");
        assert!(
            capable(&status, Capability::NetRaw),
            "the process has all capabilities over itself"
        );
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

    /// Two pages, the second with this protection; returns the address of the second.
    #[allow(unsafe_code, reason = "a page that may not be written")]
    fn half_read_only(second: nix::sys::mman::ProtFlags) -> u64 {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
        let bytes = std::num::NonZeroUsize::new(2 * 4096).expect("not zero");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: fresh memory, which nothing else refers to.
        unsafe {
            let memory = mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE).expect("some");
            mprotect(memory.byte_add(4096), 4096, second).expect("the mapping exists");
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
        let list = |address| mapping_of(&mut Mappings::of(FromStart(&maps, 0)), address);
        let mut all = Mappings::of(FromStart(&maps, 0));
        assert_eq!(may_write_by(place - 4096..place, |at| mapping_of(&mut all, at)), Ok(()));
        let beyond = may_write_by(place - 4096..place + 1, list);
        assert_eq!(beyond, Err(Errno::EFAULT));
        for (address, writable) in [(place - 4096, true), (place - 1, true), (place, false)] {
            let (range, found) = list(address).expect("text").expect("a mapping exists");
            assert!(range.contains(&address) && found == writable, "{address:#x} {range:?}");
            match mapping_from(&maps, address) {
                Err(Errno::ENOTTY) => {}
                found => assert_eq!(found, Ok(Some((range, writable))), "{address:#x}"),
            }
        }
        assert_eq!(list(u64::MAX), Ok(None));
        assert!(matches!(list(0), Ok(Some((range, _))) if range.start > 0), "the next one");
    }

    /// Runs a test in a thread while a file with a name that is not UTF-8 is mapped.
    #[allow(unsafe_code, reason = "a mapping that nothing uses")]
    fn with_strange_names(test: impl FnOnce() + Send) {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
        use std::os::unix::ffi::OsStringExt;
        let mut name = format!("strange-{}-", std::process::id()).into_bytes();
        name.extend([0xff, 0xfe]);
        let path = std::env::temp_dir().join(std::ffi::OsString::from_vec(name));
        let options =
            File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = options.expect("a file");
        file.set_len(4096).expect("the file gets a page");
        let (bytes, access) =
            (std::num::NonZeroUsize::new(4096).expect("some"), ProtFlags::PROT_READ);
        // SAFETY: fresh memory, which nothing refers to.
        let mapped = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, &file, 0) };
        let mapped = mapped.expect("a mapping");
        std::thread::scope(|scope| scope.spawn(test).join()).expect("the test thread passes");
        // SAFETY: as above.
        unsafe { munmap(mapped, 4096) }.expect("the page is mapped");
        fs::remove_file(path).expect("the path exists");
    }

    #[test]
    fn names_of_a_program_may_be_any_bytes() {
        with_strange_names(|| {
            let tid = nix::unistd::gettid().as_raw() as u32;
            nix::sys::prctl::set_name(c"a \xff) \xfe").expect("a name");
            assert_eq!(process_of(tid), Ok(Pid::this()));
            assert!(start_of(Pid::from_raw(tid as i32)).is_ok());
            let process = processes().of_thread(tid, || true).expect("this process");
            let caller = Caller { process, tid, call: waiting() };
            assert!(caller.memlock() > 0 && caller.proc_file("status").is_ok());
            // A mapping that follows the one with the strange name.
            let (place, on_stack) = ([0_u8; 8], maps_of(tid).expect("our own"));
            let address = place.as_ptr() as u64;
            assert_eq!(caller.pin(address, 8, true), Ok(()));
            let found = mapping_of(&mut Mappings::of(FromStart(&on_stack, 0)), address);
            assert!(matches!(found, Ok(Some((range, true))) if range.contains(&address)));
        });
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
        assert_eq!(into, [0; 2], "the address may be that of another process");
    }

    #[test]
    fn client_memory_is_fixed_when_opened() {
        let mut child = shell();
        let processes = processes();
        let process = processes.of_thread(child.id(), || true).expect("a child");
        let caller = Caller { process: process.clone(), tid: child.id(), call: waiting() };
        let maps = caller.proc_file("maps").expect("the process is alive");
        let (address, _) = maps.split_once('-').expect("a range");
        let address = u64::from_str_radix(address, 16).expect("an address");
        assert_eq!(caller.read(address, &mut [0; 4]), Ok(()));
        // As if the pid were reused before the model noticed.
        becomes_sleep(&mut child);
        assert_eq!(caller.read(address, &mut [0; 4]), Err(Errno::EFAULT));
        assert_eq!(caller.write(address, &[0; 4]), Err(Errno::EFAULT));
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    }

    #[test]
    fn install_adds_descriptor_to_caller() {
        let recorder = Arc::new(Recorder::default());
        let caller = own(Some((recorder.clone(), 7)));
        let file = fs::File::open("/dev/null").expect("/dev/null exists");
        let number = caller.install(file.try_clone().expect("a duplicate").into());
        let given = recorder.last().expect("a descriptor was recorded");
        assert_eq!(number, Ok(given.descriptor() as i32));
        assert_eq!((given.number, given.close_on_exec, given.answer), (None, true, false));
        let fd = file.as_raw_fd();
        let metadata = file.metadata().expect("the file is open");
        assert_eq!(caller.identify(fd), Ok(FileId(metadata.dev(), metadata.ino())));
        assert!(caller.descriptors().expect("a list").contains(&fd));
        assert_eq!(caller.thread(), std::process::id());
        assert!(threads().contains(&nix::unistd::gettid().as_raw()));
        if let Ok(copy) = caller.process.take(fd, |_| true) {
            let copy = fs::File::from(copy).metadata().expect("the file is open");
            assert_eq!(copy.rdev(), metadata.rdev());
        }
        assert!(captured_log(warn_of_descriptors).contains("pidfd_getfd is forbidden here"));
        assert_eq!(captured_log(warn_of_descriptors), "", "the warning is logged once");
    }

    #[test]
    fn descriptors_kept_for_a_process_are_bounded() {
        if !is_apart("run::process::tests::descriptors_kept_for_a_process_are_bounded") {
            return;
        }
        let limit = |soft: u64| {
            let (_, hard) = getrlimit(Limit::RLIMIT_NOFILE).expect("the process has the limit");
            setrlimit(Limit::RLIMIT_NOFILE, soft, hard).expect("the soft limit is lowered");
        };
        limit(808);
        let most = |caller: &Caller, errno| {
            let claims = (0..2000).map_while(|_| caller.claim().ok()).collect::<Vec<_>>();
            assert_eq!(caller.claim().map(drop), Err(errno), "{}", claims.len());
            claims.len()
        };
        assert_eq!(own(None).claim().map(drop), Err(Errno::ESRCH), "the caller makes no call");
        // Each process is the only one of its filter, and both filters hold descriptors: each may
        // hold three sevenths of those that the supervisor leaves to clients, without the two
        // processes' own.
        let mut child = shell();
        let process = processes().of_thread(child.id(), || true).expect("a child");
        let other = Caller { process, tid: child.id(), call: waiting() };
        let own = own(waiting());
        assert_eq!((most(&own, Errno::ENFILE), most(&other, Errno::ENFILE)), (256, 256));
        // A process may hold at most its own RLIMIT_NOFILE.
        let few = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
        sys::tests::limit_descriptors(child.id(), few);
        assert_eq!(most(&other, Errno::EMFILE), 100);
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    }

    /// A filter whose account has so many descriptors and DMA numbers to share with others.
    fn filter_of(pool: &Arc<ResourcePool>) -> Arc<FileClosers> {
        let mut filter = FileClosers::default();
        filter.account = Arc::new(Account::with(pool.clone()));
        Arc::new(filter)
    }

    #[test]
    fn refused_process_is_not_guarded() {
        use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
        let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
        let pair = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC);
        let (ours, guardian) = pair.expect("a pair");
        let messages = || {
            let receive = || recv(guardian.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT);
            std::iter::from_fn(|| receive().ok()).count()
        };
        let (processes, filter) = (processes(), filter_of(&ResourcePool::of([0, 0, 0, 10])));
        processes.set_guarded(GuardedProcesses::through(ours));
        let mut child = shell();
        for _ in 0..3 {
            let refused = processes.behind(child.id(), &filter, || true);
            assert_eq!(refused.map(drop), Err(Errno::ENFILE));
        }
        assert_eq!(messages(), 0);
        processes.of_thread(child.id(), || true).expect("another filter has descriptors");
        assert_eq!(messages(), 1);
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    }

    #[test]
    fn descriptors_of_known_processes_count_for_their_filter() {
        let (processes, pool) = (processes(), ResourcePool::of([13, 0, 0, 10]));
        let [filter, other] = [(); 2].map(|()| filter_of(&pool));
        let mut children = [shell(), shell(), shell()];
        let behind = |child: &Child, filter| processes.behind(child.id(), filter, || true);
        let first = behind(&children[0], &filter).expect("one of two");
        let second = behind(&children[1], &filter).expect("one of two");
        assert_eq!(behind(&children[2], &filter).map(drop), Err(Errno::ENFILE));
        assert!(behind(&children[2], &other).is_ok(), "another filter's");
        children[0].kill().and_then(|()| children[0].wait()).expect("the child exists");
        processes.forget_if_ended(first.pid);
        assert_eq!(
            filter.account.taken(Resource::Descriptors),
            PROC_FILES,
            "the descriptors of the second process"
        );
        drop(second);
        for child in &mut children[1..] {
            child.kill().and_then(|()| child.wait()).expect("the child exists");
        }
    }

    #[test]
    fn registrations_of_ended_processes_hold_no_descriptor() {
        if !is_apart("run::process::tests::registrations_of_ended_processes_hold_no_descriptor") {
            return;
        }
        let processes = processes();
        let count = || numbers("/proc/self/fd").expect("a list").len();
        let before = count();
        let held: Vec<_> = (0..8)
            .map(|round| {
                let mut child = shell();
                let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
                let process = processes.of_thread(tid, || true).expect("a child");
                if round % 2 == 0 {
                    // Its next program is another client.
                    processes.note_execve((pid, tid), || (), || true);
                    becomes_sleep(&mut child);
                    processes.note_call(tid, || true);
                }
                child.kill().and_then(|()| child.wait()).expect("the child exists");
                processes.forget_if_ended(pid);
                process
            })
            .collect();
        assert_eq!((count(), held.len()), (before, 8));
        assert!(held.iter().all(|process| process.has_ended()));
    }

    #[test]
    fn stray_descriptors_are_closed_elsewhere_and_bounded() {
        let caller = own(waiting());
        let null = File::open("/dev/null").expect("/dev/null exists");
        let (event, socket) = (
            nix::sys::eventfd::EventFd::new().expect("an eventfd"),
            std::os::unix::net::UnixDatagram::unbound().expect("a socket"),
        );
        if !may_take(&caller.process.reach().expect("the process is alive").pidfd) {
            return;
        }
        assert!(caller.borrow(event.as_fd().as_raw_fd()).is_ok());
        let id = sys::status(socket.as_fd(), "").expect("open").id();
        assert!(matches!(caller.find(id), Ok(Some(_))));
        assert_eq!(caller.borrow(socket.as_raw_fd()).map(drop), Err(Errno::EINVAL));
        assert_eq!(caller.borrow(null.as_raw_fd()).map(drop), Err(Errno::EINVAL));
        let network = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(caller.borrow(network.as_raw_fd()).map(drop), Err(Errno::EINVAL));
        let claims = &caller.process.claims;
        while claims.strays.one_of(1).is_none() {
            std::thread::yield_now();
        }
        let strays: Vec<_> = std::iter::from_fn(|| claims.strays.one_of(MAX_STRAYS)).collect();
        assert_eq!(strays.len(), MAX_STRAYS);
        assert_eq!(caller.borrow(event.as_fd().as_raw_fd()).map(drop), Err(Errno::EBADF));
        assert_eq!(caller.find(id).map(drop), Err(Errno::EAGAIN), "the file is not closed");
        drop((strays, socket));
        // A child that another test forks may hold it until `execve`.
        while !matches!(caller.find(id), Ok(None)) {
            std::thread::yield_now();
        }
        assert!(caller.borrow(event.as_fd().as_raw_fd()).is_ok());
    }

    #[test]
    fn find_asks_no_server() {
        let Some(server) = SilentFuse::start("find") else { return };
        let file = server.open();
        let process = own(None).process;
        if !may_take(&process.reach().expect("the process is alive").pidfd) {
            return;
        }
        let (found, finds) = std::sync::mpsc::channel();
        let fd = file.as_raw_fd();
        thread::spawn(move || {
            let taken = process.take(fd, |fd| is_file(fd, FileId(0, 0)));
            found.send(taken.map(drop)).expect("the test waits");
        });
        let limit = std::time::Duration::from_secs(10);
        assert_eq!(finds.recv_timeout(limit), Ok(Err(Errno::EINVAL)));
    }

    #[test]
    fn filter_leaves_numbers_to_others() {
        let (processes, numbers) = (processes(), ResourcePool::of([100, 0, 0, 4]));
        let [pool, others] = [(); 2].map(|()| filter_of(&numbers));
        let mut children = [shell(), shell()];
        let [first, second] = children.each_ref().map(Child::id);
        let behind = |tid, pool: &Arc<FileClosers>| processes.behind(tid, pool, || true);
        let own = behind(std::process::id(), &pool).expect("one of two");
        // Its number is free once its registrations, here `kept`, are gone too.
        let kept = behind(first, &pool).expect("one of two");
        children[0].kill().and_then(|()| children[0].wait()).expect("the child exists");
        processes.forget_if_ended(kept.pid);
        assert_eq!(behind(second, &pool).map(drop), Err(Errno::EUSERS));
        assert!(behind(second, &others).is_ok(), "another filter's");
        drop((own, kept));
        children[1].kill().and_then(|()| children[1].wait()).expect("the child exists");
    }

    #[test]
    fn strays_of_a_filter_count_together() {
        let (processes, pool) = (processes(), Arc::<FileClosers>::default());
        let null = File::open("/dev/null").expect("/dev/null exists");
        let fd = null.as_raw_fd();
        let mut child = shell();
        let own = processes.behind(std::process::id(), &pool, || true).expect("this process");
        let other = processes.behind(child.id(), &pool, || true).expect("a child");
        let mut alone = shell();
        let free = processes.behind(alone.id(), &Arc::default(), || true).expect("a child");
        let takes = |process: &Process, fd| process.take(fd, |_| true).map(drop);
        let unknown = |process: &Process| process.take_unknown(0, |_| true).map(drop);
        if may_take(&own.reach().expect("the process is alive").pidfd) {
            assert_eq!(
                (takes(&own, fd), takes(&other, 0), unknown(&other)),
                (Ok(()), Ok(()), Ok(()))
            );
            let half: Vec<_> = (0..file_closer::MAX_FILES / 2)
                .map(|_| pool.claim_slot(file_closer::MAX_FILES))
                .collect();
            assert_eq!((unknown(&other), takes(&other, 0)), (Err(Errno::EAGAIN), Ok(())));
            let rest: Vec<_> =
                std::iter::from_fn(|| pool.claim_slot(file_closer::MAX_FILES)).collect();
            assert_eq!(
                (takes(&own, fd), takes(&other, 0)),
                (Err(Errno::EAGAIN), Err(Errno::EAGAIN))
            );
            assert_eq!((takes(&free, 0), unknown(&free)), (Ok(()), Ok(())), "another filter's");
            drop((half, rest));
            // An unwanted file counts until it is closed.
            let refused = other.take(0, |_| false).map(drop);
            assert_eq!(refused, Err(Errno::EINVAL));
            while pool.claim_slot(1).is_none() {
                std::thread::yield_now();
            }
        }
        for child in [&mut child, &mut alone] {
            child.kill().and_then(|()| child.wait()).expect("the child exists");
        }
    }

    #[test]
    fn process_state_is_shared_between_calls() {
        let caller = own(None);
        caller.pinned().store(5, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(caller.pinned().load(std::sync::atomic::Ordering::Relaxed), 5);
        assert!(std::ptr::eq(caller.eventfds(), caller.eventfds()));
        let (first, second) = (caller.dma_address(0x1000), caller.dma_address(0x3000));
        assert_eq!(second - first, 0x2000);
        assert_eq!(caller.dma_address(u64::MAX), u64::MAX << 12, "a DMA address of no process");
    }

    #[test]
    fn descriptor_limit_is_raised_to_hard_limit() {
        allow_many_descriptors();
        let (now, most) = getrlimit(Limit::RLIMIT_NOFILE).expect("the process has the limit");
        assert_eq!(now, most);
    }

    #[test]
    #[allow(unsafe_code, reason = "a page behind which nothing is mapped")]
    fn partly_mapped_range_fails_with_efault() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let bytes = std::num::NonZeroUsize::new(2 * 4096).expect("not zero");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the memory is fresh, and no code uses its second page.
        let memory = unsafe {
            let memory = mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE).expect("some");
            munmap(memory.byte_add(4096), 4096).expect("the mapping exists");
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

    /// A shell that executes another program when it reads a line.
    pub(in super::super) fn shell() -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read line; exec sleep 60"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        // `spawn` may return before the child has become the shell.
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("the child writes");
        child
    }

    pub(in super::super) fn becomes_sleep(child: &mut Child) {
        child.stdin.as_mut().expect("piped").write_all(b"go\n").expect("the child reads");
        let name = format!("/proc/{}/comm", child.id());
        let start = std::time::Instant::now();
        while fs::read_to_string(&name).expect("the process is alive") != "sleep\n" {
            assert!(start.elapsed().as_secs() < 20, "the call continues");
            std::thread::yield_now();
        }
    }

    #[test]
    fn invalid_memory_and_descriptors_are_rejected() {
        let processes = processes();
        let process = processes.of_thread(std::process::id(), || true).expect("this process");
        let call: Option<(Arc<dyn CallGate>, u64)> = waiting();
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
