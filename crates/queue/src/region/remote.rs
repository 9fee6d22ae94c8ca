//! The address, key and length of a region, as sent to a peer.

use std::fmt;

use verbless_command::{Error, ErrorKind};

use verbless_ring::ring::OutOfBounds;
use verbless_ring::types::{RemoteAddr, Rkey};

/// Why a range of a region cannot be used in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeError {
    /// The range is not within the region.
    OutOfBounds(OutOfBounds),
    /// The range has this many bytes, more than a request can express.
    TooLong(u64),
    /// The region has no remote access, and so no remote key.
    NoRemoteKey,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(bounds) => bounds.fmt(f),
            Self::TooLong(length) => {
                write!(f, "{length} bytes are too many for one request; the limit is 4 GiB less 1")
            }
            Self::NoRemoteKey => f.write_str(
                "the region has no remote key: make it with a KeyAccess for remote access",
            ),
        }
    }
}

impl std::error::Error for RangeError {}

impl From<OutOfBounds> for RangeError {
    fn from(bounds: OutOfBounds) -> Self {
        Self::OutOfBounds(bounds)
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        Self::new(ErrorKind::InvalidInput, error.to_string(), "").with_source(error)
    }
}

/// A region of the peer: the address of its first byte, its key and its length.
/// [`Region::remote_region`] creates it. Its encoding has 21 bytes; the feature `serde` serializes
/// it as these bytes.
///
/// [`Region::remote_region`]: crate::Region::remote_region
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "[u8; 21]", try_from = "[u8; 21]"))]
pub struct RemoteRegion {
    base: RemoteAddr,
    length: u64,
}

/// Version of the encoding.
const VERSION: u8 = 1;

impl RemoteRegion {
    /// Length of the encoding in bytes.
    pub const BYTES: usize = 21;

    /// `length` bytes from `base` on.
    pub const fn new(base: RemoteAddr, length: u64) -> Self {
        Self { base, length }
    }

    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first byte.
    pub const fn base(&self) -> RemoteAddr {
        self.base
    }

    /// `length` bytes from byte `offset` on, for a work request.
    ///
    /// # Errors
    /// A range that is not in the region.
    pub const fn at(&self, offset: u64, length: u64) -> Result<RemoteAddr, OutOfBounds> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.base.at(offset)),
            _ => Err(OutOfBounds { offset, length, size: self.length }),
        }
    }

    /// The bytes to send to a peer, each number in network order: version 1, address, key, length.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [VERSION; Self::BYTES];
        bytes[1..13].copy_from_slice(&self.base.to_bytes());
        bytes[13..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Decodes a region that a peer sent with [`Self::to_bytes`].
    ///
    /// # Errors
    /// An unknown version or a wrong length; a range that passes the end of the address space; an
    /// impossible key. The error says which.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let refuse = |why: String| Error::new(ErrorKind::Peer, "reading a peer's region", why);
        let Ok(&[version, a, b, c, d, e, f, g, h, k0, k1, k2, k3, ref length @ ..]) =
            <&[u8; Self::BYTES]>::try_from(bytes)
        else {
            return Err(refuse(format!(
                "it has {} bytes, but must have {}",
                bytes.len(),
                Self::BYTES
            )));
        };
        if version != VERSION {
            return Err(refuse(format!(
                "its version is {version}, not {VERSION}: the peer runs another release, or these \
                 bytes are no region"
            )));
        }
        let base = RemoteAddr::from_bytes(&[a, b, c, d, e, f, g, h, k0, k1, k2, k3])
            .map_err(|error| refuse(error.to_string()))?;
        let length = u64::from_be_bytes(*length);
        if base.address.checked_add(length).is_none() {
            return Err(refuse(format!(
                "{length:#x} bytes from {:#x} on pass the end of the address space",
                base.address
            )));
        }
        Ok(Self { base, length })
    }

    /// The key.
    pub const fn rkey(&self) -> Rkey {
        self.base.rkey
    }
}

impl From<RemoteRegion> for [u8; RemoteRegion::BYTES] {
    fn from(region: RemoteRegion) -> Self {
        region.to_bytes()
    }
}

impl TryFrom<[u8; Self::BYTES]> for RemoteRegion {
    type Error = Error;

    fn try_from(bytes: [u8; Self::BYTES]) -> Result<Self, Error> {
        Self::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> RemoteRegion {
        RemoteRegion::new(RemoteAddr::new(0x1000, Rkey(0x1234)), 4096)
    }

    #[test]
    fn remote_region_round_trips() {
        assert_eq!(RemoteRegion::from_bytes(&region().to_bytes()).expect("whole"), region());
    }

    #[test]
    fn out_of_region_or_overflowing_range_is_rejected() {
        let region = region();
        assert_eq!(region.at(4088, 8).map(|addr| addr.address), Ok(0x1ff8));
        assert_eq!(region.at(4096, 0).map(|addr| addr.rkey), Ok(Rkey(0x1234)));
        assert!(region.at(4089, 8).is_err());
        assert!(region.at(u64::MAX, 2).is_err());
    }

    #[test]
    fn invalid_remote_region_is_rejected_with_reason() {
        let whole = region().to_bytes();
        for (length, reason) in [(0, "0 bytes"), (20, "20 bytes")] {
            let error = RemoteRegion::from_bytes(&whole[..length]).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(RemoteRegion::from_bytes(&[0; 22]).is_err());
        for (at, value, reason) in
            [(0, 2, "version is 2"), (13, 0xff, "end of the address space"), (11, 0, "index is 0")]
        {
            let mut bytes = whole;
            bytes[at] = value;
            if at == 13 {
                bytes[1] = 0x80;
            }
            let error = RemoteRegion::from_bytes(&bytes).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error:?} does not say {reason:?}");
        }
    }
}
