//! The IOMMU between a function and its host: registered memory has separate bus addresses.
//!
//! A kernel with an IOMMU maps the pages of a registration at consecutive bus addresses, aligned
//! to the number of pages rounded up to a power of two (Linux `alloc_iova` with `size_aligned`). A
//! bus address can therefore have a larger alignment than the virtual address that software knows.
//!
//! Registered pages never move: the model resolves an address when a UMEM is created, not at each
//! access.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::host::{CARD, IOVA};

/// Bytes per page of an IOMMU.
const PAGE: u64 = 1 << 12;

/// The bus addresses that a function's IOMMU maps. All others are memory addresses.
#[derive(Debug, Default)]
pub struct Iommu(Mutex<IommuMaps>);

#[derive(Debug, Default)]
struct IommuMaps {
    /// Mappings count as pages that are not adjacent.
    fragmented: bool,
    /// First memory address and length in bytes, by first bus address.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// The end of the last mapping.
    next: u64,
}

/// Memory with a bus address; dropping this unmaps it.
#[derive(Debug)]
pub struct Mapped {
    iommu: Arc<Iommu>,
    fragmented: bool,
    first: u64,
    offset: u64,
}

impl Iommu {
    /// Maps the pages of `length` bytes from a memory address, each of `page` bytes; `None`:
    /// `length` is 0, `page` is no power of two from 4096 on, or no bus addresses are left.
    pub fn map(self: &Arc<Self>, address: u64, length: u64, page: u64) -> Option<Mapped> {
        if !page.is_power_of_two() || page < PAGE {
            return None;
        }
        address.checked_add(length)?;
        let offset = address % page;
        let whole = length.checked_add(offset)?.checked_next_multiple_of(page)?;
        let align = whole.checked_next_power_of_two().filter(|_| length > 0)?;
        let mut maps = self.maps();
        let from = maps.next.max(IOVA);
        let first =
            maps.find_free(from, whole, align).or_else(|| maps.find_free(IOVA, whole, align))?;
        maps.next = first + whole;
        maps.mapped.insert(first, (address - offset, whole));
        Some(Mapped { iommu: self.clone(), fragmented: maps.fragmented, first, offset })
    }

    /// Makes the pages of later mappings count as not adjacent, as on a host without an IOMMU: no
    /// page of a UMEM is then larger than one of the kernel.
    pub fn set_fragmented(&self, fragmented: bool) {
        self.maps().fragmented = fragmented;
    }

    /// The memory address of `length` bytes from a bus address, if one mapping covers all of them.
    pub(crate) fn resolve(&self, bus: u64, length: u64) -> Option<u64> {
        let maps = self.maps();
        let (&first, &(memory, whole)) = maps.mapped.range(..=bus).next_back()?;
        let at = bus - first;
        at.checked_add(length).filter(|&end| end <= whole)?;
        Some(memory + at)
    }

    /// The memory address of a bus address, and how many of the `length` bytes from there one
    /// mapping covers; `None`: none.
    pub(crate) fn resolve_part(&self, bus: u64, length: u64) -> Option<(u64, u64)> {
        let maps = self.maps();
        let (&first, &(memory, whole)) = maps.mapped.range(..=bus).next_back()?;
        let covered = whole.checked_sub(bus - first).filter(|&covered| covered > 0)?;
        Some((memory + (bus - first), covered.min(length)))
    }

    fn maps(&self) -> MutexGuard<'_, IommuMaps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IommuMaps {
    /// The first multiple of `align` from `from` on with `length` free bytes.
    fn find_free(&self, from: u64, length: u64, align: u64) -> Option<u64> {
        let mut at = from.checked_next_multiple_of(align)?;
        loop {
            let end = at.checked_add(length).filter(|&end| end <= CARD)?;
            let before = self.mapped.range(..end).next_back();
            match before.map(|(&first, &(_, whole))| first + whole).filter(|&end| end > at) {
                Some(mapped) => at = mapped.checked_next_multiple_of(align)?,
                None => return Some(at),
            }
        }
    }
}

