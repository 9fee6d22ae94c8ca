//! Commands on a DPA. A runner is a DPA thread or a call. Runners get execution units in the order
//! of their requests, keep an EU until their run ends, and take turns on the host threads that
//! execute them.
//!
//! Once a command returns, no run that it stopped, or that had ended before, still executes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use verbless_riscv::{Program, Ram};

use super::context::{self, MAX_CONFIGS};
use super::coredump::CoreDump;
use super::partitions::EuSharing;
use super::process::{ErrorHandler, Process, ProcessState};
use super::registers::{Outbox, Window};
use super::runner::{Runner, RunnerCounts, RunnerId, RunnerState, Start};
use super::state::DpaState;
use super::turns::Waker;
use super::units::Units;

/// The prefix of processes' tokens for debuggers.
#[cfg(feature = "gdb")]
const DEBUG_TOKEN: u64 = u64::from_be_bytes(*b"udbg\0\0\0\0");

/// The limits of a DPA.
#[derive(Debug, Clone, Copy)]
pub struct DpaLimits {
    /// Execution units for programs.
    pub units: u16,
    /// Maximum number of groups of EUs.
    pub groups: u16,
    /// Maximum number of partitions of EUs, besides the default one.
    pub partitions: u16,
    /// Maximum bytes of memory that all processes together may have.
    pub memory: u64,
    /// Maximum number of instructions of a run; a process may set a lower one.
    pub watchdog: u64,
}

impl DpaLimits {
    /// A card's execution units before any function shares them.
    pub fn sharing(&self) -> EuSharing {
        EuSharing::new(self.units, self.groups, self.partitions)
    }
}

/// Why the DPA refuses a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DpaRefusal {
    /// The file is not a program, for this reason.
    Program(String),
    /// No memory, stack, context, outbox or window is left.
    Full,
    /// The process has ended or does not exist.
    NoProcess,
    /// The execution unit or group does not exist.
    NoUnit,
    /// The process does not have the outbox or window.
    NoConfig,
    /// The function is in no partition of execution units.
    NoPartition,
    /// The process has, or had, a thread: it is too late for an error handler.
    HadThread,
}

/// The DPA of a function.
pub struct Dpa {
    limits: DpaLimits,
    state: Mutex<DpaState>,
    /// Notified when a hart that a command waits for has stopped.
    stopped: Condvar,
    /// Wakes the host threads that give runners their turns.
    waker: Mutex<Arc<Waker>>,
}

impl Dpa {
    /// The DPA of a card with one function, until it shares EUs with others
    /// ([`share`](Self::share)).
    pub fn new(limits: DpaLimits) -> Self {
        let state = Mutex::new(DpaState::new(limits.sharing()));
        Self { limits, state, stopped: Condvar::new(), waker: Mutex::default() }
    }

    /// Removes the groups of execution units of one user context, or of all.
    pub fn remove_groups(&self, uid: Option<u16>) {
        let (units, function) = self.shares();
        units.with(|sharing| sharing.remove_groups(function, uid));
    }

    /// Replaces the DPA's own EUs by the shared `units` of a card. `function` is the caller's
    /// number of the function ([`function_of`](crate::function_of)). No program may run yet.
    pub fn share(&self, units: &Arc<Units>, vhca_id: u16, function: usize) {
        let mut state = self.state();
        (state.card, state.vhca_id, state.function) = (units.clone(), vhca_id, function);
    }

    /// The EUs that the DPA shares, and the vhca_id of its function in them.
    pub fn shares(&self) -> (Arc<Units>, u16) {
        let state = self.state();
        (state.card.clone(), state.vhca_id)
    }

    /// Sets the waker of the host threads that give runners their turns.
    pub fn set_waker(&self, waker: &Arc<Waker>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker.clone();
    }

