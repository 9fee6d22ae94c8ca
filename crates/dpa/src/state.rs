//! The state of a DPA: processes, their threads and calls, and the execution units of runs.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use verbless_prm::DpaFault;
use verbless_riscv::{Hart, Stopper};

use super::context;
use super::partitions::{EuSharing, Rights};
use super::process::{Crash, Process, Stopped};
use super::registers::{DeviceRequest, Outbox};
use super::runner::{Runner, RunnerId, RunnerState};
use super::system::RunEnd;
use super::turns::{AfterTurn, Turn};
use super::units::{Ticket, Units};

/// Bits of the counter in a process's serial number; the bits above hold the function's number.
const SERIAL_BITS: u32 = 40;

/// Maximum bytes of translated code in the host's memory, beside the code of harts that execute. A
/// hart without room translates again in its next turn.
pub const MAX_TRANSLATED_BYTES: usize = 64 << 20;

/// The number of a process's function, as [`Dpa::share`](crate::Dpa::share) got it, by the serial
/// number of the process.
pub fn function_of(serial: u64) -> usize {
    (serial >> SERIAL_BITS) as usize
}

pub(super) struct DpaState {
    /// The EUs, shared with the other functions of the card.
    pub(super) card: Arc<Units>,
    /// The function's vhca_id.
    pub(super) vhca_id: u16,
    /// The number of the function among the embedder's.
    pub(super) function: usize,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) runners: BTreeMap<RunnerId, Runner>,
    /// Runners that wait for an EU.
    pub(super) waiting: BTreeMap<Ticket, RunnerId>,
    /// Runners that have an EU and wait for a turn.
    pub(super) ready: VecDeque<RunnerId>,
    /// Runners that have an EU, by the EU's number.
    pub(super) units: BTreeMap<u16, RunnerId>,
    pub(super) serials: u64,
    /// Whether the function is dead.
    pub(super) halted: bool,
    /// Bytes of memory of all processes.
    pub(super) bytes: u64,
    /// Bytes of code that the harts of all runners have translated, without the code that executing
    /// harts have added in their turn.
    pub(super) translated: usize,
    /// Processes that have ended, and whose end is not reported yet.
    pub(super) ended: Vec<u32>,
    #[cfg(feature = "gdb")]
    pub(super) debugging: super::runner::Debugging,
    /// Harts that execute in a turn, by the serial number of their runner.
    pub(super) executing: BTreeMap<u64, RunningHart>,
}

/// Reports a bug of this crate if an object that the state refers to does not exist.
fn found_or_report<T>(found: Option<T>, what: &'static str, number: impl Debug) -> Option<T> {
    if found.is_none() {
        tracing::error!(?number, what, "the DPA state refers to an object that does not exist");
    }
    found
}

/// A hart in a turn.
pub(super) struct RunningHart {
    stopper: Stopper,
    /// Whether the run must stop, because its runner is gone or has ended.
    stopping: bool,
}

impl DpaState {
    /// The state of the only function of a card.
    pub(super) fn new(mut sharing: EuSharing) -> Self {
        const ALONE: u16 = 0;
        sharing.join(ALONE, Rights { by_default: true, manages: true });
        Self {
            card: Units::new(sharing),
            vhca_id: ALONE,
            function: 0,
            processes: BTreeMap::new(),
            runners: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            units: BTreeMap::new(),
            serials: 0,
            halted: false,
            bytes: 0,
            translated: 0,
            ended: Vec::new(),
            #[cfg(feature = "gdb")]
            debugging: Default::default(),
            executing: BTreeMap::new(),
        }
    }

    /// A serial number that is new among the processes and runners of this function.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    /// A serial number that is new among the processes of every function: [`function_of`] returns
    /// its function.
    pub(super) fn next_process_serial(&mut self) -> u64 {
        (self.function as u64) << SERIAL_BITS | self.next_serial()
    }

    /// Whether a debugger holds this runner, or waits for its next run: other threads give it no
    /// turn.
    #[cfg(feature = "gdb")]
    pub(super) fn is_debugged(&self, id: RunnerId) -> bool {
        self.runners.get(&id).is_some_and(|runner| self.debugging.claims(id, runner))
    }

    /// Whether a debugger holds this runner: never, without debuggers.
    #[cfg(not(feature = "gdb"))]
    pub(super) fn is_debugged(&self, _: RunnerId) -> bool {
        false
    }

