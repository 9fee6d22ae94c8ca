//! A run under a debugger: only the debugger gives it turns.

use verbless_prm::DpaFault;
use verbless_riscv::Exit;

use super::registers::{DeviceAnswer, DeviceRequest};
use super::runner::{RunnerId, RunnerState};
use super::scheduler::Dpa;
use super::state::DpaState;
use super::turns::{AfterTurn, Turn};

/// The state of a run under a debugger after it executed.
pub enum Debugged {
    /// The run can continue.
    Continues,
    /// The run stopped for this reason, which the debugger must report before it takes effect.
    Stopped(Exit),
    /// The run makes a request to the device.
    Requests(DeviceRequest),
    /// The run is over.
    Over,
}

/// State of a runner under a debugger.
pub enum NextRun {
    /// The runner's next run has begun.
    Begun(Turn),
    /// The runner waits for an event, or an execution unit.
    Waits,
    /// There is no next run: the runner has finished or is gone, or its process has ended with this
    /// status.
    Never(u8),
}

impl DpaState {
    fn is_held(&self, turn: &Turn) -> bool {
        self.debugging.held == Some((turn.id, turn.serial))
    }
}

impl Dpa {
    /// Enables debuggers.
    pub fn debug_serve(&self) {
        self.state().debugging.served = true;
    }

    /// Makes the next run that begins (at this address) wait for
    /// [`debug_begin`](Self::debug_begin).
    pub fn debug_request_run(&self, entry: Option<u64>) {
        self.state().debugging.wanted = Some(entry);
    }

    /// Takes [`debug_request_run`](Self::debug_request_run) back: no run waits for a debugger.
    pub fn debug_cancel_request(&self) {
        let mut state = self.state();
        state.debugging.wanted = None;
        self.announce(&state);
    }

    /// Takes the run that waits for a debugger, and with it all later runs of its runner.
    pub fn debug_begin(&self) -> Option<Turn> {
        let mut state = self.state();
        let wanted =
            |id: &RunnerId| state.runners.get(id).is_some_and(|it| state.debugging.wants(it));
        let at = state.ready.iter().position(wanted)?;
        let turn = state.take_turn(at)?;
        state.debugging.wanted = None;
        state.debugging.held = Some((turn.id, turn.serial));
        // Other runs may have waited in case the debugger wanted them.
        self.announce(&state);
        Some(turn)
    }

    /// The next run of a runner whose last one is over.
    pub fn debug_next(&self, over: &Turn) -> NextRun {
        let mut state = self.state();
        let Some(runner) = state.runners.get(&over.id).filter(|_| state.is_held(over)) else {
            return NextRun::Never(0);
        };
        let status = state.processes.get(&runner.process).map_or(0, |it| it.state.status);
        if runner.serial != over.serial || runner.state == RunnerState::Finished || status != 0 {
            return NextRun::Never(status);
        }
        let at = state.ready.iter().position(|&id| id == over.id);
        at.and_then(|at| state.take_turn(at)).map_or(NextRun::Waits, NextRun::Begun)
    }

    /// Executes a run for up to `instructions` instructions. `reported`: the debugger has reported
    /// why the run stopped here, and the stop takes the same effect as without a debugger.
    pub fn debug_run(&self, turn: &mut Turn, instructions: u64, reported: bool) -> Debugged {
        {
            let mut state = self.state();
            if state.process_of_turn(turn).is_none() {
                return Debugged::Over;
            }
            state.begin_executing(turn);
        }
        let exit = turn.hart.run(instructions);
        let stops = match exit {
            Exit::Breakpoint => true,
            Exit::Ebreak | Exit::Trap(_) => !reported,
            _ => false,
        };
        let next = match stops {
            true => AfterTurn::Continues,
            false => self.after(turn, exit),
        };
        // Another thread may wait for the run to stop, but only while it executes.
        let mut state = self.state();
        if state.end_executing(turn) {
            self.notify_stopped();
        }
        match next {
            AfterTurn::Continues if stops => Debugged::Stopped(exit),
            AfterTurn::Continues => Debugged::Continues,
            AfterTurn::Requests(request) => Debugged::Requests(request),
            AfterTurn::Over => Debugged::Over,
        }
    }

    /// Gives the device's answer to the run.
    pub fn debug_answer(
        &self,
        turn: &mut Turn,
        request: &DeviceRequest,
        given: DeviceAnswer,
    ) -> Debugged {
        match self.take_answer(&mut self.state(), turn, request, given) {
            true => Debugged::Continues,
            false => Debugged::Over,
        }
    }

    /// Returns the debugger's runner to the other threads, and puts its turn back unless its run is
    /// over (`over`).
    pub fn debug_leave(&self, mut turn: Turn, over: bool) {
        let mut state = self.state();
        let held = state.is_held(&turn);
        state.debugging.held = None;
        let runner = state.runners.get_mut(&turn.id).filter(|_| held && over);
        if let Some(hart) = runner.and_then(|runner| runner.hart.as_mut()) {
            hart.remove_breakpoints();
        }
        self.announce(&state);
        drop(state);
        if !over {
            turn.hart.remove_breakpoints();
            self.put_back(turn);
        }
    }

    /// Ends the process of a run for the debugger, even if the run is over.
    pub fn debug_kill(&self, turn: &Turn) {
        let mut state = self.state();
        if state.is_held(turn) {
            state.kill(turn, DpaFault::BREAKPOINT.0);
        }
        self.announce(&state);
    }
}
