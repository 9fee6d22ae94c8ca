//! Memory of this process that a device may reach.
#![allow(unsafe_code, reason = "memory is handed to a device; this module is the place for it")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions};
use verbless_command::{Device, Error, ErrorKind, UserMemory};
use verbless_devx::PageSizes;

use verbless_ring::ring::SharedMemory;

/// Bytes of a huge page, on x86-64 and on aarch64 with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// Registered memory: our handle to its bytes, and the registration.
///
/// Keys and queues on it hold the registration, the registration holds the memory. So the device
/// loses its way to the bytes before they are unmapped, and when it does not let go they are never
/// unmapped.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) memory: SharedMemory,
    pub(crate) user: Arc<UserMemory>,
}

impl Pinned {
    /// Fresh zeroed memory of `length` bytes, page-aligned; from [`HUGE_PAGE`] on aligned to that
    /// and in huge pages as far as the system has some, which the kernel then registers as such: a
    /// 512th of the translation entries. `access` is flags of [`verbless_devx::abi::core::access`].
    pub(crate) fn allocate(
        device: &Device,
        length: usize,
        access: u32,
        pages: PageSizes,
    ) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::new(
                ErrorKind::Input,
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
        let huge = length >= HUGE_PAGE;
        // No address space has room for a length that saturates.
        let room = if huge { length.saturating_add(HUGE_PAGE - 1) } else { length };
        let mut map = MmapOptions::new().len(room).map_anon().map_err(refused)?;
        // A child of fork would share the pages with the device only until one of the two writes.
        map.advise(Advice::DontFork).map_err(refused)?;
        if huge {
            // A system without them says EINVAL, and small pages do as well.
            let _ = map.advise(Advice::HugePage);
        }
        let start = map.as_mut_ptr();
        let skipped = if huge { start.addr().wrapping_neg() % HUGE_PAGE } else { 0 };
        let base = NonNull::new(start.wrapping_add(skipped)).unwrap_or(NonNull::dangling());
        // SAFETY: the mapping is ours alone, readable and writable, has `length` bytes from `base`,
        // as fewer than `HUGE_PAGE` are skipped, and lives in the owner; no reference into it
        // exists.
        unsafe { Self::register(device, base, length, access, pages, Arc::new(map)) }
    }

    /// Registers memory that `owner` keeps mapped.
    ///
    /// # Safety
    /// As [`SharedMemory::from_raw`]; and the device may read the memory, and write it as `access`
    /// and later keys allow.
    pub(crate) unsafe fn register(
        device: &Device,
        base: NonNull<u8>,
        length: usize,
        access: u32,
        pages: PageSizes,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        let address = base.as_ptr().expose_provenance() as u64;
        // SAFETY: the memory stays mapped while `owner` lives, and `UserMemory` keeps it until the
        // registration is gone.
        let umem = unsafe { device.umem_reg(address, length as u64, access, pages) }?;
        let user = UserMemory::new(umem, address, length as u64, owner.clone());
        // SAFETY: as the caller promises.
        let memory = unsafe { SharedMemory::from_raw(base, length, owner) };
        Ok(Self { memory, user: Arc::new(user) })
    }
}
