//! A hart under a debugger: GDB's remote protocol, which `gdb-multiarch` and LLDB speak.
//!
//! ```no_run
//! # fn f(hart: &mut verbless_riscv::Hart) -> std::io::Result<()> {
//! use verbless_riscv::Exit;
//! use verbless_riscv::gdb::{After, serve};
//!
//! let listener = std::net::TcpListener::bind("127.0.0.1:1234")?;
//! println!("gdb-multiarch -ex 'target remote :1234' PROGRAM");
//! let (stream, _) = listener.accept()?;
//! let ended = serve(stream, hart, |hart, exit| match exit {
//!     // The program's only system call ends it.
//!     Exit::Ecall => After::Exited(hart.x(10) as u8),
//!     _ => After::GoesOn,
//! })?;
//! println!("{ended:?}");
//! # Ok(())
//! # }
//! ```
//!
//! The debugger sees the hart's registers and its memory, writes them, steps, continues, interrupts
//! and sets breakpoints. Other harts of the space run on.

use std::io;
use std::marker::PhantomData;
use std::net::TcpStream;

use gdbstub::common::Signal;
use gdbstub::conn::ConnectionExt;
use gdbstub::stub::run_blocking::{BlockingEventLoop, Event, WaitForStopReasonError};
use gdbstub::stub::{DisconnectReason, GdbStub, SingleThreadStopReason};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::singlethread::{
    SingleThreadBase, SingleThreadResume, SingleThreadResumeOps, SingleThreadSingleStep,
    SingleThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, SwBreakpoint, SwBreakpointOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::riscv::Riscv64;
use gdbstub_arch::riscv::reg::RiscvCoreRegs;

use crate::hart::{Cause, Exit, Hart, Registers, Trap};

/// Instructions between two looks at what the debugger has sent.
const QUANTUM: u64 = 100_000;

/// What becomes of a program that left the hart for something that is no debugger's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// It goes on at the hart's pc.
    GoesOn,
    /// It has ended, with this code.
    Exited(u8),
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The debugger has left; the hart is where it was then, without the debugger's breakpoints.
    Detached,
    /// The debugger has asked for the end of the program.
    Killed,
    /// The program has ended, with this code.
    Exited(u8),
}

/// Serves a debugger until it leaves or the program ends. The hart does not run before the debugger
/// says so. `after` is asked when the hart leaves by [`Exit::Ecall`], [`Exit::Wait`],
/// [`Exit::Pause`], [`Exit::Stopped`] or [`Exit::Environment`]; of all else the debugger is told.
///
/// An [`Exit::Ecall`] that goes on does so behind the instruction.
///
/// # Errors
/// The connection fails, or ends without a word.
pub fn serve(
    stream: TcpStream,
    hart: &mut Hart,
    after: impl FnMut(&mut Hart, Exit) -> After,
) -> io::Result<Ended> {
    stream.set_nodelay(true)?;
    let mut debuggee = Debuggee { hart, after, step: false, breakpoints: Vec::new() };
    let connection: Stream = Box::new(stream);
    let ended = GdbStub::new(connection).run_blocking::<Loop<_>>(&mut debuggee);
    for address in debuggee.breakpoints {
        debuggee.hart.remove_breakpoint(address);
    }
    match ended {
        Ok(DisconnectReason::Disconnect) => Ok(Ended::Detached),
        Ok(DisconnectReason::TargetExited(code)) => Ok(Ended::Exited(code)),
        Ok(DisconnectReason::Kill | DisconnectReason::TargetTerminated(_)) => Ok(Ended::Killed),
        Err(error) => Err(io::Error::other(format!("the debugger's connection: {error}"))),
    }
}

type Stream = Box<dyn ConnectionExt<Error = io::Error>>;

/// A hart as the protocol knows it.
struct Debuggee<'h, F> {
    hart: &'h mut Hart,
    after: F,
    /// The next run is of one instruction.
    step: bool,
    breakpoints: Vec<u64>,
}

