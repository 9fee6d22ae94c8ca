//! Bringing regions and queues to life on a device.
//!
//! A [`Domain`] is a protection domain with what its queues share: UAR pages, and pooled memory for
//! rings and doorbell records. Regions, completion queues and queue pairs are made from it and hold
//! what they need of it.
//!
//! **UAR pages.** One page is mapped non-cached: every completion queue is armed through it, and
//! every queue pair without a BlueFlame register rings there. A doorbell is one store of 8 bytes,
//! so any number of queues on any threads share it without a lock. A BlueFlame register takes
//! copies of several stores, which must not mix with anything; so it is one queue pair's alone,
//! until that is dropped, and on a page where nobody else rings. The first 16 queue pairs of a
//! domain that want one get one ([`BLUEFLAME_PAGES`] pages of two): UARs are few on a device, and
//! libmlx5 takes as many. The others, and those of a device without BlueFlame, ring plain
//! doorbells: the device then reads their requests from the ring, which costs it one more read.
//! libmlx5 shares registers behind a lock instead; the data path here takes none.
//!
//! ```no_run
//! # fn f(device: &verbless_command::Device) -> Result<(), verbless_command::Error> {
//! use verbless_queue::domain::{CqConfig, Domain, QpConfig};
//! use verbless_command::KeyAccess;
//!
//! let domain = Domain::new(device)?;
//! let region = domain.region(4096, KeyAccess::ALL)?;
//! let cq = domain.completion_queue(&CqConfig::new(64))?;
//! let qp = domain.queue_pair(&QpConfig::new(32, 32), &cq, &cq)?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod connect;
mod datagram;
mod handshake;
mod key;
mod peer;
mod pool;
mod queues;
mod srq;
mod transitions;

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use verbless_command::{Device, Error, ErrorKind, KeyAccess, KeyMemory, MkeyAttr, check_access};
use verbless_devx::{PageSizes, Pd, Uar, UarKind, abi::core::access};

pub use builder::DomainBuilder;
pub use connect::ConnectOptions;
pub use datagram::DatagramOptions;
pub use handshake::Peer;
pub use key::{IndirectKey, UmrKey};
pub use peer::PeerAddress;
pub use queues::{Cq, CqConfig, Qp, QpConfig};
pub use srq::{Srq, SrqConfig};

use crate::page::map_uar;
use crate::region::{Pinned, Region, RegionParts};
use crate::ring::LayoutError;
use crate::service::Service;
use crate::uar::{SendDoorbell, UarPage};
use crate::wr::{Request, Unsupported};
use pool::{CHUNK, Pool};

/// A protection domain and what its queues share. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Domain {
    device: Device,
    pd: Pd,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Pool,
    /// The non-cached page: arms, and doorbells of 8 bytes.
    plain: Page,
    /// Write-combining pages: BlueFlame registers, each of which is one queue's.
    blueflame: Mutex<Vec<Page>>,
    /// So many of them at most.
    blueflame_pages: usize,
}

/// A UAR page twice: as the number that contexts name, and as memory.
#[derive(Clone, Debug)]
struct Page {
    uar: Arc<Uar>,
    memory: UarPage,
}

