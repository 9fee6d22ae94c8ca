//! The DPA: processes from ELF files, threads that CQ events start, function calls, core dumps.
//!
//! The hardware's commands are not published. These layouts are the software model's own
//! (`prm/dpa`), so every function that creates an object takes a [`ModelToken`].

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbless_devx::{Error, EventChannel, ModelToken};
use verbless_prm as prm;
pub use verbless_prm::DpaThreadState;
use verbless_prm::{DpaAffinity, DpaFault, GeneralObjectType, Structure};

use crate::device::Device;
use crate::dpa_outbox_window::{DpaOutbox, DpaWindow};
use crate::error::refused;
use crate::general::GeneralObject;
use crate::memory::UserMemory;

/// Means no outbox or window.
const NONE: u16 = 0xffff;

/// Attributes of a process.
#[derive(Debug, Clone)]
pub struct DpaProcessAttr {
    /// The registration that holds the ELF file; the device reads it while it creates the process.
    pub file: Arc<UserMemory>,
    /// Offset of the file in that registration, in bytes.
    pub offset: u64,
    /// Length of the file in bytes.
    pub length: u64,
    /// Bytes of heap, rounded up to 4 KiB.
    pub heap: u32,
    /// Instruction limit of one run; 0: the device's limit.
    pub watchdog: u64,
}

/// A process on the DPA. It lives until its threads, windows, keys and queues are dropped too.
#[derive(Debug)]
pub struct DpaProcess {
    object: GeneralObject,
    heap_address: u64,
    heap_bytes: u32,
    heap_umem: u32,
    serial: u64,
}

/// The execution units on which a thread or call may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Affinity {
    /// Any.
    #[default]
    None,
    /// This execution unit only.
    Strict(u16),
    /// The execution units of this group.
    Group(u16),
}

impl Affinity {
    fn raw(self) -> (DpaAffinity, u16) {
        match self {
            Self::None => (DpaAffinity::NONE, 0),
            Self::Strict(unit) => (DpaAffinity::STRICT, unit),
            Self::Group(group) => (DpaAffinity::GROUP, group),
        }
    }
}

/// Entry point of a thread or call, and its initial configuration.
#[derive(Debug, Clone, Default)]
pub struct DpaEntry {
    /// Address of the function in the process.
    pub address: u64,
    /// `metadata_parameter` of the thread context.
    pub metadata: u64,
    /// The outbox that is configured at the start.
    pub outbox: Option<Arc<DpaOutbox>>,
    /// The windows of entities 0 and 1 that are configured at the start.
    pub windows: [Option<Arc<DpaWindow>>; 2],
    /// The execution units on which it may run.
    pub affinity: Affinity,
}

impl DpaEntry {
    /// The function at this address, without outbox, windows and affinity.
    pub fn at(address: u64) -> Self {
        Self { address, ..Self::default() }
    }

    /// Checks that the outbox and windows belong to the process: their numbers count from 0 in each
    /// process.
    fn check(&self, process: &Arc<DpaProcess>) -> Result<(), Error> {
        let outbox = self.outbox.as_ref().map(|outbox| ("outbox", outbox.process()));
        let windows = self.windows.iter().flatten().map(|window| ("window", window.process()));
        match outbox.into_iter().chain(windows).find(|(_, of)| !Arc::ptr_eq(of, process)) {
            Some((what, _)) => {
                let hint = format!("the {what} is of another process of the DPA");
                Err(refused("CREATE_GENERAL_OBJECT", hint))
            }
            None => Ok(()),
        }
    }

    fn outbox_id(&self) -> u16 {
        self.outbox.as_ref().map_or(NONE, |outbox| outbox.id())
    }

    fn window_ids(&self) -> [u16; 2] {
        self.windows.each_ref().map(|window| window.as_ref().map_or(NONE, |window| window.id()))
    }
}

/// Properties of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DpaThreadKind {
    /// Whether the watchdog ignores the thread.
    pub polling: bool,
    /// Whether the thread may yield: its next run then continues where it yielded.
    pub continuable: bool,
    /// Whether events do not start the thread until [`DpaThread::run`]; it then finds them as one
    /// event.
    pub held: bool,
}

/// A thread. An event of a CQ starts it ([`CqEventTarget::Thread`](crate::CqEventTarget::Thread)).
#[derive(Debug)]
pub struct DpaThread {
    object: GeneralObject,
    _parents: (Arc<DpaProcess>, DpaEntry),
}

