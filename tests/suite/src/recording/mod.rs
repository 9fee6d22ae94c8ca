//! `hwtest --record FILE`: what the cases ask of a device and what it answers; `hwtest replay
//! FILE`: the cases on the answers of such a file.
//!
//! - `entry`, `bytes`: the lines of the file; `attributes`: what the attributes of requests are.
//! - `writer`: the file while it is written; `pseudonyms`: other bytes for what identifies devices.
//! - `recorder`: the backend that records; `rings`, `wqe`: what is in its queues; `devices`: what a
//!   recording says of its devices; `payload`: what messages wrote, if asked.
//! - `document`: the file that is read; `compare`: a request beside a recorded one; `replay`: the
//!   backend that answers; `answers`: what it may answer; `cases`: the cases on it.

mod answers;
mod attributes;
mod bytes;
mod cases;
mod compare;
mod devices;
mod document;
mod entry;
mod payload;
mod pseudonyms;
pub(crate) mod recorder;
mod replay;
mod rings;
#[cfg(test)]
mod tests;
mod wqe;
pub(crate) mod writer;

pub use cases::Replayed;

pub use writer::{RecordLimits, Recording};
