//! Who runs: runners get an execution unit in the order in which they came to need one, keep it
//! until their run is over, and take turns at whoever executes them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use verbless_prm::DpaFault;
use verbless_riscv::{Exit, Hart, Program, Ram};

use super::context::{self, MOST_CONFIGS};
use super::coredump;
use super::process::{Crash, Process, ProcessState, status_of};
use super::registers::{Ask, Asked, Given, Outbox, Window, errno};
use super::runner::{Affinity, Runner, RunnerId, RunnerState, Shown, Start};
use super::system::{self, End, SystemCall};
use crate::profile::DpaNumbers;

/// Instructions that a run executes before another may: a fraction of a millisecond.
const TURN: u64 = 100_000;

/// How large a DPA is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    /// Execution units that programs may have.
    pub units: u16,
    /// Groups of units that there may be.
    pub groups: u16,
    /// Bytes of memory that all processes may take.
    pub memory: u64,
    /// Instructions of a run, unless its process says less.
    pub watchdog: u64,
}

impl From<&DpaNumbers> for Numbers {
    fn from(numbers: &DpaNumbers) -> Self {
        let all = numbers.cores * numbers.units_per_core;
        let units = all - numbers.reserved_units;
        let DpaNumbers { groups, memory, watchdog, .. } = *numbers;
        Self { units, groups, memory, watchdog }
    }
}

/// Why the DPA does not take something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The file is no program, for this reason.
    Program(String),
    /// There is no memory left for it, or no stack, context, outbox or window.
    Full,
    /// It names a process that has ended or is not there.
    NoProcess,
    /// An execution unit or group that does not exist.
    NoUnit,
    /// An outbox or window that the process does not have.
    NoConfig,
    /// Runners are bound to the group.
    InUse,
}

/// A group of execution units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub name: [u8; 16],
    pub units: Vec<u16>,
}

/// The DPA of a function.
pub(crate) struct Dpa {
    numbers: Numbers,
    state: Mutex<State>,
    /// Wakes whoever gives turns.
    waker: Mutex<Arc<Waker>>,
}

/// Wakes those who give turns.
#[derive(Default)]
pub(crate) struct Waker {
    state: Mutex<(u64, bool)>,
    woken: Condvar,
}

impl Waker {
    fn state(&self) -> MutexGuard<'_, (u64, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often there was something new.
    pub(crate) fn news(&self) -> u64 {
        self.state().0
    }

    /// Waits until there is more news than that; false: it is all over.
    pub(crate) fn wait(&self, seen: u64) -> bool {
        let mut state = self.state();
        while state.0 == seen && !state.1 {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.1
    }

    fn wake(&self) {
        self.state().0 += 1;
        self.woken.notify_all();
    }

    /// Lets all go.
    pub(crate) fn close(&self) {
        self.state().1 = true;
        self.woken.notify_all();
    }
}

#[derive(Default)]
struct State {
    processes: BTreeMap<u32, Process>,
    runners: BTreeMap<RunnerId, Runner>,
    /// Runners that wait for a unit.
    waiting: VecDeque<RunnerId>,
    /// Runners that have one and wait for a turn.
    ready: VecDeque<RunnerId>,
    /// By unit, who has it.
    units: Vec<Option<RunnerId>>,
    groups: BTreeMap<u16, Group>,
    serials: u64,
    /// Bytes of all processes.
    bytes: u64,
}

/// A turn of a run, which somebody gives it.
pub(crate) struct Turn {
    id: RunnerId,
    serial: u64,
    hart: Box<Hart>,
    left: u64,
    /// The address at which it asked for the device.
    asked: u64,
}

/// How a turn goes on.
enum Next {
    Goes,
    Asks(Ask),
    Over,
}

impl Dpa {
    pub(crate) fn new(numbers: Numbers) -> Self {
        let units = vec![None; numbers.units.into()];
        let state = Mutex::new(State { units, ..State::default() });
        Self { numbers, state, waker: Mutex::default() }
    }

