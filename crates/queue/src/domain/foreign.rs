//! Memory of another function: its owner shares a region under an access key, and the other
//! function imports it.

use std::fmt;

use verbless_command::{AccessKey, AliasAttr, AliasKey, Error, ErrorKind, Lkey, MkeyObject, Rkey};
use verbless_ring::ring::OutOfBounds;
use verbless_ring::types::{RemoteAddr, Sge};

use super::protection::Domain;
use crate::region::{RangeError, Region};

/// The values, besides the access key, that another function needs to import a region. They are
/// plain numbers; any channel can carry them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRegion {
    /// The vhca_id of the function that owns the region.
    pub vhca_id: u16,
    /// The region's memory key in the function that owns it.
    pub key: u32,
    /// The address of the region's first byte under `key`.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

impl Domain {
    /// Lets functions of this device that know the access key [`import`](Self::import) a region,
    /// with the access flags of the region's own key, until the region is dropped here.
    ///
    /// # Errors
    /// The device cannot share mkeys ([`Caps::shares_keys`](verbless_command::Caps::shares_keys));
    /// the region is of another device, or of another opening of this one.
    pub fn share(&self, region: &Region, secret: &AccessKey) -> Result<SharedRegion, Error> {
        let Some(mkey) = region.registration().downcast_ref::<MkeyObject>() else {
            let what = "the region has no key of its own";
            return Err(Error::new(ErrorKind::InvalidInput, "sharing a region", what));
        };
        mkey.allow(&self.device, secret)?;
        Ok(SharedRegion {
            vhca_id: self.device.vhca_id(),
            key: mkey.rkey().0,
            address: region.address(),
            length: region.len() as u64,
        })
    }

    /// Imports a region that another function of this device shares. The function of a DPU imports
    /// its host's regions, and not the other way round.
    ///
    /// # Errors
    /// The access key differs; no function in reach has such an mkey; the device cannot share
    /// mkeys; address and length pass the end of the address space.
    pub fn import(
        &self,
        shared: &SharedRegion,
        secret: &AccessKey,
    ) -> Result<ImportedRegion, Error> {
        let SharedRegion { vhca_id, key, address, length } = *shared;
        if address.checked_add(length).is_none() {
            let what = format!("{length} bytes from {address:#x} pass the end of addresses");
            return Err(Error::new(ErrorKind::InvalidInput, "importing a region", what));
        }
        let (pd, key, access_key) = (self.pd.clone(), Rkey(key), *secret);
        let alias = self.device.create_alias_key(AliasAttr { pd, vhca_id, key, access_key })?;
        Ok(ImportedRegion { alias, address, length })
    }
}

/// Memory of another function, for requests of this one. This process cannot access its bytes by
/// itself.
///
/// If the owner's key forbids the access, or is destroyed, requests fail: a request with it as
/// local memory with [`LocalProtection`](crate::WcStatus::LocalProtection), a peer's request with
/// [`RemoteAccess`](crate::WcStatus::RemoteAccess).
pub struct ImportedRegion {
    alias: AliasKey,
    address: u64,
    length: u64,
}

impl ImportedRegion {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of the region's first byte under the key.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        self.alias.lkey()
    }

    /// The key for a peer, with the access flags of the owner's own key.
    pub fn rkey(&self) -> Rkey {
        self.alias.rkey()
    }

    /// `length` bytes from byte `offset` on, for a work request of ours.
    ///
    /// # Errors
    /// A range that is not in the region.
    pub fn sge(&self, offset: u64, length: u32) -> Result<Sge, RangeError> {
        Ok(Sge::new(self.at(offset, length.into())?, length, self.lkey()))
    }

    /// `length` bytes from byte `offset` on, for a work request of a peer.
    ///
    /// # Errors
    /// A range that is not in the region.
    pub fn remote(&self, offset: u64, length: u64) -> Result<RemoteAddr, RangeError> {
        Ok(RemoteAddr::new(self.at(offset, length)?, self.rkey()))
    }

    fn at(&self, offset: u64, length: u64) -> Result<u64, RangeError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.address + offset),
            _ => Err(OutOfBounds { offset, length, size: self.length }.into()),
        }
    }
}

impl fmt::Debug for ImportedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedRegion")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.length)
            .field("lkey", &self.lkey())
            .field("vhca_id", &self.alias.attr().vhca_id)
            .finish()
    }
}
