//! Memory of this process that a device may reach.
#![allow(unsafe_code, reason = "gives a device access to memory")]

use std::sync::Arc;

use verbless_command::{Device, Error, UserMemory};
use verbless_devx::PageSizes;
use verbless_devx::abi::core::access;

use verbless_ring::ring::SharedMemory;

use super::memory::Memory;

/// Registered memory: our handle to its bytes, and its registration with the device.
///
/// Keys and queues on it hold the registration, the registration holds the memory. So the device
/// loses access to the bytes before they are unmapped; if deregistration fails, they are never
/// unmapped.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) memory: SharedMemory,
    pub(crate) user: Arc<UserMemory>,
}

impl Pinned {
    /// Allocates and registers `length` bytes, as [`Memory::allocate`] does. `access` is flags of
    /// [`verbless_devx::abi::core::access`].
    pub(crate) fn allocate(
        device: &Device,
        length: usize,
        access: u32,
        pages: PageSizes,
    ) -> Result<Self, Error> {
        Self::of(device, &Memory::allocate(length)?, access, pages)
    }

    /// Registers `memory` and keeps it alive.
    pub(crate) fn of(
        device: &Device,
        memory: &Memory,
        access: u32,
        pages: PageSizes,
    ) -> Result<Self, Error> {
        let memory = memory.shared().clone();
        let (address, length) = (memory.address(), memory.len() as u64);
        // SAFETY: the memory stays mapped while a handle to it lives, and `UserMemory` keeps one
        // until the registration ends.
        let umem = unsafe { device.umem_reg(address, length, access, pages) }?;
        let user = UserMemory::new(umem, address, length, memory.clone());
        Ok(Self { memory, user: Arc::new(user) })
    }
}

impl Memory {
    /// Registers the memory for commands that take a umem: files, queues, dumps. The device may
    /// write there; the call creates no mkey.
    ///
    /// # Errors
    /// The system refuses to pin so many bytes.
    pub fn register(&self, device: &Device) -> Result<Arc<UserMemory>, Error> {
        let pinned = Pinned::of(device, self, access::LOCAL_WRITE, PageSizes::Bitmap(1 << 12))?;
        Ok(pinned.user)
    }
}
