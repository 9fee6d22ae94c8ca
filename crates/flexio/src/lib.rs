//! FlexIO's host library as a Rust API: a host loads programs onto a DPA and calls them.
//!
//! A program is a crate that uses `verbless-flexio-dev`; `cargo xtask dpa build` compiles it. Its
//! functions with `#[rpc]` become typed constants here:
//!
#![cfg_attr(verbless_dpa_program, doc = "```")]
#![cfg_attr(not(verbless_dpa_program), doc = "```ignore")]
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! use verbless_flexio::{Process, ProcessConfig};
//!
//! verbless_flexio::embed!(pub mod program = "../../target/dpa/program.elf");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = device(false)?;
//! let process = Process::create(&device, &program::APP.app()?, &ProcessConfig::default())?;
//! assert_eq!(process.call(program::add, (40, 2))?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! `cargo test` runs the examples on these pages. `cargo xtask dpa test` runs those that need a
//! compiled program, which it compiles; `cargo test` only compiles them, and skips the one above,
//! which has the program in its binary.
//!
//! # The chapters of the guide
//! | what | module | begin with |
//! |---|---|---|
//! | programs, their functions and symbols | [`app`], [`function`] | [`embed!`], [`App`] |
//! | programs to choose from, by hardware model | [`apps`], [`hw_model`] | [`Apps`] |
//! | processes and calls | [`process`] | [`Process::create`], [`Process::call`] |
//! | calls in the background | [`cmdq`] | [`Cmdq::create`], [`Cmdq::task_add`] |
//! | calls with attributes | [`rpc`] | [`Process::call_with_attr`] |
//! | memory: buffers in the heap, copies | [`memory`] | [`Process::alloc`], [`Process::write`] |
//! | memory keys over the heap | [`mkey`] | [`Mkey::create`] |
//! | windows to memory of the host | [`window`] | [`Window::create`] |
//! | doorbells | [`uar`], [`outbox`] | [`Outbox::create`] |
//! | numbers of objects, each a type | [`ids`] | [`OutboxId`], [`ThreadId`] |
//! | event handlers | [`event_handler`] | [`EventHandler::create`] |
//! | completion queues | [`cq`] | [`DpaCq::create`] |
//! | queue pairs | [`qp`] | [`DpaQp::create`] |
//! | Ethernet queues | [`sq`], [`rq`], [`transport`] | [`DpaSq::create`], [`DpaRq::create`] |
//! | PCI devices that programs emulate | [`emulation`] | [`emulation::MsixMap::create`] |
//! | receives shared by queue pairs | [`rmp`] | [`Rmp::create`] |
//! | output of programs | [`stream`] | [`MsgStream::create`] |
//! | traces of programs | [`tracer`] | [`Tracer::init`] |
//! | errors, and their numbers in C | [`error`] | [`Error::status`] |
//! | after a fatal error | [`fatal`] | [`Process::error_fd`], [`Process::core_dump`] |
//! | execution units from a file | [`resources`] | [`Resources::new`] |
//! | the library version of a host | [`version`] | [`set_version`](version::set_version) |
//! | the library's log | [`log`] | [`set_log_level`](log::set_log_level) |
//!
//! `create` creates an object from the process and a plain configuration struct. The object keeps
//! its parents alive, so a process outlives its objects. A drop of the last handle destroys it;
//! `destroy` does the same and returns whether it worked.
//!
//! # What ends a process
//! A fault, the watchdog or the program itself ends a process. After that, every operation that
//! needs a running process fails with [`Error::Fatal`] and its status. The status itself, crash
//! data and a core dump are available ([`fatal`]), streams can be flushed, and everything can be
//! destroyed.
//!
//! # What can time out
//! Each of these waits at most [`ProcessConfig::timeout`] in total, even if other threads wait for
//! the same, and then fails with the status `FLEXIO_STATUS_TIMEOUT`. The process continues.
//!
//! | operation | state after it | error |
//! |---|---|---|
//! | [`Process::call`], and with attributes | the call is terminated | [`Error::Timeout`] |
//! | copies and fills of [`memory`] | any of the bytes may be copied | [`Error::CopyTimeout`] |
//! | [`Cmdq::task_add`] without room | the task is not added | [`Error::QueueTimeout`] |
//! | [`Cmdq::wait_until_empty`] while no task ends | all tasks continue | [`Error::QueueTimeout`] |
//!
//! [`RpcAttr::timeout`] sets another time for a call. A copy that timed out is not in flight when
//! the error is returned, and the next one starts anew.
//!
//! Operations built on calls and copies fail with the same errors, and may wait as long for each of
//! them. Their state after such an error:
//! - `create` of event handlers, CQs, queue pairs, SQs, RQs, RMPs, command queues, [`MsixMap`] and
//!   [`Msix`], which initialize memory in the heap: nothing was created, and its memory is free.
//! - [`Process::alloc_from`], and the metadata of a call with attributes: no buffer, and no call.
//! - [`Buffer::free`] of a recoverable buffer: the buffer, in [`Error::NotRecovered`].
//! - [`Cmdq::state_running`]: the pending state, though some workers may run. It can be repeated.
//! - [`Cmdq::pending`], [`Cmdq::is_empty`], [`MsgStream::lost`], [`Tracer::lost`]: unchanged.
//! - [`MsgStream::create`], [`TracerSetup::create`]: nothing was created, unless the program has
//!   found the stream, and a call to forget it times out, too. Then its memory stays in use, and
//!   with it the process.
//! - [`MsgStream::set_level`]: the old level, or the new one. [`Tracer::start`]: a tracer that does
//!   not run, though the program may trace.
//! - [`MsgStream::flush`], [`MsgStream::poll`], [`Tracer::poll`]: the next call receives the
//!   remaining entries.
//! - [`Tracer::stop`]: a stopped tracer, though the program may trace. The remaining entries come
//!   after the next start.
//! - `destroy` of both: only their memory remains, as for `create`.
//!
//! Some waits end without `FLEXIO_STATUS_TIMEOUT`:
//! - A command that the device refuses while the process's error handler runs waits for the end of
//!   the handler and then fails with [`Error::Fatal`]; after [`ProcessConfig::timeout`] it fails
//!   with [`Error::Device`].
//! - Starting and stopping a tracer wait a second for a run that has claimed an entry and not
//!   written it. Then they create a new ring, for which the heap must have room: otherwise they
//!   fail with [`Error::Failed`].
//! - A flush waits for entries sent by RC or a window until none has come for
//!   [`ProcessConfig::timeout`], and by UC or UD for 20 ms. Then it returns `Ok`, and they count as
//!   lost.
//! - A flush of a message stream waits a second for a run that has claimed an entry and not written
//!   it. Then it creates a new ring ([`MsgStream::flush`]).
//! - A lossless trace waits a second for room in the ring at its begin and end, and then continues.
//! - The end of a stream or tracer waits a second for threads that still write to it. Then it fails
//!   with [`Error::Failed`], and its memory stays in use, and with it the process.
//! - [`Tracer::stop`] waits [`ProcessConfig::timeout`] for a callback that does not return. Then it
//!   fails with [`Error::Failed`], and the reports are lost.
//!
//! No other operation waits for the DPA.
//!
//! [`MsixMap`]: emulation::MsixMap
//! [`Msix`]: emulation::Msix
//!
//! # Coming from C
//! `docs/flexio.md`, the module `chapter` of this documentation, ports a FlexIO program with a call
//! and an event handler to Rust, line by line. `docs/mapping/flexio.md`, the module `mapping`,
//! lists the names of the C library, each with its counterpart here, its test, and its support.
//!
//! The hardware commands that create a process are not published. These are objects of verbless's
//! model, and the driver sends none of their commands to hardware: [`Process::create`] refuses it
//! with that reason.
#![forbid(unsafe_code)]

