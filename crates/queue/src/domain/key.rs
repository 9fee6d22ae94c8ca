//! Keys that do not belong to one region: KLM entries over other keys, fixed or set by UMR
//! requests.

use std::sync::Arc;

use verbless_command::{Error, ErrorKind, KeyAccess, KeyMemory, Klm, MkeyAttr, MkeyObject};

use super::protection::Domain;
use crate::region::Region;
use verbless_ring::service::Rc;
use verbless_ring::types::{Lkey, Rkey};
use verbless_ring::wr::{Request, Umr};

impl Domain {
    /// Creates one key over several ranges of regions, and keeps the regions alive. The ranges form
    /// one address range from 0 on, in the given order. A range is a region, a byte offset and a
    /// length in bytes.
    ///
    /// # Errors
    /// A range outside of its region; no range at all; access flags that exclude each other
    /// ([`check_access`](verbless_command::check_access)); write access over a region that no
    /// device may write, where the device would refuse each write; `remote.atomic` for ranges whose
    /// total length is not a multiple of the device's largest atomic
    /// ([`Caps::max_atomic_bytes`](verbless_command::Caps::max_atomic_bytes), 8 bytes on most).
    pub fn indirect_key(
        &self,
        ranges: &[(Arc<Region>, usize, usize)],
        access: KeyAccess,
    ) -> Result<IndirectKey, Error> {
        let mut klms = Vec::with_capacity(ranges.len());
        let mut length = 0u64;
        let writes = access.local_write || access.remote.write || access.remote.atomic;
        for (region, offset, bytes) in ranges {
            if writes && !region.is_device_writable() {
                let hint = format!(
                    "the key has a write right, and the region at {:#x} has none: leave out \
                     local_write, remote.write and remote.atomic, or make the region with \
                     local_write",
                    region.address()
                );
                return Err(Error::new(ErrorKind::InvalidInput, "making an indirect key", hint));
            }
            let sge = region.sge(*offset, *bytes).map_err(|error| {
                Error::new(ErrorKind::InvalidInput, "making an indirect key", error.to_string())
            })?;
            klms.push(Klm { key: sge.lkey, address: sge.address, length: sge.length });
            length += *bytes as u64;
        }
        let mkey = self.device.create_mkey(MkeyAttr {
            pd: self.pd.clone(),
            access,
            start: 0,
            length,
            memory: KeyMemory::Klms(klms),
        })?;
        let regions = ranges.iter().map(|(region, ..)| region.clone()).collect();
        Ok(IndirectKey { mkey, _regions: regions })
    }

    /// Creates a key with room for `klms` KLM entries (1 to 65532), unusable until
    /// [`Umr::map`](crate::wr::Umr::map) sets them. With `remote_invalidate` a peer may invalidate
    /// it by [`SendInvalidate`](crate::wr::SendInvalidate).
    ///
    /// # Errors
    /// The device bars UMR ([`Capability::Umr`](verbless_ring::wr::Capability::Umr)); `klms` is 0
    /// or above the limit.
    pub fn umr_key(&self, klms: u32, remote_invalidate: bool) -> Result<UmrKey, Error> {
        self.supports::<Rc>(&Umr::INFO).map_err(|barred| {
            Error::new(ErrorKind::InvalidInput, "making a UMR key", barred.to_string())
        })?;
        let mkey = self.device.create_mkey(MkeyAttr {
            pd: self.pd.clone(),
            access: KeyAccess::LOCAL_READ,
            start: 0,
            length: 0,
            memory: KeyMemory::Umr { klms, remote_invalidate },
        })?;
        Ok(UmrKey { current: mkey.rkey(), mkey })
    }
}

/// A key over ranges of several regions, and the regions.
#[derive(Debug)]
pub struct IndirectKey {
    mkey: MkeyObject,
    _regions: Vec<Arc<Region>>,
}

impl IndirectKey {
    /// The key for our own requests; addresses count from 0.
    pub fn lkey(&self) -> Lkey {
        self.mkey.lkey()
    }

    /// The key for a peer.
    pub fn rkey(&self) -> Rkey {
        self.mkey.rkey()
    }

    /// The key itself.
    pub fn mkey(&self) -> &MkeyObject {
        &self.mkey
    }
}

/// A key whose memory and access flags UMR requests change. It keeps no region alive: dropping a
/// region destroys that region's own key, and an access to it through this key then fails.
#[derive(Debug)]
pub struct UmrKey {
    mkey: MkeyObject,
    current: Rkey,
}

impl UmrKey {
    /// The current rkey.
    pub fn rkey(&self) -> Rkey {
        self.current
    }

    /// The current key, for local requests.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.current.0)
    }

    /// Changes the low byte of the key; the values repeat after 256 calls. Map the new key: the old
    /// ones then give no access.
    pub fn renew(&mut self) -> Rkey {
        let Rkey(key) = self.current;
        self.current = Rkey(key & !0xff | key.wrapping_add(1) & 0xff);
        self.current
    }

    /// The object on the device.
    pub fn mkey(&self) -> &MkeyObject {
        &self.mkey
    }
}
