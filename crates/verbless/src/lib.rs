//! A pure-Rust userspace driver for NVIDIA mlx5 devices (ConnectX network adapters, BlueField DPUs).
//!
//! It talks DevX ioctls to `/dev/infiniband/uverbsN`, builds work requests, reads completions and rings doorbells through mapped
//! device pages by itself. No libibverbs, no libmlx5, no C library of a vendor.
//!
//! The layers, from the wire up; each is a crate of its own and can be used alone:
//! - [`prm`]: what commands, contexts and queue entries look like.
//! - [`devx`]: finding and opening devices; what the kernel does for a user.
//! - [`command`]: one typed function per device command.
//! - [`queue`]: memory regions, completion queues, queue pairs.
//!
//! With the feature `model`, a software model of the device takes the kernel's and the card's place.
#![cfg_attr(doctest, doc = include_str!("../../../README.md"))]

pub use verbless_command as command;
pub use verbless_devx as devx;
#[cfg(feature = "model")]
pub use verbless_model as model;
pub use verbless_prm as prm;
pub use verbless_queue as queue;

pub use verbless_command::{Device, Error, ErrorKind, Path};
pub use verbless_devx::{Backend, DeviceInfo, Kernel};
