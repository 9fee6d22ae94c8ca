//! The small types of the data path: keys, numbers, addresses.

use std::fmt;

pub use verbless_command::{Cqn, Lkey, QKey, Qpn, Rkey};

/// Index of a WQE's first block since its queue was created, modulo 65536: what a CQE calls `wqe_counter`.
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

/// An address in memory of the peer, under a key of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address as the peer's key counts.
    pub address: u64,
    /// The peer's key.
    pub rkey: Rkey,
}

impl RemoteAddr {
    /// `address` under `rkey`.
    pub const fn new(address: u64, rkey: Rkey) -> Self {
        Self { address, rkey }
    }
}

/// A piece of local registered memory. [`Region::sge`](crate::Region::sge) makes one that is in bounds.
///
/// It is a plain value and borrows nothing: the device checks key, bounds and rights when it uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address as the key counts.
    pub address: u64,
    /// Bytes, at most 0x7fff_ffff. An entry of length 0 is left out of the WQE.
    pub length: u32,
    /// The key.
    pub lkey: Lkey,
}

impl Sge {
    /// `length` bytes at `address` of `lkey`.
    pub const fn new(address: u64, length: u32, lkey: Lkey) -> Self {
        Self { address, length, lkey }
    }
}
