//! A hart under a debugger: GDB's remote protocol, which `gdb-multiarch` and LLDB speak.
//!
//! ```no_run
//! # fn f(hart: &mut verbless_riscv::Hart) -> std::io::Result<()> {
//! use verbless_riscv::Exit;
//! use verbless_riscv::gdb::{AfterExit, serve};
//!
//! let listener = std::net::TcpListener::bind("127.0.0.1:1234")?;
//! println!("gdb-multiarch -ex 'target remote :1234' PROGRAM");
//! let (stream, _) = listener.accept()?;
//! assert!(verbless_riscv::gdb::is_same_user(&stream)?, "every user can connect to a port");
//! let ended = serve(stream, hart, |hart, exit| match exit {
//!     // The program's only system call ends it.
//!     Exit::Ecall => AfterExit::Exited(hart.x(10) as u8),
//!     _ => AfterExit::Continues,
//! })?;
//! println!("{ended:?}");
//! # Ok(())
//! # }
//! ```
//!
//! The debugger reads and writes the hart's registers and memory, steps, continues, interrupts, and
//! sets breakpoints. Other harts of the space run on.

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

mod peer;

pub use peer::is_same_user;

use crate::hart::{Cause, Exit, Hart, Registers, Trap};

/// Instructions that are executed before the debugger's input is checked again.
const QUANTUM: u64 = 100_000;

/// Maximum bytes of a packet. The debugger gets this limit; a peer that sends more is not a
/// debugger.
const MAX_PACKET_BYTES: usize = 16 << 10;

/// How a program continues after an exit that the debugger does not handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterExit {
    /// The program continues at the hart's pc.
    Continues,
    /// The program has ended, with this code.
    Exited(u8),
}

/// A program under a debugger: a hart, and an environment that handles the program's exits.
pub trait Debuggee {
    /// The hart that the debugger sees.
    fn hart(&mut self) -> &mut Hart;

    /// Executes at most `instructions` instructions.
    fn run(&mut self, instructions: u64) -> RunOutcome;

    /// Sets a breakpoint; false if none is possible there.
    fn add_breakpoint(&mut self, address: u64) -> bool {
        let there = self.hart().space().region(address).is_some();
        if there {
            self.hart().add_breakpoint(address);
        }
        there
    }

    /// Removes a breakpoint; false if there was none.
    fn remove_breakpoint(&mut self, address: u64) -> bool {
        self.hart().remove_breakpoint(address)
    }
}

/// The result of running a program for some instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunOutcome {
    /// The program can continue.
    Continues,
    /// The program has nothing to execute at the moment.
    Waits,
    /// The program stopped at a breakpoint, EBREAK or a trap, for the debugger.
    Stopped(Exit),
    /// The program has ended, with this code.
    Exited(u8),
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEnd {
    /// The debugger has left; the hart stays where it was, without the debugger's breakpoints.
    Detached,
    /// The debugger ended the program.
    Killed,
    /// The program has ended, with this code.
    Exited(u8),
}

/// Serves a debugger until it detaches or the program ends. The hart runs only at the debugger's
/// request. `after` handles the exits [`Exit::Ecall`], [`Exit::Wait`], [`Exit::Pause`],
/// [`Exit::Stopped`] and [`Exit::Environment`]; all others are reported to the debugger.
///
/// After an [`Exit::Ecall`] the program continues after the instruction.
///
/// # Errors
/// The connection fails, or closes without a detach.
pub fn serve(
    stream: TcpStream,
    hart: &mut Hart,
    after: impl FnMut(&mut Hart, Exit) -> AfterExit,
) -> io::Result<SessionEnd> {
    serve_program(stream, &mut BareHart { hart, after })
}

/// Serves a debugger of a program with an environment of its own, as [`serve`] does for a hart.
///
/// # Errors
/// The connection fails, or closes without a detach.
pub fn serve_program<D: Debuggee>(stream: TcpStream, program: &mut D) -> io::Result<SessionEnd> {
    stream.set_nodelay(true)?;
    let mut session = Session { program, step: false, breakpoints: Vec::new() };
    let connection: Stream = Box::new(stream);
    let mut packet = vec![0; MAX_PACKET_BYTES];
    let stub = GdbStub::builder(connection).with_packet_buffer(&mut packet).build();
    let stub = stub.map_err(io::Error::other)?;
    let ended = stub.run_blocking::<Loop<_>>(&mut session);
    for address in session.breakpoints {
        session.program.remove_breakpoint(address);
    }
    match ended {
        Ok(DisconnectReason::Disconnect) => Ok(SessionEnd::Detached),
        Ok(DisconnectReason::TargetExited(code)) => Ok(SessionEnd::Exited(code)),
        Ok(DisconnectReason::Kill | DisconnectReason::TargetTerminated(_)) => {
            Ok(SessionEnd::Killed)
        }
        Err(error) => Err(io::Error::other(format!("the debugger's connection: {error}"))),
    }
}

