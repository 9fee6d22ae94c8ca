//! DPA programs under a debugger. The debugger controls the runs of one thread or call; all others
//! continue.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use verbless_dpa::{Debugged, Dpa, NextRun, Turn};
use verbless_riscv::gdb::{Debuggee, RunOutcome, SessionEnd, is_same_user, serve_program};
use verbless_riscv::{AddressSpace, Exit, Hart};

use super::dpa::serve_shared;
use crate::shared_model::SharedModel;

/// How long a debugger's first answer may wait for a run to begin. A debugger gives up soon.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two checks whether a run has begun.
const PAUSE: Duration = Duration::from_millis(1);

/// Serves debuggers, one after another, until the model is dropped. The first run that begins at
/// `entry`, or anywhere, waits for the first debugger.
pub(crate) fn spawn(
    shared: &Arc<SharedModel>,
    listener: TcpListener,
    entry: Option<u64>,
) -> std::io::Result<()> {
    let dpas: Vec<(usize, Arc<Dpa>)> = (0..shared.count())
        .filter_map(|id| Some((id, shared.peek(id, |function| function.hca.dpa.clone())?)))
        .collect();
    if dpas.is_empty() {
        return Err(std::io::Error::other("no device has a DPA"));
    }
    // A thread that polls the listener notices when the model is dropped.
    listener.set_nonblocking(true)?;
    for (_, dpa) in &dpas {
        dpa.debug_serve();
        dpa.debug_request_run(entry);
    }
    let shared = Arc::downgrade(shared);
    let serve = move || {
        while shared.strong_count() > 0 {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(20 * PAUSE);
                continue;
            };
            if !is_same_user(&stream).unwrap_or_default() {
                tracing::warn!("a debugger is refused: its connection is another user's");
                continue;
            }
            dpas.iter().for_each(|(_, dpa)| dpa.debug_request_run(entry));
            match session(stream, &dpas, &shared) {
                Ok(ended) => tracing::info!(?ended, "a debugger has left"),
                Err(error) => tracing::info!(%error, "a debugger disconnected"),
            }
            dpas.iter().for_each(|(_, dpa)| dpa.debug_cancel_request());
        }
    };
    std::thread::Builder::new().name("verbless-gdb".into()).spawn(serve).map(drop)
}

fn session(
    stream: TcpStream,
    dpas: &[(usize, Arc<Dpa>)],
    shared: &Weak<SharedModel>,
) -> std::io::Result<SessionEnd> {
    stream.set_nonblocking(false)?;
    let mut program = DebuggedRun::new(dpas, shared);
    let until = Instant::now() + ANSWER_TIMEOUT;
    while !program.begin() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    let ended = serve_program(stream, &mut program);
    program.leave(matches!(ended, Ok(SessionEnd::Killed)));
    ended
}

/// The run that the debugger controls.
struct HeldRun<'a> {
    /// The function.
    id: usize,
    dpa: &'a Dpa,
    turn: Turn,
    /// The run is over, and the next of its runner has not begun.
    over: bool,
}

/// The program of a run, as the debugger drives it.
struct DebuggedRun<'a> {
    dpas: &'a [(usize, Arc<Dpa>)],
    shared: &'a Weak<SharedModel>,
    /// `None` before the first run has begun.
    holds: Option<HeldRun<'a>>,
    breakpoints: Vec<u64>,
    /// The address at which the run stopped, if the debugger knows the reason.
    single_step: Option<u64>,
    /// The hart that the debugger sees while there is no run.
    nothing: Hart,
}

impl<'a> DebuggedRun<'a> {
    fn new(dpas: &'a [(usize, Arc<Dpa>)], shared: &'a Weak<SharedModel>) -> Self {
        let empty = AddressSpace::new([]).expect("nothing overlaps in it");
        let nothing = Hart::new(Arc::new(empty));
        Self { dpas, shared, holds: None, breakpoints: Vec::new(), single_step: None, nothing }
    }

