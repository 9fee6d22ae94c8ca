//! The protection domain: its memory regions, and the doorbells of its queues.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use verbless_command::{Device, Error, KeyAccess, KeyMemory, MkeyAttr, check_access};
use verbless_devx::{PageSizes, Pd, UarKind, abi::core::access};
use verbless_ring::service::Service;
use verbless_ring::uar::SendDoorbell;
use verbless_ring::wr::{OperationInfo, Unsupported};

use super::builder::DomainBuilder;
use super::pages::{BLUEFLAME_PAGES, Page};
use super::pool::{CHUNK, Pool};
use super::raw::TransportObjects;
use super::requirements;
use crate::region::{Memory, Pinned, Region, RegionParts, WordRegion};

/// A protection domain and the resources that its queues share. Clones refer to the same domain.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(super) device: Device,
    pub(super) pd: Pd,
    pub(super) shared: Arc<DomainShared>,
}

#[derive(Debug)]
pub(super) struct DomainShared {
    pub(super) pool: Pool,
    /// The non-cached page: arms, and doorbells of 8 bytes.
    pub(super) plain: Page,
    /// Write-combining pages with BlueFlame registers; one queue owns each register.
    pub(super) blueflame: Mutex<Vec<Page>>,
    /// The maximum number of pages in `blueflame`.
    pub(super) blueflame_pages: usize,
    /// The transport domain and TISs that the domain's frame queues share.
    pub(super) transports: Mutex<TransportObjects>,
}

impl Domain {
    /// A new protection domain on `device`, with the defaults of [`Domain::builder`].
    ///
    /// # Errors
    /// The device was removed, or has no protection domain or UAR page left.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::builder(device).build()
    }

    /// Like [`Domain::new`], with options.
    pub fn builder(device: &Device) -> DomainBuilder<'_> {
        DomainBuilder { device, blueflame_pages: BLUEFLAME_PAGES, chunk: CHUNK, pd: None }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether queue pairs of service `S` take requests of this operation on this device:
    /// `domain.supports::<Rc>(&FetchAdd::INFO)`. For an existing queue pair, ask
    /// [`SendQueue::supports`](crate::SendQueue::supports).
    ///
    /// # Errors
    /// The service lacks the operation, or the device lacks a capability; the error names it.
    pub fn supports<S: Service>(&self, operation: &OperationInfo) -> Result<(), Unsupported> {
        operation.supported(&S::INFO, |needs| requirements::has(self.device.caps(), needs))
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// `count` fresh zeroed words under a key of their own. Their IOVA is their address in this
    /// process.
    ///
    /// # Errors
    /// As [`Domain::region`].
    pub fn words(&self, count: usize, access: KeyAccess) -> Result<WordRegion, Error> {
        self.region(count.saturating_mul(size_of::<u64>()), access).map(WordRegion::new)
    }

    /// Fresh zeroed memory of `length` bytes under a key of its own. Its IOVA is its address in
    /// this process.
    ///
    /// # Errors
    /// `length` is 0; access flags that exclude each other ([`check_access`]); the memory limit is
    /// too low.
    pub fn region(&self, length: usize, access: KeyAccess) -> Result<Region, Error> {
        self.region_of(&Memory::allocate(length)?, access)
    }

    /// Registers memory that the caller provides. `owner` is dropped when the device no longer uses
    /// the memory.
    ///
    /// # Errors
    /// EFAULT if the memory is not mapped as `access` needs; the memory limit is too low; the
    /// length is zero or overflows.
    ///
    /// # Safety
    /// While `owner` lives, `length` bytes from `base` stay mapped readable and writable, whatever
    /// `access` is (no file mapping, not shared by fork). No Rust reference to any of them is used
    /// except to atomics, or a slice that a region lent. Raw accesses from elsewhere
    /// are volatile.
    #[allow(unsafe_code, reason = "the promise is passed on to the region's memory")]
    pub unsafe fn region_from_raw(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: KeyAccess,
        owner: impl std::any::Any + Send + Sync,
    ) -> Result<Region, Error> {
        // SAFETY: the caller promises the same.
        let memory = unsafe { Memory::from_raw(base, length, owner) };
        self.region_of(&memory, access)
    }

    /// Registers `memory`, which may have other registrations and keys.
    ///
    /// # Errors
    /// As [`Domain::region_from_raw`].
    pub fn region_of(&self, memory: &Memory, access: KeyAccess) -> Result<Region, Error> {
        check_access(access)?;
        let most = self.device.caps().log_max_key_page();
        let pages = PageSizes::of_address(memory.address(), self.device.page_size(), most);
        let pinned = Pinned::of(&self.device, memory, umem_access(access), pages)?;
        self.key(pinned, access)
    }

    fn key(&self, pinned: Pinned, access: KeyAccess) -> Result<Region, Error> {
        let address = pinned.memory.address();
        let mkey = self.device.create_mkey(MkeyAttr {
            pd: self.pd.clone(),
            access,
            start: address,
            length: pinned.memory.len() as u64,
            memory: KeyMemory::Umem { umem: pinned.user, offset: 0 },
        })?;
        let remote = access.remote.read || access.remote.write || access.remote.atomic;
        Ok(Region::new(RegionParts {
            lkey: mkey.lkey(),
            rkey: remote.then(|| mkey.rkey()),
            registration: Box::new(mkey),
            device_writable: access.local_write || access.remote.write || access.remote.atomic,
            memory: pinned.memory,
            address,
        }))
    }

    /// A doorbell for one send queue: a BlueFlame register of its own if it is wanted and one is
    /// free, else the shared plain doorbell.
    pub(super) fn doorbell(&self, blueflame: bool) -> (Page, SendDoorbell) {
        blueflame.then(|| self.register()).flatten().unwrap_or_else(|| {
            let plain = self.shared.plain.clone();
            let doorbell = plain.memory.doorbell();
            (plain, doorbell)
        })
    }

    /// A free BlueFlame register.
    fn register(&self) -> Option<(Page, SendDoorbell)> {
        let buffer = self.device.attributes().driver.bf_reg_size as usize / 2;
        if buffer == 0 {
            return None;
        }
        let pages = &self.shared.blueflame;
        let mut pages = pages.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(found) = pages.iter().find_map(|page| page.register(buffer)) {
            return Some(found);
        }
        if pages.len() >= self.shared.blueflame_pages {
            return None;
        }
        // A machine without write combining refuses, and so does a device without a free UAR. The
        // plain doorbell works in both cases.
        let more = Page::new(&self.device, UarKind::BlueFlame).ok()?;
        let found = more.register(buffer)?;
        pages.push(more);
        Some(found)
    }
}