pub mod app;
pub mod apps;
mod channel;
#[cfg(doc)]
#[doc = include_str!("../docs/flexio.md")]
pub mod chapter {}
pub mod cmdq;
mod copy;
pub mod cq;
pub mod emulation;
pub mod error;
pub mod event_handler;
pub mod fatal;
mod file;
pub mod function;
mod heap;
mod holders;
pub mod hw_model;
pub mod ids;
pub mod log;
#[cfg(doc)]
pub mod mapping {
    #![doc = include_str!("../docs/mapping/flexio.md")]
    use super::app::MAX_NAME_LEN;
    use super::emulation::{self, DoorbellToCq, Msix, MsixMap};
    use super::log;
    use super::memory::MEMORY_BLOCK;
    use super::resources;
    use super::stream::{self, MsgSyncMode, MsgTransport, deprecated, report};
    use super::tracer::trace_file::TraceFile;
    use super::tracer::{self, OutputMode, Record, TracerTransport};
    use super::version::{Version, set_version};
    use super::*;
}
pub mod memory;
pub mod mkey;
pub mod outbox;
pub mod process;
#[cfg(test)]
mod program;
pub mod qp;
pub mod resources;
pub mod rmp;
pub mod rpc;
pub mod rq;
pub mod sq;
pub mod stream;
pub mod tracer;
pub mod transport;
pub mod uar;
pub mod version;
pub mod window;
pub mod wq;