    /// From now on, whoever gives turns is woken by this.
    pub(crate) fn set_waker(&self, waker: &Arc<Waker>) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = waker.clone();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes process `number` of an ELF file; gives its heap. A watchdog of 0 is the device's.
    pub(crate) fn create(
        &self,
        number: u32,
        file: &[u8],
        heap: u64,
        watchdog: u64,
    ) -> Result<Ram, Refused> {
        let program = Program::parse(file).map_err(|error| Refused::Program(error.to_string()))?;
        let size: u64 = program.segments.iter().map(|it| it.length).sum();
        if size.checked_add(heap).is_none_or(|bytes| bytes > self.numbers.memory) {
            return Err(Refused::Full);
        }
        let heap = Ram::new(heap);
        let watchdog = match watchdog {
            0 => self.numbers.watchdog,
            own => own.min(self.numbers.watchdog),
        };
        let process = Process::new(&program, &heap, watchdog)
            .map_err(|error| Refused::Program(format!("{error}: link it elsewhere")))?;
        let mut state = self.state();
        if state.bytes + process.bytes > self.numbers.memory {
            return Err(Refused::Full);
        }
        state.bytes += process.bytes;
        state.processes.insert(number, process);
        Ok(heap)
    }

    /// Ends a process, and with it all that runs in it.
    pub(crate) fn remove(&self, number: u32) {
        let mut state = self.state();
        let runners = state.runners.iter().filter(|(_, runner)| runner.process == number);
        for id in runners.map(|(&id, _)| id).collect::<Vec<_>>() {
            state.forget(id);
        }
        if let Some(process) = state.processes.remove(&number) {
            state.bytes -= process.bytes;
        }
        state.assign();
    }

    /// How a process is.
    pub(crate) fn process(&self, number: u32) -> Option<ProcessState> {
        self.state().processes.get(&number).map(|process| process.state)
    }

    /// Gives a process an outbox; what it knows it by.
    pub(crate) fn add_outbox(&self, process: u32, uar_page: u32) -> Result<u16, Refused> {
        let mut state = self.state();
        let process = state.processes.get_mut(&process).ok_or(Refused::NoProcess)?;
        let free = (0..MOST_CONFIGS).find(|id| !process.outboxes.contains_key(id));
        let id = free.ok_or(Refused::Full)?;
        process.outboxes.insert(id, Outbox::new(uar_page));
        Ok(id)
    }

    /// Takes it away.
    pub(crate) fn remove_outbox(&self, process: u32, id: u16) {
        if let Some(process) = self.state().processes.get_mut(&process) {
            process.outboxes.remove(&id);
        }
    }

    /// Gives a process a window, which leads nowhere yet; what it knows it by.
    pub(crate) fn add_window(&self, process: u32, pd: u32) -> Result<u16, Refused> {
        let mut state = self.state();
        let process = state.processes.get_mut(&process).ok_or(Refused::NoProcess)?;
        let free = (0..MOST_CONFIGS).find(|id| !process.windows.contains_key(id));
        let id = free.ok_or(Refused::Full)?;
        process.windows.insert(id, Window { pd, mkey: 0 });
        Ok(id)
    }

    /// Takes it away.
    pub(crate) fn remove_window(&self, process: u32, id: u16) {
        if let Some(process) = self.state().processes.get_mut(&process) {
            process.windows.remove(&id);
        }
    }

    /// How large it is.
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// A group of units.
    pub(crate) fn group(&self, id: u16) -> Option<Group> {
        self.state().groups.get(&id).cloned()
    }

    /// Makes a group.
    pub(crate) fn add_group(&self, group: Group) -> Result<u16, Refused> {
        let mut state = self.state();
        state.check(&group)?;
        let mut numbers = 0..self.numbers.groups;
        let id = numbers.find(|id| !state.groups.contains_key(id)).ok_or(Refused::Full)?;
        state.groups.insert(id, group);
        Ok(id)
    }

    /// Gives a group other units. Runs that have one of the old ones keep it until they are over.
    pub(crate) fn change_group(&self, id: u16, group: Group) -> Result<(), Refused> {
        let mut state = self.state();
        state.check(&group)?;
        *state.groups.get_mut(&id).ok_or(Refused::NoUnit)? = group;
        state.assign();
        self.announce(&state);
        Ok(())
    }

