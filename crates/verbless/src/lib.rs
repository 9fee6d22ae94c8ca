//! A pure-Rust userspace driver for NVIDIA mlx5 devices (ConnectX network adapters, BlueField
//! DPUs).
//!
//! It makes DevX ioctls on `/dev/infiniband/uverbsN`, builds work requests, reads completions and
//! rings doorbells through mapped device pages by itself. No libibverbs, no libmlx5, no vendor's C
//! library.
//!
//! A WRITE from one device into memory of another, here on the software model (feature `model`),
//! with a card, use `let backend = Kernel::new();`:
//!
#![cfg_attr(feature = "model", doc = "```")]
#![cfg_attr(not(feature = "model"), doc = "```ignore")]
//! use verbless::model::{InProcess, Model, Profile};
//! use verbless::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let card = Profile::load("connectx6dx")?;
//! let backend = InProcess::of(&Model::builder().device(card.clone()).device(card).build());
//!
//! // A domain on each device, and from it memory, a completion queue and a queue pair.
//! let here = Domain::new(&Device::open(&backend, &backend.find("mlx5_0")?)?)?;
//! let there = Domain::new(&Device::open(&backend, &backend.find("mlx5_1")?)?)?;
//! let (from, to) = (here.region(4096, KeyAccess::LOCAL)?, there.region(4096, KeyAccess::ALL)?);
//! let mut cq = here.completion_queue(&CqConfig::new(32))?;
//! let far_cq = there.completion_queue(&CqConfig::new(32))?;
//! let mut qp = here.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
//! let mut far_qp = there.queue_pair(&QpConfig::new(8, 8), &far_cq, &far_cq)?;
//!
//! // Two programs send each other these addresses: `Domain::handshake` does it over a stream.
//! let options = ConnectOptions::default();
//! let (ours, theirs) = (here.address(&qp, &options)?, there.address(&far_qp, &options)?);
//! here.connect(&mut qp, &theirs, &options)?;
//! there.connect(&mut far_qp, &ours, &options)?;
//!
//! from.write_at(0, b"an RDMA write")?;
//! qp.post(&wr::Write::new(from.sge(0, 13)?, to.remote(0, 13)?).signaled(), 7)?;
//! // Instead of spinning, `CqEvents` sleeps until a completion arrives.
//! let done = loop {
//!     if let Some(done) = qp.poll(&mut cq) {
//!         break done?;
//!     }
//! };
//! assert_eq!(done.cookie, 7);
//! let mut arrived = [0; 13];
//! to.read_at(0, &mut arrived)?;
//! assert_eq!(&arrived, b"an RDMA write");
//! # Ok(())
//! # }
//! ```
//!
//! The [`prelude`] has the types that most programs need. The layers, bottom up; each is a crate of
//! its own and can be used alone:
//! - [`prm`]: the layouts of commands, contexts and queue entries; all of them with the feature
//!   `prm-all`.
//! - verbless-ring, re-exported by [`queue`]: work requests, rings, doorbells.
//! - [`devx`]: finding and opening devices; the kernel's services for a user.
//! - [`command`]: one typed function per device command.
//! - [`queue`]: memory regions, completion queues, queue pairs.
//!
//! Features:
//! - `doca`: the object model of DOCA Core, as the module `doca`.
//! - `model`: the software model of the device, which replaces the kernel and the card, as the
//!   module `model`. For tests.
//! - `dpa`: the commands of the DPA (`command::DpaProcess` and its neighbours).
//! - `flexio`: `dpa`, and the host library of FlexIO, as the module `flexio`.
//! - `sdk-2022`: `flexio`, and its functions that the C library has deprecated.
//! - `gdb`: `dpa`, `model`, and debuggers for programs on the DPA.
//! - `toml`: `model`, with profiles of devices and plans of faults from TOML.
//! - `prm-all`: every command and structure in the module `prm`.
//! - `serde`: values sent to a peer ([`PeerAddress`](queue::PeerAddress),
//!   [`RemoteAddr`](queue::RemoteAddr), [`RemoteRegion`](queue::RemoteRegion)) can be serialized.
//! - `tokio`: completions and handshakes as futures.
//! - `tracing`: objects that could not be destroyed are reported as `tracing` warnings.
#![cfg_attr(all(doctest, feature = "model"), doc = include_str!("../README.md"))]
#![cfg_attr(all(doctest, feature = "model"), doc = include_str!("../docs/guide.md"))]
#![cfg_attr(all(doctest, feature = "model"), doc = include_str!("../docs/faults.md"))]

pub use verbless_command as command;
pub use verbless_devx as devx;
#[cfg(feature = "doca")]
pub use verbless_doca as doca;
#[cfg(feature = "flexio")]
pub use verbless_flexio as flexio;
pub use verbless_prm as prm;
pub use verbless_queue as queue;

/// The software model of the device, and the backend through which a program opens it.
#[cfg(feature = "model")]
pub mod model {
    pub use verbless_model::*;
    pub use verbless_model_kernel::{InProcess, Neighbour};
}

pub mod prelude;

pub use verbless_command::{Device, Path};
pub use verbless_devx::{Backend, DeviceInfo, ErrorKind, Kernel};
pub use verbless_queue::{DeviceError, Error};

/// Result of a program that uses any part of the driver.
pub type Result<T, E = Error> = std::result::Result<T, E>;