/// State and counts of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpaThreadInfo {
    /// The thread's state.
    pub state: DpaThreadState,
    /// Number of runs of the thread.
    pub runs: u64,
    /// Instructions of completed runs.
    pub instructions: u64,
    /// The execution unit of the last run.
    pub unit: u32,
    /// Events that have come, modulo 2^32.
    pub events: u32,
}

/// A call in progress. A drop ends it.
#[derive(Debug)]
pub struct DpaCall {
    object: GeneralObject,
    _parents: (Arc<DpaProcess>, DpaEntry),
}

/// State of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DpaCallState {
    /// The call waits for an execution unit, or runs.
    Running,
    /// The call has returned this value.
    Returned(u64),
    /// The process ended before the call returned; this is the process's status.
    ProcessEnded(DpaStatus),
}

/// `dpa_process_status`: the status of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DpaStatus(pub u8);

impl DpaStatus {
    /// Whether the process runs.
    pub fn runs(self) -> bool {
        self.0 == 0
    }

    /// Whether an error ended the process: it neither runs nor has finished by itself.
    pub fn is_error(self) -> bool {
        !self.runs() && self.0 != DpaFault::FINISHED.0
    }
}

impl fmt::Display for DpaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        let text = match DpaFault(number) {
            DpaFault::NONE => "it runs",
            DpaFault::ILLEGAL => "illegal instruction",
            DpaFault::FETCH => "instruction access fault",
            DpaFault::LOAD_MISALIGNED => "load address misaligned",
            DpaFault::LOAD => "load access fault",
            DpaFault::STORE_MISALIGNED => "store address misaligned",
            DpaFault::STORE => "store access fault",
            DpaFault::BREAKPOINT => "breakpoint",
            DpaFault::SYSTEM_CALL => "unknown system call",
            DpaFault::WATCHDOG => "a run took longer than the watchdog allows",
            DpaFault::WINDOW => "an access through a window that its key does not allow",
            DpaFault::FINISHED => "it has finished",
            DpaFault::ILLEGAL_ERROR => "it ended itself with a code that is not in 128-255",
            DpaFault::PANIC => "its program panicked",
            _ if number >= 128 => return write!(f, "it ended itself with error {number}"),
            _ => return write!(f, "status {number}"),
        };
        write!(f, "{text} (status {number})")
    }
}

impl fmt::Debug for DpaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// State of a process, and the reason of its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpaProcessInfo {
    /// The process's status.
    pub status: DpaStatus,
    /// Whether an error has ended the process, while its error handler still runs.
    pub ending: bool,
    /// Instructions of ended runs.
    pub instructions: u64,
    /// The run that ended the process, if the process has ended.
    pub crash: Option<DpaCrash>,
    /// Token by which the user's debugger attaches to the process; 0 if it may not be debugged.
    pub udbg_token: u64,
}

/// The run that ended a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpaCrash {
    /// Whether the run was a call instead of a thread's run.
    pub in_call: bool,
    /// The thread's or call's number.
    pub runner: u32,
    /// Address of the instruction.
    pub pc: u64,
    /// The address that could not be accessed, or the illegal instruction.
    pub address: u64,
    /// x0 to x31.
    pub registers: [u64; 32],
}

impl fmt::Display for DpaProcessInfo {
    /// A crash report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        let Some(DpaCrash { in_call, runner, pc, address, registers }) = &self.crash else {
            return Ok(());
        };
        let what = if *in_call { "call" } else { "thread" };
        write!(f, "\nin {what} {runner:#x} at pc {pc:#x}, address {address:#x}")?;
        for (index, value) in registers.iter().enumerate() {
            let separator = if index % 4 == 0 { "\n" } else { " " };
            let name = format!("x{index}");
            write!(f, "{separator}{name:>4} {value:016x}")?;
        }
        Ok(())
    }
}