impl Domain {
    /// A protection domain of its own on `device`, with what [`Domain::builder`] begins with.
    ///
    /// # Errors
    /// A device that is gone, or has no protection domain or UAR page left.
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::builder(device).build()
    }

    /// The same with choices.
    pub fn builder(device: &Device) -> DomainBuilder<'_> {
        DomainBuilder { device, blueflame_pages: BLUEFLAME_PAGES, chunk: CHUNK }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether queue pairs of service `S` take requests of this type on this device:
    /// `domain.supports::<Rc, FetchAdd>()`.
    ///
    /// # Errors
    /// The service has none, or the device lacks a capability, which the error names.
    pub fn supports<S: Service, W: Request>(&self) -> Result<(), Unsupported> {
        W::INFO.supported(&S::INFO, |needs| self.device.caps().has(needs))
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Fresh zeroed memory of `length` bytes under a key of its own. Its first address is that in
    /// this process.
    ///
    /// # Errors
    /// Zero bytes; rights that no key has together ([`check_access`]); a memory limit that is
    /// too low.
    pub fn region(&self, length: usize, access: KeyAccess) -> Result<Region, Error> {
        check_access(access)?;
        let pinned = Pinned::allocate(&self.device, length, umem_access(access), PageSizes::Any)?;
        self.key(pinned, access)
    }

    /// Memory that belongs to somebody else, under a key. `owner` is dropped when the device has
    /// let go of it.
    ///
    /// # Errors
    /// EFAULT where it is not mapped as `access` needs; a memory limit that is too low; zero or
    /// overflowing lengths.
    ///
    /// # Safety
    /// While `owner` lives, `length` bytes from `base` stay mapped readable and writable, whatever
    /// `access` is (no file mapping, not shared by fork); and no Rust reference to any of them is
    /// used but to atomics, or one that the region gave out. While such a slice of the region is
    /// used, nothing else reaches its bytes. Raw accesses from elsewhere are volatile.
    #[allow(unsafe_code, reason = "the promise is passed on to the region's memory")]
    pub unsafe fn region_from_raw(
        &self,
        base: NonNull<u8>,
        length: usize,
        access: KeyAccess,
        owner: impl std::any::Any + Send + Sync,
    ) -> Result<Region, Error> {
        check_access(access)?;
        let umem = umem_access(access);
        // SAFETY: as the caller promises.
        let pinned = unsafe {
            Pinned::register(&self.device, base, length, umem, PageSizes::Any, Arc::new(owner))
        }?;
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
            written: access.local_write || access.remote.write || access.remote.atomic,
            memory: pinned.memory,
            address,
        }))
    }

    /// A doorbell for one send queue: a BlueFlame register of its own if it is wanted and there is
    /// one, else the plain doorbell that it shares.
    fn doorbell(&self, blueflame: bool) -> (Page, SendDoorbell) {
        blueflame.then(|| self.register()).flatten().unwrap_or_else(|| {
            let plain = self.shared.plain.clone();
            let doorbell = plain.memory.doorbell();
            (plain, doorbell)
        })
    }

    /// A BlueFlame register that is nobody's.
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
        // A machine without write combining refuses, and a device that has no UAR left: neither is
        // in the way of a plain doorbell.
        let more = Page::new(&self.device, UarKind::BlueFlame).ok()?;
        let found = more.register(buffer)?;
        pages.push(more);
        Some(found)
    }
}

impl Page {
    fn new(device: &Device, kind: UarKind) -> Result<Self, Error> {
        let uar = Arc::new(device.uar_alloc(kind)?);
        let memory = map_uar(uar.clone()).map_err(layout)?;
        Ok(Self { uar, memory })
    }

    /// A free BlueFlame register. The kernel gives a user two of a page.
    fn register(&self, buffer: usize) -> Option<(Self, SendDoorbell)> {
        (0..REGISTERS_PER_PAGE).find_map(|register| {
            let offset = FIRST_REGISTER + register * 2 * buffer;
            let doorbell = self.memory.blueflame(offset, buffer).ok()?;
            Some((self.clone(), doorbell))
        })
    }
}

/// UAR pages that a domain takes for BlueFlame at most, unless its builder says otherwise.
pub const BLUEFLAME_PAGES: usize = 8;
/// BlueFlame registers of a page that a user may use.
const REGISTERS_PER_PAGE: usize = 2;
/// Byte offset of the first.
const FIRST_REGISTER: usize = 0x800;

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

/// A layout that we chose ourselves and that does not hold.
fn layout(error: LayoutError) -> Error {
    Error::new(ErrorKind::Input, "laying out a queue", error.to_string())
}
