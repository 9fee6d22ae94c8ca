//! Turns: a thread that executes programs takes a run, executes it for a while, and puts it back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use verbless_prm::DpaFault;
use verbless_riscv::{Exit, Hart};

use super::process::status_of;
use super::registers::{AccessResult, DeviceAnswer, DeviceRequest, Doorbell, Queues, errno};
use super::runner::RunnerId;
use super::scheduler::Dpa;
use super::state::DpaState;
use super::system::{self, A0, RunEnd, SystemCall};

/// Instructions of a run before another run has its turn: a fraction of a millisecond.
const TURN: u64 = 100_000;

/// Wakes the threads that give turns.
#[derive(Default)]
pub struct Waker {
    state: Mutex<(u64, bool)>,
    woken: Condvar,
}

impl Waker {
    fn state(&self) -> MutexGuard<'_, (u64, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the waker was woken.
    pub fn wakes(&self) -> u64 {
        self.state().0
    }

    /// Waits until `wakes` differs from `seen`; false if the waker is closed.
    pub fn wait(&self, seen: u64) -> bool {
        let mut state = self.state();
        while state.0 == seen && !state.1 {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.1
    }

    pub(super) fn wake(&self) {
        self.state().0 += 1;
        self.woken.notify_all();
    }

    /// Ends all waits, for good.
    pub fn close(&self) {
        self.state().1 = true;
        self.woken.notify_all();
    }
}

/// A part of a run, with its hart, in the thread that executes it.
pub struct Turn {
    pub(super) id: RunnerId,
    pub(super) serial: u64,
    pub(super) hart: Box<Hart>,
    /// Instructions until the turn is over.
    left: u64,
    /// The address at which the run made its request to the device.
    request_address: u64,
}

impl Turn {
    pub(super) fn new(id: RunnerId, serial: u64, hart: Box<Hart>) -> Self {
        Self { id, serial, hart, left: TURN, request_address: 0 }
    }

    /// The hart, for a debugger.
    pub fn hart(&mut self) -> &mut Hart {
        &mut self.hart
    }
}

/// Marks a run as stopped if executing it panics, which is a bug: other threads may wait for it.
struct PanicGuard<'d> {
    dpa: &'d Dpa,
    serial: u64,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.dpa.state().executing.remove(&self.serial);
        self.dpa.notify_stopped();
    }
}

/// Instructions of a [`ShortTurn`]: a run that copies through a window word by word makes its next
/// request within them.
const SHORT_TURN: u64 = 32;

/// The result of executing a run.
enum RunResult {
    Requests(Turn, DeviceRequest),
    Continues(Turn),
    Over,
}

/// The result of executing a run for a few instructions after an answer.
pub enum ShortTurn {
    /// The run makes another request to the device.
    Requests(Turn, DeviceRequest),
    /// The run can continue, and rests until [`Dpa::resume`].
    Rests(Turn),
    /// The turn is over.
    Over,
}

/// How a turn continues.
pub(super) enum AfterTurn {
    Continues,
    Requests(DeviceRequest),
    Over,
}

impl Dpa {
    /// A turn for the next run that waits for one.
    pub fn turn(&self) -> Option<Turn> {
        let mut state = self.state();
        // Another function may have returned an EU for which a run here waits.
        if !state.waiting.is_empty() {
            state.collect();
        }
        loop {
            let at = state.ready.iter().position(|&id| !state.is_debugged(id))?;
            if let Some(turn) = state.take_turn(at) {
                state.begin_executing(&turn);
                return Some(turn);
            }
        }
    }

    /// Executes a run until it makes a request to the device, or its turn is over (`None`).
    pub fn run(&self, mut turn: Turn) -> Option<(Turn, DeviceRequest)> {
        loop {
            match self.run_for(turn, u64::MAX) {
                RunResult::Requests(turn, request) => return Some((turn, request)),
                RunResult::Continues(same) => turn = same,
                RunResult::Over => return None,
            }
        }
    }

    /// Executes a run for this many instructions at most.
    fn run_for(&self, turn: Turn, instructions: u64) -> RunResult {
        let guard = PanicGuard { dpa: self, serial: turn.serial };
        let step = self.step(turn, instructions);
        std::mem::forget(guard);
        step
    }

