//! An open device.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use verbless_command::{Caps, Device};
use verbless_devx::Backend;
use verbless_queue::{Domain, ErrorKind as LowerKind};

use super::DevInfo;
use crate::error::Result;

/// An open device (`struct doca_dev`). Clones are the same device; it closes when the last clone
/// and all its objects are dropped (`doca_dev_close` is a drop).
#[derive(Clone)]
pub struct Dev(Arc<OpenDev>);

struct OpenDev {
    info: DevInfo,
    device: Device,
    domain: Domain,
    /// The domain of the keys that the DPU aliases. It has no queue pair, so that no peer can use
    /// them.
    shared: OnceLock<Domain>,
    /// Unique among all devices that the process ever opened.
    id: u64,
}

/// The devices that are open in this process.
static OPEN: Mutex<Vec<OpenDevEntry>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

struct OpenDevEntry {
    backend: Weak<dyn Backend>,
    name: String,
    open: Weak<OpenDev>,
}

impl Dev {
    pub(super) fn open(info: &DevInfo) -> Result<Self> {
        // The lock is held during the open, so that no other thread opens the device at the same
        // time.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|entry| entry.open.strong_count() > 0);
        let backend = Arc::downgrade(info.backend());
        let same =
            |entry: &&OpenDevEntry| entry.name == info.name() && entry.backend.ptr_eq(&backend);
        if let Some(there) = open.iter().find(same).and_then(|entry| entry.open.upgrade()) {
            // A removed device does not respond; another may have its name.
            match there.device.gid_table() {
                Err(error) if error.kind() == LowerKind::DeviceGone => {
                    open.retain(|entry| !same(&entry));
                }
                _ => return Ok(Self(there)),
            }
        }
        let device = Device::open(&**info.backend(), info.device_info())?;
        let domain = Domain::new(&device)?;
        let this = Self::of(info, device, domain);
        open.push(OpenDevEntry {
            backend,
            name: info.name().to_owned(),
            open: Arc::downgrade(&this.0),
        });
        Ok(this)
    }

    /// A new open device, separate from other open devices of the same function.
    pub(super) fn of(info: &DevInfo, device: Device, domain: Domain) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(OpenDev { info: info.clone(), device, domain, shared: OnceLock::new(), id }))
    }

    /// The device's description (`doca_dev_as_devinfo`).
    pub fn info(&self) -> &DevInfo {
        &self.0.info
    }

    /// The open device of verbless-command: capabilities, queries, commands.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The protection domain (`doca_dev_get_pd`). The program can create regions and queues of
    /// verbless-queue in it, besides this crate's.
    pub fn domain(&self) -> &Domain {
        &self.0.domain
    }

    /// The protection domain of memory that is shared with the DPU.
    pub(crate) fn shared_domain(&self) -> Result<&Domain> {
        if let Some(there) = self.0.shared.get() {
            return Ok(there);
        }
        let made = Domain::new(&self.0.device)?;
        Ok(self.0.shared.get_or_init(|| made))
    }

    /// The device's id; no other open device of the process ever has the same; not 0.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.0.device.caps()
    }
}

/// Two handles are equal if they are of the same open device.
impl PartialEq for Dev {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Dev {}

impl fmt::Debug for Dev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dev({})", self.0.info.ib_device_name())
    }
}
