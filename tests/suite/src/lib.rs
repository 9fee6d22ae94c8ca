//! The conformance suite: what a device, its kernel and its driver must do.
//!
//! The same cases run on the model in process, on real kernels and on hardware. A case gets a
//! [`Lab`], opens the devices that it uses, and reports a failure with [`Stop`]. It declares its
//! needs of the device and the machine as data ([`Need`]); if one is missing, the case is skipped.
//! A new capability adds its cases here first.

mod case;
mod cases;
mod doctor;
mod endpoint;
mod expect;
mod failed_commands;
mod fault_counts;
mod lab;
mod need;
mod own_memory;
mod pool;
mod profiles;
mod raw;
pub mod recording;
pub mod report;
pub mod roles;
mod run;
mod sweep;
mod ways;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use case::{Case, CaseFunction, Group, Stop};
pub use cases::{cases, groups};
pub use doctor::{Chain, Check, Examination, Finding, Host, Link, examine, gigabits};
pub use endpoint::{
    Endpoint, Pair, SMALL_MTU, TIMEOUT, failed, pattern, quiet, ready_to_receive, to_receive, until,
};
pub use expect::{environments, unexpected_skips};
pub use failed_commands::FailedCommand;
pub use lab::{Choice, Lab};
pub use need::Need;
pub use pool::{default_jobs, run_cases};
pub use raw::create_qp_in;
pub use report::{Outcome, Row, Run};
pub use run::run_case;
pub use sweep::{Variant, variants};

/// The compiled program for the DPA that cases of the group `dpa_programs` run.
static DPA_PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the path of the DPA program; only the first call has an effect.
pub fn set_dpa_program(file: PathBuf) {
    // Only the first caller sets the path.
    let _ = DPA_PROGRAM.set(file);
}

/// Path of the program for the DPA: from [`set_dpa_program`] or the variable
/// `VERBLESS_DPA_PROGRAM`.
pub(crate) fn dpa_program() -> Option<PathBuf> {
    DPA_PROGRAM
        .get()
        .cloned()
        .or_else(|| std::env::var_os("VERBLESS_DPA_PROGRAM").map(PathBuf::from))
}
