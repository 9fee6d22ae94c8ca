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
/// The granularity of a ring's offset and length in bytes, where the kernel allows pages of this
/// size.
const RING_UNIT: usize = 4096;
/// The only page size of a chunk's registration. A queue begins at a multiple of a 64th of such a
/// page, an RMP in its first half (`page_offset` of Linux's `qpc` and `cqc` has 6 bits, that of
/// `wq` 5, in units of a 64th). With pages of 4096 bytes, every ring begins at a page.
const PAGES: PageSizes = PageSizes::Bitmap(RING_UNIT as u64);

/// Registers a new chunk of at least `size` bytes. Returns it with its page size, the granularity
/// of rings in it: 4 KiB, or the kernel's own page size if the kernel chooses pages by the address,
/// or allows none below its own.
fn register(device: &Device, size: usize) -> Result<(Pinned, usize), Error> {
    let system = device.page_size();
    if !device.pages_follow_address() && !device.umems_lack_small_pages() {
        let pinned = Pinned::allocate(device, size, access::LOCAL_WRITE, PAGES)?;
        let page = pinned.user.page_limit() as usize;
        let begins_page = pinned.memory.address().is_multiple_of(system as u64);
        match page {
            ..=RING_UNIT => return Ok((pinned, RING_UNIT)),
            _ if page == system && begins_page && size >= page => return Ok((pinned, page)),
            _ => {}
        }
    }
    let size = size.checked_next_multiple_of(system).unwrap_or(size);
    // An odd page's address bounds the pages that follow it.
    let room = Memory::allocate(size.saturating_add(2 * system))?;
    let odd = (room.address().wrapping_neg() as usize & (2 * system - 1)) ^ system;
    let chunk = room.slice(odd, size).expect("the room has two pages more than the chunk");
    Ok((Pinned::of(device, &chunk, access::LOCAL_WRITE, PAGES)?, system))
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
    /// The granularity of leases, in bytes.
    unit: usize,
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
    fn lease(self: &Arc<Self>, bytes: usize) -> Option<Lease> {
        let units = bytes.div_ceil(self.unit).max(1);
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
    /// The memory as the CPU addresses it.
    pub(super) memory: RingMemory,
    /// The memory as commands address it.
    pub(super) queue: QueueMemory,
}

impl Pool {
    pub(super) fn new(device: Device, chunk: usize) -> Self {
        let chunk = chunk.checked_next_multiple_of(RING_UNIT).unwrap_or(chunk);
        Self { device, chunk, rings: Mutex::default(), records: Mutex::default() }
    }

    /// Zeroed memory for a ring, aligned to a page.
    pub(super) fn ring(&self, bytes: usize) -> Result<PoolMemory, Error> {
        self.piece(&self.rings, None, bytes)
    }

    /// A zeroed doorbell record of 8 bytes on a cache line of its own.
    pub(super) fn record(&self) -> Result<(RecordMemory, QueueMemory), Error> {
        let PoolMemory { memory, queue } = self.piece(&self.records, Some(RECORD_UNIT), 8)?;
        Ok((RecordMemory::new(memory).map_err(layout)?, queue))
    }

    /// Memory of one of `chunks`, in units of `unit` bytes; without, of the chunk's pages.
    fn piece(
        &self,
        chunks: &Mutex<Vec<Arc<Chunk>>>,
        unit: Option<usize>,
        bytes: usize,
    ) -> Result<PoolMemory, Error> {
        let mut chunks = chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let lease = match chunks.iter().find_map(|chunk| chunk.lease(bytes)) {
            Some(lease) => lease,
            None => {
                let whole = if unit.is_some() { RING_UNIT } else { self.chunk };
                let size = bytes.max(1).next_multiple_of(whole);
                let (pinned, page) = register(&self.device, size)?;
                let unit = unit.unwrap_or(page);
                let free = Mutex::new((0..pinned.memory.len() / unit).collect());
                let chunk = Arc::new(Chunk { pinned, unit, free });
                let lease = chunk.lease(bytes).expect("a new chunk has room for its first lease");
                chunks.push(chunk);
                lease
            }
        };
        let offset = lease.first * lease.chunk.unit;
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
