//! The mlx5 command layer: one typed function per PRM command that a user process may send.
//!
//! A [`Device`] is an open context with its capabilities. Objects ([`MkeyObject`], [`CqObject`],
//! [`QpObject`], [`RmpObject`], [`SqObject`], [`RqObject`], [`GeneralObject`]) keep their parents
//! alive and are destroyed when dropped; [`QpObject::destroy`] and its siblings also return whether
//! that worked. They are the objects on the device only; `verbless_queue::Qp` and its siblings add
//! the rings for posting and polling.
//!
//! The feature `dpa` adds the DPA's commands, and the register commands, which only the DPA needs.
//!
//! Every error has the command, its status and syndrome, and what to check next.

mod alias;
mod caps;
mod counter;
mod cq;
mod device;
#[cfg(feature = "dpa")]
mod dpa;
#[cfg(feature = "dpa")]
mod dpa_eu;
#[cfg(feature = "dpa")]
mod dpa_outbox_window;
#[cfg(feature = "dpa")]
mod emulated;
mod error;
mod execute;
mod flow;
mod general;
mod memory;
mod mkey;
mod owned;
mod path;
mod qp;
mod query;
mod random;
#[cfg(feature = "dpa")]
mod register;
mod rmp;
mod rq;
mod sq;
mod state;
mod transport;

pub use alias::{AccessKey, AliasAttr, AliasKey};
pub use caps::{CapMode, CapPage, Caps};
pub use counter::QCounter;
pub use cq::{CqAttr, CqEventTarget, CqObject, CqOptions, Moderation};
pub use device::Device;
#[cfg(feature = "dpa")]
pub use dpa::{
    Affinity, DpaCall, DpaCallState, DpaCrash, DpaEntry, DpaProcess, DpaProcessAttr,
    DpaProcessInfo, DpaStatus, DpaThread, DpaThreadInfo, DpaThreadKind, DpaThreadState,
};
#[cfg(feature = "dpa")]
pub use dpa_eu::{DpaCaps, DpaEuGroup, DpaEuPartition, DpaEuPartitionAttr};
#[cfg(feature = "dpa")]
pub use dpa_outbox_window::{DpaOutbox, DpaUarExtension, DpaWindow};
#[cfg(feature = "dpa")]
pub use emulated::{
    DpaEq, DpaEqAttr, DpaEqInfo, EmulatedDevice, EmulatedDoorbell, EmulatedDoorbellInfo,
};
pub use flow::{FlowAttr, FlowRule};
pub use general::GeneralObject;
pub use memory::{QueueMemory, UserMemory};
pub use mkey::{KeyMemory, Klm, MkeyAttr, MkeyObject, check_access};
pub use path::{GlobalRoute, Path, ROCE_V2_FIRST_PORT, RoceVersion};
pub use qp::{DatagramAttr, InitAttr, Mtu, QpAttr, QpObject, RtrAttr, RtsAttr, RtsChange};
pub use query::{Adapter, HostPf};
#[cfg(feature = "dpa")]
pub use register::RegisterAccess;
pub use rmp::{RmpAttr, RmpObject};
pub use rq::{RqAttr, RqObject, RqWqes};
pub use sq::{SqAttr, SqObject};
pub use transport::{SelfLoopback, TirObject, TisAttr, TisObject, TransportDomain};
pub use verbless_devx::{Error, ErrorKind, Gid, MODEL_PSID, ModelToken, Result};
pub use verbless_prm::access::{KeyAccess, RemoteAccess};
pub use verbless_prm::number::{Cqn, Eqn, Lkey, QKey, Qpn, Rkey, Rmpn, Rqn, Tirn, Tisn};
pub use verbless_prm::{CqeSize, MiniCqeFormat, ServiceType, TimestampFormat};
