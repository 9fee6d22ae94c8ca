//! DOCA Core's object model on mlx5 devices, in Rust and without any of the vendor's libraries.
//!
//! Objects have their DOCA names here, and types express their rules: a builder replaces *create*
//! and *configure*, *start* turns it into the object, *submit* takes a job with its buffers,
//! *retrieve* returns them, *stop* and *destroy* are drops, or methods that refuse while the object
//! is in use.
//!
//! ```
//! use std::sync::Arc;
//!
//! use verbless_devx::Backend;
//! use verbless_doca::dma::Dma;
//! use verbless_doca::{AccessFlags, DevInfo, Event, Inventory, Memory, Mmap, WorkQ};
//! use verbless_model::{Model, Profile};
//! use verbless_model_kernel::InProcess;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // On the software model; where there is a card, `DevInfo::list()` has it.
//! let model = Model::builder().device(Profile::load("bluefield3")?).build();
//! let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
//! let dev = DevInfo::find_in(&backend, "mlx5_0")?.open()?;
//!
//! // Memory that the device may use, and descriptors of parts of it.
//! let map = Mmap::builder()
//!     .memrange(Memory::allocate(4096)?)
//!     .permissions(AccessFlags::LOCAL_READ_WRITE)
//!     .add_dev(&dev)
//!     .start()?;
//! let inventory = Inventory::builder(2).start()?;
//! let mut source = inventory.buf_by_addr(&map, map.address(), 1024)?;
//! let destination = inventory.buf_by_addr(&map, map.address() + 1024, 1024)?;
//! source.append(b"copied by the device")?;
//!
//! // A context, a work queue on it, a job.
//! let dma = Dma::builder(&dev).start()?;
//! let mut workq = WorkQ::new(16)?;
//! workq.add(&dma)?;
//! workq.submit(dma.memcpy(source, destination).user_data(7))?;
//! let Some(Event::Dma(done)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
//! assert_eq!(done.destination.to_vec()?, b"copied by the device");
//! assert_eq!(done.user_data.0, 7);
//! # Ok(())
//! # }
//! ```
//!
//! | module | DOCA's header | what |
//! |---|---|---|
//! | here: [`Error`], [`ErrorKind`], [`Refused`] | `doca_error.h` | what went wrong, what to do |
//! | here: [`AccessFlags`], [`UserData`], [`PciFuncType`] | `doca_types.h` | generic types |
//! | [`device`] | `doca_dev.h` | devices and representors: lists, properties, open ones |
//! | [`device::bridge`] | | the RDMA bridge: rdma-core's devices, protection domains and keys |
//! | [`memory`] | `doca_mmap.h` | memory maps, exports |
//! | [`buffer`] | `doca_buf.h`, `doca_buf_inventory.h` and their kin | buffers, inventories |
//! | [`context`] | `doca_ctx.h` | work queues, jobs, events |
//! | [`dma`] | `doca_dma.h` | copies by the device |
//! | [`async_event`] | | external events: of a device's ports, and of its end |
//! | [`future`] | | jobs as futures |
//! | [`graph`] | `doca_graph.h` | jobs in the order of their dependencies |
//! | [`rdma`] | `doca_rdma.h` | memory and messages of a peer |
//! | [`sha`] | `doca_sha.h` | hashes, by software |
//! | [`sync_event`] | `doca_sync_event.h` | counters that a host and its DPU share |
//!
//! # Threads
//! The library creates no threads. Devices, their infos and contexts, except those of sync events,
//! are `Send` and `Sync`; so are maps, inventories and pools, so that threads may create buffers of
//! them at the same time. Changing a map of 1.3 or stopping an inventory takes `&mut`. Buffers,
//! work queues and sync events are `Send`, for one thread at a time, as in the guides: a lock or an
//! atomic in each job would cost more than the job.
//!
//! # Cost
//! Submitting and retrieving a job does not allocate, lock, or make virtual calls. Retrieving a
//! copy and submitting the next one with its buffers takes 234 instructions on x86-64, 1.44 times
//! the 163 that the queue layer takes to poll and post the same request; for 64 submits followed by
//! 64 retrieves, it is 244 for each. The instructions in addition to the request:
//!
//! - about 25: the work queue finds room, the job's context, and the completion's context;
//! - about 20: the engine checks that each buffer is not chained, has no other reference, and is in
//!   memory that the device can access as the job needs, and that the data fits the destination;
//! - about 25: the job is written to its slot, and taken from there.
//!
//! An RDMA job takes 212 instructions, of which 143 for the request, for a send with or without
//! immediate, and 228, of which 156 for the request, for a write or read: 1.46 to 1.49 times the
//! request. The 69 of a send:
//!
//! - 26: the work queue finds room and the job's context (13), and the completion's device and
//!   context (13);
//! - 6: the engine checks that the instance accepts the job, and how the device reaches the buffer;
//!   about 10 more for a remote buffer;
//! - 37: the check for room; writing the job to its slot and taking it from there in order, each
//!   with a check of the index.
//!
//! A receive takes 1.30 times its request, 384 of which 297: the queue layer has no short path for
//! its completion.
//!
//! `cargo xtask bench` measures all of them in a release build, and fails above 1.5 times. The
//! begin of a job is inlined at its submission, so that only the code of the chosen operation
//! remains; if the compiler cannot see the operation, the code of all operations remains.
//!
//! These numbers are for single buffers, on a work queue of one device without running graphs.
//! Chains, and the first job of a buffer with a device that is not the first of its map, take the
//! full checks.

// An example that a reader copies compiles without warnings about unused results.
#![doc(test(attr(deny(unused_must_use))))]

#[cfg(any(doc, doctest))]
#[doc = include_str!("../docs/doca.md")]
pub mod chapter {}

#[cfg(any(doc, doctest))]
pub mod mapping {
    #![doc = include_str!("../docs/mapping/doca-core.md")]
    use super::*;
}

mod as_dev;
#[cfg(any(doc, doctest))]
pub mod mapping_rdma {
    #![doc = include_str!("../docs/mapping/doca-rdma.md")]
    use super::rdma::*;
    use super::*;
}

#[cfg(any(doc, doctest))]
pub mod mapping_programs {
    #![doc = include_str!("../docs/mapping/doca-programs.md")]
    use super::*;
}

pub mod async_event;
pub mod buffer;
pub mod context;
pub mod device;
pub mod dma;
mod error;
pub mod future;
pub mod graph;
pub mod memory;
pub mod rdma;
pub mod sha;
pub mod sync_event;
mod types;

pub use as_dev::AsDev;
pub use buffer::{Buf, BufArray, BufPool, BufRef, Extensions, Inventory};
pub use context::{Context, Event, Events, Job, JobError, JobType, Retrieve, WorkQ};
pub use device::{Dev, DevInfo, DevInfoRep, DevRep, DevType};
pub use error::{Error, ErrorKind, Refused, Result};
pub use future::{AsyncWorkQ, JobFuture};
pub use memory::{DynamicMmap, Memory, MemoryMap, Mmap};
pub use types::{AccessFlags, PciAddress, PciFuncType, UserData};
