//! The addresses of a process: regions of RAM, devices that callbacks implement, and the embedder's
//! addresses.
//!
//! A space does not change while harts use it. To map or unmap a region, make another space
//! ([`AddressSpace::with`], [`AddressSpace::without`]), which is cheap, since regions are shared,
//! and give it to the harts between two runs.

use std::fmt;
use std::sync::Arc;

use crate::ram::{PAGE, Ram};

/// A program's permissions for a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permissions {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instruction fetches.
    pub execute: bool,
}

impl Permissions {
    /// Data that is never written.
    pub const R: Self = Self { read: true, write: false, execute: false };
    /// Data.
    pub const RW: Self = Self { read: true, write: true, execute: false };
    /// Code.
    pub const RX: Self = Self { read: true, write: false, execute: true };
    /// Code that is written, such as that of tests.
    pub const RWX: Self = Self { read: true, write: true, execute: true };
}

/// The type of a hart's access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load, LR included.
    Load,
    /// A store, SC and the AMOs included.
    Store,
    /// An instruction fetch.
    Fetch,
}

/// A device's refusal of an access: the hart gets an access fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// A region with loads and stores by callback, such as a page of registers.
///
/// An access is one call: `size` is 1, 2, 4 or 8, and `offset` is a multiple of it, less
/// than the size of the region. Harts of several threads call at the same time.
pub trait Device: Send + Sync {
    /// Loads `size` bytes, in the low bits of the result.
    fn load(&self, offset: u64, size: u64) -> Result<u64, Refused>;
    /// Stores the low `size` bytes of `value`.
    fn store(&self, offset: u64, size: u64, value: u64) -> Result<(), Refused>;
}

/// The backing of a region.
#[derive(Clone)]
pub enum Backing {
    /// RAM, from the given byte on, a multiple of [`PAGE`].
    Ram(Ram, u64),
    /// A device. It supports neither execution nor atomic instructions.
    Device(Arc<dyn Device>),
    /// The embedder: a load or store makes the hart's run return [`crate::Exit::Environment`].
    /// Otherwise like a device.
    Environment,
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram(ram, from) => write!(f, "{ram:?} from {from:#x}"),
            Self::Device(_) => f.write_str("device"),
            Self::Environment => f.write_str("environment"),
        }
    }
}

/// A range of `length` addresses from `base` on.
#[derive(Clone, Debug)]
pub struct Region {
    /// The first address, a multiple of [`PAGE`].
    pub base: u64,
    /// Bytes, a multiple of [`PAGE`], not 0.
    pub length: u64,
    /// The program's permissions.
    pub permissions: Permissions,
    /// The backing of the region.
    pub backing: Backing,
}

impl Region {
    /// A region with all of `ram` at `base`.
    pub fn ram(base: u64, ram: &Ram, permissions: Permissions) -> Self {
        Self { base, length: ram.len(), permissions, backing: Backing::Ram(ram.clone(), 0) }
    }

    /// A device that may be read and written.
    pub fn device(base: u64, length: u64, device: Arc<dyn Device>) -> Self {
        Self { base, length, permissions: Permissions::RW, backing: Backing::Device(device) }
    }

    /// Addresses with loads and stores by the embedder ([`Backing::Environment`]).
    pub fn environment(base: u64, length: u64) -> Self {
        Self { base, length, permissions: Permissions::RW, backing: Backing::Environment }
    }

    fn last(&self) -> u64 {
        self.base + (self.length - 1)
    }
}

/// Why a region cannot be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The base, the length or the offset in RAM is not a multiple of [`PAGE`], or the length is 0.
    Unaligned,
    /// The region extends past the end of the address space, or of its RAM.
    TooLong,
    /// The region overlaps the one that begins at this address.
    Overlap(u64),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned => {
                write!(f, "a region's base, length and offset must be multiples of {PAGE}, not 0")
            }
            Self::TooLong => f.write_str("the region ends beyond its RAM or the last address"),
            Self::Overlap(base) => {
                write!(f, "the region overlaps that at {base:#x}; unmap it first")
            }
        }
    }
}

impl std::error::Error for MapError {}

/// The regions of a process, by address.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    /// Sorted by base; no two overlap.
    regions: Vec<Region>,
}

impl AddressSpace {
    /// A space of these regions.
    pub fn new(regions: impl IntoIterator<Item = Region>) -> Result<Self, MapError> {
        regions.into_iter().try_fold(Self::default(), |space, region| space.with(region))
    }

