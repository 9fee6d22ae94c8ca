//! Memory that we share with the device, and the rings in it.
//!
//! Two `unsafe` functions state what the caller must guarantee. [`SharedMemory::from_raw`]: the
//! memory stays mapped as long as its owner lives, and there is no Rust reference into it.
//! [`RingMemory::new`]: only one queue and the device access a ring or a record. Every ring checks
//! its size and alignment when it is made, and computes each address as base + (index masked to the
//! ring); so no index leaves the ring, whatever its source.
#![allow(unsafe_code, reason = "accesses ring memory through raw pointers")]

mod copy;
mod cqes;
mod exclusive;
mod layout;
mod memory;
mod receive;
mod record;
mod send;
mod slots;

pub(crate) use cqes::{CqRing, CqeView, Cursor, RETIRED};
pub use exclusive::{RecordMemory, RingMemory};
pub use layout::LayoutError;
pub use memory::{OutOfBounds, SharedMemory};
pub(crate) use receive::ReceiveRing;
pub(crate) use record::Record;
pub(crate) use send::{SendRing, Wqe};
pub(crate) use slots::Slots;
