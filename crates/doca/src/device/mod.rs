//! Devices (`doca_dev.h`; sections 3.2 of 2.2, 4.1 to 4.4 and 5.1 of 1.3).
//!
//! A [`DevInfo`] describes a device, for listing, queries and opening. A [`Dev`] is an open device,
//! for maps and contexts. A [`DevInfoRep`] describes a representor of another function, and a
//! [`DevRep`] is an open one. All of them are handles, `Send` and `Sync`.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! use verbless_doca::DevInfo;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = doc::backend();
//! // `DevInfo::list` and `DevInfo::find` have the machine's own; here the model has some.
//! for info in DevInfo::list_of(&backend)? {
//!     println!("{}: {:?}", info.ib_device_name(), info.function_type());
//! }
//! let dev = DevInfo::find_in(&backend, "mlx5_0")?.open()?;
//! println!("{}", dev.info().vuid()?);
//! # Ok(())
//! # }
//! ```

pub mod bridge;
pub(crate) mod capability;
mod open;
mod rep;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};

use verbless_devx::{Backend, DeviceInfo, FunctionKind, GidType, Kernel};

use crate::error::{Error, ErrorKind, Result};
use crate::types::{PciAddress, PciFuncType};

pub use open::Dev;
pub use rep::{DevInfoRep, DevRep};

/// Whether a device is hardware or software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DevType {
    /// A PCI function of hardware.
    Hardware,
    /// A device of software: here the project's model of one.
    Software,
}

/// The description of a device at the time when it was listed, before it is opened (`struct
/// doca_devinfo`). Clones refer to the same description.
#[derive(Clone)]
pub struct DevInfo(Arc<ListedDev>);

pub(crate) struct ListedDev {
    backend: Arc<dyn Backend>,
    info: DeviceInfo,
}

/// The kernel's devices.
static KERNEL: LazyLock<Arc<dyn Backend>> = LazyLock::new(|| Arc::new(Kernel::new()));

impl DevInfo {
    /// The devices of this machine (`doca_devinfo_list_create`). A drop of the list does not close
    /// devices that were opened from it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] or [`ErrorKind::Initialization`] without devices, with what to do.
    pub fn list() -> Result<Vec<Self>> {
        Self::list_of(&KERNEL)
    }

    /// The devices of a backend: for the software model in this process.
    ///
    /// # Errors
    /// As [`DevInfo::list`].
    pub fn list_of(backend: &Arc<dyn Backend>) -> Result<Vec<Self>> {
        let found = backend.enumerate()?.into_iter();
        Ok(found.map(|info| Self(Arc::new(ListedDev { backend: backend.clone(), info }))).collect())
    }

    /// The device of this machine with this PCI address (`08:00.0`, `0000:08:00.0`) or name
    /// (`mlx5_0`). An address without a domain is of domain 0, or of the only domain that has it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], with a list of the devices.
    pub fn find(name: &str) -> Result<Self> {
        Self::find_in(&KERNEL, name)
    }

    /// Finds a device among those of a backend.
    ///
    /// # Errors
    /// As [`DevInfo::find`].
    pub fn find_in(backend: &Arc<dyn Backend>, name: &str) -> Result<Self> {
        let name = match name.parse::<PciAddress>() {
            Ok(address) => {
                let there = backend.enumerate().unwrap_or_default();
                let there = there.iter().filter_map(|info| info.pci_address.as_ref()?.parse().ok());
                address.in_domain_of(name, there).to_string()
            }
            Err(_) => name.to_owned(),
        };
        let info = backend.find(&name)?;
        Ok(Self(Arc::new(ListedDev { backend: backend.clone(), info })))
    }

    /// Opens the device (`doca_dev_open`). For an already open device it returns the same device,
    /// which closes when the last handle to it is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] without access to its file; [`ErrorKind::NotSupported`] without
    /// DevX; the device is removed.
    pub fn open(&self) -> Result<Dev> {
        Dev::open(self)
    }

