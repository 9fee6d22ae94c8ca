//! The kernel's own commands beside ours.
//!
//! A [`scenario`] is a list of things to do with a device, in verbs terms: a completion queue of so
//! many entries, a queue pair with such capabilities taken to RTS, a memory region with such
//! rights. [`theirs`] does it through the real libibverbs and libmlx5, [`ours`] through this
//! project's driver; both tell the device by a [`mark`] where each begins. The `capture` program
//! runs both in a guest whose device is the model with its recorder on, and prints the ioctls of
//! libmlx5 as well; `cargo xtask capture` keeps what came of it in `prm/evidence`.
//!
//! The tests take a [`recording`] apart and [`compare`] it, field by field, with what our driver
//! sends to the model in this process. A difference is removed, or it stands in a table with its
//! reason; a reason without a difference is a failure, too.

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