type Stream = Box<dyn ConnectionExt<Error = io::Error>>;

/// A hart without an environment of its own.
struct BareHart<'h, F> {
    hart: &'h mut Hart,
    after: F,
}

impl<F: FnMut(&mut Hart, Exit) -> AfterExit> Debuggee for BareHart<'_, F> {
    fn hart(&mut self) -> &mut Hart {
        self.hart
    }

    fn run(&mut self, instructions: u64) -> RunOutcome {
        let exit = self.hart.run(instructions);
        match exit {
            Exit::Budget => RunOutcome::Continues,
            Exit::Breakpoint | Exit::Ebreak | Exit::Trap(_) => RunOutcome::Stopped(exit),
            Exit::Ecall | Exit::Wait | Exit::Pause | Exit::Stopped | Exit::Environment(_) => {
                let at = self.hart.pc();
                match (self.after)(self.hart, exit) {
                    AfterExit::Exited(code) => return RunOutcome::Exited(code),
                    // A call that has changed the pc continues there.
                    AfterExit::Continues if exit == Exit::Ecall && self.hart.pc() == at => {
                        self.hart.skip();
                    }
                    AfterExit::Continues => {}
                }
                RunOutcome::Continues
            }
        }
    }
}

/// The program during a session.
struct Session<'h, D> {
    program: &'h mut D,
    /// The next run executes one instruction.
    step: bool,
    breakpoints: Vec<u64>,
}

impl<D: Debuggee> Session<'_, D> {
    /// Runs for a while; `None` if the program has not stopped.
    fn run(&mut self) -> Option<SingleThreadStopReason<u64>> {
        let signal = match self.program.run(if self.step { 1 } else { QUANTUM }) {
            RunOutcome::Continues => return self.step.then_some(SingleThreadStopReason::DoneStep),
            RunOutcome::Waits => return None,
            RunOutcome::Exited(code) => return Some(SingleThreadStopReason::Exited(code)),
            RunOutcome::Stopped(Exit::Breakpoint) => {
                return Some(SingleThreadStopReason::SwBreak(()));
            }
            RunOutcome::Stopped(Exit::Trap(Trap { cause, .. })) => match cause {
                Cause::Illegal => Signal::SIGILL,
                Cause::LoadMisaligned | Cause::StoreMisaligned => Signal::SIGBUS,
                _ => Signal::SIGSEGV,
            },
            RunOutcome::Stopped(_) => Signal::SIGTRAP,
        };
        Some(SingleThreadStopReason::Signal(signal))
    }
}

struct Loop<T>(PhantomData<T>);

impl<'h, D: Debuggee> BlockingEventLoop for Loop<Session<'h, D>> {
    type Target = Session<'h, D>;
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

impl<D: Debuggee> Target for Session<'_, D> {
    type Arch = Riscv64;
    type Error = &'static str;

    fn base_ops(&mut self) -> BaseOps<'_, Riscv64, &'static str> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl<D: Debuggee> SingleThreadBase for Session<'_, D> {
    fn read_registers(&mut self, into: &mut RiscvCoreRegs<u64>) -> TargetResult<(), Self> {
        let Registers { x, pc } = self.program.hart().registers();
        (into.x, into.pc) = (x, pc);
        Ok(())
    }

    fn write_registers(&mut self, from: &RiscvCoreRegs<u64>) -> TargetResult<(), Self> {
        self.program.hart().set_registers(&Registers { x: from.x, pc: from.pc });
        Ok(())
    }

    fn read_addrs(&mut self, start: u64, into: &mut [u8]) -> TargetResult<usize, Self> {
        match self.program.hart().space().peek(start, into) {
            // A debugger asks for at least one byte.
            0 => Err(TargetError::NonFatal),
            some => Ok(some),
        }
    }

    fn write_addrs(&mut self, start: u64, bytes: &[u8]) -> TargetResult<(), Self> {
        let written = self.program.hart().space().poke(start, bytes);
        // The bytes may be code.
        self.program.hart().flush();
        if written == bytes.len() { Ok(()) } else { Err(TargetError::NonFatal) }
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl<D: Debuggee> SingleThreadResume for Session<'_, D> {
    fn resume(&mut self, _signal: Option<Signal>) -> Result<(), &'static str> {
        self.step = false;
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        Some(self)
    }
}

impl<D: Debuggee> SingleThreadSingleStep for Session<'_, D> {
    fn step(&mut self, _signal: Option<Signal>) -> Result<(), &'static str> {
        self.step = true;
        Ok(())
    }
}

impl<D: Debuggee> Breakpoints for Session<'_, D> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl<D: Debuggee> SwBreakpoint for Session<'_, D> {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        let set = self.program.add_breakpoint(address);
        if set {
            self.breakpoints.push(address);
        }
        Ok(set)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        self.breakpoints.retain(|&other| other != address);
        Ok(self.program.remove_breakpoint(address))
    }
}
