//! Representors (section 3.2 of 2.2; 4.3 and 4.4 of 1.3, which calls them remote devices).

use std::fmt;
use std::sync::Arc;

use verbless_devx::{FunctionKind, RepresentorInfo};

use super::{Dev, DevInfo, func_type};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{PciAddress, PciFuncType};

/// The description of a representor at the time when it was listed (`struct doca_devinfo_rep`, and
/// `struct doca_devinfo_remote` of 1.3). It outlives the device that listed it. Clones refer to the
/// same description.
///
/// A DPU has a representor for each function of its host and for each of its own sub-functions, at
/// the PF that manages the switch they are behind. The host's device and its representor have the
/// same PCI address and the same VUID:
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::{DevInfo, DevInfoRep, PciAddress};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [_, dpu] = doc::sides();
/// let dev = DevInfo::find_in(&dpu, "03:00.0")?.open()?;
/// let wanted: PciAddress = "0b:00.2".parse()?;
/// let reps = DevInfoRep::list(&dev)?;
/// let info = reps.iter().find(|rep| rep.pci_address().ok() == Some(wanted));
/// let rep = info.ok_or("no such function of the host")?.open()?;
/// assert_eq!(rep.info().interface_name(), "pf0vf0");
/// # Ok(())
/// # }
/// ```
///
/// [`DevInfoRep::find`] does this in one call.
#[derive(Clone, PartialEq, Eq)]
pub struct DevInfoRep(Arc<ListedRep>);

#[derive(PartialEq, Eq)]
struct ListedRep {
    /// The device that listed the representor; open or not.
    by: DevInfo,
    info: RepresentorInfo,
    from_device: FromDevice,
}

/// What the device says of a function of the host: Linux knows neither.
#[derive(Default, PartialEq, Eq)]
struct FromDevice {
    pci_address: Option<PciAddress>,
    vuid: Option<String>,
}

impl FromDevice {
    /// Asks the device of the switch for what the kernel does not say. What it refuses stays
    /// unknown.
    fn of(dev: &Dev, info: &RepresentorInfo) -> Self {
        if !info.external {
            return Self::default();
        }
        let device = dev.device();
        let is_pf = info.function == FunctionKind::Physical;
        // QUERY_ESW_FUNCTIONS has the address of the PF alone.
        let asks_address = is_pf && info.pci_address.is_none();
        let pf = asks_address.then(|| device.query_host_pf().ok().flatten()).flatten();
        let pci_address = pf.and_then(|pf| {
            let (bus, device, function) = (pf.bus, pf.device, pf.function);
            format!("{bus:02x}:{device:02x}.{function:x}").parse().ok()
        });
        let id = match info.function {
            FunctionKind::Physical => Some(0),
            FunctionKind::Virtual => info.number.and_then(|it| u16::try_from(it + 1).ok()),
            FunctionKind::Sub => None,
        };
        let asked = id.filter(|_| info.vuid.is_none());
        let vuid = asked
            .and_then(|id| device.query_vuid_of(device.query_host_vhca_id(id).ok()?).ok())
            .filter(|vuid| !vuid.is_empty());
        Self { pci_address, vuid }
    }
}

