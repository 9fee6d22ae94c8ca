//! The kernel's rules, one by one, against a scripted device.

mod abi;
mod attributes;
mod buffers;
mod context;
mod devx;
mod event;
mod flow;
mod fwctl;
mod kernel;
mod lifetime;
mod memory;
mod objects;
mod paths;
mod ports;
mod queues;
mod random;
mod regions;
mod steering;
mod verbs;
mod verbs_rig;

mod support;