    /// Takes a group away.
    pub(crate) fn remove_group(&self, id: u16) -> Result<(), Refused> {
        let mut state = self.state();
        if state.runners.values().any(|it| it.start.affinity == Affinity::Group(id)) {
            return Err(Refused::InUse);
        }
        state.groups.remove(&id).map(drop).ok_or(Refused::NoUnit)
    }

    /// Takes a thread or a call in. A call begins at once.
    pub(crate) fn add(&self, id: RunnerId, process: u32, start: Start) -> Result<(), Refused> {
        let mut state = self.state();
        let there = match start.affinity {
            Affinity::Any => true,
            Affinity::Unit(unit) => usize::from(unit) < state.units.len(),
            Affinity::Group(group) => state.groups.contains_key(&group),
        };
        if !there {
            return Err(Refused::NoUnit);
        }
        state.serials += 1;
        let serial = state.serials;
        let room = state.processes.get_mut(&process).ok_or(Refused::NoProcess)?;
        let has = |id: u16, there: bool| id == context::NO_ID || there;
        let windows = start.windows.iter().all(|id| has(*id, room.windows.contains_key(id)));
        if !windows || !has(start.outbox, room.outboxes.contains_key(&start.outbox)) {
            return Err(Refused::NoConfig);
        }
        if room.state.status != 0 {
            return Err(Refused::NoProcess);
        }
        let slot = room.take_slot().ok_or(Refused::Full)?;
        state.runners.insert(id, Runner::new(serial, process, slot, start));
        if matches!(id, RunnerId::Call(_)) {
            state.wake(id);
            self.announce(&state);
        }
        Ok(())
    }

    /// Takes a thread or a call away, whatever it does.
    pub(crate) fn take_away(&self, id: RunnerId) {
        let mut state = self.state();
        state.forget(id);
        state.assign();
        self.announce(&state);
    }

    /// What a thread or a call does, and what is known of it; with the status of its process.
    pub(crate) fn runner(&self, id: RunnerId) -> Option<(RunnerState, Shown, u8)> {
        let state = self.state();
        let runner = state.runners.get(&id)?;
        let status = state.processes.get(&runner.process).map_or(0, |it| it.state.status);
        Some((runner.state, runner.shown, status))
    }

    /// An event has come for a thread.
    pub(crate) fn event(&self, thread: u32) {
        let mut state = self.state();
        state.wake(RunnerId::Thread(thread));
        self.announce(&state);
    }

    fn announce(&self, state: &State) {
        if !state.ready.is_empty() {
            self.waker.lock().unwrap_or_else(PoisonError::into_inner).wake();
        }
    }

    /// A turn for the next run that waits for one.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let mut state = self.state();
        while let Some(id) = state.ready.pop_front() {
            let runner = state.runners.get_mut(&id);
            if let Some(runner) = runner
                && let Some(hart) = runner.hart.take()
            {
                return Some(Turn { id, serial: runner.serial, hart, left: TURN, asked: 0 });
            }
        }
        None
    }

    /// Lets a run go on in its turn, until the turn is over or asks for the device.
    pub(crate) fn run(&self, mut turn: Turn) -> Option<(Turn, Ask)> {
        loop {
            let before = turn.hart.instructions();
            let exit = turn.hart.run(turn.left);
            // An exit costs, too, so that whoever only makes exits comes to an end.
            let spent = turn.hart.instructions() - before;
            turn.left = turn.left.saturating_sub(spent.max(1));
            match self.after(&mut turn, exit) {
                Next::Goes if turn.left > 0 => {}
                Next::Goes => {
                    self.put_back(turn);
                    return None;
                }
                Next::Asks(ask) => return Some((turn, ask)),
                Next::Over => return None,
            }
        }
    }

    /// Goes on after the device's answer.
    pub(crate) fn answer(&self, mut turn: Turn, ask: &Ask, given: Given) -> Option<(Turn, Ask)> {
        match given {
            Given::Value(value) => turn.hart.complete(value),
            Given::NoQueue => {
                self.state().errno(&turn, ask, errno::NO_QUEUE);
                turn.hart.complete(0);
            }
            Given::Refused => {
                self.state().crash(&turn, DpaFault::WINDOW.0, turn.asked);
                return None;
            }
        }
        self.run(turn)
    }

