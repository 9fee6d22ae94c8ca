//! The only module of this crate with `unsafe` code: the backend traits, mappings, raw ioctls,
//! descriptors, pinned memory.
//!
//! Its invariants: a request that leaves `Request` holds only pointers that borrow live buffers of
//! the stated length; a [`Mapping`] is unmapped once; a descriptor that a backend hands over is
//! owned once; memory is registered only by callers who promise to keep it.
#![allow(unsafe_code, reason = "this module exists to hold the unsafe code of the crate")]

mod backend;
mod descriptor;
mod fwctl;
mod ioctl;
mod mapping;
mod request;
pub(crate) mod umem;

pub use backend::{Backend, Errno, OpenDevice, OpenFwctl};
pub use mapping::{Mapping, Protection};

pub(crate) use fwctl::{fwctl_info, fwctl_rpc};
pub(crate) use ioctl::{FwctlOpener, UverbsFile};
#[cfg(test)]
pub(crate) use request::testing;
pub(crate) use request::{IoctlOutputs, Request, hides_refusals};