fn umem_access(key: KeyAccess) -> u32 {
    let mut flags = 0;
    if key.local_write {
        flags |= access::LOCAL_WRITE;
    }
    if key.remote.read {
        flags |= access::REMOTE_READ;
    }
    if key.remote.write || key.remote.atomic {
        flags |= access::REMOTE_WRITE;
    }
    if key.relaxed_ordering {
        flags |= access::RELAXED_ORDERING;
    }
    flags
}

#[cfg(test)]
mod tests {
    use verbless_command::RemoteAccess;

    use super::*;

    #[test]
    fn umem_access_follows_mkey_access() {
        use access::{LOCAL_WRITE, RELAXED_ORDERING, REMOTE_READ, REMOTE_WRITE};
        let remote = |read, write, atomic| RemoteAccess { read, write, atomic };
        let none = KeyAccess::LOCAL_READ;
        for (key, expected) in [
            (none, 0),
            (KeyAccess::LOCAL, LOCAL_WRITE),
            (KeyAccess { remote: remote(true, false, false), ..none }, REMOTE_READ),
            (KeyAccess { remote: remote(false, true, false), ..none }, REMOTE_WRITE),
            (KeyAccess { remote: remote(false, false, true), ..none }, REMOTE_WRITE),
            (KeyAccess { relaxed_ordering: true, ..none }, RELAXED_ORDERING),
            (
                KeyAccess { relaxed_ordering: true, ..KeyAccess::ALL },
                LOCAL_WRITE + REMOTE_READ + REMOTE_WRITE + RELAXED_ORDERING,
            ),
        ] {
            assert_eq!(umem_access(key), expected, "{key:?}");
        }
    }
}
