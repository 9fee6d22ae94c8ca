//! Allocation of a process's heap by the host; the device has one UMEM of the whole heap.

use std::collections::BTreeMap;

/// Granularity: an allocation begins at a multiple of this many bytes, and takes a multiple.
pub(crate) const GRANULE: u64 = 64;

/// The bytes of a heap.
#[derive(Debug)]
pub(crate) struct Heap {
    base: u64,
    size: u64,
    /// Lengths of the free ranges by address; no two of them touch.
    free: BTreeMap<u64, u64>,
    /// Allocations by address.
    given: BTreeMap<u64, HeapBlock>,
}

#[derive(Debug, Clone, Copy)]
struct HeapBlock {
    requested: u64,
    length: u64,
}

/// Usage of a heap (`flexio_heap_mem_info`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapInfo {
    /// Address of the heap's first byte, in the process.
    pub base: u64,
    /// Bytes of the heap.
    pub size: u64,
    /// Bytes requested by live allocations.
    pub requested: u64,
    /// Bytes that live allocations take: each takes a multiple of 64.
    pub allocated: u64,
}

impl Heap {
    pub(crate) fn new(base: u64, size: u64) -> Self {
        let free = if size == 0 { BTreeMap::new() } else { BTreeMap::from([(base, size)]) };
        Self { base, size, free, given: BTreeMap::new() }
    }

    /// Allocates from the lowest free range that fits; 0 bytes take as much as 1. `alignment` is a
    /// power of two.
    pub(crate) fn allocate(&mut self, requested: u64, alignment: u64) -> Option<u64> {
        let alignment = alignment.max(GRANULE);
        let length = requested.max(1).checked_next_multiple_of(GRANULE)?;
        let (from, at, room) = self.free.iter().find_map(|(&from, &room)| {
            let at = from.checked_next_multiple_of(alignment)?;
            let fits = (at - from).checked_add(length).is_some_and(|end| end <= room);
            fits.then_some((from, at, room))
        })?;
        self.free.remove(&from);
        if at > from {
            self.free.insert(from, at - from);
        }
        let (end, rest) = (at + length, from + room - (at + length));
        if rest > 0 {
            self.free.insert(end, rest);
        }
        self.given.insert(at, HeapBlock { requested, length });
        Some(at)
    }

    /// Frees an allocation.
    pub(crate) fn free(&mut self, address: u64) {
        let Some(HeapBlock { mut length, .. }) = self.given.remove(&address) else { return };
        let mut from = address;
        if let Some(after) = self.free.remove(&(from + length)) {
            length += after;
        }
        if let Some((&before, &room)) = self.free.range(..from).next_back()
            && before + room == from
        {
            from = before;
            length += room;
        }
        self.free.insert(from, length);
    }

    /// Whether the heap contains the whole range.
    pub(crate) fn holds(&self, address: u64, length: u64) -> bool {
        address >= self.base
            && address.checked_add(length).is_some_and(|end| end <= self.base + self.size)
    }

    pub(crate) fn info(&self) -> HeapInfo {
        let sum = |of: fn(&HeapBlock) -> u64| self.given.values().map(of).sum();
        HeapInfo {
            base: self.base,
            size: self.size,
            requested: sum(|it| it.requested),
            allocated: sum(|it| it.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_allocations_merge() {
        let mut heap = Heap::new(0x1000, 0x1000);
        let sizes = [1_u64, 64, 65, 0, 200, 7];
        let given: Vec<_> = sizes.iter().map(|&size| heap.allocate(size, 1).unwrap()).collect();
        assert_eq!(given, [0x1000, 0x1040, 0x1080, 0x1100, 0x1140, 0x1240]);
        let info = heap.info();
        assert_eq!((info.requested, info.allocated), (337, 64 * 10));
        for at in [1, 3, 2, 0, 5, 4] {
            heap.free(given[at]);
        }
        assert_eq!(heap.free, BTreeMap::from([(0x1000, 0x1000)]));
        assert_eq!(heap.allocate(0x1000, 1), Some(0x1000));
        assert_eq!(heap.allocate(0, 1), None);
    }

    #[test]
    fn alignment_is_respected_and_gap_stays_free() {
        let mut heap = Heap::new(0x1040, 0x3000);
        assert_eq!(heap.allocate(10, 4096), Some(0x2000));
        assert_eq!(heap.allocate(10, 64), Some(0x1040));
        assert_eq!(heap.allocate(0x2000, 64), Some(0x2040));
        assert_eq!(heap.allocate(0x2000, 64), None);
        assert_eq!(heap.allocate(u64::MAX, 64), None);
        assert_eq!(heap.allocate(1, 1 << 63), None);
    }

    #[test]
    fn holds_accepts_only_inner_ranges() {
        let heap = Heap::new(0x1000, 0x1000);
        assert!(heap.holds(0x1000, 0x1000) && heap.holds(0x2000, 0));
        assert!(
            !heap.holds(0xfff, 1) && !heap.holds(0x1001, 0x1000) && !heap.holds(0x1800, u64::MAX)
        );
    }
}