    fn step(&self, mut turn: Turn, instructions: u64) -> RunResult {
        let before = turn.hart.instructions();
        let exit = turn.hart.run(turn.left.min(instructions));
        // An exit counts as an instruction, so that a run of nothing but exits uses up its turn.
        let spent = turn.hart.instructions() - before;
        turn.left = turn.left.saturating_sub(spent.max(1));
        match self.after(&mut turn, exit) {
            AfterTurn::Continues if turn.left > 0 => RunResult::Continues(turn),
            AfterTurn::Continues => {
                self.put_back(turn);
                RunResult::Over
            }
            AfterTurn::Requests(request) => RunResult::Requests(turn, request),
            AfterTurn::Over => RunResult::Over,
        }
    }

    /// Whether the run that made a request still exists, and the outbox or window that it named.
    /// The thread that has locked the function checks this before it serves the request.
    pub fn is_servable(&self, turn: &Turn, request: &DeviceRequest) -> bool {
        let state = self.state();
        let process = state.process_of_turn(turn).and_then(|number| state.processes.get(&number));
        process.is_some_and(|process| process.has(request))
    }

    /// Continues a run after the device's answer.
    pub fn answer(
        &self,
        turn: Turn,
        request: &DeviceRequest,
        given: DeviceAnswer,
    ) -> Option<(Turn, DeviceRequest)> {
        self.run(self.answered(turn, request, given)?)
    }

    /// Answers a run and executes it for a few instructions, for which the thread that holds the
    /// function can wait. A run with more to do then rests: it must not count as executing while
    /// its function is unlocked, because the next thread that locks the function may wait for all
    /// executing runs.
    pub fn answer_for_short_turn(
        &self,
        turn: Turn,
        request: &DeviceRequest,
        given: DeviceAnswer,
    ) -> ShortTurn {
        let Some(turn) = self.answered(turn, request, given) else { return ShortTurn::Over };
        match self.run_for(turn, SHORT_TURN) {
            RunResult::Requests(turn, request) => ShortTurn::Requests(turn, request),
            RunResult::Over => ShortTurn::Over,
            RunResult::Continues(turn) => {
                if self.state().end_executing(&turn) {
                    self.notify_stopped();
                }
                ShortTurn::Rests(turn)
            }
        }
    }

    /// Continues a run that rests, if it still exists.
    pub fn resume(&self, turn: Turn) -> Option<(Turn, DeviceRequest)> {
        let mut state = self.state();
        state.process_of_turn(&turn)?;
        state.begin_executing(&turn);
        drop(state);
        self.run(turn)
    }

    fn answered(
        &self,
        mut turn: Turn,
        request: &DeviceRequest,
        given: DeviceAnswer,
    ) -> Option<Turn> {
        let mut state = self.state();
        if !self.take_answer(&mut state, &mut turn, request, given) {
            return None;
        }
        state.begin_executing(&turn);
        Some(turn)
    }

    /// Takes the device's answer; false if the run is gone.
    pub(super) fn take_answer(
        &self,
        state: &mut DpaState,
        turn: &mut Turn,
        request: &DeviceRequest,
        given: DeviceAnswer,
    ) -> bool {
        if state.process_of_turn(turn).is_none() {
            return false;
        }
        let called = matches!(request, DeviceRequest::Ring { outbox: None, .. });
        match given {
            DeviceAnswer::Value(_) if called => turn.hart.set_x(A0, 0),
            DeviceAnswer::Value(value) => turn.hart.complete(value),
            DeviceAnswer::Buffer(value) => {
                state.buffer(turn, request, value);
                turn.hart.complete(0);
            }
            DeviceAnswer::NoQueue => {
                state.errno(turn, request, errno::NO_QUEUE);
                match called {
                    true => turn.hart.set_x(A0, errno::NO_QUEUE.into()),
                    false => turn.hart.complete(0),
                }
            }
            DeviceAnswer::Refused => {
                let next = state.crash(turn, DpaFault::WINDOW.0, turn.request_address);
                self.announce(state);
                return matches!(next, AfterTurn::Continues);
            }
        }
        true
    }

    /// Handles the exit of a hart.
    pub(super) fn after(&self, turn: &mut Turn, exit: Exit) -> AfterTurn {
        let mut state = self.state();
        let mut next = self.next(&mut state, turn, exit);
        if matches!(next, AfterTurn::Continues) && state.is_too_long(turn) {
            next = state.crash(turn, DpaFault::WATCHDOG.0, 0);
        }
        if !matches!(next, AfterTurn::Continues) && state.end_executing(turn) {
            self.notify_stopped();
        }
        self.announce(&state);
        next
    }