    /// Takes a turn for the waiting run at this position.
    pub(super) fn take_turn(&mut self, at: usize) -> Option<Turn> {
        let id = self.ready.remove(at)?;
        let runner =
            found_or_report(self.runners.get_mut(&id), "a runner that waits for a turn", id)?;
        let hart = found_or_report(runner.hart.take(), "the hart of a run", id)?;
        runner.stopped_at = Some(hart.registers());
        Some(Turn::new(id, runner.serial, hart))
    }

    /// Records that the hart of a turn executes.
    pub(super) fn begin_executing(&mut self, turn: &Turn) {
        if let Some(runner) = self.runners.get_mut(&turn.id).filter(|it| it.serial == turn.serial) {
            runner.stopped_at = None;
        }
        let hart = RunningHart { stopper: turn.hart.stopper(), stopping: false };
        self.executing.insert(turn.serial, hart);
    }

    /// Records that the hart of a turn has stopped; returns whether another thread waits for that.
    pub(super) fn end_executing(&mut self, turn: &Turn) -> bool {
        let stopping = self.executing.remove(&turn.serial).is_some_and(|hart| hart.stopping);
        let runner = self.runners.get_mut(&turn.id).filter(|it| it.serial == turn.serial);
        let Some(runner) = runner else { return stopping };
        let registers = turn.hart.registers();
        match self.processes.get_mut(&runner.process).filter(|process| process.ends()) {
            // The hart executed when its process ended, or when the error handler began.
            Some(process) if stopping && process.ended_by() != Some(turn.id) => {
                process.stopped.insert(turn.id, registers);
            }
            Some(_) => {}
            None => runner.stopped_at = Some(registers),
        }
        stopping
    }

    /// Whether a hart that must stop still executes.
    pub(super) fn stopping(&self) -> bool {
        self.executing.values().any(|hart| hart.stopping)
    }

    /// Stops the hart of a runner, if it is in a turn.
    fn stop(&mut self, serial: u64) {
        if let Some(hart) = self.executing.get_mut(&serial) {
            hart.stopping = true;
            hart.stopper.stop();
        }
    }

    /// The process of a turn's run; `None` if the run is gone.
    pub(super) fn process_of_turn(&self, turn: &Turn) -> Option<u32> {
        let runner = self.runners.get(&turn.id).filter(|it| it.serial == turn.serial)?;
        (runner.state == RunnerState::Running && !self.halted).then_some(runner.process)
    }

    /// Whether a run has taken more instructions than the watchdog allows.
    pub(super) fn is_too_long(&self, turn: &Turn) -> bool {
        // The run was removed meanwhile.
        let Some(process) = self.process_of_turn(turn) else { return false };
        let (runner, process) = (&self.runners[&turn.id], &self.processes[&process]);
        (!runner.start.polling || runner.handles)
            && turn.hart.instructions() - runner.began > process.watchdog
    }

    pub(super) fn wake(&mut self, id: RunnerId) {
        let runner = found_or_report(self.runners.get_mut(&id), "the runner of an event", id);
        let Some(runner) = runner else { return };
        runner.shown.events = runner.shown.events.wrapping_add(1);
        match runner.state {
            RunnerState::Idle if runner.start.held => runner.event_pending = true,
            RunnerState::Idle => {
                self.queue(id);
            }
            RunnerState::Waiting | RunnerState::Running => runner.event_pending = true,
            RunnerState::Finished => {}
        }
    }

    /// Lets events start a held thread, with this argument. An event that arrived while it was held
    /// starts it at once.
    pub(super) fn unhold_thread(&mut self, id: RunnerId, argument: u64) {
        let Some(runner) = self.runners.get_mut(&id) else { return };
        runner.start.arguments[0] = argument;
        let was_held = std::mem::take(&mut runner.start.held);
        if was_held
            && runner.state == RunnerState::Idle
            && std::mem::take(&mut runner.event_pending)
        {
            self.queue(id);
        }
    }

    /// A thread of the process with this serial number.
    pub(super) fn thread_of(&self, process: u64, thread: u32) -> Option<RunnerId> {
        let id = RunnerId::Thread(thread);
        let of = self.processes.get(&self.runners.get(&id)?.process)?;
        (of.serial == process).then_some(id)
    }

