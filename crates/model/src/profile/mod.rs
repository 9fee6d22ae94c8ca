//! Device profiles: every number that a device reports, as TOML, or as Rust that is generated from
//! it (`builtin`).
//!
//! A profile names capability values by the field names of `prm/`, page by page, so that code
//! contains no such number. The sections `infiniband` and `ethernet` hold the values that depend on
//! the port type; they override the common values. A section `dpu` gives the device an embedded CPU
//! with a function of its own, and holds its differences. `topology` lists all functions of a card
//! that has several. `base` names a built-in profile, which provides the values that the file does
//! not give.

mod apply;
mod base;
mod builtin;
mod error;
mod file;
mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use verbless_prm::{HcaCap, HcaCapPage, HcaVportContext, LagContext, NicVportContext};

pub(crate) use apply::{CapPage, Register};
pub use error::ProfileError;
#[cfg(feature = "toml")]
pub(crate) use error::nearest;
pub use file::{
    DeviceNumbers, DpaNumbers, FirstNumbers, FunctionPlace, KeyNumbers, Link, PortNumbers, Role,
    Side,
};

/// A kind of device, with all its capability values.
#[derive(Debug, Clone)]
pub struct Profile {
    file: Arc<file::File>,
    link: Link,
    side: Side,
    pages: BTreeMap<u16, CapPage>,
    registers: BTreeMap<u16, Register>,
    nic_vport: NicVportContext,
    hca_vport: HcaVportContext,
    lag: LagContext,
}

