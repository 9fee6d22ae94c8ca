//! The kernel's own commands beside ours.
//!
//! A [`scenario`] is a list of operations on a device, in verbs terms: a completion queue with its
//! number of entries, a queue pair with its capabilities taken to RTS, a memory region with its
//! rights. [`theirs`] runs it through the real libibverbs and libmlx5, [`ours`] through this
//! project's driver; both send a [`mark`] to the device at the beginning of each case. The
//! `capture` program runs both in a guest whose device is the model with its recorder on, and
//! prints the ioctls of libmlx5 as well; `cargo xtask capture` stores the output in `prm/evidence`.
//!
//! The tests parse a [`recording`] and [`compare`] it, field by field, with our driver's commands
//! to the model in this process. Each difference is removed, or a table holds it with its reason; a
//! reason without a difference is a failure, too.

pub mod compare;
pub mod mark;
pub mod memory;
pub mod ours;
pub mod recording;
pub mod requests;
mod result;
pub mod scenario;
pub mod theirs;
pub mod verbs;

pub use result::Result;
