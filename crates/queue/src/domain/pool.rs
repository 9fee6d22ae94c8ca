//! Pooled memory for rings and doorbell records.
//!
//! Each registration costs the kernel a pin and the device an object, so queues share
//! registrations: chunks of memory, leased in pages for rings and in cache lines for records.
#![allow(unsafe_code, reason = "leases each byte to one queue only")]

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use verbless_command::{Device, Error, ErrorKind, QueueMemory};
use verbless_devx::{PageSizes, abi::core::access};

use crate::region::{Memory, Pinned};
use verbless_ring::ring::{LayoutError, RecordMemory, RingMemory};

/// Default bytes of a chunk; a larger ring gets a larger chunk.
pub(super) const CHUNK: usize = 256 << 10;
/// The granularity of a ring's offset and length, in bytes.
const RING_UNIT: usize = 4096;
/// The only page size of a chunk's registration. A queue begins at a multiple of a 64th of such a
/// page, an RMP in its first half (`page_offset` of Linux's `qpc` and `cqc` has 6 bits, that of
/// `wq` 5, in units of a 64th). With pages of 4096 bytes, every ring begins at a page.
const PAGES: PageSizes = PageSizes::Bitmap(RING_UNIT as u64);

/// Registers a new chunk of `size` bytes with pages of 4096 bytes. A kernel without the page-size
/// bitmap derives the page size from the address, so for it the chunk begins at an odd page.
fn register(device: &Device, size: usize) -> Result<Pinned, Error> {
    let follow_address = || device.pages_follow_address();
    if !follow_address() {
        let pinned = Pinned::allocate(device, size, access::LOCAL_WRITE, PAGES)?;
        if !follow_address() {
            return Ok(pinned);
        }
    }
    let room = Memory::allocate(size.saturating_add(RING_UNIT))?;
    let skipped = if room.address() & RING_UNIT as u64 == 0 { RING_UNIT } else { 0 };
    let odd = room.slice(skipped, size).expect("one unit more than the chunk was allocated");
    Pinned::of(device, &odd, access::LOCAL_WRITE, PAGES)
}
/// The granularity of doorbell records, in bytes: records of two queues never share a cache line.
const RECORD_UNIT: usize = 64;

/// The pool of a domain.
pub(super) struct Pool {
    device: Device,
    /// Bytes of a ring chunk.
    chunk: usize,
    rings: Mutex<Vec<Arc<Chunk>>>,
    records: Mutex<Vec<Arc<Chunk>>>,
}

/// Memory of the pool with a registration of its own.
struct Chunk {
    pinned: Pinned,
    /// Units that are not leased.
    free: Mutex<BTreeSet<usize>>,
}

/// Some units of a chunk; given back when dropped.
struct Lease {
    chunk: Arc<Chunk>,
    first: usize,
    units: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.chunk.free().extend(self.first..self.first + self.units);
    }
}

impl Chunk {
    fn free(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes the first run of free units that is long enough.
    fn lease(self: &Arc<Self>, units: usize) -> Option<Lease> {
        let mut free = self.free();
        let (mut first, mut length) = (0, 0);
        for &unit in free.iter() {
            (first, length) = if unit == first + length { (first, length + 1) } else { (unit, 1) };
            if length == units {
                (first..first + units).for_each(|unit| {
                    free.remove(&unit);
                });
                return Some(Lease { chunk: self.clone(), first, units });
            }
        }
        None
    }
}

/// Memory of a ring or record, by our address and by the device's.
pub(super) struct PoolMemory {
    /// Our side.
    pub(super) memory: RingMemory,
    /// The same memory, as commands address it.
    pub(super) queue: QueueMemory,
}

impl Pool {
    pub(super) fn new(device: Device, chunk: usize) -> Self {
        let chunk = chunk.checked_next_multiple_of(RING_UNIT).unwrap_or(chunk);
        Self { device, chunk, rings: Mutex::default(), records: Mutex::default() }
    }

    /// Zeroed memory for a ring, aligned to a page.
    pub(super) fn ring(&self, bytes: usize) -> Result<PoolMemory, Error> {
        self.piece(&self.rings, RING_UNIT, bytes)
    }

    /// A zeroed doorbell record of 8 bytes on a cache line of its own.
    pub(super) fn record(&self) -> Result<(RecordMemory, QueueMemory), Error> {
        let PoolMemory { memory, queue } = self.piece(&self.records, RECORD_UNIT, 8)?;
        Ok((RecordMemory::new(memory).map_err(layout)?, queue))
    }

    fn piece(
        &self,
        chunks: &Mutex<Vec<Arc<Chunk>>>,
        unit: usize,
        bytes: usize,
    ) -> Result<PoolMemory, Error> {
        let mut chunks = chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let units = bytes.div_ceil(unit).max(1);
        let lease = match chunks.iter().find_map(|chunk| chunk.lease(units)) {
            Some(lease) => lease,
            None => {
                let size = (units * unit).next_multiple_of(if unit == RECORD_UNIT {
                    RING_UNIT
                } else {
                    self.chunk
                });
                let pinned = register(&self.device, size)?;
                let free = Mutex::new((0..size / unit).collect());
                let chunk = Arc::new(Chunk { pinned, free });
                let lease = chunk.lease(units).expect("a new chunk has room for its first lease");
                chunks.push(chunk);
                lease
            }
        };
        let offset = lease.first * unit;
        let lease = Arc::new(lease);
        let memory = lease
            .chunk
            .pinned
            .memory
            .slice(offset, bytes)
            .expect("a lease lies in its chunk")
            .held_with(lease.clone());
        memory.fill(0);
        // SAFETY: no other lease has these bytes, and this one lives as long as the memory and the
        // device's reference to it. Only this pool has a handle to a chunk, and the pool touches
        // only bytes that it is about to lease.
        let memory = unsafe { RingMemory::new(memory) };
        let queue =
            QueueMemory::leased(lease.chunk.pinned.user.clone(), offset as u64, lease.clone());
        Ok(PoolMemory { memory, queue })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count =
            |chunks: &Mutex<Vec<Arc<Chunk>>>| chunks.lock().map_or(0, |chunks| chunks.len());
        write!(
            f,
            "Pool({} ring chunks, {} record chunks)",
            count(&self.rings),
            count(&self.records)
        )
    }
}

/// A layout that we chose ourselves and that is invalid.
pub(super) fn layout(error: LayoutError) -> Error {
    Error::new(ErrorKind::InvalidInput, "laying out a queue", error.to_string())
}
