//! A RISC-V core in software: RV64IMAC with Zicsr, Zicntr and Zifencei, user code only.
//!
//! The cores of a DPA execute it. The rest of such a core (processes, threads, system calls,
//! devices) is the embedder's part. Without the feature `gdb` the crate depends only on the
//! standard library.
//!
//! | module | contents |
//! |---|---|
//! | `ram`, `space` | memory that harts and others share; regions, permissions, devices |
//! | `mmu` | how a hart reaches them: cached pages, LR/SC and AMOs, stores into code |
//! | `decode`, `compressed`, `op` | instructions of 32 and 16 bits to operations |
//! | `block` | translated code: made, linked, forgotten |
//! | `exec`, `arith` | the interpreter |
//! | `hart` | registers, budgets, exits, stopping |
//! | [`elf`] | programs as linkers write them |
//! | `gdb` | a hart under a debugger, with the feature `gdb` |
//!
//! ```
//! use std::sync::Arc;
//! use verbless_riscv::{AddressSpace, Exit, Hart, Permissions, Ram, Region};
//!
//! let ram = Ram::new(4096);
//! // addi a0, a0, 1; ecall
//! let code: Vec<u8> = [0x0015_0513_u32, 0x73].iter().flat_map(|it| it.to_le_bytes()).collect();
//! ram.write(0, &code);
//! let space = AddressSpace::new([Region::ram(0x4000_0000, &ram, Permissions::RX)])?;
//! let mut hart = Hart::new(Arc::new(space));
//! hart.set_pc(0x4000_0000);
//! hart.set_x(10, 41);
//! assert_eq!(hart.run(1000), Exit::Ecall);
//! assert_eq!(hart.x(10), 42);
//! # Ok::<(), verbless_riscv::MapError>(())
//! ```
//!
//! Where the specification leaves a choice:
//! - A misaligned load or store traps, or is emulated ([`Misaligned`]); a misaligned atomic traps.
//! - A reserved encoding, or one of an unsupported extension, is an illegal instruction.
//! - An address without a region, or without the permission, is an access fault; there are no page
//!   faults. Instructions need execute permission only.
//! - `cycle` counts what `instret` counts; ECALL and EBREAK do not count.
//! - SC succeeds if the address still holds the value of the LR of the same width and address.
//! - A store of the hart itself into code is effective at once. FENCE.I is needed for code that
//!   others wrote.
//! - WFI and PAUSE end a run: the caller decides how long the hart waits.

mod arith;
mod block;
mod compressed;
mod decode;
pub mod elf;
mod exec;
#[cfg(feature = "gdb")]
pub mod gdb;
mod hart;
mod mmu;
mod op;
mod ram;
mod space;

pub use elf::{ElfError, Program};
pub use exec::Clock;
pub use hart::{Cause, Exit, Hart, Registers, Stopper, Transfer, Trap};
pub use mmu::Misaligned;
pub use ram::{PAGE, Ram};
pub use space::{Access, AddressSpace, Backing, Device, MapError, Permissions, Refused, Region};