impl DevInfoRep {
    /// The representors at `dev` (`doca_devinfo_rep_list_create`): a snapshot, which neither
    /// functions that come nor those that go change. List again to see them.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if `dev` represents nobody: it is a device of a host, or a
    /// sub-function; the device is gone.
    pub fn list(dev: &Dev) -> Result<Vec<Self>> {
        let by = dev.info();
        let listed = by.backend().representors(by.device_info())?;
        let is_manager = by.device_info().embedded_cpu && by.function_type() == PciFuncType::Pf;
        if listed.is_empty() && !is_manager {
            let text = format!(
                "{dev:?} represents no functions: list the representors of a physical function of \
                 the DPU, in switchdev mode"
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let new = |info: RepresentorInfo| {
            let from_device = FromDevice::of(dev, &info);
            Self(Arc::new(ListedRep { by: by.clone(), info, from_device }))
        };
        Ok(listed.into_iter().map(new).collect())
    }

    /// The representor at `dev` of the function with this PCI address (`0b:00.2`, `0000:0b:00.2`;
    /// as in [`DevInfo::find`]), or whose interface has this name (`pf0vf0`).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], with a list of what there is; as [`DevInfoRep::list`].
    pub fn find(dev: &Dev, name: &str) -> Result<Self> {
        let all = Self::list(dev)?;
        let at = |rep: &Self| rep.pci_address().ok();
        let address = name.parse().ok();
        let address =
            address.map(|it: PciAddress| it.in_domain_of(name, all.iter().filter_map(at)));
        let found = all.iter().find(|rep| match address {
            Some(_) => at(rep) == address,
            None => rep.interface_name() == name,
        });
        found.cloned().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(Self::interface_name).collect();
            let known = known.join(", ");
            let text = format!("{name} is none of {dev:?}'s representors, which are: {known}");
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Opens the representor (`doca_dev_remote_open`).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the function or the device that represents it is gone, or another
    /// one has its place.
    pub fn open(&self) -> Result<DevRep> {
        let ListedRep { by, info, .. } = &*self.0;
        let gone = || {
            let text = format!(
                "the representor {} of {} is gone, or stands for another function: list them again",
                info.name,
                by.ib_device_name()
            );
            Error::new(ErrorKind::NotFound, text)
        };
        let now = by.backend().representors(by.device_info());
        let now = now.map_err(|error| gone().with_source(error))?;
        if !now.contains(info) {
            return Err(gone());
        }
        Ok(DevRep(self.clone()))
    }

    /// The PCI address of the represented function in the machine where it is plugged in.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a sub-function, which has none, and where neither kernel nor
    /// device say it: Linux on a DPU does not know addresses of the host, and the device
    /// (QUERY_ESW_FUNCTIONS) says that of its PF alone.
    pub fn pci_address(&self) -> Result<PciAddress> {
        match (&self.0.info.pci_address, self.0.from_device.pci_address) {
            (Some(address), _) => address.parse(),
            (None, Some(address)) => Ok(address),
            (None, None) if self.0.info.function == FunctionKind::Sub => {
                Err(self.has_no("PCI address: it stands for a sub-function"))
            }
            (None, None) => {
                Err(self.has_no("PCI address: neither the kernel nor the device says the host's"))
            }
        }
    }

    /// The VUID of the represented function.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where neither kernel nor device (QUERY_VUID) say it.
    pub fn vuid(&self) -> Result<&str> {
        let vuid = self.0.info.vuid.as_deref().or(self.0.from_device.vuid.as_deref());
        vuid.ok_or_else(|| {
            self.has_no("VUID: neither the kernel nor the device says the function's")
        })
    }

    /// The type of the represented function.
    pub fn function_type(&self) -> PciFuncType {
        func_type(self.0.info.function)
    }

    /// The name of the representor's network interface, such as `pf0hpf`.
    pub fn interface_name(&self) -> &str {
        &self.0.info.name
    }

    /// The description in the layers below.
    pub fn representor_info(&self) -> &RepresentorInfo {
        &self.0.info
    }

    fn has_no(&self, what: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("{} has no {what}", self.interface_name()))
    }
}

impl fmt::Debug for DevInfoRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DevInfoRep").field(&self.0.info).finish()
    }
}

/// An open representor (`struct doca_dev_rep`, and `struct doca_dev_remote` of 1.3), by which
/// libraries name a function of the host. It closes when it is dropped. Two are equal if they are
/// of the same function.
#[derive(Clone, PartialEq, Eq)]
pub struct DevRep(DevInfoRep);

impl DevRep {
    /// The description of the representor (`doca_dev_remote_as_devinfo`).
    pub fn info(&self) -> &DevInfoRep {
        &self.0
    }
}

impl fmt::Debug for DevRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevRep({})", self.0.interface_name())
    }
}
