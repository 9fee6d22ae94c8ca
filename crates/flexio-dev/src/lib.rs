//! The FlexIO device API for programs that run on a DPA.
//!
//! - [`calls`]: the functions of the C API under their names, for a thread that rings doorbells and
//!   copies through windows; [`calls::with_context`] has the signatures from before 24.10.
//! - [`context`]: the thread context, with the addresses of a thread's outboxes and windows.
//! - [`outbox`], [`window`]: doorbells, and access to memory of the host.
//! - [`system`]: the end of runs and processes, and the start of other threads. [`perf`]: cycles
//!   and instructions.
//! - [`event`]: CQEs and EQEs in rings of the device; [`record`]: doorbell records.
//! - [`segment`]: the 16-byte segments of send WQEs, made of the types of `verbless-prm`.
//! - [`message`]: text for the host, and panics. [`trace`](mod@trace): records of a number and up
//!   to six words, which the host can format.
//! - [`stream`]: the transport of messages and records to the host.
//! - [`cmdq`]: execution of the host's tasks.
//! - [`lock`]: a spin lock between threads. [`metadata`]: a thread's number, storage and name, set
//!   by the host.
//!
//! The DPA's layouts of context, outbox and queues are published (FlexIO SDK 25.1, device headers
//! under BSD-3-Clause); the numbers here are from there. System calls, the addresses of outboxes
//! and windows, and the transport of messages are not published: here they are those of verbless's
//! model, described in `docs/dpa.md`.
//!
//! `docs/mapping/flexio-dev.md` lists every name of the C API with its counterpart here, and its
//! support. The crate needs neither std nor alloc. It compiles for a host as well as for the DPA;
//! the parts that need a core of the DPA ([`system`], [`perf`], [`calls`], [`program!`]) exist only
//! on riscv64 without an operating system.
#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod calls;
pub mod cmdq;
pub mod context;
pub mod event;
pub mod lock;
#[cfg(doc)]
pub mod mapping {
    #![doc = include_str!("../docs/mapping/flexio-dev.md")]
    use super::calls::*;
    use super::context::*;
    use super::event::*;
    use super::lock::*;
    use super::message::*;
    use super::metadata::*;
    use super::segment::*;
    use super::stream::control::*;
    use super::stream::*;
    use super::trace::*;
    use super::*;
}
pub mod message;
pub mod metadata;
mod mmio;
pub mod outbox;
#[cfg(any(doc, test, all(target_arch = "riscv64", target_os = "none")))]
pub mod perf;
pub mod record;
pub mod segment;
pub mod status;
pub mod stream;
#[cfg(any(doc, test, all(target_arch = "riscv64", target_os = "none")))]
pub mod system;
pub mod trace;
pub mod window;
pub mod word;

pub use context::{ThreadContext, WindowEntity};
pub use lock::SpinLock;
pub use message::{Level, Stream};
pub use metadata::ThreadMetadata;
pub use outbox::Outbox;
pub use segment::{Request, Segment};
pub use status::{Failed, Status};
/// Turns a function into an event handler: `#[event_handler] fn on_cqe(argument: u64)`. A run ends
/// when the function returns: nothing, to wait for the next event, or a [`system::Next`]. It also
/// ends by a call of [`system`] that ends the run.
pub use verbless_flexio_macros::event_handler;
/// Turns a function into one that the host calls, under its name: `#[rpc] fn add(a: u64, b: u32) ->
/// u64`.
///
/// Up to 16 arguments and the result are integers or `bool`; the host's stub takes the same types.
/// Up to 8 arguments are passed in registers; a function with more gets all of them from a buffer
/// that the host packs and the generated entry point unpacks.
pub use verbless_flexio_macros::rpc;
pub use verbless_prm::{Cqe, CqeError, Eqe};
pub use window::Window;
pub use word::{Address, Word};

/// A function that the host calls and that returns a word (`flexio_dev_rpc_handler_t`). The type
/// has one argument, as in C; the host may pass up to 8 words in registers.
pub type RpcHandler = extern "C" fn(u64) -> u64;
/// A function that the host calls without waiting for its end (`flexio_dev_async_rpc_handler_t`).
pub type AsyncRpcHandler = extern "C" fn(u64);
/// A function that runs once for each event (`flexio_dev_event_handler_t`).
pub type EventHandler = extern "C" fn(u64);
/// A function that polls for the lifetime of its process (`flexio_dev_poll_thread_t`).
pub type PollThread = extern "C" fn(u64);
/// Unpacks a host's arguments from a buffer and calls a function with them
/// (`flexio_dev_arg_unpack_func_t`): [`rpc`] generates it for a function with more than 8
/// arguments, by [`word::unpack`].
pub type ArgUnpack = unsafe extern "C" fn(*mut u8, *mut u8) -> u64;
