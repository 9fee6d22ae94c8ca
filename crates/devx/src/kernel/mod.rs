//! The kernel as a backend: sysfs to find devices, `/dev/infiniband/uverbsN` and
//! `/dev/fwctl/fwctlN` to use them.

mod discover;
mod fwctl;
mod import;
mod representors;
mod sysfs;

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::info::{DeviceInfo, FunctionKind, RepresentorInfo};
use crate::sys::{Backend, Errno, FwctlOpener, OpenDevice, UverbsFile};

use fwctl::{FwctlPath, check_number, open_node};

/// The devices of this machine.
#[derive(Clone, Debug)]
pub struct Kernel {
    sysfs: PathBuf,
    dev: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Kernel {
    /// The usual roots: `/sys` and `/dev/infiniband`.
    #[must_use]
    pub fn new() -> Self {
        Self::with_roots("/sys", "/dev/infiniband")
    }

    /// A kernel with other roots of sysfs and of the directory of uverbs nodes, for containers and
    /// tests. Nodes of fwctl are in the directory `fwctl` beside that of uverbs.
    pub fn with_roots(sysfs: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        Self { sysfs: sysfs.into(), dev: dev.into() }
    }

    /// Returns a function that opens the control file of a device. It resolves the PCI function
    /// first: later the node's name may belong to another function.
    fn control_of(&self, device: &DeviceInfo) -> FwctlOpener {
        let verbs = self.sysfs.join("class/infiniband_verbs").join(&device.node);
        let function = verbs.join("device");
        // Without its directory there is no control file.
        let function = function.canonicalize().unwrap_or(function);
        let path = FwctlPath::new(function, self.dev.with_file_name("fwctl"));
        Box::new(move || path.open())
    }
}

impl Backend for Kernel {
    fn name(&self) -> &str {
        "kernel"
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>> {
        discover::devices(&self.sysfs, &self.dev)
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>> {
        // A sub-function manages no switch: its parent does.
        let address = device.pci_address.as_deref();
        let Some(address) = address.filter(|_| device.function != FunctionKind::Sub) else {
            return Ok(Vec::new());
        };
        let function = representors::directory(&self.sysfs, address);
        Ok(representors::of_function(&self.sysfs, &function).representors)
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>> {
        let path = self.dev.join(&device.node);
        let (node, file) = open_node(&path).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
            let (kind, hint) = match errno {
                Errno::EACCES | Errno::EPERM => (
                    ErrorKind::Permission,
                    "the kernel makes the node writable for all; a udev rule may have narrowed \
                     it (`grep -r uverbs /etc/udev /usr/lib/udev`): change that or chmod 666, \
                     and in a container allow the device in its cgroup too",
                ),
                Errno::ENOENT => (
                    ErrorKind::NoDevice,
                    "the device exists but has no node: udev has not made it yet, or this \
                     container was not given it (--device=/dev/infiniband/uverbs0)",
                ),
                Errno::ENXIO | Errno::ENODEV | Errno::EIO => (
                    ErrorKind::DeviceGone,
                    "the device was removed or is being reset; enumerate \
                                             again",
                ),
                _ => (ErrorKind::Refused, "the kernel log may say more"),
            };
            Error::new(kind, format!("opening {} for {}", path.display(), device.name), hint)
                .with_errno(errno)
        })?;
        let verbs = self.sysfs.join("class/infiniband_verbs").join(&device.node);
        // GIDs and ports are those of the name in sysfs.
        check_number(&path, &node, sysfs::text(verbs.join("dev")).as_deref())?;
        Ok(Arc::new(UverbsFile { file, control: self.control_of(device) }))
    }
}