pub use app::{App, Embedded};
pub use apps::{AppSelect, Apps};
pub use cmdq::{Cmdq, CmdqConfig, CmdqState};
pub use cq::{CqElement, CqHandle, CqModeration, CqPeriodMode, DpaCq, DpaCqConfig};
pub use error::{Error, FreeError, Status};
pub use event_handler::{EventHandler, EventHandlerConfig};
pub use function::{Arguments, Function, Handler, Word};
pub use heap::HeapInfo;
pub use hw_model::HwModel;
pub use ids::{
    CqNumber, DoorbellId, HandlerId, MkeyId, OutboxId, QpNumber, RmpNumber, RqNumber, SqNumber,
    StreamId, ThreadId, UarDeviceId, UarId, WindowId,
};
pub use memory::{Buffer, Destination, MemoryKind, QueueMemory, Source};
pub use mkey::{Mkey, MkeyConfig};
pub use outbox::{Outbox, OutboxConfig};
pub use process::{Process, ProcessConfig};
pub use qp::{DpaQp, DpaQpConfig, QpAttr, QpAttrMask, QpReceive, QpState, QpTransport};
pub use resources::Resources;
pub use rmp::{Rmp, RmpConfig};
pub use rpc::RpcAttr;
pub use rq::{DpaRq, DpaRqConfig};
pub use sq::{DpaSq, DpaSqConfig, SqExtAttr};
pub use stream::{MsgStream, MsgStreamConfig};
pub use tracer::{Tracer, TracerSetup};
pub use transport::{SqTis, TransportDomain};
pub use uar::Uar;
/// The execution units of a thread (`flexio_affinity`).
pub use verbless_command::Affinity;
/// The level of a stream's messages (`flexio_msg_dev_level`).
pub use verbless_flexio_dev::Level;
#[doc(hidden)]
pub use verbless_flexio_macros::embed as embed_from;
pub use window::Window;
/// Embeds a program into this binary, with a constant for each of its functions: `embed!(pub mod
/// program = "PATH");`, with a path relative to the crate's `Cargo.toml`.
///
/// The module has `APP`, an [`Embedded`], and under its own name a [`Function`] for each function
/// with `#[rpc]` and a [`Handler`] for each with `#[event_handler]`. It is regenerated when the
/// file changes. A missing or invalid file is a compile error.
#[macro_export]
macro_rules! embed {
    ($($module:tt)*) => {
        // A program may have this crate only as `verbless::flexio`.
        $crate::embed_from! { ($crate) $($module)* }
    };
}
pub use wq::{WqConfig, WqEndPadMode, WqTsFormat, WqType};
