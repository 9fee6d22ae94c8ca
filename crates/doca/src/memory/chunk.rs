//! A memory range of a map, and the devices' keys to it.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use verbless_command::AccessKey;
use verbless_queue::{ImportedRegion, Lkey, Rkey, SharedRegion};

use super::bytes::Memory;
use super::keys::{DeviceKey, DpuKey, Keys};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};
use crate::types::AccessFlags;

/// Called after the last use of a range, with its first address and its length in bytes
/// (`doca_mmap_memrange_free_cb_t`).
pub type FreeCallback = Box<dyn FnOnce(u64, usize) + Send>;

/// Calls the callback on drop. It lives as long as the memory, whose bytes a device that failed to
/// destroy a key may still reach.
pub(super) struct Freed {
    callback: Mutex<Option<FreeCallback>>,
    address: u64,
    length: usize,
}

impl Freed {
    pub(super) fn new(memory: &Memory, callback: FreeCallback) -> Self {
        let (address, length) = (memory.address(), memory.len());
        Self { callback: Mutex::new(Some(callback)), address, length }
    }

    /// Takes the callback, which is then not called.
    pub(super) fn take(&self) -> Option<FreeCallback> {
        self.callback.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Freed {
    fn drop(&mut self) {
        if let Some(callback) = self.take() {
            callback(self.address, self.length);
        }
    }
}

/// A range. Buffers hold it, and so do the maps.
#[derive(Debug)]
pub struct Chunk {
    address: u64,
    length: u64,
    access: AccessFlags,
    /// The keys of each device. Dropped before the memory.
    keys: Keys,
    /// The bytes, if this process can reach them.
    memory: Option<Memory>,
    /// Buffers that point here.
    buffers: AtomicU64,
    /// Pools and arrays made of it.
    pools: AtomicU64,
    /// Whether the map is stopped and refuses new buffers.
    stopped: AtomicBool,
}

/// The device and key with access to memory, for a check of the device by a single comparison. It
/// stays valid while a buffer points to the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedKey {
    /// The [id](Dev::id) of the device that may read; 0 if unknown. For a peer's memory it is
    /// [`CachedKey::reader_of_peer`].
    pub(crate) reader: u64,
    /// The id of the device if it may also write; else 0.
    pub(crate) writer: u64,
    /// The key; for a peer's memory, the remote one.
    pub(crate) lkey: Lkey,
}

impl CachedKey {
    pub(crate) const UNKNOWN: Self = Self { reader: 0, writer: 0, lkey: Lkey(0) };

    /// Above all ids: marks memory that the device reaches by requests to its peer.
    const PEER: u64 = 1 << 63;

