//! A hart: registers, counters, and runs of a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::block::Blocks;
use crate::exec::{self, Clock, Leave};
use crate::mmu::{Misaligned, Mmu};
use crate::space::{Access, AddressSpace};

/// The cause of a trap: the exceptions in the privileged specification's table of causes that user
/// code without address translation can raise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum Cause {
    /// No permission to execute at the address.
    FetchAccess = 1,
    /// A reserved encoding, a missing extension, a missing CSR.
    Illegal = 2,
    /// The address of a load is not a multiple of its size.
    LoadMisaligned = 4,
    /// No permission to load from the address.
    LoadAccess = 5,
    /// The address of a store, an SC or an AMO is not a multiple of its size.
    StoreMisaligned = 6,
    /// No permission to store to the address; or, for SC and AMOs, no RAM there.
    StoreAccess = 7,
}

impl Cause {
    /// The trap's number in `mcause` and `scause`.
    pub fn code(self) -> u64 {
        self as u64
    }

    /// The type of access that failed.
    pub fn access(self) -> Access {
        match self {
            Self::FetchAccess | Self::Illegal => Access::Fetch,
            Self::LoadMisaligned | Self::LoadAccess => Access::Load,
            Self::StoreMisaligned | Self::StoreAccess => Access::Store,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FetchAccess => "instruction access fault",
            Self::Illegal => "illegal instruction",
            Self::LoadMisaligned => "load address misaligned",
            Self::LoadAccess => "load access fault",
            Self::StoreMisaligned => "store address misaligned",
            Self::StoreAccess => "store access fault",
        })
    }
}

/// An exception, which the instruction at the hart's pc raised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trap {
    /// The cause.
    pub cause: Cause,
    /// The faulting address, or the instruction if it is illegal: the value of `mtval`.
    pub value: u64,
}

impl std::fmt::Display for Trap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:#x})", self.cause, self.value)
    }
}

/// Why [`Hart::run`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exit {
    /// The hart executed the given number of instructions.
    Budget,
    /// ECALL; the pc is that of the instruction. [`Hart::skip`] continues after it.
    Ecall,
    /// EBREAK or C.EBREAK; the pc is that of the instruction.
    Ebreak,
    /// An exception; the pc is that of the instruction that raised it, which changed nothing.
    Trap(Trap),
    /// WFI: the program waits for an event. The pc is after the instruction.
    Wait,
    /// PAUSE: the program spins, and may give its time to others. The pc is after the instruction.
    Pause,
    /// [`Stopper::stop`] was called.
    Stopped,
    /// The instruction at the pc has a breakpoint.
    Breakpoint,
    /// A load or store for the embedder; the pc is that of the instruction, which changed nothing.
    /// [`Hart::complete`] continues after it.
    Environment(Transfer),
}

/// A load or store at an address of the embedder ([`crate::Backing::Environment`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Transfer {
    /// The address, a multiple of `size`.
    pub address: u64,
    /// Bytes: 1, 2, 4 or 8.
    pub size: u64,
    /// The value to store, in the low bits; `None` for a load.
    pub store: Option<u64>,
}

/// The registers of a hart, for crash reports, core dumps and debuggers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Registers {
    /// x0 to x31; x0 is 0.
    pub x: [u64; 32],
    /// The address of the next instruction.
    pub pc: u64,
}

/// Stops a hart from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stopper(Arc<AtomicBool>);

impl Stopper {
    /// Makes the hart's current run return soon, whatever the program does. If the hart does not
    /// run, its next run returns at once.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One thread of execution in an address space.
///
/// It runs on the thread that calls [`Hart::run`]. Harts of one space may run at the same time:
/// each plain access is a relaxed atomic access, LR/SC and AMOs are sequentially consistent, and
/// FENCE is a fence.
pub struct Hart {
    core: exec::Core,
    stopper: Stopper,
}

impl std::fmt::Debug for Hart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hart")
            .field("registers", &self.registers())
            .field("instructions", &self.instructions())
            .finish_non_exhaustive()
    }
}

impl Hart {
    /// A hart in this space with all registers 0.
    pub fn new(space: Arc<AddressSpace>) -> Self {
        let core = exec::Core {
            x: [0; 256],
            pc: 0,
            retired: 0,
            reported: None,
            stalled: None,
            clock: None,
            mmu: Mmu::new(space),
            blocks: Blocks::new(),
        };
        Self { core, stopper: Stopper::default() }
    }

    /// Executes at most `budget` instructions, and returns why it stopped. An instruction that
    /// raises an exception counts as well.
    pub fn run(&mut self, budget: u64) -> Exit {
        let exit = match self.core.run(budget, &self.stopper.0) {
            Leave::Budget => Exit::Budget,
            Leave::Stopped => Exit::Stopped,
            Leave::Ecall => Exit::Ecall,
            Leave::Ebreak => Exit::Ebreak,
            Leave::Wait => Exit::Wait,
            Leave::Pause => Exit::Pause,
            Leave::Breakpoint => Exit::Breakpoint,
            Leave::Illegal(value) => Exit::Trap(Trap { cause: Cause::Illegal, value }),
            Leave::FetchFault(value) => Exit::Trap(Trap { cause: Cause::FetchAccess, value }),
            Leave::DataFault => {
                let failure = self.core.mmu.failure();
                if failure.environment
                    && let Some(transfer) = self.transfer(failure.address, failure.access)
                {
                    return Exit::Environment(transfer);
                }
                let cause = match (failure.access, failure.misaligned) {
                    (Access::Store, false) => Cause::StoreAccess,
                    (Access::Store, true) => Cause::StoreMisaligned,
                    (_, false) => Cause::LoadAccess,
                    (_, true) => Cause::LoadMisaligned,
                };
                Exit::Trap(Trap { cause, value: failure.address })
            }
        };
        // As after a trap handler: an LR and its SC must not span other code.
        if !matches!(exit, Exit::Budget | Exit::Stopped | Exit::Pause | Exit::Breakpoint) {
            self.core.mmu.forget_reservation();
        }
        exit
    }

