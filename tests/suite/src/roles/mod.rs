//! Cases of two programs that talk to each other over a device.
//!
//! A case has two roles. On the model in this process each role is a thread: closing its device
//! files kills it, and links and commands can fail meanwhile. If the device is behind a kernel
//! (under `verbless-model run`, in a VM, on hardware), each role is a process of its own, and a
//! signal kills it. The second role may be on another machine.
//!
//! - `case`: a case: its roles, its kill point, its fault and when it happens; `cases`: the cases.
//! - `role`: the interface of a role; `process`: a role in its own process.
//! - `files`: the device files of a role, which close with it.
//! - `frame`: frames over a stream; `channel`: the messages between roles and their director.
//! - `director`: starts roles, carries messages between them, kills, and judges.
//! - `perf`: a measurement between two roles.
//! - `wire`: what two machines say first; `server` plays roles for another machine, `remote` is
//!   the connection to it.

mod case;
mod cases;
mod channel;
mod director;
mod files;
mod frame;
mod perf;
mod process;
mod remote;
mod role;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use case::{Case, Side};
pub use director::row;
pub use perf::measure;
pub use process::{Program, lab, play};
pub use remote::Peer;
pub use server::Server;
pub use wire::{About, describe, with_port};

/// All cases, in the order in which they run.
pub fn all() -> Vec<Case> {
    cases::all()
}