    /// Delivers an event to a thread of this process; false if it has no such thread.
    pub(super) fn activate(&mut self, process: u32, thread: u64) -> bool {
        let Ok(thread) = u32::try_from(thread) else { return false };
        let id = RunnerId::Thread(thread);
        let there = self.runners.get(&id).is_some_and(|runner| runner.process == process);
        if there {
            self.wake(id);
        }
        there
    }

    /// Queues a runner for an EU; its next run begins when the EU is granted.
    fn queue(&mut self, id: RunnerId) {
        if self.halted {
            return;
        }
        let runner = found_or_report(self.runners.get_mut(&id), "a runner that wants an EU", id);
        let Some(runner) = runner else { return };
        runner.state = RunnerState::Waiting;
        let ticket = self.card.lock().request(self.vhca_id, runner.start.affinity);
        self.waiting.insert(ticket, id);
        self.collect();
    }

    /// Begins the runs that have been granted an EU.
    pub(super) fn collect(&mut self) {
        let granted = self.card.lock().collect(self.vhca_id);
        for (ticket, unit) in granted {
            // The runner of the ticket may have been removed.
            let begun = self.waiting.remove(&ticket).and_then(|id| self.begin(id, unit));
            if begun.is_none() {
                self.card.lock().release(unit);
            }
        }
    }

    fn begin(&mut self, id: RunnerId, unit: u16) -> Option<()> {
        let runner =
            found_or_report(self.runners.get_mut(&id), "a runner that is granted an EU", id)?;
        let process = self.processes.get(&runner.process);
        let process = found_or_report(process, "the process of a runner", runner.process)?;
        self.units.insert(unit, id);
        runner.shown.unit = unit;
        runner.state = RunnerState::Running;
        runner.begin(process);
        self.ready.push_back(id);
        Some(())
    }

    /// Releases the EU that a runner has or waits for.
    pub(super) fn release(&mut self, id: RunnerId) {
        let mut card = self.card.lock();
        self.units.retain(|&unit, &mut has| {
            if has == id {
                card.release(unit);
            }
            has != id
        });
        self.waiting.retain(|&ticket, &mut waits| {
            if waits == id {
                card.cancel(self.vhca_id, ticket);
            }
            waits != id
        });
        self.ready.retain(|&ready| ready != id);
    }

    pub(super) fn forget(&mut self, id: RunnerId) {
        self.release_hart(id);
        // The removal of a process removes its runners, too.
        let Some(runner) = self.runners.remove(&id) else { return };
        self.stop(runner.serial);
        self.release(id);
        self.card.lock().sharing.unbind(runner.start.affinity);
        if runner.handles {
            self.end_process(runner.process);
        }
        // A core dump needs the stacks that were in use when the process ended.
        if let Some(process) = self.processes.get_mut(&runner.process).filter(|it| !it.ends()) {
            process.slots[runner.slot] = false;
        }
    }

    /// Returns a hart to its runner, with its translated code if there is room.
    pub(super) fn keep(&mut self, id: RunnerId, mut hart: Box<Hart>) {
        self.release_hart(id);
        let runner =
            found_or_report(self.runners.get_mut(&id), "the runner of a hart that is back", id);
        let Some(runner) = runner else { return };
        if self.translated + hart.translated() > MAX_TRANSLATED_BYTES {
            hart.release();
        }
        runner.translated = hart.translated();
        self.translated += runner.translated;
        runner.hart = Some(hart);
    }

    /// Drops the hart of a runner.
    fn release_hart(&mut self, id: RunnerId) {
        if let Some(runner) = self.runners.get_mut(&id) {
            runner.hart = None;
            self.translated -= std::mem::take(&mut runner.translated);
        }
    }