impl Device {
    /// Creates a process.
    ///
    /// # Errors
    /// The device has no DPA; the file is not a program for it; the DPA is out of memory.
    pub fn create_dpa_process(
        &self,
        _: &ModelToken,
        attr: &DpaProcessAttr,
    ) -> Result<Arc<DpaProcess>, Error> {
        let mut context = prm::DpaProcess::default();
        context
            .set_bin_umem_id(attr.file.id())
            .set_bin_umem_offset(attr.offset)
            .set_bin_bytes(attr.length)
            .set_heap_bytes(attr.heap)
            .set_watchdog(attr.watchdog);
        let object = make(self, GeneralObjectType::DPA_PROCESS, &context)?;
        let shown: prm::DpaProcess = query(&object)?;
        Ok(Arc::new(DpaProcess {
            object,
            heap_address: shown.heap_address(),
            heap_bytes: shown.heap_bytes(),
            heap_umem: shown.device_umem_id(),
            serial: shown.serial(),
        }))
    }

    /// Creates a thread, which then waits for its first event.
    ///
    /// # Errors
    /// The process has ended, or has no free stack.
    pub fn create_dpa_thread(
        &self,
        process: &Arc<DpaProcess>,
        entry: &DpaEntry,
        argument: u64,
        kind: DpaThreadKind,
    ) -> Result<DpaThread, Error> {
        entry.check(process)?;
        let [window, second] = entry.window_ids();
        let (affinity, affinity_id) = entry.affinity.raw();
        let mut context = prm::DpaThread::default();
        context
            .set_process_id(process.id())
            .set_polling(kind.polling)
            .set_continuable(kind.continuable)
            .set_held(kind.held)
            .set_affinity(affinity)
            .set_affinity_id(affinity_id)
            .set_outbox_id(entry.outbox_id())
            .set_window_id(window)
            .set_second_window_id(second)
            .set_entry(entry.address)
            .set_argument(argument)
            .set_metadata(entry.metadata);
        let object = make(self, GeneralObjectType::DPA_THREAD, &context)?;
        Ok(DpaThread { object, _parents: (process.clone(), entry.clone()) })
    }

    /// Calls a function of a process with up to 8 words. The call runs asynchronously;
    /// [`DpaCall::state`] returns its state.
    ///
    /// # Errors
    /// The process has ended, or has no free stack.
    pub fn begin_dpa_call(
        &self,
        process: &Arc<DpaProcess>,
        entry: &DpaEntry,
        arguments: [u64; 8],
    ) -> Result<DpaCall, Error> {
        entry.check(process)?;
        let [window, second] = entry.window_ids();
        let (affinity, affinity_id) = entry.affinity.raw();
        let mut context = prm::DpaCall::default();
        context
            .set_process_id(process.id())
            .set_affinity(affinity)
            .set_affinity_id(affinity_id)
            .set_outbox_id(entry.outbox_id())
            .set_window_id(window)
            .set_second_window_id(second)
            .set_entry(entry.address)
            .set_metadata(entry.metadata);
        for (index, argument) in arguments.into_iter().enumerate() {
            context.set_arguments(index, argument);
        }
        let object = make(self, GeneralObjectType::DPA_CALL, &context)?;
        Ok(DpaCall { object, _parents: (process.clone(), entry.clone()) })
    }

    /// Writes a core dump of a process, an ELF file, into registered memory from byte `offset` on,
    /// and returns its length in bytes. If the memory is shorter, it writes nothing.
    pub fn dump_dpa_core(
        &self,
        process: &DpaProcess,
        into: &UserMemory,
        offset: u64,
    ) -> Result<u64, Error> {
        let mut context = prm::DpaCoreDump::default();
        context
            .set_process_id(process.id())
            .set_umem_id(into.id())
            .set_umem_offset(offset)
            .set_dump_bytes(into.length().saturating_sub(offset));
        let object = make(self, GeneralObjectType::DPA_CORE_DUMP, &context)?;
        let length = query::<prm::DpaCoreDump>(&object)?.dump_bytes();
        object.destroy()?;
        Ok(length)
    }
}

pub(crate) fn make<S: Structure>(
    device: &Device,
    obj_type: GeneralObjectType,
    context: &S,
) -> Result<GeneralObject, Error> {
    device.create_general_object(obj_type, context.as_bytes())
}

pub(crate) fn query<S: Structure>(object: &GeneralObject) -> Result<S, Error> {
    let bytes = object.query(S::BYTES)?;
    let mut context = S::default();
    context.as_mut_bytes().copy_from_slice(&bytes);
    Ok(context)
}

impl DpaProcess {
    /// The object id of the process.
    pub fn id(&self) -> u32 {
        self.object.id()
    }

