//! One function (vhca) of a modelled device: its objects and the commands on them. It does not
//! depend on the engine, which gets the effects of each command.

mod allocators;
pub(crate) mod budget;
pub(crate) mod capability;
mod commands;
pub(crate) mod doorbell;
mod dump;
pub(crate) mod effect;
mod fault;
pub(crate) mod identity;
pub(crate) mod index;
mod kinds;
pub(crate) mod klm;
mod numbers;
pub(crate) mod objects;
mod pages;
pub(crate) mod qp_type;
mod refusal;
pub(crate) mod registry;
mod removal;
pub(crate) mod resources;
mod sharing;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod vport;

pub(crate) use commands::{ForeignObject, cq_resized, reconfigure_key};
pub(crate) use dump::DumpInProgress;
pub(crate) use effect::Effect;
pub(crate) use fault::Countdowns;
pub use fault::Times;
pub use refusal::Refusal;
pub(crate) use refusal::Refused;
pub(crate) use sharing::share_units;
pub(crate) use state::Hca;
pub(crate) use vport::DEFAULT_PKEY;
