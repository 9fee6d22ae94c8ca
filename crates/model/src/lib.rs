//! A software model of the mlx5 device.
//!
//! It is only the device: objects and commands, the data path, the fabric between devices. It uses
//! `verbless-prm` and nothing else of the driver, so that it cannot repeat a bug of the driver.
//! Front ends, which play the host, access it through [`function`]:
//!
//! ```text
//!   verbless-model-kernel       verbless-model-host               front ends: they play the kernel
//!   (in this process)           (PCI over vfio-user; other programs)
//!            \                     |
//!             `--- function: commands, MMIO, interrupts, memory
//!                                  |
//!   hca: objects and commands   engine: doorbells, WQEs, CQEs, EQEs  a lock for each function
//!                                  |                    |
//!     memory: the host's memory, UAR pages            fabric: frames, links, the switch
//!
//!   from outside:  links: how links are, captures    plan: faults from a file
//!                  external: a socket at the switch
//! ```
//!
//! Where to add:
//! - an operation of send queues: an entry of the table in `engine/operation.rs`. Its execution is
//!   a value there; each file that executes operations has a `match` on it. If it has a segment of
//!   a new kind: a `WqeSegment` there, which `engine/work.rs` reads. If its packets have opcodes of
//!   their own: a `Message` and entries of the table in `crates/wire/src/opcode.rs`, and in the
//!   modules of `engine/transport` whether the requester or the responder takes them;
//! - a QP type, which is a transport service or a special use of one: a module of
//!   `engine/transport`, which says who may have it and how its messages travel, its name in
//!   `TRANSPORTS` there, and in `carriers` of the operations that it carries. If its packets have
//!   opcodes of their own: the service in `crates/wire/src/opcode.rs`;
//! - a kind of object: an entry of the registry in `hca/kinds`, whose module comment explains
//!   entries; its structure, and a module of `hca/commands` with the functions that the entry
//!   names. The effects of its commands on the engine's queues are `Effect`s;
//! - another command: an entry of the table in `hca/commands/execute.rs`;
//! - a header of packets: its layout in `prm/packet.toml`, and its position in `verbless-wire`.
//!
//! `hca` uses nothing of `engine`, `fabric` nothing of `hca`, and `memory` nothing of these three.
//! No cycle of modules has more than three files; in `engine`, only a file and its child may form
//! one. A test (`tests/modules.rs`) checks this by the paths in the sources.

#[cfg(test)]
mod cases;
mod clock;
mod connection;
mod directory;
mod driver;
mod engine;
mod engine_waker;
mod external;
mod fabric;
pub mod function;
mod functions;
mod guard;
mod hca;
pub mod ioctl;
mod links;
mod locked;
pub mod memory;
mod model;
mod numbered;
#[cfg(feature = "toml")]
mod plan;
pub mod profile;
mod runtime;
mod shared_model;
mod watch;

pub use driver::DriverHandle;
pub use engine::{Fault, QueueKind};
pub use external::{External, RoceUplink, Uplink};
pub use fabric::{FrameEffect, FrameFault, FrameSelector, LinkSettings, Occurrence, Traffic};
pub use guard::Watch;
pub use hca::objects::ObjectCounts;
pub use hca::resources::{
    CqResource, MkeyResource, PdResource, QpResource, Resources, SrqResource,
};
pub use hca::{Refusal, Times};
pub use ioctl::Ioctl;
pub use model::{Builder, Model};
#[cfg(feature = "toml")]
pub use plan::{FaultPlan, FaultPlanError};
pub use profile::{FunctionPlace, Link, Profile, ProfileError, Role, Side};
pub use watch::{
    ArrivalRecording, Arrivals, Arrived, Executed, QueueId, QueueSide, Request, SeenFrame,
};