    fn next(&self, state: &mut DpaState, turn: &mut Turn, exit: Exit) -> AfterTurn {
        let Some(process) = state.process_of_turn(turn) else { return AfterTurn::Over };
        match exit {
            Exit::Budget | Exit::Stopped | Exit::Breakpoint => AfterTurn::Continues,
            Exit::Wait | Exit::Pause => {
                turn.left = 0;
                AfterTurn::Continues
            }
            Exit::Ecall => match system::decode(&turn.hart) {
                SystemCall::End(end @ (RunEnd::Yield | RunEnd::YieldAndRetrigger)) => {
                    turn.hart.skip();
                    match state.runners[&turn.id].start.continuable {
                        true => state.end_run(turn, end),
                        false => AfterTurn::Continues,
                    }
                }
                SystemCall::End(end) => state.end_run(turn, end),
                SystemCall::Exit(status) => state.crash(turn, status, 0),
                SystemCall::Pause => {
                    turn.hart.skip();
                    turn.left = 0;
                    AfterTurn::Continues
                }
                SystemCall::Activate(thread) => {
                    turn.hart.skip();
                    if !state.activate(process, thread) {
                        state.set_errno(turn, errno::NO_THREAD);
                    }
                    AfterTurn::Continues
                }
                SystemCall::Extend(device_id) => {
                    turn.hart.skip();
                    let errno = match state.extend(turn, device_id) {
                        true => 0,
                        false => errno::NO_QUEUE,
                    };
                    turn.hart.set_x(A0, errno.into());
                    if errno != 0 {
                        state.set_errno(turn, errno);
                    }
                    AfterTurn::Continues
                }
                SystemCall::Has { window, id } => {
                    turn.hart.skip();
                    let process = &state.processes[&process];
                    let has = u16::try_from(id).is_ok_and(|id| match window {
                        true => process.windows.contains_key(&id),
                        false => process.outboxes.contains_key(&id),
                    });
                    turn.hart.set_x(A0, if has { 0 } else { errno::NO_CONFIG.into() });
                    if !has {
                        state.set_errno(turn, errno::NO_CONFIG);
                    }
                    AfterTurn::Continues
                }
                SystemCall::Count => {
                    turn.hart.skip();
                    let instructions = turn.hart.instructions();
                    turn.hart.set_x(A0, instructions);
                    AfterTurn::Continues
                }
                SystemCall::Ring { device_id, number, index } => {
                    turn.hart.skip();
                    let process = state.processes[&process].serial;
                    let queues = Queues::Extension { device_id, process };
                    let doorbell = Doorbell::Send { number, index };
                    AfterTurn::Requests(DeviceRequest::Ring { outbox: None, queues, doorbell })
                }
            },
            Exit::Ebreak => state.crash(turn, DpaFault::BREAKPOINT.0, 0),
            Exit::Trap(trap) => state.crash(turn, status_of(trap.cause), trap.value),
            Exit::Environment(transfer) => {
                let result = state.processes.get_mut(&process).map(|it| it.transfer(&transfer));
                match result {
                    Some(AccessResult::Done(value)) => {
                        turn.hart.complete(value);
                        AfterTurn::Continues
                    }
                    Some(AccessResult::Errno(errno)) => {
                        state.set_errno(turn, errno);
                        turn.hart.complete(0);
                        AfterTurn::Continues
                    }
                    Some(AccessResult::Device(request)) => {
                        turn.request_address = transfer.address;
                        AfterTurn::Requests(request)
                    }
                    Some(AccessResult::NoRegister) | None => {
                        let fault = match transfer.store {
                            Some(_) => DpaFault::STORE,
                            None => DpaFault::LOAD,
                        };
                        state.crash(turn, fault.0, transfer.address)
                    }
                }
            }
        }
    }

    /// Puts a turn back whose run is not over.
    pub(super) fn put_back(&self, turn: Turn) {
        let mut state = self.state();
        if state.end_executing(&turn) {
            self.notify_stopped();
        }
        if state.process_of_turn(&turn).is_none() {
            return;
        }
        state.keep(turn.id, turn.hart);
        state.ready.push_back(turn.id);
        self.announce(&state);
    }
}
