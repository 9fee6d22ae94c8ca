//! A modelled kernel in front of the modelled device: answers uverbs ioctls, of DevX and of verbs,
//! by Linux's rules, for the model's process and for others.
//!
//! A test opens a model's devices through [`InProcess`], a `verbless-devx` backend:
//!
//! ```
//! use verbless_devx::{Backend, Context};
//! use verbless_model::{Model, Profile};
//! use verbless_model_kernel::InProcess;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::builder().device(Profile::load("connectx6dx")?).build();
//! let backend = InProcess::of(&model);
//! let context = Context::open(&backend, &backend.enumerate()?[0])?;
//! let pd = context.alloc_pd()?;
//! # drop(pd);
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!   in_process   Backend and OpenDevice of verbless-devx, with this process as client
//!   file         an open device file: handles, descriptors, their end
//!     ioctl, abi     parses the buffer; the tables of methods and attributes
//!     context, device, write, devx, umem, uar, events     the methods
//!     page_lists                                           bounds the memory of page lists
//!     rules, event_rules, mailbox                          what DevX passes, sets and refuses
//!     verbs          the interface for libraries without DevX
//!   fwctl        the function's other file: commands through fwctl
//!   kernel       the driver of one device: capabilities, event queues, interrupts, subscriptions
//!     clock          the page that converts timestamps to times
//!     boot           brings the device up and takes it down
//!     cmd, port      the access to a function; the state of a port
//!     network        IP addresses of Ethernet ports, and their neighbours
//!     topology       a function on its card, and its representors
//!   refused, refusal_log, unmodelled   the reasons of refused ioctls, for the log
//!   client       the calling process: memory, descriptors, limits, privileges
//!     mappings       its mappings and mounts; whether a range can be pinned
//! ```
//!
//! The rules are those of Linux 6.12: `drivers/infiniband/core/uverbs_*.c`, `rdma_core.c`, `umem.c`
//! and `drivers/infiniband/hw/mlx5/{main,devx}.c`; for fwctl those of 6.15. docs/fidelity.md lists
//! the differences from Linux. Two follow from running in one process: registered pages are
//! checked, not pinned; a UAR page is freed even while it is mapped.

mod abi;
mod account;
mod aio;
mod boot;
mod channel;
mod client;
mod clock;
mod cmd;
mod context;
mod describe;
mod descriptor;
mod device;
mod devx;
mod event_queue;
mod event_rules;
mod eventfds;
mod events;
mod faults;
mod feeder;
mod file;
mod flow;
mod function;
#[cfg(fuzzing)]
mod fuzz;
mod fwctl;
mod handles;
mod in_process;
mod ioctl;
mod kernel;
mod mailbox;
mod mappings;
mod network;
mod numbers;
mod page;
mod page_lists;
mod pages;
mod pinned;
mod port;
mod refusal_log;
mod refused;
mod release;
mod rules;
mod steering;
mod subscriptions;
mod topology;
mod uapi;
mod uar;
mod umem;
mod unmodelled;
mod verbs;
mod write;

#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub use fuzz::{AttrContent, FuzzFile, Method};
pub use in_process::InProcess;
pub use network::Neighbour;
pub use pages::SystemPage;
pub use release::KernelRelease;

/// Interface for a front end that answers ioctls for other processes: `DeviceFile` executes them,
/// `Client` is the process.
pub mod remote {
    pub use crate::abi::DRIVER_ID;
    pub use crate::account::{Account, Charge, Resource, ResourcePool};
    pub use crate::aio::signal_eventfd;
    pub use crate::client::{
        Capability, Client, DescriptorClaim, FileId, effective_capabilities, identify, numbers,
    };
    pub use crate::describe::{IoctlDescription, describe};
    pub use crate::eventfds::Eventfds;
    pub use crate::in_process::{DeviceFile, FwctlFile};
    pub use crate::ioctl::{HEADER_WORDS, length as ioctl_length};
    pub use crate::mappings::{Mappings, check_pin, procmap::mapping_from};
    pub use crate::page::PAGE;
    pub use crate::port::{GidEntry, PortState};
    pub use crate::refusal_log::{fwctl_request, log as log_refusal};
    pub use crate::uar::mmap_span;
    pub use crate::verbs::query::flags as device_flags;
}