    /// The vendor's unique identifier of the function: it stays the same over reboots
    /// (property VUID).
    ///
    /// # Errors
    /// The device cannot be opened; [`ErrorKind::NotSupported`] if it does not report its VUID.
    pub fn vuid(&self) -> Result<String> {
        let dev = self.open()?;
        dev.device().query_vuid().map_err(|error| match error.kind() {
            verbless_devx::ErrorKind::Command => {
                let text = format!("{} does not report its VUID: {error}", self.name());
                Error::new(ErrorKind::NotSupported, text).with_source(error)
            }
            _ => error.into(),
        })
    }

    /// The PCI address; for a sub-function, its parent's.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a device without a PCI bus, such as the model in this process.
    pub fn pci_address(&self) -> Result<PciAddress> {
        match &self.0.info.pci_address {
            Some(address) => address.parse(),
            None => Err(self.has_no("PCI address: it is on no PCI bus")),
        }
    }

    /// An IPv4 address of the device's network interface.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if none is among its GIDs, as always on InfiniBand.
    pub fn ipv4(&self) -> Result<Ipv4Addr> {
        let found = self.roce_addresses().find_map(|address| address.to_ipv4_mapped());
        found.ok_or_else(|| self.has_no("IPv4 address: give its network interface one"))
    }

    /// An IPv6 address of the device's network interface, a link-local one if it has no other.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if none is among its GIDs, as always on InfiniBand.
    pub fn ipv6(&self) -> Result<Ipv6Addr> {
        let all = || self.roce_addresses().filter(|it| it.to_ipv4_mapped().is_none());
        let wide = all().find(|it| !it.is_unicast_link_local());
        wide.or_else(|| all().next())
            .ok_or_else(|| self.has_no("IPv6 address: give its network interface one"))
    }

    /// The name of the device's network interface.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the device has no network interface.
    pub fn interface_name(&self) -> Result<&str> {
        let first = self.0.info.netdevs.first().map(String::as_str);
        first.ok_or_else(|| self.has_no("network interface"))
    }

    /// The RDMA device name, such as `mlx5_0`.
    pub fn ib_device_name(&self) -> &str {
        &self.0.info.name
    }

    /// The type of the function.
    pub fn function_type(&self) -> PciFuncType {
        func_type(self.0.info.function)
    }

    /// Whether the device is hardware or the software model.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn dev_type(&self) -> Result<DevType> {
        let model = self.open()?.device().adapter().is_model();
        Ok(if model { DevType::Software } else { DevType::Hardware })
    }

    /// The description in verbless-devx.
    pub fn device_info(&self) -> &DeviceInfo {
        &self.0.info
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    fn name(&self) -> &str {
        &self.0.info.name
    }

    fn has_no(&self, what: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("{} has no {what}", self.name()))
    }

    /// Addresses among the GIDs: those of RoCE v2 are the interface's.
    fn roce_addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        let gids = self.0.info.ports.iter().flat_map(|port| &port.gids);
        gids.filter(|entry| entry.kind == GidType::RoceV2).map(|entry| entry.gid.0.into())
    }
}

/// Two are equal if they describe the same device, whenever it was listed.
impl PartialEq for DevInfo {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.0.info, &other.0.info);
        Arc::ptr_eq(&self.0.backend, &other.0.backend)
            && (&ours.name, ours.node_guid) == (&theirs.name, theirs.node_guid)
    }
}

impl Eq for DevInfo {}

/// DOCA's name for the type of a function.
fn func_type(kind: FunctionKind) -> PciFuncType {
    match kind {
        FunctionKind::Physical => PciFuncType::Pf,
        FunctionKind::Virtual => PciFuncType::Vf,
        FunctionKind::Sub => PciFuncType::Sf,
    }
}

impl fmt::Debug for DevInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DevInfo").field(&self.0.info).finish()
    }
}
