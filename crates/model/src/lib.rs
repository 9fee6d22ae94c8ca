//! A software model of the mlx5 device.
//!
//! The device core (`memory`, `profile`, `hca`, `engine`, `fabric`) uses `verbless-prm` and nothing else of the
//! driver, so that a mistake in the driver has no twin here. Only the kernel of the front ends without a real one (`uverbs`,
//! `run`) knows `verbless-devx`, for the `Backend` trait that it implements.
//!
//! ```text
//!   uverbs (in process)      pci (vfio-user)      run (seccomp)        front ends: who plays the kernel
//!            \                     |                   /
//!             `---- commands, MMIO, interrupts -------'                hca::execute, engine::mmio_write, Interrupts
//!                                  |
//!   hca: objects and commands   engine: doorbells, WQEs, CQEs, EQEs    one World behind one lock
//!                                  |
//!                       memory: the host's memory, UAR pages
//! ```

#![cfg_attr(
    not(feature = "host"),
    allow(dead_code, unused_imports, reason = "only the front ends of `host` call some parts")
)]

mod engine;
mod fabric;
mod hca;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod log;
pub mod memory;
mod model;
#[cfg(feature = "host")]
pub mod pci;
pub mod profile;
#[cfg(feature = "host")]
pub mod run;
pub mod uverbs;
mod watch;
mod world;

pub use engine::Fault;
pub use hca::Refusal;
pub use hca::objects::ObjectCounts;
pub use model::{Builder, Model};
pub use profile::{Link, Profile, ProfileError, Side};
pub use watch::Executed;
