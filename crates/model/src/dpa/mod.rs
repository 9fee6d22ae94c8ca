//! The DPA of a function: processes with address spaces of their own, threads that run on RISC-V
//! cores in software, and the run-time system under them.
//!
//! This module knows neither the objects of commands nor the data path. Commands create and end
//! processes, threads and calls; an event wakes a thread; a thread gives a run a turn
//! ([`Dpa::turn`]). A program's request to the device, a doorbell or an access through a window,
//! ends its turn as an [`DeviceRequest`], which a thread with the locked function serves.
//!
//! The internals of hardware's system are not published. The outbox registers and the thread
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
    Changes, EuSharing, Group, MAX_PARTITION_MEMBERS, Partition, Rights, Sender, ShareRefusal,
};
pub(crate) use registers::{DeviceAnswer, DeviceRequest, Doorbell, Queues};
pub(crate) use runner::{Affinity, RunnerId, RunnerState, Start};
pub(crate) use scheduler::{Dpa, DpaLimits, Refused};
#[cfg(test)]
pub(crate) use state::MAX_TRANSLATED_BYTES;
pub(crate) use state::function_of;
pub(crate) use turns::{ShortTurn, Turn, Waker};
pub(crate) use units::Units;