impl Profile {
    /// The names that [`Profile::load`] accepts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        base::names()
    }

    /// A profile by name (see [`Profile::names`]), or from a file if the name ends in `.toml`;
    /// reading files needs the feature `toml`.
    ///
    /// # Errors
    /// When there is no such profile, the file has a mistake (the error says which and where), or
    /// this build reads no files.
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if Path::new(name).extension().is_none_or(|extension| extension != "toml") {
            return Self::builtin(name);
        }
        #[cfg(not(feature = "toml"))]
        return Err(ProfileError::NoFiles { path: name.into() });
        #[cfg(feature = "toml")]
        {
            let text = std::fs::read_to_string(name)
                .map_err(|source| ProfileError::Read { path: name.into(), source })?;
            Self::from_toml(&text)
        }
    }

    /// A built-in profile. Its values are applied once: a test builds many models, and in an
    /// unoptimized program applying them takes longer than all other steps of building one.
    fn builtin(name: &str) -> Result<Self, ProfileError> {
        static READ: Mutex<BTreeMap<String, Profile>> = Mutex::new(BTreeMap::new());
        let read = || READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(profile) = read().get(name) {
            return Ok(profile.clone());
        }
        let profile = Self::of(base::builtin(name)?)?;
        read().insert(name.into(), profile.clone());
        Ok(profile)
    }

    /// A profile from its text.
    ///
    /// # Errors
    /// The first mistake: of TOML, an unknown section or field, a value that does not fit its
    /// field.
    #[cfg(feature = "toml")]
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        Self::of(text::parse(text)?)
    }

    fn of(fields: text::Fields) -> Result<Self, ProfileError> {
        let file = file::File::new(base::merged(fields)?)?;
        file.check()?;
        let file = Arc::new(file);
        // Checks every combination of port type and side, so that a mistake shows when the profile
        // is loaded.
        Self::resolve(file.clone(), file.link.other(), Side::Host)?;
        let host = Self::resolve(file.clone(), file.link, Side::Host)?;
        if file.dpu.is_some() {
            Self::resolve(file.clone(), file.link.other(), Side::Dpu)?;
            let dpu = Self::resolve(file.clone(), file.link, Side::Dpu)?;
            let hosts = file.topology.iter().filter(|it| it.side == Side::Host).count().max(1);
            if dpu.vhca_id() >= host.vhca_id() && dpu.vhca_id() < host.vhca_id() + hosts as u16 {
                return Err(ProfileError::Value {
                    section: "dpu.caps.general".into(),
                    field: "vhca_id".into(),
                    why: format!("is {}, as a host's: each function has its own", dpu.vhca_id()),
                });
            }
        }
        Ok(host)
    }

    /// This profile with its ports set to another link layer.
    #[must_use]
    pub fn with_link(self, link: Link) -> Self {
        Self::resolve(self.file, link, self.side)
            .expect("both port types were tried when it was read")
    }

    /// This profile for one side of the device; `None` if the device has no such side. A freshly
    /// loaded profile is the host's.
    #[must_use]
    pub fn on(self, side: Side) -> Option<Self> {
        if side == Side::Dpu {
            self.file.dpu.as_ref()?;
        }
        Some(
            Self::resolve(self.file, self.link, side)
                .expect("its sides were tried when it was read"),
        )
    }

    /// This profile for each side that the device has, the host's first.
    pub fn sides(&self) -> impl Iterator<Item = Self> {
        [Side::Host, Side::Dpu].into_iter().filter_map(|side| self.clone().on(side))
    }

    fn resolve(file: Arc<file::File>, link: Link, side: Side) -> Result<Self, ProfileError> {
        let by_link = file.by_link(link);
        let pages = apply::pages(&file, by_link, file.by_side(side))?;
        let registers = apply::registers(&file, by_link)?;
        let mut nic_vport = NicVportContext::zeroed();
        apply::fields(
            "nic_vport",
            NicVportContext::INFO,
            nic_vport.as_bytes_mut(),
            &file.nic_vport,
        )?;
        let mut hca_vport = HcaVportContext::zeroed();
        let section = format!("{}.hca_vport", link.section());
        apply::fields(
            &section,
            HcaVportContext::INFO,
            hca_vport.as_bytes_mut(),
            &by_link.hca_vport,
        )?;
        let mut lag = LagContext::zeroed();
        let section = format!("{}.lag", link.section());
        apply::fields(&section, LagContext::INFO, lag.as_bytes_mut(), &by_link.lag)?;
        Ok(Self { link, side, pages, registers, nic_vport, hca_vport, lag, file })
    }

    /// The device's name, such as `ConnectX-6 Dx`.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// The link layer of the ports.
    pub fn link(&self) -> Link {
        self.link
    }

    /// The side that uses the function.
    pub fn side(&self) -> Side {
        self.side
    }

    /// All functions of the card, if it has several; the host's and the DPU's are each in the order
    /// of their numbers.
    pub fn topology(&self) -> &[FunctionPlace] {
        &self.file.topology
    }

    /// Numbers that describe the device.
    pub fn device(&self) -> &DeviceNumbers {
        &self.file.device
    }

    /// The data path accelerator, if the device has one.
    pub fn dpa(&self) -> Option<&DpaNumbers> {
        self.file.dpa.as_ref()
    }

    /// The first number of objects of the data path accelerator.
    pub(crate) fn first_dpa_object(&self) -> u32 {
        self.dpa().map_or(1, |dpa| dpa.first_object)
    }

    /// Keys that exist without being created.
    pub fn keys(&self) -> &KeyNumbers {
        &self.file.keys
    }

    /// The first number of each kind of object.
    pub fn first(&self) -> &FirstNumbers {
        &self.file.first
    }

    /// Numbers that describe the ports, for the current link layer.
    pub fn port(&self) -> &PortNumbers {
        &self.file.by_link(self.link).port
    }

    fn vhca_id(&self) -> u16 {
        let general = HcaCap::from_prefix(&self.pages[&HcaCapPage::GENERAL.0].current);
        general.expect("the general page is whole").vhca_id()
    }

    /// The capability pages by number.
    pub(crate) fn pages(&self) -> &BTreeMap<u16, CapPage> {
        &self.pages
    }

    /// The registers by number.
    pub fn registers(&self) -> &BTreeMap<u16, Register> {
        &self.registers
    }

    /// The NIC vport context, without the values that are unique to a device.
    pub(crate) fn nic_vport(&self) -> &NicVportContext {
        &self.nic_vport
    }

    /// The bond of the ports; all 0 if they are in none.
    pub(crate) fn lag(&self) -> &LagContext {
        &self.lag
    }

    /// The HCA vport context, without the values that are unique to a device.
    pub fn hca_vport(&self) -> &HcaVportContext {
        &self.hca_vport
    }
}

#[cfg(test)]
mod tests;