impl<F: FnMut(&mut Hart, Exit) -> After> Debuggee<'_, F> {
    /// Runs for a while; `None`: it has not stopped.
    fn run(&mut self) -> Option<SingleThreadStopReason<u64>> {
        let exit = self.hart.run(if self.step { 1 } else { QUANTUM });
        let signal = |signal| Some(SingleThreadStopReason::Signal(signal));
        match exit {
            Exit::Budget if !self.step => None,
            Exit::Budget => Some(SingleThreadStopReason::DoneStep),
            Exit::Breakpoint => Some(SingleThreadStopReason::SwBreak(())),
            Exit::Ebreak => signal(Signal::SIGTRAP),
            Exit::Trap(Trap { cause, .. }) => signal(match cause {
                Cause::Illegal => Signal::SIGILL,
                Cause::LoadMisaligned | Cause::StoreMisaligned => Signal::SIGBUS,
                _ => Signal::SIGSEGV,
            }),
            Exit::Ecall | Exit::Wait | Exit::Pause | Exit::Stopped | Exit::Environment(_) => {
                let at = self.hart.pc();
                match (self.after)(self.hart, exit) {
                    After::Exited(code) => return Some(SingleThreadStopReason::Exited(code)),
                    // A call that has changed the pc knows where it goes on.
                    After::GoesOn if exit == Exit::Ecall && self.hart.pc() == at => {
                        self.hart.skip();
                    }
                    After::GoesOn => {}
                }
                self.step.then_some(SingleThreadStopReason::DoneStep)
            }
        }
    }
}

struct Loop<T>(PhantomData<T>);

impl<'h, F: FnMut(&mut Hart, Exit) -> After> BlockingEventLoop for Loop<Debuggee<'h, F>> {
    type Target = Debuggee<'h, F>;
    type Connection = Stream;
    type StopReason = SingleThreadStopReason<u64>;

    fn wait_for_stop_reason(
        target: &mut Self::Target,
        connection: &mut Stream,
    ) -> Result<Event<Self::StopReason>, WaitForStopReasonError<&'static str, io::Error>> {
        loop {
            if connection.peek().map_err(WaitForStopReasonError::Connection)?.is_some() {
                let byte = connection.read().map_err(WaitForStopReasonError::Connection)?;
                return Ok(Event::IncomingData(byte));
            }
            if let Some(reason) = target.run() {
                return Ok(Event::TargetStopped(reason));
            }
        }
    }

    fn on_interrupt(_: &mut Self::Target) -> Result<Option<Self::StopReason>, &'static str> {
        Ok(Some(SingleThreadStopReason::Signal(Signal::SIGINT)))
    }
}

impl<F: FnMut(&mut Hart, Exit) -> After> Target for Debuggee<'_, F> {
    type Arch = Riscv64;
    type Error = &'static str;

    fn base_ops(&mut self) -> BaseOps<'_, Riscv64, &'static str> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl<F: FnMut(&mut Hart, Exit) -> After> SingleThreadBase for Debuggee<'_, F> {
    fn read_registers(&mut self, into: &mut RiscvCoreRegs<u64>) -> TargetResult<(), Self> {
        let Registers { x, pc } = self.hart.registers();
        (into.x, into.pc) = (x, pc);
        Ok(())
    }

    fn write_registers(&mut self, from: &RiscvCoreRegs<u64>) -> TargetResult<(), Self> {
        self.hart.set_registers(&Registers { x: from.x, pc: from.pc });
        Ok(())
    }

    fn read_addrs(&mut self, start: u64, into: &mut [u8]) -> TargetResult<usize, Self> {
        match self.hart.space().peek(start, into) {
            0 if !into.is_empty() => Err(TargetError::NonFatal),
            some => Ok(some),
        }
    }

    fn write_addrs(&mut self, start: u64, bytes: &[u8]) -> TargetResult<(), Self> {
        let written = self.hart.space().poke(start, bytes);
        // It may be code.
        self.hart.flush();
        if written == bytes.len() { Ok(()) } else { Err(TargetError::NonFatal) }
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl<F: FnMut(&mut Hart, Exit) -> After> SingleThreadResume for Debuggee<'_, F> {
    fn resume(&mut self, _signal: Option<Signal>) -> Result<(), &'static str> {
        self.step = false;
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        Some(self)
    }
}

impl<F: FnMut(&mut Hart, Exit) -> After> SingleThreadSingleStep for Debuggee<'_, F> {
    fn step(&mut self, _signal: Option<Signal>) -> Result<(), &'static str> {
        self.step = true;
        Ok(())
    }
}

impl<F: FnMut(&mut Hart, Exit) -> After> Breakpoints for Debuggee<'_, F> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl<F: FnMut(&mut Hart, Exit) -> After> SwBreakpoint for Debuggee<'_, F> {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        if self.hart.space().region(address).is_none() {
            return Ok(false);
        }
        self.hart.add_breakpoint(address);
        self.breakpoints.push(address);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.breakpoints.retain(|&other| other != address);
        Ok(self.hart.remove_breakpoint(address))
    }
}