    /// A copy of this space with `region` added.
    pub fn with(&self, region: Region) -> Result<Self, MapError> {
        let aligned = |value: u64| value.is_multiple_of(PAGE);
        let (from, held) = match &region.backing {
            Backing::Ram(ram, from) => (*from, ram.len()),
            Backing::Device(_) | Backing::Environment => (0, u64::MAX),
        };
        if region.length == 0 || ![region.base, region.length, from].into_iter().all(aligned) {
            return Err(MapError::Unaligned);
        }
        let end = from.checked_add(region.length);
        if end.is_none_or(|it| it > held) || region.base.checked_add(region.length - 1).is_none() {
            return Err(MapError::TooLong);
        }
        let overlaps = |it: &&Region| it.base <= region.last() && region.base <= it.last();
        if let Some(other) = self.regions.iter().find(overlaps) {
            return Err(MapError::Overlap(other.base));
        }
        let mut regions = self.regions.clone();
        regions.push(region);
        regions.sort_by_key(|it| it.base);
        Ok(Self { regions })
    }

    /// A copy of this space without the region that begins at `base`, if there is one.
    pub fn without(&self, base: u64) -> Self {
        Self { regions: self.regions.iter().filter(|it| it.base != base).cloned().collect() }
    }

    /// All regions in order of address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region that holds `address`.
    pub fn region(&self, address: u64) -> Option<&Region> {
        let index = self.regions.partition_point(|it| it.base <= address).checked_sub(1)?;
        self.regions.get(index).filter(|it| address <= it.last())
    }

    /// Copies RAM into `bytes`, whatever its permissions, for a debugger or a core dump; returns
    /// the number of bytes before the first address that is not RAM.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.by_region(address, bytes.len(), |ram, at, range| {
            ram.read(at, &mut bytes[range]);
        })
    }

    /// Copies `bytes` into RAM, whatever its permissions; returns the number of bytes before the
    /// first address that is not RAM. Harts that may have executed there need a
    /// [`crate::Hart::flush`].
    pub fn poke(&self, address: u64, bytes: &[u8]) -> usize {
        self.by_region(address, bytes.len(), |ram, at, range| {
            ram.write(at, &bytes[range]);
        })
    }

    fn by_region(
        &self,
        address: u64,
        length: usize,
        mut each: impl FnMut(&Ram, u64, std::ops::Range<usize>),
    ) -> usize {
        let mut done = 0;
        while done < length {
            let Some(at) = address.checked_add(done as u64) else { break };
            let Some(region) = self.region(at) else { break };
            let Backing::Ram(ram, from) = &region.backing else { break };
            let left = (region.last() - at).saturating_add(1);
            let step = left.min((length - done) as u64) as usize;
            each(ram, from + (at - region.base), done..done + step);
            done += step;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_or_overlong_region_is_rejected() {
        let ram = Ram::new(2 * PAGE);
        let at = |base| Region::ram(base, &ram, Permissions::RW);
        let space = AddressSpace::new([at(0x4000), at(0u64.wrapping_sub(2 * PAGE))]).unwrap();
        assert_eq!(space.with(at(0x3000)).unwrap_err(), MapError::Overlap(0x4000));
        assert_eq!(space.with(at(0x5000)).unwrap_err(), MapError::Overlap(0x4000));
        assert_eq!(space.with(at(0x5001)).unwrap_err(), MapError::Unaligned);
        assert_eq!(space.with(at(0u64.wrapping_sub(PAGE))).unwrap_err(), MapError::TooLong);
        let longer = Region { length: 3 * PAGE, ..at(0x8000) };
        assert_eq!(space.with(longer).unwrap_err(), MapError::TooLong);
        let both = space.with(at(0x2000)).unwrap().with(at(0x6000)).unwrap();
        assert_eq!(both.region(0x3fff).unwrap().base, 0x2000);
        assert_eq!(both.region(u64::MAX).unwrap().base, 0u64.wrapping_sub(2 * PAGE));
        assert!(both.region(0x8000).is_none() && both.region(0x1fff).is_none());
        assert!(both.without(0x4000).with(at(0x4000)).is_ok());
    }

    #[test]
    fn peek_crosses_regions_and_stops_at_a_hole() {
        let (one, two) = (Ram::new(PAGE), Ram::new(PAGE));
        let regions =
            [Region::ram(0x1000, &one, Permissions::R), Region::ram(0x2000, &two, Permissions::RX)];
        let space = AddressSpace::new(regions).unwrap();
        assert_eq!(space.poke(0x1ffd, &[1, 2, 3, 4, 5]), 5);
        let mut bytes = [0; 5];
        assert_eq!(space.peek(0x1ffd, &mut bytes), 5);
        assert_eq!(bytes, [1, 2, 3, 4, 5]);
        assert_eq!(space.peek(0x2ffe, &mut bytes), 2);
        assert_eq!(space.poke(0x3000, &bytes), 0);
    }
}
