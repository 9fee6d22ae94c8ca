//! Representors (section 3.2 of 2.2; 4.3 and 4.4 of 1.3, which calls them remote devices).

use std::fmt;
use std::sync::{Arc, OnceLock};

use verbless_devx::{FunctionKind, RepresentorInfo};

use super::{Dev, DevInfo, func_type};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{PciAddress, PciFuncType};

/// The description of a representor at the time when it was listed (`struct doca_devinfo_rep`, and
/// `struct doca_devinfo_remote` of 1.3). It outlives the device that listed it. Clones refer to the
/// same description.
///
/// A DPU has a representor for each function of its host and for each of its own sub-functions, at
/// the PF that manages their switch. The host's device and its representor have the same PCI
/// address and the same VUID:
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

struct ListedRep {
    /// The device that listed the representor; open or not.
    by: DevInfo,
    info: RepresentorInfo,
    /// Properties of a host's function that Linux does not know, from the device of the switch;
    /// queried on first use. A property that the device refuses to report stays unknown.
    pci_address: OnceLock<Option<PciAddress>>,
    vuid: OnceLock<Option<String>>,
}

impl PartialEq for ListedRep {
    fn eq(&self, other: &Self) -> bool {
        (&self.by, &self.info) == (&other.by, &other.info)
    }
}

impl Eq for ListedRep {}

impl ListedRep {
    /// The device of the switch, reopened: the one that listed this may be closed.
    fn manager(&self) -> Result<Option<Dev>> {
        if self.info.external { self.by.open().map(Some) } else { Ok(None) }
    }

    /// By QUERY_ESW_FUNCTIONS, which has only the PF's address.
    fn query_pci_address(&self) -> Result<Option<PciAddress>> {
        if self.info.function != FunctionKind::Physical {
            return Ok(None);
        }
        let Some(manager) = self.manager()? else { return Ok(None) };
        let pf = manager.device().query_host_pf().ok().flatten();
        Ok(pf.and_then(|pf| {
            format!("{:02x}:{:02x}.{:x}", pf.bus, pf.device, pf.function).parse().ok()
        }))
    }

    fn query_vuid(&self) -> Result<Option<String>> {
        let id = match (self.info.function, self.info.number) {
            (FunctionKind::Physical, _) => Some(0),
            (FunctionKind::Virtual, Some(number)) => u16::try_from(number + 1).ok(),
            _ => None,
        };
        let Some(id) = id else { return Ok(None) };
        let Some(manager) = self.manager()? else { return Ok(None) };
        let vhca_id = manager.device().query_host_vhca_id(id).ok();
        let vuid = vhca_id.and_then(|id| manager.device().query_vuid_of(id).ok());
        Ok(vuid.filter(|vuid| !vuid.is_empty()))
    }
}

impl DevInfoRep {
    /// The representors at `dev` (`doca_devinfo_rep_list_create`): a snapshot. List again to see
    /// functions that come or go later.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if `dev` has no representors: it is a device of a host, or a
    /// sub-function; the device is removed.
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
            let (pci_address, vuid) = Default::default();
            Self(Arc::new(ListedRep { by: by.clone(), info, pci_address, vuid }))
        };
        Ok(listed.into_iter().map(new).collect())
    }

    /// The representor at `dev` of the function with this PCI address (`0b:00.2`, `0000:0b:00.2`;
    /// as in [`DevInfo::find`]), or whose interface has this name (`pf0vf0`).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], with a list of the representors; as [`DevInfoRep::list`].
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
    /// [`ErrorKind::NotFound`] if the function or the device of its representor is removed, or
    /// another one has its place.
    pub fn open(&self) -> Result<DevRep> {
        let ListedRep { by, info, .. } = &*self.0;
        let gone = || {
            let text = format!(
                "the representor {} of {} was removed or represents another function: list again",
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
    /// [`ErrorKind::NotFound`] for a sub-function, which has none, or if neither kernel nor device
    /// report it: Linux on a DPU does not know addresses of the host, and the device
    /// (QUERY_ESW_FUNCTIONS) reports only its PF's. The first call queries the device; an error of
    /// opening it, which the next call tries again.
    pub fn pci_address(&self) -> Result<PciAddress> {
        if let Some(address) = &self.0.info.pci_address {
            return address.parse();
        }
        let known = match self.0.pci_address.get() {
            Some(known) => *known,
            None => {
                let answer = self.0.query_pci_address()?;
                *self.0.pci_address.get_or_init(|| answer)
            }
        };
        known.ok_or_else(|| {
            self.has_no(match self.0.info.function {
                FunctionKind::Sub => "PCI address: it represents a sub-function",
                _ => "PCI address: neither the kernel nor the device reports the host's",
            })
        })
    }

    /// The VUID of the represented function.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if neither kernel nor device (QUERY_VUID, in the first call) report
    /// it.
    pub fn vuid(&self) -> Result<&str> {
        if let Some(vuid) = &self.0.info.vuid {
            return Ok(vuid);
        }
        let known = match self.0.vuid.get() {
            Some(known) => known,
            None => {
                let answer = self.0.query_vuid()?;
                self.0.vuid.get_or_init(|| answer)
            }
        };
        known.as_deref().ok_or_else(|| {
            self.has_no("VUID: neither the kernel nor the device reports the function's")
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

    /// The description in verbless-devx.
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

/// An open representor (`struct doca_dev_rep`, and `struct doca_dev_remote` of 1.3). Libraries
/// refer to a function of the host by it. A drop closes it. Two are equal if they represent the
/// same function.
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