    /// Ends a run, and returns its hart to its runner.
    pub(super) fn end_run(&mut self, turn: &mut Turn, end: RunEnd) -> AfterTurn {
        let is_call = matches!(turn.id, RunnerId::Call(_));
        if self.runners.get(&turn.id).is_some_and(|runner| runner.handles) {
            return self.crash(turn, DpaFault::FINISHED.0, 0);
        }
        if is_call && !matches!(end, RunEnd::Return(_)) {
            // A call has a result; only threads have a next run.
            return self.crash(turn, DpaFault::SYSTEM_CALL.0, 0);
        }
        let runner =
            found_or_report(self.runners.get_mut(&turn.id), "the runner of a run", turn.id);
        let Some(runner) = runner else { return AfterTurn::Over };
        let took = turn.hart.instructions() - runner.began;
        runner.shown.instructions += took;
        let process = runner.process;
        if let (true, RunEnd::Return(result)) = (is_call, end) {
            runner.shown.result = result;
        }
        let again = std::mem::take(&mut runner.event_pending);
        runner.resumes = matches!(end, RunEnd::Yield | RunEnd::YieldAndRetrigger);
        runner.state = match end {
            _ if is_call => RunnerState::Finished,
            RunEnd::Finish => RunnerState::Finished,
            RunEnd::Retrigger | RunEnd::YieldAndRetrigger => RunnerState::Waiting,
            RunEnd::Return(_) | RunEnd::Reschedule | RunEnd::Yield if again => RunnerState::Waiting,
            RunEnd::Return(_) | RunEnd::Reschedule | RunEnd::Yield => RunnerState::Idle,
        };
        let waits = runner.state == RunnerState::Waiting;
        // The next run continues in this hart.
        let spare = Box::new(Hart::new(turn.hart.space().clone()));
        let hart = std::mem::replace(&mut turn.hart, spare);
        self.keep(turn.id, hart);
        if let Some(process) = self.processes.get_mut(&process) {
            process.state.instructions += took;
        }
        self.release(turn.id);
        if waits {
            self.queue(turn.id);
        }
        AfterTurn::Over
    }

    /// Stops all runs until the function is reset.
    pub(super) fn halt(&mut self) {
        self.halted = true;
        self.ready.clear();
        let mut card = self.card.lock();
        for ticket in std::mem::take(&mut self.waiting).into_keys() {
            card.cancel(self.vhca_id, ticket);
        }
        std::mem::take(&mut self.units).into_keys().for_each(|unit| card.release(unit));
        drop(card);
        let serials: Vec<_> = self.executing.keys().copied().collect();
        serials.into_iter().for_each(|serial| self.stop(serial));
    }

    /// Ends the process of a run, and all that runs in it. For an error, the process's error
    /// handler runs first: the run becomes the handler.
    pub(super) fn crash(&mut self, turn: &mut Turn, status: u8, address: u64) -> AfterTurn {
        // The run was removed meanwhile.
        let Some(number) = self.process_of_turn(turn) else { return AfterTurn::Over };
        let crash = Crash { runner: turn.id, address, registers: turn.hart.registers() };
        let process =
            found_or_report(self.processes.get_mut(&number), "the process of a run", number);
        let (Some(process), Some(runner)) = (process, self.runners.get_mut(&turn.id)) else {
            return AfterTurn::Over;
        };
        process.state.instructions += turn.hart.instructions() - runner.began;
        if process.ending.is_none() {
            process.ending = Some((status, crash));
            let handler = process.error_handler.filter(|_| status != DpaFault::FINISHED.0);
            if let Some(handler) = handler {
                process.state.ending = true;
                runner.handle(process, handler, status, &mut turn.hart);
                self.stop_others(number, turn.id);
                self.collect();
                return AfterTurn::Continues;
            }
        }
        self.end_process(number);
        AfterTurn::Over
    }

