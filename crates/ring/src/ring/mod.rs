//! Memory that we share with the device, and the rings in it.
//!
//! Two `unsafe` promises stand at the door. [`SharedMemory::from_raw`]: the memory is there for as
//! long as its owner lives, and nobody holds a Rust reference into it. [`RingMemory::new`]: a queue
//! and the device have a ring or a record for themselves. Every ring checks its size
//! and alignment when it is made, and computes each address as base + (index masked to the ring);
//! so no index, whoever wrote it, leaves the ring.
#![allow(
    unsafe_code,
    reason = "ring memory is reached through raw pointers; this module is the place for it"
)]

mod copy;
mod cqes;
mod exclusive;
mod layout;
mod memory;
mod receive;
mod record;
mod send;
mod slots;

pub(crate) use cqes::{CqRing, Cursor, Look, RETIRED};
pub use exclusive::{RecordMemory, RingMemory};
pub use layout::LayoutError;
pub use memory::{OutOfBounds, SharedMemory};
pub(crate) use receive::ReceiveRing;
pub(crate) use record::{Record, Word};
pub(crate) use send::{SendRing, Wqe};
pub(crate) use slots::Slots;