    /// A number that no other process of any function ever has.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Address of the heap's first byte, in the process's address space.
    pub fn heap_address(&self) -> u64 {
        self.heap_address
    }

    /// Bytes of the heap.
    pub fn heap_bytes(&self) -> u32 {
        self.heap_bytes
    }

    /// The heap as registered memory, for keys and queues in it. It begins at
    /// [`heap_address`](Self::heap_address).
    pub fn heap(self: &Arc<Self>) -> UserMemory {
        let length = u64::from(self.heap_bytes);
        let context = self.object.context().clone();
        UserMemory::on_device(context, self.heap_umem, self.heap_address, length, self.clone())
    }

    /// Sets the function that runs in the process when an error ends it, before
    /// [`query`](Self::query) reports the end. Its argument is the status; it has the outbox,
    /// windows and metadata of the failed run. Nothing else runs in the process then. Its return
    /// value is ignored, and so is an error in it.
    ///
    /// # Errors
    /// The process has had a thread, or has ended.
    pub fn set_error_handler(&self, address: u64) -> Result<(), Error> {
        let mut context = prm::DpaProcess::default();
        context.set_error_handler(address);
        self.object.modify(context.as_bytes())
    }

    /// Signals an eventfd when the process ends, for as long as the channel lives.
    ///
    /// # Errors
    /// EINVAL: the file is not an eventfd.
    pub fn signal_end(&self, channel: &EventChannel, eventfd: BorrowedFd<'_>) -> Result<(), Error> {
        self.object.signal_changes(channel, eventfd)
    }

    /// Destroys the process, and ends its threads and calls.
    ///
    /// # Errors
    /// Keys or queues still use its heap.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }

    /// Queries the state of the process.
    pub fn query(&self) -> Result<DpaProcessInfo, Error> {
        let context: prm::DpaProcess = query(&self.object)?;
        let status = DpaStatus(context.status());
        let crash = (!status.runs()).then(|| DpaCrash {
            in_call: context.fault_in_call(),
            runner: context.fault_runner(),
            pc: context.fault_pc(),
            address: context.fault_address(),
            registers: std::array::from_fn(|index| context.registers(index)),
        });
        let (instructions, udbg_token) = (context.instructions(), context.udbg_token());
        let ending = context.ending();
        Ok(DpaProcessInfo { status, ending, instructions, crash, udbg_token })
    }
}

impl DpaThread {
    /// The thread's object id. CQs refer to it.
    pub fn id(&self) -> u32 {
        self.object.id()
    }

    /// Queries the state of the thread.
    pub fn query(&self) -> Result<DpaThreadInfo, Error> {
        let context: prm::DpaThread = query(&self.object)?;
        Ok(DpaThreadInfo {
            state: context.state(),
            runs: context.runs(),
            instructions: context.instructions(),
            unit: context.unit(),
            events: context.events(),
        })
    }

    /// Lets events start a held thread; `argument` is the argument of its next runs.
    ///
    /// # Errors
    /// The process has ended.
    pub fn run(&self, argument: u64) -> Result<(), Error> {
        let mut context = prm::DpaThread::default();
        context.set_argument(argument);
        self.object.modify(context.as_bytes())
    }

    /// Ends the thread, even while it runs.
    ///
    /// # Errors
    /// A CQ still targets it.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}

impl DpaCall {
    /// Queries the state of the call.
    pub fn state(&self) -> Result<DpaCallState, Error> {
        let context: prm::DpaCall = query(&self.object)?;
        Ok(match (context.status(), context.state()) {
            (0, DpaThreadState::FINISHED) => DpaCallState::Returned(context.result()),
            (0, _) => DpaCallState::Running,
            (status, _) => DpaCallState::ProcessEnded(DpaStatus(status)),
        })
    }

    /// Ends the call, even while it runs.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}

#[cfg(test)]
mod tests {
    use super::{Affinity, DpaAffinity};

    #[test]
    fn affinity_encodes_kind_and_eu_or_group_id() {
        assert_eq!(Affinity::None.raw(), (DpaAffinity::NONE, 0));
        assert_eq!(Affinity::Strict(5).raw(), (DpaAffinity::STRICT, 5));
        assert_eq!(Affinity::Group(3).raw(), (DpaAffinity::GROUP, 3));
    }
}
