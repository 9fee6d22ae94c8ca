//! Memory without a registration.
#![allow(unsafe_code, reason = "maps memory, or takes it on the caller's promise")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};

use memmap2::{Advice, MmapOptions};
use verbless_command::{Error, ErrorKind};
use verbless_devx::page_size;

use verbless_ring::ring::{OutOfBounds, SharedMemory};

/// Bytes of a huge page, on x86-64 and on aarch64 with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// Memory that can be registered on one device or several: [`Domain::region_of`]. Clones share the
/// same memory, which lives until the last clone and the last region of it are dropped.
///
/// Its bytes are copied in and out by copies that may race with each other and with a device.
///
/// [`Domain::region_of`]: crate::Domain::region_of
#[derive(Clone, Debug)]
pub struct Memory(SharedMemory);

impl Memory {
    /// Fresh zeroed memory of `length` bytes, aligned to its length rounded up to a power of two,
    /// up to 2 MiB. A device's pages are as large as address and length allow, and one page needs
    /// one translation entry. From 2 MiB on, the memory uses huge pages if the system has some. The
    /// alignment costs address space only.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for zero bytes; [`ErrorKind::MemoryLimit`] if the system has no
    /// room.
    pub fn allocate(length: usize) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "allocating registered memory",
                "0 bytes were requested: a region has at least 1",
            ));
        }
        let refused = |error: std::io::Error| {
            Error::new(
                ErrorKind::MemoryLimit,
                format!("allocating {length} bytes of registered memory: {error}"),
                "request less, or free memory",
            )
        };
        let align = length.checked_next_power_of_two().unwrap_or(HUGE_PAGE).min(HUGE_PAGE);
        // A mapping begins at a page. No address space has room for a saturated length.
        let spare = align.saturating_sub(page_size());
        let room = length.saturating_add(spare);
        let mut map = MmapOptions::new().len(room).map_anon().map_err(refused)?;
        // The child of a fork would share the pages copy-on-write: after a write of the parent, the
        // parent may have a copy, and the device still has the old page.
        map.advise(Advice::DontFork).map_err(refused)?;
        if length >= HUGE_PAGE {
            // A system without huge pages returns EINVAL; small pages work as well.
            let _ = map.advise(Advice::HugePage);
        }
        let start = map.as_mut_ptr();
        let skipped = if spare > 0 { start.addr().wrapping_neg() % align } else { 0 };
        let base = NonNull::new(start.wrapping_add(skipped)).unwrap_or(NonNull::dangling());
        // SAFETY: only this object uses the mapping; it is readable and writable, has `length`
        // bytes from `base`, because at most `spare` are skipped, and lives in the owner; no
        // reference into it exists.
        Ok(unsafe { Self::from_raw(base, length, map) })
    }

    /// Memory that the caller provides. `owner` is dropped after the last use of the memory.
    ///
    /// # Safety
    /// While `owner` lives, `length` bytes from `base` stay mapped readable and writable (no file
    /// mapping, not shared by fork). No Rust reference to any of them is used except to atomics.
    /// Raw accesses from elsewhere are volatile.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        length: usize,
        owner: impl Any + Send + Sync,
    ) -> Self {
        // SAFETY: the caller promises the same.
        Self(unsafe { SharedMemory::from_raw(base, length, Arc::new(owner)) })
    }

    /// A handle to the same memory that keeps `guard` alive. `guard` is dropped after this handle,
    /// its clones and the regions made of them, but never while a device that failed to destroy a
    /// region may still reach the bytes.
    #[must_use]
    pub fn guarded(&self, guard: impl Any + Send + Sync) -> Self {
        Self(self.0.guarded(guard))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// `length` bytes from `offset` on, as a handle of its own.
    ///
    /// # Errors
    /// A range that is not in the memory.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self, OutOfBounds> {
        self.0.slice(offset, length).map(Self)
    }

    /// Copies `bytes` in, from `offset` on.
    ///
    /// # Errors
    /// A range that is not in the memory.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.0.write_at(offset, bytes)
    }

    /// Copies out from `offset` on, as many bytes as `into` takes.
    ///
    /// # Errors
    /// A range that is not in the memory.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.0.read_at(offset, into)
    }

    /// The memory as 64-bit words in the machine's byte order, from its first byte on, without a
    /// remainder of less than 8 bytes. Memory that does not begin at a multiple of 8 has no words.
    /// The device and a peer may change them at any time, each aligned word as a whole.
    ///
    /// # Safety
    /// While the words are used, no access of another size reaches the same bytes at the same time:
    /// no copy, and no view in bytes, through this handle or another one.
    pub unsafe fn words(&self) -> &[AtomicU64] {
        // SAFETY: the caller promises the same.
        unsafe { self.0.words() }
    }

    /// The memory in place, byte by byte, at any alignment. A device, a peer and copies may change
    /// each byte at any time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.0.bytes()
    }

    pub(crate) fn shared(&self) -> &SharedMemory {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of this process's mapping that has `address` (`VmFlags` of /proc/self/smaps).
    fn vm_flags(address: u64) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
        let mut is_inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range {
                let number = |text| u64::from_str_radix(text, 16).expect("an address");
                is_inside = (number(from)..number(to)).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_inside) {
                return flags.split_whitespace().map(str::to_owned).collect();
            }
        }
        panic!("no mapping has {address:#x}");
    }

    /// Without this, a kernel that does not copy pinned pages at a fork gives the parent, on its
    /// next write, another page than the device has.
    #[test]
    fn memory_is_not_inherited_by_fork() {
        // Rings, doorbell records and regions are such memory; the longest has huge pages.
        for length in [64, 4096, 3 << 20] {
            let memory = Memory::allocate(length).expect("there is room");
            for address in [memory.address(), memory.address() + length as u64 - 1] {
                let flags = vm_flags(address);
                assert!(flags.iter().any(|flag| flag == "dc"), "{length} bytes: {flags:?}");
            }
        }
    }
}