    /// Stops all other runs of a process for good, while its error handler runs.
    fn stop_others(&mut self, process: u32, handler: RunnerId) {
        let others =
            self.runners.iter().filter(|(id, it)| it.process == process && **id != handler);
        for id in others.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.release(id);
            self.keep_stopped(id);
            self.release_hart(id);
            if let Some(runner) = self.runners.get_mut(&id) {
                if runner.state != RunnerState::Finished {
                    // The runner ends with the process: until then, a call has no result.
                    runner.state = RunnerState::Waiting;
                }
                let serial = runner.serial;
                self.stop(serial);
            }
        }
    }

    /// Keeps the registers of a run that does not execute, for core dumps of its process; an
    /// executing run adds its registers when it has stopped.
    fn keep_stopped(&mut self, id: RunnerId) {
        let Some(runner) = self.runners.get_mut(&id) else { return };
        let (stopped, process) = (runner.stopped(), runner.process);
        runner.stopped_at = None;
        if let (Some(registers), Some(process)) = (stopped, self.processes.get_mut(&process)) {
            process.stopped.insert(id, registers);
        }
    }

    /// The registers of a process's unfinished runs, without the run that ended it: those that its
    /// end stopped, or, before its end, those that do not execute.
    pub(super) fn stopped_in(&self, number: u32) -> Stopped {
        match self.processes.get(&number) {
            Some(process) if process.state.status != 0 => process.stopped.clone(),
            Some(process) => {
                let runners = self.runners.iter().filter(|(_, it)| it.process == number);
                let here = runners.filter_map(|(&id, it)| Some((id, it.stopped()?)));
                process.stopped.iter().map(|(&id, &it)| (id, it)).chain(here).collect()
            }
            None => Stopped::new(),
        }
    }

    /// Ends the process of a runner at once, during a run that does not execute (`turn`), or
    /// between two runs. The program made no error: its error handler does not run.
    #[cfg(feature = "gdb")]
    pub(super) fn kill(&mut self, turn: &Turn, status: u8) {
        let runner = self.runners.get(&turn.id).filter(|it| it.serial == turn.serial);
        let Some(runner) = runner.filter(|_| !self.halted) else { return };
        let hart = runner.hart.as_deref().unwrap_or(&turn.hart);
        let registers = hart.registers();
        let process = found_or_report(
            self.processes.get_mut(&runner.process),
            "the process of a run",
            turn.id,
        );
        let Some(process) = process else { return };
        if process.state.status == 0 {
            if runner.state == RunnerState::Running {
                process.state.instructions += hart.instructions() - runner.began;
            }
            let crash = Crash { runner: turn.id, address: 0, registers };
            process.ending.get_or_insert((status, crash));
            let number = runner.process;
            self.end_process(number);
        }
    }

    /// Ends a process that is about to end, and all that runs in it.
    fn end_process(&mut self, number: u32) {
        let process =
            found_or_report(self.processes.get_mut(&number), "a process that ends", number);
        let Some(process) = process else { return };
        // The process has ended already when the runner of its error handler is removed.
        let Some((status, crash)) = process.ending.take() else { return };
        process.end(status, crash);
        let runners = self.runners.iter().filter(|(_, runner)| runner.process == number);
        for id in runners.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.release(id);
            if id != crash.runner {
                self.keep_stopped(id);
            }
            self.release_hart(id);
            if let Some(runner) = self.runners.get_mut(&id) {
                runner.state = RunnerState::Finished;
                let serial = runner.serial;
                self.stop(serial);
            }
        }
        self.ended.push(number);
        self.collect();
    }

    /// Makes the outbox in a run's context ring the queues of a UAR extension; `None`: those of its
    /// own UAR page again. False if there is no such outbox.
    pub(super) fn extend(&mut self, turn: &Turn, device_id: Option<u32>) -> bool {
        // The run was removed meanwhile.
        let Some(number) = self.process_of_turn(turn) else { return false };
        let slot = self.runners[&turn.id].slot;
        let process =
            found_or_report(self.processes.get_mut(&number), "the process of a run", number);
        let Some(process) = process else { return false };
        // The context names no outbox, or a destroyed one: an error of the program.
        let outbox = context::outbox(&process.contexts, slot);
        let Some(outbox) = process.outboxes.get_mut(&outbox) else { return false };
        outbox.extend(process.serial, device_id);
        true
    }

    /// The outbox through which a run made its request.
    fn outbox(&mut self, turn: &Turn, request: &DeviceRequest) -> Option<&mut Outbox> {
        let DeviceRequest::Ring { outbox: Some(outbox), .. } = request else { return None };
        let process = self.process_of_turn(turn)?;
        self.processes.get_mut(&process)?.outboxes.get_mut(outbox)
    }

    /// Sets os_errno after a failed doorbell of an outbox.
    pub(super) fn errno(&mut self, turn: &Turn, request: &DeviceRequest, errno: u32) {
        if let Some(outbox) = self.outbox(turn, request) {
            outbox.fail();
        }
        self.set_errno(turn, errno);
    }

    /// Sets BUFFER to the value that a doorbell of an outbox has read.
    pub(super) fn buffer(&mut self, turn: &Turn, request: &DeviceRequest, value: u32) {
        if let Some(outbox) = self.outbox(turn, request) {
            outbox.set_buffer(value);
        }
    }

    pub(super) fn set_errno(&mut self, turn: &Turn, errno: u32) {
        if let Some(runner) = self.runners.get(&turn.id)
            && let Some(process) = self.processes.get(&runner.process)
        {
            context::set_errno(&process.contexts, runner.slot, errno);
        }
    }
}
