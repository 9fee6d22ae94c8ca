//! Keys that are not of a region of their own: over pieces of others, for good or until a request changes that.

use std::sync::Arc;

use verbless_command::{Error, ErrorKind, KeyAccess, KeyMemory, KeyPiece, Mkey, MkeyAttr};

use super::Domain;
use crate::region::Region;
use crate::types::{Lkey, Rkey};

impl Domain {
    /// A key of its own over pieces of regions, which it keeps: one address range from 0 on, in the order given.
    pub fn indirect_key(
        &self,
        pieces: &[(Arc<Region>, usize, usize)],
        access: KeyAccess,
    ) -> Result<IndirectKey, Error> {
        let mut entries = Vec::with_capacity(pieces.len());
        let mut length = 0u64;
        for (region, offset, bytes) in pieces {
            let piece = region.sge(*offset, *bytes).map_err(|error| {
                Error::new(ErrorKind::Input, "making an indirect key", error.to_string())
            })?;
            entries.push(KeyPiece {
                key: piece.lkey,
                address: piece.address,
                length: piece.length,
            });
            length += *bytes as u64;
        }
        let mkey = self.device.create_mkey(MkeyAttr {
            pd: self.pd.clone(),
            access,
            start: 0,
            length,
            memory: KeyMemory::Pieces(entries),
        })?;
        let regions = pieces.iter().map(|(region, ..)| region.clone()).collect();
        Ok(IndirectKey { mkey, _regions: regions })
    }

    /// A key with room for so many pieces, good for nothing until [`Umr::map`](crate::wr::Umr::map) says which these are. With
    /// `remote_invalidate` a peer may end that by [`SendInvalidate`](crate::wr::SendInvalidate).
    pub fn changeable_key(
        &self,
        pieces: u32,
        remote_invalidate: bool,
    ) -> Result<ChangeableKey, Error> {
        let mkey = self.device.create_mkey(MkeyAttr {
            pd: self.pd.clone(),
            access: KeyAccess::LOCAL_READ,
            start: 0,
            length: 0,
            memory: KeyMemory::Changeable { pieces, remote_invalidate },
        })?;
        Ok(ChangeableKey { current: mkey.rkey(), mkey })
    }
}

/// A key over pieces of several regions, and the regions.
#[derive(Debug)]
pub struct IndirectKey {
    mkey: Mkey,
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
    pub fn mkey(&self) -> &Mkey {
        &self.mkey
    }
}

/// A key whose memory and rights work requests change. It keeps no region: one that goes takes its own key along, and what
/// reached it through this one then fails.
#[derive(Debug)]
pub struct ChangeableKey {
    mkey: Mkey,
    current: Rkey,
}

impl ChangeableKey {
    /// The key as it was named last.
    pub fn rkey(&self) -> Rkey {
        self.current
    }

    /// The same for our own requests.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.current.0)
    }

    /// A name that it did not have for 255 times: map it under this one, and those who know an earlier one cannot use it.
    pub fn renew(&mut self) -> Rkey {
        let Rkey(key) = self.current;
        self.current = Rkey(key & !0xff | key.wrapping_add(1) & 0xff);
        self.current
    }

    /// The object on the device.
    pub fn mkey(&self) -> &Mkey {
        &self.mkey
    }
}
