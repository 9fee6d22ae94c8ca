//! Device profiles: every number that a device reports, as TOML, or as typed Rust that is generated
//! from it (`generated`).
//!
//! A profile names capability values by the field names of `prm/`, page by page, so that code
//! contains no such number. The sections `infiniband` and `ethernet` hold the values that depend on
//! the port type; they override the common values. A section `dpu` gives the device an embedded CPU
//! with a function of its own, and holds its differences. `topology` lists all functions of a card
//! that has several. `base` names a built-in profile, which provides the values that the file does
//! not give.

mod apply;
#[cfg(feature = "toml")]
mod check;
mod error;
#[cfg(feature = "toml")]
mod fields;
mod file;
mod generated;
#[cfg(feature = "toml")]
mod text;
mod values;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "toml")]
use verbless_prm::{HcaCap, HcaCapPage};
use verbless_prm::{HcaVportContext, LagContext, NicVportContext};

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
        generated::NAMES.iter().copied()
    }

    /// A profile by name (see [`Profile::names`]), or from a file if the name ends in `.toml`;
    /// reading files needs the feature `toml`.
    ///
    /// # Errors
    /// When there is no such profile, the file has a mistake (the error says which and where), or
    /// this build reads no files.
    pub fn load(name: &str) -> Result<Self, ProfileError> {
        if Path::new(name).extension().is_none_or(|extension| extension != "toml") {
            return Self::builtin(name).map(Self::of);
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

    fn builtin(name: &str) -> Result<file::File, ProfileError> {
        generated::profile(name).ok_or_else(|| {
            let known = Self::names().collect::<Vec<_>>().join(", ");
            ProfileError::NoSuchProfile { name: name.into(), known }
        })
    }

    /// A profile from its text.
    ///
    /// # Errors
    /// The first mistake: of TOML, an unknown section or field, a value that does not fit its
    /// field.
    #[cfg(feature = "toml")]
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        let file = Self::read(text)?;
        file.check()?;
        let host = Self::of(file);
        if let Some(dpu) = host.clone().on(Side::Dpu) {
            let hosts = host.topology().iter().filter(|it| it.side == Side::Host).count().max(1);
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

    /// Reads a profile over its `base`, if it names one.
    #[cfg(feature = "toml")]
    fn read(text: &str) -> Result<file::File, ProfileError> {
        let parsed = toml::de::DeTable::parse(text);
        let mut fields =
            parsed.map_err(|error| ProfileError::Syntax(error.to_string()))?.into_inner();
        let base = match fields.remove("base").map(toml::Spanned::into_inner) {
            None => None,
            Some(toml::de::DeValue::String(name)) => Some(Self::builtin(&name)?),
            Some(_) => return Err(text::wrong("base", "is not the name of a built-in profile")),
        };
        file::File::read(&fields, base.as_ref())
    }

    fn of(file: file::File) -> Self {
        let link = file.link;
        Self::resolve(Arc::new(file), link, Side::Host)
    }

    /// This profile with its ports set to another link layer.
    #[must_use]
    pub fn with_link(self, link: Link) -> Self {
        Self::resolve(self.file, link, self.side)
    }

    /// This profile for one side of the device; `None` if the device has no such side. A freshly
    /// loaded profile is the host's.
    #[must_use]
    pub fn on(self, side: Side) -> Option<Self> {
        if side == Side::Dpu {
            self.file.dpu.as_ref()?;
        }
        Some(Self::resolve(self.file, self.link, side))
    }

    /// This profile for each side that the device has, the host's first.
    pub fn sides(&self) -> impl Iterator<Item = Self> {
        [Side::Host, Side::Dpu].into_iter().filter_map(|side| self.clone().on(side))
    }

    fn resolve(file: Arc<file::File>, link: Link, side: Side) -> Self {
        let by_link = file.by_link(link);
        Self {
            link,
            side,
            pages: apply::pages(&file, by_link, file.by_side(side)),
            registers: apply::registers(&file, by_link),
            nic_vport: file.nic_vport.over_zeros(),
            hca_vport: by_link.hca_vport.over_zeros(),
            lag: by_link.lag.over_zeros(),
            file,
        }
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

    #[cfg(feature = "toml")]
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
mod cards;
#[cfg(test)]
mod tests;
