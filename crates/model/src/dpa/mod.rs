//! The DPA of a function: processes with address spaces of their own, threads that run on RISC-V
//! cores in software, and the run-time system under them.
//!
//! Nothing here knows the objects of commands or the data path. Commands make and end processes,
//! threads and calls; an event wakes a thread; whoever has time gives a run a turn ([`Dpa::turn`]).
//! What a program wants of the device in its turn, a doorbell or an access through a window, comes
//! out of it as an [`Ask`], for somebody who has the function.
//!
//! What hardware's system looks like inside is not published. The outbox registers and the thread
//! context are (`registers`, `context`); system calls, address map, windows and codes are ours, and
//! docs/dpa.md describes them to programs.

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

pub(crate) use context::HEAP;
#[cfg(test)]
pub(crate) use context::{WINDOW_CONFIGS, WINDOWS};
pub(crate) use coredump::{CHUNK, CoreDump};
#[cfg(feature = "gdb")]
pub(crate) use debug::{Debugged, NextRun};
pub(crate) use partitions::{
    Changes, Group, MOST_MEMBERS, Partition, Rights, Sender, Sharing, Unshared,
};
pub(crate) use registers::{Ask, Doorbell, Given, Queues};
pub(crate) use runner::{Affinity, RunnerId, RunnerState, Start};
pub(crate) use scheduler::{Dpa, Numbers, Refused};
#[cfg(test)]
pub(crate) use state::MOST_TRANSLATED;
pub(crate) use state::function_of;
pub(crate) use turns::{Soon, Turn, Waker};
pub(crate) use units::Units;
