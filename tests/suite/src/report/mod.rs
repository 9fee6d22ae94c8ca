//! The report of a run: what somebody else needs to understand it without the machine.
//!
//! - `run`: the results of the cases; `junit`: the same for CI.
//! - `document`: the report as JSON; `hex`: bytes in it; `fields`: capability pages as fields.
//! - `performance`: bandwidths and latencies.
//! - `facts`: what a report says of devices; `privacy`: what it leaves out, `scrub`: in texts.
//! - `profile`: a profile of the model from a report; `diff`: two reports compared.
//! - `html`: the report as a page; `docs`: what the PRM says of a field; `text`: texts for people.

mod diff;
mod docs;
mod document;
mod facts;
pub(crate) mod fields;
mod hex;
mod html;
mod junit;
mod performance;
pub(crate) mod privacy;
mod profile;
mod run;
pub(crate) mod scrub;
#[cfg(test)]
mod tests;
mod text;

pub use diff::{Diff, diff};
pub use document::{
    CaseResult, CommandFailure, DeviceFacts, DeviceFile, Ending, FORMAT, FactFunction, FactLink,
    FactSide, Field, GidEntry, Identity, Machine, Page, Pci, PciLink, Port, Program, Query, Report,
    ReportError,
};
pub(crate) use facts::FIRST_PERSON;
pub use facts::facts;
pub use hex::Hex;
pub use performance::{BandwidthNumbers, LatencyNumbers, Measurement};
pub use run::{Outcome, Row, Run};
pub(crate) use text::plain;
