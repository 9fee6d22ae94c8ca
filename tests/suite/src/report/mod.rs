//! The report of a run: what somebody else needs to understand it without the machine.
//!
//! - `run`: the results of the cases; `junit`: the same for CI.
//! - `document`: the report as JSON; `hex`: bytes in it; `fields`: capability pages as fields.
//! - `facts`: what a report says of devices; `privacy`: what it leaves out.

mod document;
mod facts;
mod fields;
mod hex;
mod junit;
mod privacy;
mod run;
#[cfg(test)]
mod tests;

pub use document::{
    CaseResult, CommandFailure, DeviceFacts, DeviceFile, Ending, FORMAT, FactFunction, FactLink, FactSide, Field,
    GidEntry, Identity, Machine, Page, Pci, PciLink, Port, Program, Query, Report, ReportError,
};
pub use facts::facts;
pub use hex::Hex;
pub use run::{Outcome, Row, Run};
