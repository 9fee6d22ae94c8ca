//! The mlx5 command layer: one typed function per PRM command that a user process may send.
//!
//! A [`Device`] is an open context with its capabilities. Objects ([`MkeyObject`], [`CqObject`],
//! [`QpObject`], [`RmpObject`], [`GeneralObject`]) hold what they are made of, are destroyed when
//! they are dropped, and say with [`QpObject::destroy`] and its siblings whether that worked. They
//! are what the device has; `verbless_queue::Qp` and its siblings join them with the rings that a
//! program posts to and polls.
//!
//! Every error names the command, its status and syndrome, and what to check next.

mod caps;
mod cq;
mod error;
mod general;
mod memory;
mod mkey;
mod owned;
mod path;
mod qp;
mod query;
mod rmp;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_devx::{Backend, Context, DeviceInfo, DevxObject};
use verbless_prm::CommandInput;
use zerocopy::{FromZeros, IntoBytes};

pub use caps::{CapMode, CapPage, Caps};
pub use cq::{CqAttr, CqObject, Moderation};
pub use general::GeneralObject;
pub use memory::{QueueMemory, UserMemory};
pub use mkey::{KeyMemory, Klm, MkeyAttr, MkeyObject, check_access};
pub use path::{GlobalRoute, Path, ROCE_V2_FIRST_PORT, RoceVersion};
pub use qp::{DatagramAttr, InitAttr, Mtu, QpAttr, QpObject, RtrAttr, RtsAttr, RtsChange};
pub use query::Adapter;
pub use rmp::{RmpAttr, RmpObject};
pub use verbless_devx::{Error, ErrorKind, Gid, MODEL_PSID, ModelToken, Result};
pub use verbless_prm::ServiceType;
pub use verbless_ring::access::{KeyAccess, RemoteAccess};
pub use verbless_ring::number::{Cqn, Eqn, Lkey, QKey, Qpn, Rkey, Rmpn};

/// An open device: a DevX context and what the device can do.
///
/// Clones share the context, which closes when the last clone and the last object on it are gone.
/// It derefs to the [`Context`], whose functions are the kernel's own: ports, GIDs, protection
/// domains, UMEMs, UARs and event channels.
#[derive(Clone)]
pub struct Device {
    context: Context,
    known: Arc<Known>,
}

/// What is asked once.
struct Known {
    caps: Caps,
    adapter: Adapter,
    /// Ports of a bond, 1 without one.
    lag_ports: u8,
    /// Queue pairs that were given a port of the bond.
    lag_turns: AtomicU32,
}

impl Device {
    /// Opens a device of `backend` and reads its identity and capabilities.
    pub fn open(backend: &dyn Backend, info: &DeviceInfo) -> Result<Self> {
        Self::on(Context::open(backend, info)?)
    }

    /// Reads the identity and capabilities of a device that is open already.
    pub fn on(context: Context) -> Result<Self> {
        let (caps, adapter) = (Caps::read(&context)?, Adapter::read(&context)?);
        let lag_ports = query::lag_ports(&context, &caps);
        let known = Known { caps, adapter, lag_ports, lag_turns: AtomicU32::new(0) };
        Ok(Self { context, known: Arc::new(known) })
    }

    /// What the device can do.
    pub fn caps(&self) -> &Caps {
        &self.known.caps
    }

    /// Ports of the bond (LAG) that queue pairs of this device take turns to send from; 1 where the
    /// ports are not bonded. As it was when the device was opened.
    pub fn lag_ports(&self) -> u8 {
        self.known.lag_ports
    }

    /// The port of the bond for the next queue pair, as mlx5_ib chooses it; 0 without a bond.
    fn next_lag_port(&self) -> u8 {
        match u32::from(self.known.lag_ports) {
            0 | 1 => 0,
            ports => (self.known.lag_turns.fetch_add(1, Ordering::Relaxed) % ports) as u8 + 1,
        }
    }

    /// Which device it is.
    pub fn adapter(&self) -> &Adapter {
        &self.known.adapter
    }

    /// What a typed command needs whose layout only the software model knows; `None` on hardware.
    /// Without it, such a command is refused before it is sent ([`ErrorKind::ModelOnly`]).
    pub fn as_model(&self) -> Option<ModelToken> {
        self.adapter().is_model().then(|| self.context.as_model().ok().flatten()).flatten()
    }

    /// QUERY_HCA_CAP: one page, as the device sends it.
    pub fn query_hca_cap(&self, page: CapPage, mode: CapMode) -> Result<Box<[u8; 0x1000]>> {
        caps::query_hca_cap(&self.context, page, mode)
    }

    /// Sends a creating command without a variable tail.
    fn create<I: CommandInput>(&self, input: &I, output: &mut I::Output) -> Result<DevxObject> {
        const { published::<I>() };
        self.context.obj_create(input.as_bytes(), output.as_mut_bytes())
    }
}

impl Deref for Device {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.adapter().psid).finish()
    }
}

/// Compiles for commands that hardware has.
const fn published<I: CommandInput>() {
    assert!(!I::MODEL_ONLY, "only the model knows this layout: its function takes a &ModelToken");
}

/// Sends a general command (DEVX_OTHER).
fn execute<I: CommandInput>(context: &Context, input: &I, output: &mut I::Output) -> Result<()> {
    const { published::<I>() };
    context.devx_other(input.as_bytes(), output.as_mut_bytes())
}

/// Sends a query of an object.
fn query_object<I: CommandInput>(
    object: &DevxObject,
    input: &I,
    output: &mut I::Output,
) -> Result<()> {
    const { published::<I>() };
    object.query(input.as_bytes(), output.as_mut_bytes())
}

/// Sends a change of an object whose answer holds nothing but the status.
fn modify_object<I: CommandInput>(object: &DevxObject, input: &I) -> Result<()> {
    const { published::<I>() };
    let mut output = I::Output::new_zeroed();
    object.modify(input.as_bytes(), output.as_mut_bytes())
}
