//! The report of a run: what somebody else needs to understand it without the machine.
//!
//! - `run`: the results of the cases; `junit`: the same for CI.

mod junit;
mod run;

pub use run::{Outcome, Row, Run};
