//! The commands: one module per kind of object or query, and the dispatch table.

mod alias;
mod call;
mod capability;
mod counter;
mod cq;
mod domain;
#[cfg(feature = "dpa")]
mod dpa;
#[cfg(feature = "dpa")]
mod dump;
#[cfg(feature = "dpa")]
mod emulated;
mod eq;
mod execute;
#[cfg(feature = "dpa")]
mod extension;
mod flow_table;
#[cfg(feature = "dpa")]
mod general;
mod lifecycle;
mod mad;
mod mkey;
mod multicast;
mod pages;
mod path;
mod qp;
mod query;
mod register;
mod removal;
mod rq;
mod service;
mod sq;
mod srq;
mod transition;
mod transport;
mod uctx;
mod umem;
#[cfg_attr(not(feature = "dpa"), path = "no_units.rs")]
mod units;
mod vport;
mod wq;

pub(crate) use alias::ForeignObject;
pub(crate) use cq::resized as cq_resized;
pub(crate) use mkey::reconfigure as reconfigure_key;
