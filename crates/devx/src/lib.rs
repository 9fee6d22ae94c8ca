//! Discovery of mlx5 devices, and everything that the kernel does for a user of them: contexts, protection domains,
//! address handles, GIDs, command mailboxes (DevX), registered memory, doorbell pages and event channels.
//!
//! The [`Backend`] seam is at the bottom: the `Kernel` and a software model both implement it, with real file
//! descriptors and mappings, so nothing above knows which it has.

pub mod abi;
mod error;
mod info;
mod sys;

pub use error::{Command, Error, ErrorKind, Result};
pub use info::{DeviceInfo, Gid, GidInfo, GidType, LinkLayer, PortInfo};
pub use sys::{Backend, Errno, Mapping, OpenDevice, Protection};
