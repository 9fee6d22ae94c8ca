//! Memory of this process that a device may reach.
#![allow(unsafe_code, reason = "memory is handed to a device; this module is the place for it")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions};
use verbless_command::{Device, Error, ErrorKind, UserMemory};
use verbless_devx::PageSizes;

use crate::ring::SharedMemory;

/// Registered memory: our handle to its bytes, and the registration.
///
/// Keys and queues on it hold the registration, the registration holds the memory. So the device loses its way to the
/// bytes before they are unmapped, and when it does not let go they are never unmapped.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) memory: SharedMemory,
    pub(crate) user: Arc<UserMemory>,
}

impl Pinned {
    /// Fresh zeroed memory of `length` bytes, page-aligned. `access` is flags of [`verbless_devx::abi::core::access`].
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
                "zero bytes were asked for: a region has at least one",
            ));
        }
        let refused = |error: std::io::Error| {
            Error::new(
                ErrorKind::MemoryLimit,
                format!("allocating {length} bytes of registered memory: {error}"),
                "ask for less, or free memory",
            )
        };
        let mut map = MmapOptions::new().len(length).map_anon().map_err(refused)?;
        // A child of fork would share the pages with the device only until one of the two writes.
        map.advise(Advice::DontFork).map_err(refused)?;
        let base = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: the mapping is ours alone, readable and writable, and lives in the owner; no reference into it exists.
        unsafe { Self::register(device, base, length, access, pages, Arc::new(map)) }
    }

    /// Registers memory that `owner` keeps mapped.
    ///
    /// # Safety
    /// As [`SharedMemory::from_raw`]; and the device may read the memory, and write it as `access` and later keys allow.
    pub(crate) unsafe fn register(
        device: &Device,
        base: NonNull<u8>,
        length: usize,
        access: u32,
        pages: PageSizes,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        let address = base.as_ptr().expose_provenance() as u64;
        // SAFETY: the memory stays mapped while `owner` lives, and `UserMemory` keeps it until the registration is gone.
        let umem = unsafe { device.umem_reg(address, length as u64, access, pages) }?;
        let user = UserMemory::new(umem, address, length as u64, owner.clone());
        // SAFETY: as the caller promises.
        let memory = unsafe { SharedMemory::from_raw(base, length, owner) };
        Ok(Self { memory, user: Arc::new(user) })
    }
}
