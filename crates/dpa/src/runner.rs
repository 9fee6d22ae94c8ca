//! Runners of a process: a thread, which events start repeatedly, or a call, which runs once.

use std::sync::Arc;

use verbless_riscv::{AddressSpace, Hart, Registers};

use super::context::{self, NO_ID};
use super::process::{ErrorHandler, Process};

/// A thread or a call, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunnerId {
    /// A thread.
    Thread(u32),
    /// A call.
    Call(u32),
}

/// The execution units that a runner may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Affinity {
    /// All that the function may use.
    #[default]
    Any,
    /// Only this EU.
    Unit(u16),
    /// The EUs of this group.
    Group(u16),
}

/// The start of a run.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The address of the function.
    pub entry: u64,
    /// Its arguments, a0 to a7.
    pub arguments: [u64; 8],
    /// The metadata in the thread context.
    pub metadata: u64,
    /// The outbox in the thread context, or [`NO_ID`].
    pub outbox: u16,
    /// The windows in the thread context, or [`NO_ID`].
    pub windows: [u16; 2],
    /// The execution units that it may use.
    pub affinity: Affinity,
    /// Whether the watchdog ignores its runs.
    pub polling: bool,
    /// Whether it may yield.
    pub continuable: bool,
    /// Whether the thread is held: events do not start it until
    /// [`Dpa::unhold_thread`](crate::Dpa::unhold_thread). If any arrived meanwhile, it then runs
    /// once.
    pub held: bool,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            entry: 0,
            arguments: [0; 8],
            metadata: 0,
            outbox: NO_ID,
            windows: [NO_ID; 2],
            affinity: Affinity::Any,
            polling: false,
            continuable: false,
            held: false,
        }
    }
}

/// State of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerState {
    /// The runner waits for an event.
    Idle,
    /// The runner waits for an execution unit.
    Waiting,
    /// The runner has an execution unit.
    Running,
    /// The runner never runs again.
    Finished,
}

/// A runner.
pub(super) struct Runner {
    /// A number that no other runner of the same id has had.
    pub serial: u64,
    pub process: u32,
    /// The slot of its stack and context.
    pub slot: usize,
    pub start: Start,
    /// `None` before the first run, and during a turn.
    pub hart: Option<Box<Hart>>,
    /// Bytes of code that its hart had translated at the end of its last turn.
    pub translated: usize,
    /// The registers of its hart in a turn that does not execute: the run waits for the device's
    /// answer, or a debugger holds it.
    pub stopped_at: Option<Registers>,
    pub state: RunnerState,
    /// Whether an event arrived since its run began, or while it is held.
    pub event_pending: bool,
    /// Whether it has yielded: the next run continues after the yield.
    pub resumes: bool,
    /// Instructions that the hart had executed when this run began.
    pub began: u64,
    /// Whether it runs the error handler of its process.
    pub handles: bool,
    pub shown: RunnerCounts,
}

/// Counts of a runner that a query returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunnerCounts {
    /// Runs that have begun.
    pub runs: u64,
    /// Instructions of runs that are over.
    pub instructions: u64,
    /// Events that arrived, modulo 2^32.
    pub events: u32,
    /// The execution unit of the last run.
    pub unit: u16,
    /// The return value of a call.
    pub result: u64,
}

impl Runner {
    pub(super) fn new(serial: u64, process: u32, slot: usize, start: Start) -> Self {
        Self {
            serial,
            process,
            slot,
            start,
            hart: None,
            translated: 0,
            stopped_at: None,
            state: RunnerState::Idle,
            event_pending: false,
            resumes: false,
            began: 0,
            handles: false,
            shown: RunnerCounts::default(),
        }
    }

    /// The registers of an unfinished run that does not execute: it waits for its turn, has
    /// yielded, or is in a turn that does not execute.
    pub(super) fn stopped(&self) -> Option<Registers> {
        match self.state {
            RunnerState::Running => {
                self.hart.as_ref().map(|hart| hart.registers()).or(self.stopped_at)
            }
            _ => self.hart.as_ref().filter(|_| self.resumes).map(|hart| hart.registers()),
        }
    }

    /// Prepares a run in its process.
    pub(super) fn begin(&mut self, process: &Process) {
        let hart = self.hart.get_or_insert_with(|| hart(&process.space));
        self.began = hart.instructions();
        self.event_pending = false;
        self.stopped_at = None;
        self.shown.runs += 1;
        if std::mem::take(&mut self.resumes) {
            return;
        }
        hart.set_registers(&at_entry(&self.start, self.slot, process));
    }

    /// Turns the run with this hart into the error handler: with the outbox, windows and metadata
    /// of the run that ends the process, on a stack of its own.
    pub(super) fn handle(
        &mut self,
        process: &Process,
        handler: ErrorHandler,
        status: u8,
        hart: &mut Hart,
    ) {
        (self.handles, self.slot, self.began) = (true, handler.slot, hart.instructions());
        let mut arguments = [0; 8];
        arguments[0] = status.into();
        let start = Start { entry: handler.entry, arguments, ..self.start };
        hart.set_registers(&at_entry(&start, self.slot, process));
    }
}

/// The registers at the start of a run; also writes its context.
fn at_entry(start: &Start, slot: usize, process: &Process) -> Registers {
    let Start { entry, arguments, metadata, outbox, windows, .. } = *start;
    context::write(&process.contexts, slot, outbox, windows, metadata);
    let mut registers = Registers { pc: entry, ..Registers::default() };
    registers.x[1] = context::RETURN;
    registers.x[2] = context::stack_top(slot);
    registers.x[4] = context::address(slot);
    registers.x[10..18].copy_from_slice(&arguments);
    registers
}

fn hart(space: &Arc<AddressSpace>) -> Box<Hart> {
    Box::new(Hart::new(space.clone()))
}

/// The run that a debugger holds, or waits for.
#[cfg(feature = "gdb")]
#[derive(Debug, Default)]
pub(super) struct Debugging {
    /// Whether debuggers are enabled.
    pub served: bool,
    /// Set while a debugger waits for the next run that begins, or for the next that begins at this
    /// address.
    pub wanted: Option<Option<u64>>,
    /// The runner whose runs the debugger holds, with its serial number.
    pub held: Option<(RunnerId, u64)>,
}

#[cfg(feature = "gdb")]
impl Debugging {
    pub(super) fn wants(&self, runner: &Runner) -> bool {
        let begins = |hart: &Hart| hart.instructions() == runner.began;
        self.wanted.is_some_and(|at| at.is_none_or(|at| at == runner.start.entry))
            && runner.hart.as_deref().is_some_and(begins)
    }

    /// Whether the debugger holds this runner or waits for its run: other threads give it no turns.
    pub(super) fn claims(&self, id: RunnerId, runner: &Runner) -> bool {
        self.held == Some((id, runner.serial)) || self.wants(runner)
    }
}
