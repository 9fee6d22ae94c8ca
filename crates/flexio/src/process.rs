//! Processes of programs: their configuration, their objects, and calls of their functions.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{Function, Process, ProcessConfig, RpcAttr};
//!
//! let add = || Function::<(u64, u32), u64>::named("add");
//! assert_eq!(process.call(add(), (40, 2))?, 42);
//! // The same with attributes.
//! let attr = RpcAttr { name: "adder".into(), ..RpcAttr::default() };
//! assert_eq!(process.call_with_attr(&attr, add(), (40, 2))?, 42);
//! // Another process of the program, with a heap of its own.
//! let config = ProcessConfig { heap: 2 << 20, ..ProcessConfig::default() };
//! let other = Process::create(process.device(), process.app(), &config)?;
//! other.destroy()?;
//! # Ok(())
//! # }
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use verbless_command::{
    Device, DpaCall, DpaCallState, DpaEntry, DpaOutbox, DpaProcess, DpaProcessAttr, DpaProcessInfo,
    ErrorKind, ModelToken, UserMemory,
};
use verbless_devx::{Pd, UarKind};
use verbless_queue::{Domain, Memory};

use crate::app::App;
use crate::copy::{Copier, CopierSlot, Deadline};
use crate::error::Error;
use crate::fatal::ProcessEnd;
use crate::function::{Arguments, Function, Word};
use crate::heap::Heap;
use crate::holders::{Key, in_use, key};
use crate::ids::OutboxId;
use crate::stream::numbers::Streams;
use crate::uar::Uar;

/// Configuration of a process (`flexio_process_attr`, with a heap size and limits that the C
/// library does not expose).
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// The protection domain; `None`: the process creates one.
    pub pd: Option<Pd>,
    /// The process's name, for messages.
    pub name: String,
    /// Enables congestion control (`en_pcc`); the model has none, and refuses `true`.
    pub congestion_control: bool,
    /// Bytes of heap, rounded up to 4 KiB.
    pub heap: u32,
    /// Instruction limit of one run; 0: the device's limit.
    pub watchdog: u64,
    /// The time limit of a call, after which [`Process::call`] terminates it, and of a copy: [what
    /// can time out](crate#what-can-time-out).
    pub timeout: Duration,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            pd: None,
            name: String::new(),
            congestion_control: false,
            heap: 1 << 20,
            watchdog: 0,
            timeout: Duration::from_secs(10),
        }
    }
}

/// A process of a program on the DPA of a device (`flexio_process`).
///
/// Clones are the same process. Its objects (buffers, windows, queues, event handlers) hold a
/// clone, so a process outlives all of them; the last drop destroys the device's process. After a
/// fatal error, every operation that needs the process returns [`Error::Fatal`]; its status, crash
/// data and core dump stay available, and everything can be dropped.
#[derive(Debug, Clone)]
pub struct Process {
    shared: Arc<ProcessShared>,
}

#[derive(Debug)]
struct ProcessShared {
    // In drop order: the users of the heap and the process first, then the process.
    end: ProcessEnd,
    copier: CopierSlot,
    heap_memory: Arc<UserMemory>,
    heap: Mutex<Heap>,
    /// The outbox of threads without a configured one.
    outbox: Arc<DpaOutbox>,
    object: Arc<DpaProcess>,
    _lifetime_log: LifetimeLog,
    domain: Domain,
    uar: Arc<verbless_devx::Uar>,
    token: ModelToken,
    app: App,
    name: String,
    timeout: Duration,
    /// Count of numbered threads.
    threads: AtomicU32,
    /// Message streams and tracer.
    streams: Mutex<Streams>,
    /// Count of terminated runs, of calls and event handlers.
    terminated_runs: AtomicU64,
}

/// Logs the creation and the end of a process.
#[derive(Debug)]
struct LifetimeLog {
    process: u32,
    app: String,
}

impl LifetimeLog {
    fn made(process: u32, app: &App) -> Self {
        crate::log::info!("made process {process:#x} of {}", app.name());
        Self { process, app: app.name().to_owned() }
    }
}

impl Drop for LifetimeLog {
    fn drop(&mut self) {
        crate::log::info!("process {:#x} of {} was destroyed", self.process, self.app);
    }
}