    pub(super) fn state(&self) -> MutexGuard<'_, DpaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state once every stopped or ended run has left execution. A thread that holds the
    /// function may wait for this, because runs that wait for the function do not count as
    /// executing.
    fn settled(&self) -> MutexGuard<'_, DpaState> {
        let mut state = self.state();
        while state.stopping() {
            state = self.stopped.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Notifies that a hart has stopped.
    pub(super) fn notify_stopped(&self) {
        self.stopped.notify_all();
    }

    /// Creates process `number` from an ELF file; returns its heap and its serial number. A
    /// watchdog of 0 selects the device's.
    pub fn create(
        &self,
        number: u32,
        file: &[u8],
        heap: u64,
        watchdog: u64,
    ) -> Result<(Ram, u64), DpaRefusal> {
        let program =
            Program::load(file).map_err(|error| DpaRefusal::Program(error.to_string()))?;
        if program.tls.as_ref().is_some_and(|tls| tls.length > 0) {
            let why = "it has thread-local variables, but tp holds the address of the thread \
                       context: keep them in the thread-local storage that the thread's metadata \
                       names";
            return Err(DpaRefusal::Program(why.into()));
        }
        let size: u64 = program.segments.iter().map(|it| it.length).sum();
        if size.checked_add(heap).is_none_or(|bytes| bytes > self.limits.memory) {
            return Err(DpaRefusal::Full);
        }
        let heap = Ram::new(heap);
        let watchdog = match watchdog {
            0 => self.limits.watchdog,
            own => own.min(self.limits.watchdog),
        };
        let serial = self.state().next_process_serial();
        let process = Process::new(serial, &program, &heap, watchdog)
            .map_err(|error| DpaRefusal::Program(format!("{error}: link it elsewhere")))?;
        let mut state = self.state();
        if state.bytes + process.bytes > self.limits.memory {
            return Err(DpaRefusal::Full);
        }
        if !state.card.lock().sharing.add_process(state.vhca_id) {
            return Err(DpaRefusal::NoPartition);
        }
        state.bytes += process.bytes;
        state.processes.insert(number, process);
        Ok((heap, serial))
    }

    /// Ends a process, and its threads and calls.
    pub fn remove(&self, number: u32) {
        let mut state = self.state();
        let runners = state.runners.iter().filter(|(_, runner)| runner.process == number);
        for id in runners.map(|(&id, _)| id).collect::<Vec<_>>() {
            state.forget(id);
        }
        if let Some(process) = state.processes.remove(&number) {
            state.bytes -= process.bytes;
            state.card.lock().sharing.remove_process(state.vhca_id);
        }
        state.collect();
        self.announce(&state);
        drop(state);
        drop(self.settled());
    }

    /// The state of a process.
    pub fn process(&self, number: u32) -> Option<ProcessState> {
        self.settled().processes.get(&number).map(|process| process.state)
    }

    /// Sets the handler that runs in a process before an error ends it.
    pub fn set_error_handler(&self, process: u32, entry: u64) -> Result<(), DpaRefusal> {
        let mut state = self.state();
        let process = state.processes.get_mut(&process).ok_or(DpaRefusal::NoProcess)?;
        if process.ends() {
            return Err(DpaRefusal::NoProcess);
        }
        if process.had_thread {
            return Err(DpaRefusal::HadThread);
        }
        let kept = process.error_handler.map(|handler| handler.slot);
        let slot = kept.or_else(|| process.free_slot()).ok_or(DpaRefusal::Full)?;
        process.slots[slot] = true;
        process.error_handler = Some(ErrorHandler { entry, slot });
        Ok(())
    }

    /// The processes that have ended since the last call.
    pub fn take_ended(&self) -> Vec<u32> {
        std::mem::take(&mut self.state().ended)
    }

    /// The token by which a debugger attaches to a process; 0 if debuggers are disabled.
    pub fn debug_token(&self, process: u32) -> u64 {
        #[cfg(feature = "gdb")]
        if self.state().debugging.served {
            return DEBUG_TOKEN | u64::from(process);
        }
        let _ = process;
        0
    }

    /// Gives a process an outbox, on a UAR extension if one is given; returns the outbox's number
    /// in the process.
    pub fn add_outbox(
        &self,
        process: u32,
        uar_page: u32,
        device_id: Option<u32>,
    ) -> Result<u16, DpaRefusal> {
        let mut state = self.state();
        let process = state.processes.get_mut(&process).filter(|process| !process.ends());
        let process = process.ok_or(DpaRefusal::NoProcess)?;
        let free = (0..MAX_CONFIGS).find(|id| !process.outboxes.contains_key(id));
        let id = free.ok_or(DpaRefusal::Full)?;
        let mut outbox = Outbox::new(uar_page);
        outbox.extend(process.serial, device_id);
        process.outboxes.insert(id, outbox);
        Ok(id)
    }

    /// Removes an outbox of a process.
    pub fn remove_outbox(&self, process: u32, id: u16) {
        if let Some(process) = self.state().processes.get_mut(&process) {
            process.outboxes.remove(&id);
        }
    }

    /// Gives a process a window without a key; returns the window's number in the process.
    pub fn add_window(&self, process: u32, pd: u32) -> Result<u16, DpaRefusal> {
        let mut state = self.state();
        let process = state.processes.get_mut(&process).filter(|process| !process.ends());
        let process = process.ok_or(DpaRefusal::NoProcess)?;
        let free = (0..MAX_CONFIGS).find(|id| !process.windows.contains_key(id));
        let id = free.ok_or(DpaRefusal::Full)?;
        process.windows.insert(id, Window { pd, mkey: 0 });
        Ok(id)
    }

    /// Removes a window of a process.
    pub fn remove_window(&self, process: u32, id: u16) {
        if let Some(process) = self.state().processes.get_mut(&process) {
            process.windows.remove(&id);
        }
    }

    /// Bytes of the code that harts have translated.
    pub fn translated(&self) -> usize {
        self.state().translated
    }

    /// The limits of the DPA.
    pub fn limits(&self) -> DpaLimits {
        self.limits
    }

    /// Begins the runs that got an EU from a change of groups or partitions.
    pub fn units_changed(&self) {
        let mut state = self.state();
        state.collect();
        self.announce(&state);
    }

    /// Stops all runs, because the function is dead.
    pub fn halt(&self) {
        let mut state = self.state();
        state.halt();
        self.announce(&state);
        drop(state);
        drop(self.settled());
    }

    /// Lets processes run again after a reset of the function.
    pub fn unhalt(&self) {
        self.state().halted = false;
    }

    /// Adds a thread or a call. A call begins at once.
    pub fn add(&self, id: RunnerId, process: u32, start: Start) -> Result<(), DpaRefusal> {
        let mut state = self.state();
        let serial = state.next_serial();
        let (card, vhca_id) = (state.card.clone(), state.vhca_id);
        let owner = state.processes.get_mut(&process).ok_or(DpaRefusal::NoProcess)?;
        let valid = |id: u16, exists: bool| id == context::NO_ID || exists;
        let windows = start.windows.iter().all(|id| valid(*id, owner.windows.contains_key(id)));
        if !windows || !valid(start.outbox, owner.outboxes.contains_key(&start.outbox)) {
            return Err(DpaRefusal::NoConfig);
        }
        if owner.ends() {
            return Err(DpaRefusal::NoProcess);
        }
        let slot = owner.free_slot().ok_or(DpaRefusal::Full)?;
        if !card.lock().sharing.bind(vhca_id, start.affinity) {
            return Err(DpaRefusal::NoUnit);
        }
        owner.slots[slot] = true;
        owner.had_thread |= matches!(id, RunnerId::Thread(_));
        state.runners.insert(id, Runner::new(serial, process, slot, start));
        if matches!(id, RunnerId::Call(_)) {
            state.wake(id);
            self.announce(&state);
        }
        Ok(())
    }

    /// Lets events start a thread that was created held ([`Start::held`]), with this argument from
    /// its next run on. An event that arrived while it was held starts it at once.
    pub fn unhold_thread(&self, thread: u32, argument: u64) -> Result<(), DpaRefusal> {
        let mut state = self.state();
        let id = RunnerId::Thread(thread);
        let process = state.runners.get(&id).ok_or(DpaRefusal::NoProcess)?.process;
        if state.processes.get(&process).is_none_or(Process::ends) {
            return Err(DpaRefusal::NoProcess);
        }
        state.unhold_thread(id, argument);
        self.announce(&state);
        Ok(())
    }

    /// Removes a thread or a call, in any state.
    pub fn remove_runner(&self, id: RunnerId) {
        let mut state = self.state();
        state.forget(id);
        state.collect();
        self.announce(&state);
        drop(state);
        drop(self.settled());
    }

    /// The state and counts of a thread or a call, and the status of its process.
    pub fn runner(&self, id: RunnerId) -> Option<(RunnerState, RunnerCounts, u8)> {
        let state = self.settled();
        let runner = state.runners.get(&id)?;
        let status = state.processes.get(&runner.process).map_or(0, |it| it.state.status);
        Some((runner.state, runner.shown, status))
    }

    /// Delivers an event to a thread.
    pub fn event(&self, thread: u32) {
        let mut state = self.state();
        state.wake(RunnerId::Thread(thread));
        self.announce(&state);
    }

    /// Whether a process, by its serial number, has this thread.
    pub fn has_thread(&self, process: u64, thread: u32) -> bool {
        self.state().thread_of(process, thread).is_some()
    }

    /// Delivers an event to a thread of a process, by its serial number, if the process still has
    /// it.
    pub fn event_of(&self, process: u64, thread: u32) {
        let mut state = self.state();
        if let Some(id) = state.thread_of(process, thread) {
            state.wake(id);
            self.announce(&state);
        }
    }

    pub(super) fn announce(&self, state: &DpaState) {
        let wakes = !state.ready.is_empty() || !state.ended.is_empty();
        if wakes || state.card.lock().has_granted() {
            self.waker.lock().unwrap_or_else(PoisonError::into_inner).wake();
        }
    }

    /// The core dump of a process.
    pub fn core_dump(&self, number: u32) -> Option<CoreDump> {
        let state = self.settled();
        let process = state.processes.get(&number)?;
        Some(CoreDump::new(process, &state.stopped_in(number)))
    }
}
