//! An open device, and the results of queries at opening.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_devx::{Backend, Context, DeviceInfo, DevxObject, ModelToken, Result};
use verbless_prm::CommandInput;

use crate::caps::{CapMode, CapPage, Caps, query_hca_cap};
use crate::execute;
use crate::query::{Adapter, lag_ports};

/// An open device: a DevX context and its capabilities.
///
/// Clones share the context, which closes when the last clone and the last object on it are
/// dropped. It derefs to the [`Context`], whose functions call the kernel: ports, GIDs, protection
/// domains, UMEMs, UARs and event channels.
#[derive(Clone)]
pub struct Device {
    context: Context,
    queried: Arc<OpenQueries>,
}

/// Results of queries at opening.
struct OpenQueries {
    caps: Caps,
    adapter: Adapter,
    /// Number of ports of the bond; 1 without one.
    lag_ports: u8,
    /// Number of queue pairs and TISs that were given a port of the bond.
    lag_counter: AtomicU32,
}

impl Device {
    /// Opens a device of `backend` and reads its identity and capabilities.
    pub fn open(backend: &dyn Backend, info: &DeviceInfo) -> Result<Self> {
        Self::on(Context::open(backend, info)?)
    }

    /// Reads the identity and capabilities of an open device.
    pub fn on(context: Context) -> Result<Self> {
        let (caps, adapter) = (Caps::read(&context)?, Adapter::read(&context)?);
        let lag_ports = lag_ports(&context, &caps);
        let queried = OpenQueries { caps, adapter, lag_ports, lag_counter: AtomicU32::new(0) };
        Ok(Self { context, queried: Arc::new(queried) })
    }

    /// The device's capabilities.
    pub fn caps(&self) -> &Caps {
        &self.queried.caps
    }

    /// Number of ports of the bond (LAG) over which queue pairs and TISs of this device are spread
    /// in turn; 1 without a bond. Read at opening.
    pub fn lag_ports(&self) -> u8 {
        self.queried.lag_ports
    }

    /// The port of the bond for the next queue pair or TIS, as mlx5_ib chooses it; 0 without a
    /// bond.
    pub(crate) fn next_lag_port(&self) -> u8 {
        match u32::from(self.queried.lag_ports) {
            0 | 1 => 0,
            ports => (self.queried.lag_counter.fetch_add(1, Ordering::Relaxed) % ports) as u8 + 1,
        }
    }

    /// The device's identity: vendor id and PSID.
    pub fn adapter(&self) -> &Adapter {
        &self.queried.adapter
    }

    /// The token for typed commands whose layout only the software model has; `None` on hardware.
    /// Without it, such a command is refused before it is sent
    /// ([`ErrorKind::ModelOnly`](crate::ErrorKind::ModelOnly)).
    pub fn as_model(&self) -> Option<ModelToken> {
        self.adapter().is_model().then(|| self.context.as_model().ok().flatten()).flatten()
    }

    /// QUERY_HCA_CAP: one page, as the device returns it.
    pub fn query_hca_cap(&self, page: CapPage, mode: CapMode) -> Result<Box<[u8; 0x1000]>> {
        query_hca_cap(&self.context, page, mode)
    }

    /// Sends a command that creates a DevX object, and whose input has no tail.
    pub(crate) fn create<I: CommandInput>(
        &self,
        input: &I,
        output: &mut I::Output,
    ) -> Result<DevxObject> {
        execute::create(&self.context, input, output)
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