    /// Takes the run that waits for a debugger, if there is one.
    fn begin(&mut self) -> bool {
        let begun = |(id, dpa): &'a (usize, Arc<Dpa>)| Some((*id, &**dpa, dpa.debug_begin()?));
        let Some((id, dpa, turn)) = self.dpas.iter().find_map(begun) else { return false };
        let others = self.dpas.iter().filter(|(other, _)| *other != id);
        others.for_each(|(_, dpa)| dpa.debug_cancel_request());
        self.hold(id, dpa, turn);
        true
    }

    fn hold(&mut self, id: usize, dpa: &'a Dpa, mut turn: Turn) {
        turn.hart().remove_breakpoints();
        self.breakpoints.iter().for_each(|&address| turn.hart().add_breakpoint(address));
        (self.holds, self.single_step) = (Some(HeldRun { id, dpa, turn, over: false }), None);
    }

    /// Ends the debugger's session; with `kill` it has asked for the end of the process.
    fn leave(self, kill: bool) {
        let Some(HeldRun { dpa, turn, over, .. }) = self.holds else { return };
        if kill {
            dpa.debug_kill(&turn);
        }
        dpa.debug_leave(turn, over);
    }

    /// Lets the run continue.
    fn execute(&mut self, instructions: u64) -> RunOutcome {
        let single_step = self.single_step.take();
        let Some(HeldRun { id, dpa, turn, over }) = &mut self.holds else {
            return RunOutcome::Waits;
        };
        // The debugger knows the stop at this instruction, unless it moved pc since.
        let single_step = single_step == Some(turn.hart().pc());
        let instructions = if single_step { 1 } else { instructions };
        let mut next = dpa.debug_run(turn, instructions, single_step);
        if let Debugged::Requests(request) = &next {
            let Some(shared) = self.shared.upgrade() else { return RunOutcome::Exited(0) };
            let given = serve_shared(&shared, *id, turn, request);
            next = dpa.debug_answer(turn, request, given);
        }
        match next {
            Debugged::Continues | Debugged::Requests(_) => RunOutcome::Continues,
            Debugged::Stopped(exit) => {
                self.single_step = (exit != Exit::Breakpoint).then(|| turn.hart().pc());
                RunOutcome::Stopped(exit)
            }
            Debugged::Over => {
                *over = true;
                RunOutcome::Continues
            }
        }
    }
}

impl Debuggee for DebuggedRun<'_> {
    fn hart(&mut self) -> &mut Hart {
        match &mut self.holds {
            Some(held) => held.turn.hart(),
            None => &mut self.nothing,
        }
    }

    fn run(&mut self, instructions: u64) -> RunOutcome {
        if self.shared.strong_count() == 0 {
            return RunOutcome::Exited(0);
        }
        match &self.holds {
            Some(HeldRun { over: false, .. }) => return self.execute(instructions),
            &Some(HeldRun { id, dpa, ref turn, .. }) => match dpa.debug_next(turn) {
                NextRun::Begun(next) => {
                    self.hold(id, dpa, next);
                    return self.execute(instructions);
                }
                NextRun::Never(status) => return RunOutcome::Exited(status),
                NextRun::Waits => {}
            },
            None => {
                if self.begin() {
                    // The debugger has not seen this run: it stops first.
                    return RunOutcome::Stopped(Exit::Ebreak);
                }
            }
        }
        std::thread::sleep(PAUSE);
        RunOutcome::Waits
    }

    fn add_breakpoint(&mut self, address: u64) -> bool {
        let there = self.holds.is_none() || self.hart().space().region(address).is_some();
        if there {
            self.hart().add_breakpoint(address);
            self.breakpoints.push(address);
        }
        there
    }

    fn remove_breakpoint(&mut self, address: u64) -> bool {
        let before = self.breakpoints.len();
        self.breakpoints.retain(|&other| other != address);
        self.hart().remove_breakpoint(address);
        self.breakpoints.len() < before
    }
}
