//! The small types of the data path: keys, numbers, addresses.

use core::fmt;

use crate::ring::LayoutError;
pub use verbless_prm::number::{Cqn, Lkey, QKey, Qpn, Rkey};

/// Index of a WQE's first WQEBB since its queue was created, modulo 65536: the `wqe_counter` of a
/// CQE.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct WqeIndex(pub u16);

impl fmt::Debug for WqeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WqeIndex({:#x})", self.0)
    }
}

impl fmt::Display for WqeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A dword in the byte order of the device's structures, converted when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Be32(u32);

impl Be32 {
    /// The dword with this value.
    #[inline(always)]
    pub(crate) const fn new(value: u32) -> Self {
        Self(value.to_be())
    }

    /// A dword that was loaded from a structure, without conversion.
    #[inline(always)]
    pub(crate) const fn from_raw(dword: u32) -> Self {
        Self(dword)
    }

    /// The dword, without conversion.
    #[inline(always)]
    pub(crate) const fn to_raw(self) -> u32 {
        self.0
    }

    /// The value.
    #[inline(always)]
    pub(crate) const fn get(self) -> u32 {
        u32::from_be(self.0)
    }
}

/// An address under a key of the peer. With the feature `serde` it is serialized as its 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "[u8; 12]", try_from = "[u8; 12]"))]
pub struct RemoteAddr {
    /// Address under the peer's key.
    pub address: u64,
    /// The peer's key.
    pub rkey: Rkey,
}

impl RemoteAddr {
    /// `address` under `rkey`.
    pub const fn new(address: u64, rkey: Rkey) -> Self {
        Self { address, rkey }
    }

    /// Length of the encoding in bytes.
    pub const BYTES: usize = 12;

    /// The address `offset` bytes after this one. Only the peer's device checks the bounds.
    /// Addresses wrap at 2^64.
    #[must_use]
    pub const fn at(self, offset: u64) -> Self {
        Self { address: self.address.wrapping_add(offset), ..self }
    }

    /// The encoding for a peer: the address, then the key, in network order.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        let [a, b, c, d, e, f, g, h] = self.address.to_be_bytes();
        let [i, j, k, l] = self.rkey.0.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// Decodes an address that a peer sent.
    ///
    /// # Errors
    /// The key has index 0, which no device assigns.
    pub const fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, LayoutError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        let key = u32::from_be_bytes([i, j, k, l]);
        if key >> 8 == 0 {
            let why = "names no key: its index is 0";
            return Err(LayoutError::new("the key of a remote address", why, key as u64));
        }
        Ok(Self::new(u64::from_be_bytes([a, b, c, d, e, f, g, h]), Rkey(key)))
    }
}

impl From<RemoteAddr> for [u8; RemoteAddr::BYTES] {
    fn from(place: RemoteAddr) -> Self {
        place.to_bytes()
    }
}

impl TryFrom<[u8; Self::BYTES]> for RemoteAddr {
    type Error = LayoutError;

    fn try_from(bytes: [u8; Self::BYTES]) -> Result<Self, LayoutError> {
        Self::from_bytes(&bytes)
    }
}

/// A range of local registered memory.
///
/// It is a plain value and borrows nothing: the device checks key, bounds and rights on use.
// In this order key and length form one number; a WQE has its bytes reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address under the key.
    pub address: u64,
    /// The key.
    pub lkey: Lkey,
    /// Bytes, at most 0x7fff_ffff (as a KLM of a UMR: 2 GiB). The WQE omits an entry of length 0.
    pub length: u32,
}

impl Sge {
    /// The data segment of a WQE: length, key and address, all big-endian. The length must fit the
    /// segment.
    #[inline(always)]
    pub(crate) const fn segment(&self) -> [u64; 2] {
        let words = u64::from_ne_bytes(zerocopy::transmute!([self.lkey.0, self.length]));
        let length_and_key =
            if cfg!(target_endian = "little") { words } else { words.rotate_left(32) };
        [length_and_key.to_be(), self.address.to_be()]
    }
}

impl Sge {
    /// `length` bytes at `address` of `lkey`.
    pub const fn new(address: u64, length: u32, lkey: Lkey) -> Self {
        Self { address, length, lkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn remote_addr_encoding_rejects_mkey_index_0() {
        let address = RemoteAddr::new(0x0102_0304_0506_0708, Rkey(0x090a_0b0c));
        let bytes: [u8; RemoteAddr::BYTES] = address.into();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(address.to_bytes(), bytes);
        assert_eq!(RemoteAddr::from_bytes(&bytes), Ok(address));
        assert_eq!(RemoteAddr::try_from(bytes), Ok(address));
        assert_eq!(address.at(8).address, 0x0102_0304_0506_0710);
        assert_eq!(RemoteAddr::new(u64::MAX, Rkey(0x100)).at(2).address, 1);
        let error = RemoteAddr::from_bytes(&[0; 12]).unwrap_err().to_string();
        assert!(error.contains("index is 0"), "{error}");
        let mut bytes = bytes;
        bytes[8..].copy_from_slice(&[0, 0, 0, 0xff]);
        assert!(RemoteAddr::from_bytes(&bytes).is_err(), "a variant of key 0");
        assert!(RemoteAddr::try_from(bytes).is_err(), "a variant of key 0");
        bytes[10] = 1;
        assert!(RemoteAddr::from_bytes(&bytes).is_ok());
    }
}
