//! Processes: an address space with a program in it, the outboxes and windows of its threads, and
//! the reason of its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use verbless_prm::DpaFault;
use verbless_riscv::{
    AddressSpace, Backing, Cause, MapError, PAGE, Permissions, Program, Ram, Region, Registers,
};

use super::context;
use super::registers::{Outbox, Window};
use super::runner::RunnerId;

/// A process.
pub(super) struct Process {
    /// A serial number, unique among the processes of all functions, at any time.
    pub(super) serial: u64,
    pub(super) space: Arc<AddressSpace>,
    pub(super) contexts: Ram,
    /// Bytes of memory of the process.
    pub(super) bytes: u64,
    /// Maximum number of instructions of a run.
    pub(super) watchdog: u64,
    pub(super) outboxes: BTreeMap<u16, Outbox>,
    pub(super) windows: BTreeMap<u16, Window>,
    /// Which stacks and contexts are in use.
    pub(super) slots: Vec<bool>,
    pub(super) state: ProcessState,
    /// Whether it has, or had, a thread.
    pub(super) had_thread: bool,
    /// The handler that runs before an error ends the process.
    pub(super) error_handler: Option<ErrorHandler>,
    /// While the error handler runs: the status and crash data with which the process will end.
    pub(super) ending: Option<(u8, Crash)>,
    /// Registers of the other runs that the end of the process or its error handler stopped.
    pub(super) stopped: Stopped,
}

/// The handler that runs before an error ends the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorHandler {
    pub entry: u64,
    /// The slot of the stack and context that are kept for the handler.
    pub slot: usize,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessState {
    /// `dpa_process_status`, a [`DpaFault`]: 0 while it runs.
    pub status: u8,
    /// Whether only its error handler still runs.
    pub ending: bool,
    /// Instructions of runs that are over.
    pub instructions: u64,
    /// The crash data, if the process has ended.
    pub crash: Option<Crash>,
}

/// The registers of runs that were unfinished when their process ended.
pub(super) type Stopped = BTreeMap<RunnerId, Registers>;

/// The run that ended a process.
#[derive(Debug, Clone, Copy)]
pub struct Crash {
    /// The thread or call of the run.
    pub runner: RunnerId,
    /// The address of the failed access, or the illegal instruction; else 0.
    pub address: u64,
    /// The registers of its hart.
    pub registers: Registers,
}

impl Process {
    /// A process of a program, with its heap.
    pub(super) fn new(
        serial: u64,
        program: &Program,
        heap: &Ram,
        watchdog: u64,
    ) -> Result<Self, MapError> {
        let stacks = Ram::new(context::MAX_RUNNERS as u64 * context::STACK);
        let contexts = Ram::new(context::MAX_RUNNERS as u64 * PAGE);
        let return_code = Ram::new(PAGE);
        for (at, word) in (0..).step_by(4).zip(context::RETURN_CODE) {
            return_code.write(at, &word.to_le_bytes());
        }
        let stack = |slot: usize| Region {
            base: context::stack_top(slot) - context::STACK,
            length: context::STACK,
            permissions: Permissions::RW,
            backing: Backing::Ram(stacks.clone(), slot as u64 * context::STACK),
        };
        let configs = u64::from(context::MAX_CONFIGS);
        let own = [
            Region::ram(context::CONTEXTS, &contexts, Permissions::RW),
            Region::ram(context::RETURN, &return_code, Permissions::RX),
            Region::environment(context::OUTBOXES, configs * PAGE),
            Region::environment(
                context::WINDOW_CONFIGS,
                (configs << context::LOG_WINDOW_CONFIG).next_multiple_of(PAGE),
            ),
            Region::environment(context::WINDOWS, configs << context::LOG_WINDOW),
        ];
        let heap = (!heap.is_empty()).then(|| Region::ram(context::HEAP, heap, Permissions::RW));
        let program = program.segments.iter().map(|segment| segment.region());
        let all = program.chain(heap).chain(own).chain((0..context::MAX_RUNNERS).map(stack));
        let space = AddressSpace::new(all)?;
        let bytes = space.regions().iter().map(|region| match region.backing {
            Backing::Ram(..) => region.length,
            _ => 0,
        });
        Ok(Self {
            serial,
            bytes: bytes.sum(),
            space: Arc::new(space),
            contexts,
            watchdog,
            outboxes: BTreeMap::new(),
            windows: BTreeMap::new(),
            slots: vec![false; context::MAX_RUNNERS],
            state: ProcessState::default(),
            had_thread: false,
            error_handler: None,
            ending: None,
            stopped: Stopped::new(),
        })
    }

    /// A free stack and context.
    pub(super) fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|used| !used)
    }

    /// Whether no new run begins in the process: it has ended, or is about to.
    pub(super) fn ends(&self) -> bool {
        self.state.status != 0 || self.ending.is_some()
    }

    /// The run that has ended the process, or is about to.
    pub(super) fn ended_by(&self) -> Option<RunnerId> {
        let ending = self.ending.map(|(_, crash)| crash);
        ending.or(self.state.crash).map(|crash| crash.runner)
    }

    /// Ends the process for this reason.
    pub(super) fn end(&mut self, status: u8, crash: Crash) {
        self.state.ending = false;
        if self.state.status == 0 {
            self.state.status = status;
            self.state.crash = Some(crash);
        }
    }
}

/// The status of a process that an exception ended.
pub(super) const fn status_of(cause: Cause) -> u8 {
    match cause {
        Cause::Illegal => DpaFault::ILLEGAL.0,
        Cause::FetchAccess => DpaFault::FETCH.0,
        Cause::LoadMisaligned => DpaFault::LOAD_MISALIGNED.0,
        Cause::LoadAccess => DpaFault::LOAD.0,
        Cause::StoreMisaligned => DpaFault::STORE_MISALIGNED.0,
        Cause::StoreAccess => DpaFault::STORE.0,
    }
}
