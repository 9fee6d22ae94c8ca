//! A software DPA, one for each function of a device: processes with their own address spaces,
//! threads and calls that run on RISC-V cores ([`verbless_riscv`]), and their run-time system.
//!
//! The crate knows neither a device's objects nor its data path, which are the embedder's part.
//! Commands create and end processes, threads and calls ([`Dpa`]); an event wakes a thread; a
//! thread of the embedder gives a run a turn ([`Dpa::turn`], [`Dpa::run`]). A program's request to
//! the device, a doorbell or an access through a window, ends its turn as a [`DeviceRequest`],
//! which the embedder serves and answers ([`Dpa::answer`]).
//!
//! Of the hardware's run-time system, only the outbox registers and the thread context are
//! published (`registers`, `context`). System calls, address map, windows and codes are this
//! crate's own; docs/dpa.md describes them to programs.
//!
//! | module | contents |
//! |---|---|
//! | `scheduler` | [`Dpa`]: the commands, with the limits of a DPA |
//! | `turns` | turns: a thread takes a run, executes it, and puts it back |
//! | `state` | the state of a DPA: processes, their runs, execution units |
//! | `process`, `runner` | a process with its memory; a thread or a call |
//! | `partitions`, `units` | how the functions of a card share its EUs; the queue for EUs |
//! | `context`, `registers`, `system` | what a program sees: its context, registers, system calls |
//! | `coredump` | the core file of a process |
//! | `debug` | a run under a debugger, with the feature `gdb` |
//!
//! ```
//! use verbless_dpa::{Dpa, DpaLimits, RunnerId, RunnerState, Start};
//!
//! # fn file() -> Vec<u8> {
//! #     let mut file = vec![0; 128];
//! #     file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
//! #     file[16..21].copy_from_slice(&[2, 0, 243, 0, 1]);
//! #     file[32] = 64;
//! #     file[52..59].copy_from_slice(&[64, 0, 56, 0, 1, 0, 64]);
//! #     file[64..69].copy_from_slice(&[1, 0, 0, 0, 5]);
//! #     for (at, word) in [(72, 120), (80, 0x4000_0000_u64), (96, 8), (104, 8), (112, 1)] {
//! #         file[at..at + 8].copy_from_slice(&word.to_le_bytes());
//! #     }
//! #     file[120..124].copy_from_slice(&0x00b5_0533_u32.to_le_bytes());
//! #     file[124..].copy_from_slice(&0x0000_8067_u32.to_le_bytes());
//! #     file
//! # }
//! # fn main() -> Result<(), verbless_dpa::DpaRefusal> {
//! let memory = 1 << 30;
//! let limits = DpaLimits { units: 1, groups: 0, partitions: 0, memory, watchdog: 1 << 20 };
//! let dpa = Dpa::new(limits);
//! // add a0, a0, a1; ret, at 0x4000_0000
//! dpa.create(1, &file(), 0, 0)?;
//! let mut start = Start { entry: 0x4000_0000, ..Start::default() };
//! start.arguments[..2].copy_from_slice(&[40, 2]);
//! dpa.add(RunnerId::Call(1), 1, start)?;
//! while let Some(turn) = dpa.turn() {
//!     assert!(dpa.run(turn).is_none(), "the run makes no request to the device");
//! }
//! let (state, counts, _) = dpa.runner(RunnerId::Call(1)).expect("the call");
//! assert_eq!((state, counts.result), (RunnerState::Finished, 42));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod context;
mod coredump;
#[cfg(feature = "gdb")]
mod debug;
mod partitions;
mod process;
mod registers;
mod runner;
mod scheduler;
mod state;
mod system;
#[cfg(test)]
mod tests;
mod turns;
mod units;

pub use context::{HEAP, NO_ID, WINDOW_CONFIGS, WINDOWS};
pub use coredump::{CHUNK, CoreDump};
#[cfg(feature = "gdb")]
pub use debug::{Debugged, NextRun};
pub use partitions::{
    EuSharing, Group, MAX_PARTITION_MEMBERS, Partition, PartitionChanges, Rights, Sender,
    ShareRefusal,
};
pub use process::{Crash, ProcessState};
pub use registers::{DeviceAnswer, DeviceRequest, Doorbell, Queues};
pub use runner::{Affinity, RunnerCounts, RunnerId, RunnerState, Start};
pub use scheduler::{Dpa, DpaLimits, DpaRefusal};
pub use state::{MAX_TRANSLATED_BYTES, function_of};
pub use turns::{ShortTurn, Turn, Waker};
pub use units::Units;