    /// The memory access of the operation at which the hart stalled; `None` if it is not a plain
    /// load or store.
    fn transfer(&self, address: u64, access: Access) -> Option<Transfer> {
        let (op, _) = self.core.stalled?;
        let (size, _) = op.kind.access()?;
        let mask = u64::MAX >> (64 - 8 * size);
        let store = (access == Access::Store).then(|| self.core.x[usize::from(op.rs2)] & mask);
        Some(Transfer { address, size, store })
    }

    /// Completes the load or store of [`Exit::Environment`], a load with the low bits of `value`,
    /// and continues after it. Does nothing if the hart did not stall at one.
    pub fn complete(&mut self, value: u64) {
        let Some((op, next_pc)) = self.core.stalled.take() else { return };
        let Some((size, signed)) = op.kind.access() else { return };
        if let Some(signed) = signed {
            let unused = 64 - 8 * size as u32;
            self.core.x[usize::from(op.rd)] = match signed {
                true => ((value << unused) as i64 >> unused) as u64,
                false => value << unused >> unused,
            };
        }
        self.core.pc = next_pc;
        self.core.retired += 1;
    }

    /// The current values of the registers.
    pub fn registers(&self) -> Registers {
        let mut x = [0; 32];
        x.copy_from_slice(&self.core.x[..32]);
        Registers { x, pc: self.core.pc }
    }

    /// Sets all registers. x0 stays 0, and bit 0 of the pc is ignored.
    pub fn set_registers(&mut self, registers: &Registers) {
        self.core.x[1..32].copy_from_slice(&registers.x[1..]);
        self.set_pc(registers.pc);
    }

    /// The integer register `index`.
    ///
    /// # Panics
    /// If `index` is more than 31.
    pub fn x(&self, index: usize) -> u64 {
        assert!(index < 32, "there is no register x{index}");
        self.core.x[index]
    }

    /// Sets an integer register; does nothing for x0.
    ///
    /// # Panics
    /// If `index` is more than 31.
    pub fn set_x(&mut self, index: usize, value: u64) {
        assert!(index < 32, "there is no register x{index}");
        if index != 0 {
            self.core.x[index] = value;
        }
    }

    /// The address of the next instruction.
    pub fn pc(&self) -> u64 {
        self.core.pc
    }

    /// Sets the address of the next instruction; bit 0 is ignored.
    pub fn set_pc(&mut self, pc: u64) {
        self.core.pc = pc & !1;
    }

    /// Continues after the ECALL or EBREAK at the pc: by 2 bytes for C.EBREAK, else by 4.
    pub fn skip(&mut self) {
        let short = self.core.mmu.fetch(self.core.pc).is_some_and(|it| it & 3 != 3);
        self.core.pc = self.core.pc.wrapping_add(if short { 2 } else { 4 });
    }

    /// Completed instructions: the program's `instret` and, at one a cycle, `cycle`.
    pub fn instructions(&self) -> u64 {
        self.core.retired
    }

    /// Sets the clock that `time` reads; without it, `time` equals `instret`.
    pub fn set_clock(&mut self, clock: Clock) {
        self.core.clock = Some(clock);
    }

    /// Sets how misaligned loads and stores behave.
    pub fn set_misaligned(&mut self, misaligned: Misaligned) {
        self.core.mmu.set_misaligned(misaligned);
    }

    /// The address space.
    pub fn space(&self) -> &Arc<AddressSpace> {
        self.core.mmu.space()
    }

    /// Sets another address space; discards all translated code.
    pub fn set_space(&mut self, space: Arc<AddressSpace>) {
        self.core.mmu.set_space(space);
        self.core.blocks.forget();
    }

    /// Discards the translated code, as FENCE.I does: necessary when another agent than this hart
    /// wrote code that the hart may have executed.
    pub fn flush(&mut self) {
        self.core.flush();
    }

    /// Approximate size of the translated code in bytes.
    pub fn translated(&self) -> usize {
        self.core.blocks.bytes()
    }

    /// Discards the translated code and frees its memory.
    pub fn release(&mut self) {
        self.core.flush();
        self.core.blocks.release();
    }

    /// A handle by which other threads stop this hart.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Sets a breakpoint: a run returns before the instruction at `address` is executed; the next
    /// run executes it.
    pub fn add_breakpoint(&mut self, address: u64) {
        if self.core.blocks.breakpoints.insert(address) {
            self.core.flush();
        }
    }

    /// Removes a breakpoint; false if there was none.
    pub fn remove_breakpoint(&mut self, address: u64) -> bool {
        let there = self.core.blocks.breakpoints.remove(&address);
        if there {
            self.core.flush();
        }
        there
    }

    /// Removes all breakpoints.
    pub fn remove_breakpoints(&mut self) {
        if !self.core.blocks.breakpoints.is_empty() {
            self.core.blocks.breakpoints.clear();
            self.core.flush();
        }
    }
}