    /// What follows when a hart has stopped.
    fn after(&self, turn: &mut Turn, exit: Exit) -> Next {
        let mut state = self.state();
        let Some(process) = state.of_turn(turn) else { return Next::Over };
        let next = match exit {
            Exit::Budget | Exit::Stopped | Exit::Breakpoint => {
                let (watchdog, polling, began) = {
                    let runner = &state.runners[&turn.id];
                    (state.processes[&process].watchdog, runner.start.polling, runner.began)
                };
                if !polling && turn.hart.instructions() - began > watchdog {
                    state.crash(turn, DpaFault::WATCHDOG.0, 0)
                } else {
                    Next::Goes
                }
            }
            Exit::Wait | Exit::Pause => {
                turn.left = 0;
                Next::Goes
            }
            Exit::Ecall => match system::decode(&turn.hart) {
                SystemCall::End(end) => state.end_run(turn, end),
                SystemCall::Exit(status) => state.crash(turn, status, 0),
                SystemCall::Yield => {
                    turn.hart.skip();
                    turn.left = 0;
                    Next::Goes
                }
            },
            Exit::Ebreak => state.crash(turn, DpaFault::BREAKPOINT.0, 0),
            Exit::Trap(trap) => state.crash(turn, status_of(trap.cause), trap.value),
            Exit::Environment(transfer) => {
                let asked = state.processes.get_mut(&process).map(|it| it.transfer(&transfer));
                match asked {
                    Some(Asked::Done(value)) => {
                        turn.hart.complete(value);
                        Next::Goes
                    }
                    Some(Asked::Errno(errno)) => {
                        state.set_errno(turn, errno);
                        turn.hart.complete(0);
                        Next::Goes
                    }
                    Some(Asked::Device(ask)) => {
                        turn.asked = transfer.address;
                        Next::Asks(ask)
                    }
                    Some(Asked::Nothing) | None => {
                        let fault = match transfer.store {
                            Some(_) => DpaFault::STORE,
                            None => DpaFault::LOAD,
                        };
                        state.crash(turn, fault.0, transfer.address)
                    }
                }
            }
        };
        self.announce(&state);
        next
    }

    /// The turn is over, the run is not.
    fn put_back(&self, turn: Turn) {
        let mut state = self.state();
        if state.of_turn(&turn).is_none() {
            return;
        }
        if let Some(runner) = state.runners.get_mut(&turn.id) {
            runner.hart = Some(turn.hart);
            state.ready.push_back(turn.id);
        }
        self.announce(&state);
    }

    /// A core file of a process.
    pub(crate) fn core_dump(&self, number: u32) -> Option<Vec<u8>> {
        let state = self.state();
        let process = state.processes.get(&number)?;
        let used = process.slots.clone();
        Some(coredump::write(process, &used))
    }
}

impl State {
    /// A group has units, all of which exist.
    fn check(&self, group: &Group) -> Result<(), Refused> {
        let there = |unit: &u16| usize::from(*unit) < self.units.len();
        match !group.units.is_empty() && group.units.iter().all(there) {
            true => Ok(()),
            false => Err(Refused::NoUnit),
        }
    }

    /// The process of a turn; `None` if its run is no more.
    fn of_turn(&self, turn: &Turn) -> Option<u32> {
        let runner = self.runners.get(&turn.id).filter(|it| it.serial == turn.serial)?;
        (runner.state == RunnerState::Running).then_some(runner.process)
    }

    fn wake(&mut self, id: RunnerId) {
        let Some(runner) = self.runners.get_mut(&id) else { return };
        runner.shown.events = runner.shown.events.wrapping_add(1);
        match runner.state {
            RunnerState::Idle => {
                runner.state = RunnerState::Waiting;
                self.waiting.push_back(id);
                self.assign();
            }
            RunnerState::Waiting | RunnerState::Running => runner.again = true,
            RunnerState::Finished => {}
        }
    }

