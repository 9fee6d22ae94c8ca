//! The commands: one module for each kind of object or of question, and the table that leads there.

mod alias;
mod call;
mod capability;
mod counter;
mod cq;
mod domain;
mod dpa;
mod dump;
mod emulated;
mod eq;
mod execute;
mod extension;
mod flow_table;
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
mod units;
mod vport;

pub(crate) use alias::Asked;
pub(crate) use cq::resized as cq_resized;
pub(crate) use mkey::reconfigure as reconfigure_key;
