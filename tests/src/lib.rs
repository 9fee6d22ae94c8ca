//! The conformance suite: what a device, its kernel and its driver must do.
//!
//! The same cases run on the model in process, on real kernels and on hardware. A case gets a [`Lab`], opens what it
//! needs, and says with [`Stop`] why it did not pass. A new capability adds its cases here first.

mod case;
mod cases;
mod endpoint;
mod lab;
mod raw;
mod report;
mod run;

pub use case::{Case, Stop};
pub use cases::cases;
pub use endpoint::{
    Endpoint, Pair, SMALL_MTU, TIMEOUT, failed, pattern, quiet, ready_to_receive, until,
};
pub use lab::{Choice, Lab};
pub use report::{Outcome, Row, Run};
pub use run::run_case;