    /// Gives units to those who wait for them.
    fn assign(&mut self) {
        let mut at = 0;
        while let Some(&id) = self.waiting.get(at) {
            let Some(runner) = self.runners.get_mut(&id) else {
                self.waiting.remove(at);
                continue;
            };
            let free = |unit: &u16| self.units.get(usize::from(*unit)).is_some_and(Option::is_none);
            let unit = match runner.start.affinity {
                Affinity::Any => (0..self.units.len() as u16).find(free),
                Affinity::Unit(unit) => Some(unit).filter(free),
                Affinity::Group(group) => {
                    self.groups.get(&group).and_then(|it| it.units.iter().copied().find(free))
                }
            };
            let Some(process) = self.processes.get(&runner.process) else {
                self.waiting.remove(at);
                continue;
            };
            match unit {
                Some(unit) => {
                    self.units[usize::from(unit)] = Some(id);
                    runner.shown.unit = unit;
                    runner.state = RunnerState::Running;
                    runner.begin(process);
                    self.ready.push_back(id);
                    self.waiting.remove(at);
                }
                None => at += 1,
            }
        }
    }

    /// Whoever has it lets a unit go.
    fn release(&mut self, id: RunnerId) {
        for unit in self.units.iter_mut().filter(|unit| **unit == Some(id)) {
            *unit = None;
        }
        self.ready.retain(|&ready| ready != id);
        self.waiting.retain(|&waiting| waiting != id);
    }

    fn forget(&mut self, id: RunnerId) {
        let Some(runner) = self.runners.remove(&id) else { return };
        self.release(id);
        if let Some(process) = self.processes.get_mut(&runner.process) {
            process.slots[runner.slot] = false;
        }
    }

    /// A run is over; its hart goes back to it.
    fn end_run(&mut self, turn: &mut Turn, end: End) -> Next {
        let Some(runner) = self.runners.get_mut(&turn.id) else { return Next::Over };
        let took = turn.hart.instructions() - runner.began;
        runner.shown.instructions += took;
        let process = runner.process;
        let is_call = matches!(turn.id, RunnerId::Call(_));
        if let (true, End::Return(result)) = (is_call, end) {
            runner.shown.result = result;
        }
        let again = std::mem::take(&mut runner.again);
        runner.state = match end {
            _ if is_call => RunnerState::Finished,
            End::Finish => RunnerState::Finished,
            End::Retrigger => RunnerState::Waiting,
            End::Return(_) | End::Reschedule if again => RunnerState::Waiting,
            End::Return(_) | End::Reschedule => RunnerState::Idle,
        };
        let waits = runner.state == RunnerState::Waiting;
        // The next run goes on in this hart, with what it has translated.
        let spare = Box::new(Hart::new(turn.hart.space().clone()));
        runner.hart = Some(std::mem::replace(&mut turn.hart, spare));
        if let Some(process) = self.processes.get_mut(&process) {
            process.state.instructions += took;
        }
        self.release(turn.id);
        if waits {
            self.waiting.push_back(turn.id);
        }
        self.assign();
        Next::Over
    }

    /// The run ends its process, and all that runs in it.
    fn crash(&mut self, turn: &Turn, status: u8, address: u64) -> Next {
        let Some(number) = self.of_turn(turn) else { return Next::Over };
        let registers = turn.hart.registers();
        let crash = Crash { runner: turn.id, address, registers };
        let took = self.runners.get(&turn.id).map_or(0, |it| turn.hart.instructions() - it.began);
        if let Some(process) = self.processes.get_mut(&number) {
            process.state.instructions += took;
            process.end(status, crash);
        }
        let all: Vec<_> =
            self.runners.iter().filter(|(_, it)| it.process == number).map(|(&id, _)| id).collect();
        for id in all {
            self.release(id);
            if let Some(runner) = self.runners.get_mut(&id) {
                runner.state = RunnerState::Finished;
                runner.hart = None;
            }
        }
        self.assign();
        Next::Over
    }

    fn errno(&mut self, turn: &Turn, ask: &Ask, errno: u32) {
        if let (Ask::Ring { outbox, .. }, Some(process)) = (ask, self.of_turn(turn))
            && let Some(process) = self.processes.get_mut(&process)
            && let Some(outbox) = process.outboxes.get_mut(outbox)
        {
            outbox.fail();
        }
        self.set_errno(turn, errno);
    }

    fn set_errno(&mut self, turn: &Turn, errno: u32) {
        if let Some(runner) = self.runners.get(&turn.id)
            && let Some(process) = self.processes.get(&runner.process)
        {
            context::set_errno(&process.contexts, runner.slot, errno);
        }
    }
}
