//! Bandwidth, message rate and latency of queue pairs, measured as perftest measures them, so that
//! the numbers of both can be laid side by side.
//!
//! A [`Plan`] says what is measured. Each of two programs, or threads, makes an [`End`] of it; they
//! exchange [`End::hello`] as bytes and [`End::connect`]. Then one end calls [`End::measure`] and
//! the other one [`End::respond`]. The result is a [`Measured`], whose [`header`](Measured::header)
//! and [`row`](Measured::row) are perftest's columns.
//!
//! - `plan`: what is measured; `end`: queue pairs and memory of one side.
//! - `bandwidth`, `latency`: the measured loops, which make no system call while requests flow.
//! - `wait`: waiting by spinning; `measured`: the numbers.

mod bandwidth;
mod end;
mod latency;
mod measured;
mod plan;
#[cfg(test)]
mod tests;
mod wait;

pub use end::End;
pub use measured::{Bandwidth, Latency, Measured};
pub use plan::{Kind, PerfOperation, Plan};

/// Why something could not be measured.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// A result of this crate.
pub type Result<T = ()> = std::result::Result<T, Error>;