    /// The value of `reader` for memory of a peer of this device.
    pub(crate) const fn reader_of_peer(device: u64) -> u64 {
        device | Self::PEER
    }
}

impl Chunk {
    /// A range of local memory, without devices yet.
    pub(crate) fn local(memory: Memory, access: AccessFlags) -> Self {
        Self {
            address: memory.address(),
            length: memory.len() as u64,
            access,
            keys: Keys::default(),
            memory: Some(memory),
            buffers: AtomicU64::new(0),
            pools: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// A peer's range; `dev` reaches it by `rkey` in its requests.
    pub(crate) fn of_peer(
        dev: &Dev,
        rkey: Rkey,
        (address, length): (u64, u64),
        access: AccessFlags,
    ) -> Self {
        Self::elsewhere(dev, (None, Some(rkey)), None, (address, length), access)
    }

    /// The host's range; `dev` reaches it by the keys of an alias.
    pub(crate) fn of_host(
        dev: &Dev,
        alias: ImportedRegion,
        range: (u64, u64),
        access: AccessFlags,
    ) -> Self {
        let keys = (Some(alias.lkey()), Some(alias.rkey()));
        Self::elsewhere(dev, keys, Some(Box::new(alias)), range, access)
    }

    fn elsewhere(
        dev: &Dev,
        names: (Option<Lkey>, Option<Rkey>),
        held: Option<Box<dyn Any + Send + Sync>>,
        (address, length): (u64, u64),
        access: AccessFlags,
    ) -> Self {
        let keys = Keys::default();
        keys.add(DeviceKey::new(dev, names, held));
        Self {
            address,
            length,
            access,
            keys,
            memory: None,
            buffers: AtomicU64::new(0),
            pools: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Registers the range on `dev`. The keys take effect when they are [added](Chunk::add).
    pub(crate) fn register(&self, dev: &Dev) -> Result<DeviceKey> {
        let Some(memory) = &self.memory else {
            let text = "imported memory cannot be registered: it has the keys of its export";
            return Err(Error::plain(ErrorKind::NotPermitted, text));
        };
        let region = dev.domain().region_of(memory.lower(), self.access.key())?;
        let names = (Some(region.lkey()), region.rkey());
        Ok(DeviceKey::new(dev, names, Some(Box::new(region))))
    }

    /// Adds the keys of a device that has none.
    pub(crate) fn add(&self, key: DeviceKey) {
        self.keys.add(key);
    }

    /// The data that the DPU needs to alias the range's key on a device, and its access key; the
    /// same every time.
    pub(crate) fn share(&self, key: &DeviceKey) -> Result<(SharedRegion, AccessKey)> {
        let Some(memory) = &self.memory else {
            let text = "imported memory cannot be shared: its owner shares it";
            return Err(Error::plain(ErrorKind::NotPermitted, text));
        };
        if key.shared.get().is_none() {
            if !key.dev.caps().shares_keys() {
                let text = format!("{:?} shares no keys with other functions", key.dev);
                return Err(Error::new(ErrorKind::NotSupported, text));
            }
            let domain = key.dev.shared_domain()?;
            let secret = AccessKey::random().map_err(|error| {
                let text = format!("making a secret: {error}");
                Error::new(ErrorKind::OperatingSystem, text).with_source(error)
            })?;
            let region = domain.region_of(memory.lower(), self.access.dpu_key())?;
            let shared = domain.share(&region, &secret)?;
            // The first thread has created it for all.
            let _second = key.shared.set(DpuKey { region: shared, secret, _key: region });
        }
        let shared = key.shared.get().expect("the shared key was set");
        Ok((shared.region, shared.secret))
    }

    /// Removes the access of `dev`. The caller has the only reference to the range.
    pub(crate) fn deregister(&mut self, dev: &Dev) {
        self.keys.remove(dev);
    }

    /// The keys of `dev`, if the range is registered with it.
    #[inline]
    pub(crate) fn key(&self, dev: &Dev) -> Option<&DeviceKey> {
        self.keys.of(dev)
    }

    /// Whether devices of this side may write.
    pub(crate) fn is_writable(&self) -> bool {
        match self.memory {
            Some(_) => self.access.is_local_write(),
            None => self.access.contains(AccessFlags::DPU_READ_WRITE),
        }
    }

    /// The device of a key, and its access to the range.
    pub(crate) fn cached_key(&self, key: &DeviceKey) -> CachedKey {
        let reader = key.dev.id();
        let Some(lkey) = key.lkey else {
            let of_peer = |Rkey(rkey)| (CachedKey::reader_of_peer(reader), Lkey(rkey));
            let known = key.rkey.map(of_peer);
            return known.map_or(CachedKey::UNKNOWN, |(reader, lkey)| CachedKey {
                reader,
                writer: 0,
                lkey,
            });
        };
        CachedKey { reader, writer: if self.is_writable() { reader } else { 0 }, lkey }
    }

    /// As [`Chunk::cached_key`], for the first device; most maps have one.
    #[inline]
    pub(crate) fn first_cached_key(&self) -> CachedKey {
        self.keys.first().map_or(CachedKey::UNKNOWN, |key| self.cached_key(key))
    }

    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    pub(crate) const fn access(&self) -> AccessFlags {
        self.access
    }

    pub(crate) const fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// Whether the ranges overlap.
    pub(crate) fn overlaps(&self, address: u64, length: u64) -> bool {
        let end = |from: u64, bytes: u64| from.saturating_add(bytes);
        address < end(self.address, self.length) && self.address < end(address, length)
    }

    /// Whether the range contains `length` bytes from `address` on.
    pub(crate) fn contains(&self, address: u64, length: u64) -> bool {
        address
            .checked_sub(self.address)
            .and_then(|offset| offset.checked_add(length))
            .is_some_and(|end| end <= self.length)
    }

    /// Buffers that point here.
    pub(crate) fn buffers(&self) -> u64 {
        self.buffers.load(Ordering::Acquire)
    }

    /// Checks that buffers can be made of the range.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] while its map is stopped.
    #[inline]
    pub(crate) fn gives_buffers(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            let text =
                "the memory map is stopped, so no buffers are made of it: call `start` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        Ok(())
    }

    /// Notes that the map was stopped or started.
    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }

    /// The number of pools and arrays over this range, whether or not their buffers are in use.
    pub(crate) fn pools(&self) -> u64 {
        self.pools.load(Ordering::Acquire)
    }

    pub(crate) fn count_pool(&self) {
        self.pools.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn forget_pool(&self) {
        self.pools.fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn count_buffer(&self) {
        self.buffers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn forget_buffer(&self) {
        self.buffers.fetch_sub(1, Ordering::Release);
    }
}