impl Mapped {
    /// Whether its pages count as not adjacent.
    pub fn is_fragmented(&self) -> bool {
        self.fragmented
    }

    /// The bus address of the memory's first byte.
    pub fn bus_address(&self) -> u64 {
        self.first + self.offset
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.iommu.maps().mapped.remove(&self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iommu_aligns_bus_addresses_to_the_rounded_length() {
        let iommu = Arc::new(Iommu::default());
        let mut held = Vec::new();
        for (address, length, align) in [
            (0x7000_1000, 0x1000, 0x1000),
            (0x7000_1040, 0x1000, 0x2000),
            (0x7000_3000, 0x10000, 0x10000),
            (0x7000_3000, 0x10001, 0x20000),
            (0x7000_3abc, 1, 0x1000),
            (0x7000_3000, 3 << 30, 4 << 30),
        ] {
            let mapped = iommu.map(address, length, PAGE).expect("there is room");
            let bus = mapped.bus_address();
            assert_eq!(bus % align, address % 0x1000, "{length:#x} bytes at {address:#x}");
            assert_eq!(iommu.resolve(bus, length), Some(address));
            assert_eq!(iommu.resolve(bus + length - 1, 1), Some(address + length - 1));
            let end = bus.next_multiple_of(0x1000).max((bus + length).next_multiple_of(0x1000));
            assert_eq!(iommu.resolve_part(bus, u64::MAX), Some((address, end - bus)));
            assert_eq!(iommu.resolve_part(bus, 1), Some((address, 1)));
            held.push((mapped, length));
        }
        let mut ranges: Vec<_> =
            held.iter().map(|(mapped, length)| (mapped.bus_address(), *length)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranges:x?}");
    }

    #[test]
    fn larger_pages_are_mapped_whole() {
        let iommu = Arc::new(Iommu::default());
        let mapped = iommu.map(0x7001_3040, 0x1000, 0x1_0000).expect("there is room");
        let bus = mapped.bus_address();
        assert_eq!(bus % 0x1_0000, 0x3040);
        assert_eq!(iommu.resolve(bus - 0x3040, 0x1_0000), Some(0x7001_0000));
        assert_eq!(iommu.resolve(bus - 0x3040, 0x1_0001), None);
        assert!(iommu.map(0x7001_0000, 1, 0x800).is_none());
        assert!(iommu.map(0x7001_0000, 1, 0x3000).is_none());
    }

    #[test]
    fn bus_addresses_end_with_their_mapping() {
        let iommu = Arc::new(Iommu::default());
        let mapped = iommu.map(0x7000_1000, 0x2000, PAGE).expect("there is room");
        let bus = mapped.bus_address();
        assert_eq!(iommu.resolve(bus, 0x2001), None, "past its end");
        assert_eq!(iommu.resolve(bus - 1, 1), None, "before its start");
        assert_eq!(iommu.resolve(0x7000_1000, 1), None, "a memory address");
        drop(mapped);
        assert_eq!(iommu.resolve(bus, 1), None);
    }

    #[test]
    fn bus_addresses_are_reused_when_all_were_given() {
        let iommu = Arc::new(Iommu::default());
        let half = (CARD - IOVA) / 2;
        let first = iommu.map(0x1000, half, PAGE).expect("there is room");
        let second = iommu.map(0x1000, half, PAGE).expect("there is room");
        assert!(iommu.map(0x1000, 1, PAGE).is_none(), "all are in use");
        let at = first.bus_address();
        drop(first);
        let again = iommu.map(0x5000, 0x1000, PAGE).expect("half is free");
        assert_eq!(again.bus_address(), at);
        assert!(iommu.map(0x1000, 0, PAGE).is_none() && iommu.map(u64::MAX, 2, PAGE).is_none());
        drop(second);
    }
}