/// Number of polls of a call without a pause, and the pause between later polls.
const EAGER_POLLS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Creates a process of `app` (`flexio_process_create`).
    ///
    /// # Errors
    /// The device is not verbless's model, has no DPA, or is out of memory; the protection domain
    /// is of another context; congestion control is requested.
    pub fn create(device: &Device, app: &App, config: &ProcessConfig) -> Result<Self, Error> {
        let token = device.as_model().ok_or_else(|| {
            Error::Failed(
                "processes of a DPA exist on verbless's model only: how hardware makes one is not \
                 published, and no layout of the model's own is sent to hardware"
                    .into(),
            )
        })?;
        if config.congestion_control {
            let why = "a process with congestion control (en_pcc) is not supported";
            return Err(Error::Failed(why.into()));
        }
        let file = Memory::allocate(app.elf().len())?;
        file.write_at(0, app.elf()).map_err(|error| Error::Failed(error.to_string()))?;
        let attr = DpaProcessAttr {
            file: file.register(device)?,
            offset: 0,
            length: app.elf().len() as u64,
            heap: config.heap,
            watchdog: config.watchdog,
        };
        let object = device.create_dpa_process(&token, &attr)?;
        let builder = Domain::builder(device).blueflame_pages(0);
        let domain = match &config.pd {
            Some(pd) => builder.protection_domain(pd.clone()),
            None => builder,
        };
        let domain = domain.build()?;
        let uar = Arc::new(device.uar_alloc(UarKind::NonCached)?);
        let outbox = device.create_dpa_outbox(&object, &uar)?;
        let heap = Heap::new(object.heap_address(), object.heap_bytes().into());
        Ok(Self {
            shared: Arc::new(ProcessShared {
                end: ProcessEnd::default(),
                copier: CopierSlot::default(),
                heap_memory: Arc::new(object.heap()),
                heap: Mutex::new(heap),
                outbox,
                _lifetime_log: LifetimeLog::made(object.id(), app),
                object,
                domain,
                uar,
                token,
                app: app.clone(),
                name: config.name.clone(),
                timeout: config.timeout,
                threads: AtomicU32::new(0),
                streams: Mutex::default(),
                terminated_runs: AtomicU64::new(0),
            }),
        })
    }

    /// Destroys the process (`flexio_process_destroy`). The drop of the last clone destroys it too,
    /// and ignores the error.
    ///
    /// # Errors
    /// An object of it still exists; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let key = self.key();
        let in_use = || in_use("the process", key);
        let shared = Arc::into_inner(self.shared).ok_or_else(in_use)?;
        let ProcessShared { end, copier, heap_memory, outbox, object, .. } = shared;
        drop((end, copier, heap_memory, outbox));
        Arc::into_inner(object).ok_or_else(in_use)?.destroy()?;
        Ok(())
    }

    /// The program.
    pub fn app(&self) -> &App {
        &self.shared.app
    }

    /// The initial content of an object in the program's file, as [`App::symbol_data`]
    /// (`flexio_process_extract_symbol`). Its current content is in the process's memory, at
    /// [`App::symbol`].
    pub fn symbol_data(&self, name: &str) -> Option<Vec<u8>> {
        self.app().symbol_data(name)
    }

    /// The process's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The device that the process is on.
    pub fn device(&self) -> &Device {
        self.shared.domain.device()
    }

    /// The [`DpaProcess`] of `verbless-command`.
    pub fn object(&self) -> &Arc<DpaProcess> {
        &self.shared.object
    }

    /// The process's protection domain (`flexio_process_get_pd`).
    pub fn pd(&self) -> &Pd {
        self.shared.domain.pd()
    }

    /// The process's domain: the host's regions and queues in it work together with those of the
    /// process.
    pub fn domain(&self) -> &Domain {
        &self.shared.domain
    }

    /// The process's UAR, through which its outboxes ring (`flexio_process_get_uar`).
    pub fn uar(&self) -> Uar {
        Uar::of(self, self.shared.uar.clone())
    }

    /// The UMEM of the process's heap, for queues and keys in it (`flexio_process_get_dumem_id`).
    pub fn dumem_id(&self) -> u32 {
        self.shared.heap_memory.id()
    }

    /// The heap as registered memory: byte 0 is at [`HeapInfo::base`](crate::HeapInfo::base).
    pub fn heap_memory(&self) -> &Arc<UserMemory> {
        &self.shared.heap_memory
    }

    /// The process's status, and the reason of its end if it has ended (`flexio_err_status_get`).
    ///
    /// # Errors
    /// The device does not respond.
    pub fn status(&self) -> Result<DpaProcessInfo, Error> {
        Ok(self.shared.object.query()?)
    }

    /// Calls a function and waits for its result (`flexio_process_call`). Arguments of other types
    /// than the function's do not compile.
    ///
    /// # Errors
    /// [`Error::Fatal`]: the process has ended, by this call or before. [`Error::Timeout`]: the
    /// call did not return within the configured time; it was terminated, and the process
    /// continues, with the memory as the call left it. [`Error::Failed`]: the program has no
    /// function of this name and these types.
    pub fn call<A: Arguments, R: Word>(
        &self,
        function: Function<A, R>,
        arguments: A,
    ) -> Result<R, Error> {
        let entry = self.entry(self.app().address_of(&function)?);
        let (words, packed) = self.pack(arguments)?;
        let call = self.begin(&entry, words)?;
        let finished = self.finish(call).map(R::from_word);
        keep_unless_ended(&finished, packed);
        finished
    }

    /// An entry for a function at this address, with the process's own outbox.
    pub(crate) fn entry(&self, address: u64) -> DpaEntry {
        DpaEntry { outbox: Some(self.own_outbox().clone()), ..DpaEntry::at(address) }
    }

    /// The outbox of threads without a configured one.
    pub(crate) fn own_outbox(&self) -> &Arc<DpaOutbox> {
        &self.shared.outbox
    }

    /// The number of the process's own outbox, on its [`uar`](Process::uar): event handlers and
    /// calls start with it by default. If threads ring by it at the same time, one may lose its
    /// doorbell, and never wake if it was to arm a CQ: give each its own.
    pub fn outbox_id(&self) -> OutboxId {
        OutboxId(self.shared.outbox.id())
    }

    /// Starts a call at an entry.
    pub(crate) fn begin(&self, entry: &DpaEntry, words: [u64; 8]) -> Result<DpaCall, Error> {
        let begun = self.device().begin_dpa_call(&self.shared.object, entry, words);
        begun.map_err(|error| self.fatal_or(error))
    }

    /// Waits for the result of a call.
    pub(crate) fn finish(&self, call: DpaCall) -> Result<u64, Error> {
        self.finish_within(call, self.shared.timeout)
    }

    /// Waits up to `timeout` for the result of a call.
    pub(crate) fn finish_within(&self, call: DpaCall, timeout: Duration) -> Result<u64, Error> {
        let begun = Instant::now();
        for poll in 0.. {
            match call.state()? {
                DpaCallState::Returned(word) => return Ok(word),
                DpaCallState::ProcessEnded(status) => return Err(Error::Fatal(status)),
                DpaCallState::Running if begun.elapsed() > timeout => break,
                DpaCallState::Running if poll < EAGER_POLLS => thread::yield_now(),
                DpaCallState::Running => thread::sleep(PAUSE),
            }
        }
        // A drop ends a call, too, but this reports a failure.
        call.destroy()?;
        self.count_terminated_run();
        Err(Error::Timeout(timeout))
    }

    /// Counts a terminated run.
    pub(crate) fn count_terminated_run(&self) {
        self.shared.terminated_runs.fetch_add(1, Ordering::Relaxed);
    }

    /// The count of terminated runs, of calls and event handlers.
    pub(crate) fn terminated_runs(&self) -> u64 {
        self.shared.terminated_runs.load(Ordering::Relaxed)
    }

    /// Turns a refused command into [`Error::Fatal`] if the process has ended. While its error
    /// handler runs, the process accepts no commands and has no status yet: this waits for the
    /// status, up to the configured time.
    pub(crate) fn fatal_or(&self, error: verbless_command::Error) -> Error {
        if error.kind() != ErrorKind::Command {
            return Error::Device(error);
        }
        let begun = Instant::now();
        loop {
            match self.shared.object.query() {
                Ok(info) if !info.status.runs() => return Error::Fatal(info.status),
                Ok(info) if info.ending && begun.elapsed() < self.shared.timeout => {
                    thread::sleep(PAUSE);
                }
                _ => return Error::Device(error),
            }
        }
    }

    /// Fails if the process has ended.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        match self.shared.object.query()?.status {
            status if status.runs() => Ok(()),
            status => Err(Error::Fatal(status)),
        }
    }

    /// The token for commands in the model's own layouts.
    pub fn token(&self) -> &ModelToken {
        &self.shared.token
    }

    pub(crate) fn heap(&self) -> MutexGuard<'_, Heap> {
        lock(&self.shared.heap)
    }

    /// The host's record of the process's end.
    pub(crate) fn end(&self) -> &ProcessEnd {
        &self.shared.end
    }

    /// The time limit of a call or a copy.
    pub(crate) fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// The process's message streams.
    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        lock(&self.shared.streams)
    }

    /// A number for a thread, unique in the process; 0 means none.
    pub(crate) fn next_thread(&self) -> u32 {
        self.shared.threads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The key under which holders of the process are registered.
    pub(crate) fn key(&self) -> Key {
        key(&self.shared)
    }

    /// Whether both are the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Copies by the process's own queue pair, within the configured time.
    pub(crate) fn copying<T>(
        &self,
        copy: impl FnOnce(&mut Copier) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.copying_until(Deadline::after(self.shared.timeout), copy)
    }

    /// Copies by the process's own queue pair, until `deadline`.
    pub(crate) fn copying_until<T>(
        &self,
        deadline: Deadline,
        copy: impl FnOnce(&mut Copier) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let make = || Copier::new(&self.shared.domain, &self.shared.heap_memory);
        self.shared.copier.copy(deadline, make, copy)
    }
}

/// Leaks the memory of a call that could not be ended, because the call may still use it.
pub(crate) fn keep_unless_ended<R>(finished: &Result<R, Error>, memory: impl Sized) {
    if !matches!(finished, Ok(_) | Err(Error::Fatal(_) | Error::Timeout(_))) {
        std::mem::forget(memory);
    }
}
