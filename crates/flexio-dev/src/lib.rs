//! The FlexIO device API for programs that run on a DPA: so far the formats that they share with
//! the device, and what needs no hart.
//!
//! - [`context`]: the thread context, which tells a thread where its outboxes and windows are.
//! - [`outbox`]: the registers of an outbox, and the words that ring its doorbells.
//! - [`segment`]: the 16-byte segments of send WQEs, made of the types of `verbless-prm`.
//! - [`record`]: doorbell records; [`Cqe`] and [`CqeError`] are those of `verbless-prm`.
//! - [`lock`]: a spin lock between threads.
//!
//! What is published of a DPA is the layout of context, outbox and queues (FlexIO SDK 25.1, device
//! headers under BSD-3-Clause); the numbers here are from there. How a thread reaches the system
//! under it is not published, and not part of this crate yet.
//!
//! Which names of the C API are here, and which are not yet, is in `docs/mapping/flexio-dev.md`.
//! The crate needs neither std nor alloc, and compiles for a host as well as for the DPA.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod context;
pub mod lock;
#[cfg(doc)]
pub mod mapping {
    #![doc = include_str!("../../../docs/mapping/flexio-dev.md")]
    use super::lock::*;
    use super::segment::*;
    use super::*;
}
pub mod outbox;
pub mod record;
pub mod segment;

pub use context::{ThreadContext, WindowEntity};
pub use lock::SpinLock;
pub use segment::{Request, Segment};
pub use verbless_prm::{Cqe, CqeError};
