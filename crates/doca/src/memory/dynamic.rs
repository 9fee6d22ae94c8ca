//! The memory map of 1.3: ranges and devices can be added and removed while it is started.

use std::fmt;
use std::sync::Arc;

use super::chunk::{Chunk, FreeCallback, Freed};
use super::export::{self, ExportDescriptor};
use super::mmap::unused;
use super::{Memory, MemoryMap, not_in_map, sealed};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::AccessFlags;

/// A memory map of 1.3 (`struct doca_mmap` there).
///
/// Properties are set before the first start and fixed after it. While the map is started, the
/// program adds ranges and devices, in any order, and removes devices. A stopped map refuses
/// changes and new buffers until the next start. An exported map does not change any more.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::{AccessFlags, DynamicMmap, Memory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dev = doc::dev();
/// let mut map = DynamicMmap::new("pool");
/// map.set_max_chunks(2)?;
/// map.set_access_flags(AccessFlags::LOCAL_READ_WRITE)?;
/// map.start()?;
/// map.populate(Memory::allocate(4096)?, 4096, None)?;
/// map.dev_add(&dev)?;
/// map.populate(Memory::allocate(1 << 20)?, 4096, None)?;
/// assert_eq!(map.ranges().map(|(_, length)| length).sum::<u64>(), 4096 + (1 << 20));
/// # Ok(())
/// # }
/// ```
pub struct DynamicMmap {
    name: String,
    max_chunks: u32,
    max_devices: u32,
    access: AccessFlags,
    state: MmapState,
    exported: bool,
    from_export: bool,
    devices: Vec<Dev>,
    /// The ranges in the order of their addresses; they do not overlap.
    chunks: Vec<Arc<Chunk>>,
}

/// The arguments that [`DynamicMmap::populate`] refused, returned by its error.
pub struct NotPopulated {
    /// The memory.
    pub memory: Memory,
    /// The callback, which was not called.
    pub free: Option<FreeCallback>,
}

impl fmt::Debug for NotPopulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotPopulated").field("memory", &self.memory).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MmapState {
    /// Never started.
    New,
    Started,
    Stopped,
}

impl DynamicMmap {
    /// A map without ranges and devices (`doca_mmap_create`). By default it takes one range and one
    /// device. `Debug` prints the name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            max_chunks: 1,
            max_devices: 1,
            access: AccessFlags::LOCAL_READ_ONLY,
            state: MmapState::New,
            exported: false,
            from_export: false,
            devices: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// A map of a peer's exported memory (`doca_mmap_create_from_export`), for jobs of `dev`. It is
    /// started, and its properties, devices and ranges are fixed.
    ///
    /// # Errors
    /// As [`Mmap::create_from_export`](super::Mmap::create_from_export).
    pub fn create_from_export(
        name: impl Into<String>,
        descriptor: &[u8],
        dev: &Dev,
    ) -> Result<Self> {
        let chunk = export::import(descriptor, dev)?;
        Ok(Self {
            access: chunk.access(),
            state: MmapState::Started,
            from_export: true,
            devices: vec![dev.clone()],
            chunks: vec![Arc::new(chunk)],
            ..Self::new(name)
        })
    }

    /// Sets the maximum number of ranges.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map was exported or imported; [`ErrorKind::BadState`]
    /// after the first start; [`ErrorKind::InvalidValue`] for 0.
    pub fn set_max_chunks(&mut self, chunks: u32) -> Result<()> {
        self.may_be_configured()?;
        self.max_chunks = at_least_one(chunks)?;
        Ok(())
    }

    /// Sets the maximum number of devices.
    ///
    /// # Errors
    /// As [`DynamicMmap::set_max_chunks`].
    pub fn set_max_devices(&mut self, devices: u32) -> Result<()> {
        self.may_be_configured()?;
        self.max_devices = at_least_one(devices)?;
        Ok(())
    }

    /// Sets the permissions.
    ///
    /// # Errors
    /// As [`DynamicMmap::set_max_chunks`].
    pub fn set_access_flags(&mut self, access: AccessFlags) -> Result<()> {
        self.may_be_configured()?;
        self.access = access;
        Ok(())
    }

    /// The map's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The maximum number of ranges; for an imported map, the number of remote ranges.
    pub fn max_chunks(&self) -> u32 {
        if self.from_export { self.chunks.len() as u32 } else { self.max_chunks }
    }

    /// The maximum number of devices.
    pub fn max_devices(&self) -> u32 {
        self.max_devices
    }

    /// The access rights.
    pub fn access_flags(&self) -> AccessFlags {
        self.access
    }

    /// The ranges in the order of their addresses: the first address and the length in bytes of
    /// each.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.chunks.iter().map(|chunk| (chunk.address(), chunk.length()))
    }

    /// The devices in the order in which they were added.
    pub fn devices(&self) -> &[Dev] {
        &self.devices
    }

    /// Buffers that point into it.
    pub fn buffers(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.buffers()).sum()
    }

    /// Whether the map was exported.
    pub fn is_exported(&self) -> bool {
        self.exported
    }

    /// Whether the map was created from an export.
    pub fn is_from_export(&self) -> bool {
        self.from_export
    }

    /// Whether the map is started.
    pub fn is_started(&self) -> bool {
        self.state == MmapState::Started
    }

    /// Starts the map (`doca_mmap_start`); the first start fixes its properties.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if it is started.
    pub fn start(&mut self) -> Result<()> {
        if self.is_started() {
            return Err(Error::plain(ErrorKind::BadState, "the memory map is started already"));
        }
        self.state = MmapState::Started;
        self.chunks.iter().for_each(|chunk| chunk.set_stopped(false));
        Ok(())
    }

    /// Stops the map (`doca_mmap_stop`): until the next start, it refuses changes, exports and new
    /// buffers, including duplicates and those of a pool. Existing buffers are not affected. This
    /// also holds for exported and imported maps; unlike this method,
    /// [`Mmap::stop`](super::Mmap::stop) destroys the keys.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if it is not started.
    pub fn stop(&mut self) -> Result<()> {
        self.must_be_started()?;
        self.state = MmapState::Stopped;
        self.chunks.iter().for_each(|chunk| chunk.set_stopped(true));
        Ok(())
    }

    /// Registers all present and future ranges with a device (`doca_mmap_dev_add`).
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map was exported or imported, started or not;
    /// [`ErrorKind::BadState`] if it is not started; [`ErrorKind::AlreadyExist`] if the device is
    /// already in it; [`ErrorKind::Full`] at the maximum number of devices; the device refuses.
    /// Then nothing has changed.
    pub fn dev_add(&mut self, dev: &Dev) -> Result<()> {
        self.may_change()?;
        if self.devices.contains(dev) {
            let text = format!("{dev:?} is in the memory map already");
            return Err(Error::new(ErrorKind::AlreadyExist, text));
        }
        if self.devices.len() >= self.max_devices as usize {
            let text = format!(
                "the memory map has {} devices, as many as it takes: set_max_devices before start",
                self.devices.len()
            );
            return Err(Error::new(ErrorKind::Full, text));
        }
        // All or none: if one registration fails, the others are dropped.
        let keys: Vec<_> =
            self.chunks.iter().map(|chunk| chunk.register(dev)).collect::<Result<_>>()?;
        self.chunks.iter().zip(keys).for_each(|(chunk, key)| chunk.add(key));
        self.devices.push(dev.clone());
        Ok(())
    }

    /// Removes a device (`doca_mmap_dev_rm`): it then has no access to the ranges.
    ///
    /// # Errors
    /// As [`DynamicMmap::dev_add`]; [`ErrorKind::NotFound`] if it is not in the map;
    /// [`ErrorKind::InUse`] while buffers point into the map, because their jobs may be that
    /// device's.
    pub fn dev_rm(&mut self, dev: &Dev) -> Result<()> {
        self.may_change()?;
        let Some(at) = self.devices.iter().position(|there| there == dev) else {
            let text = format!("{dev:?} is not in the memory map");
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        self.chunks.iter().try_for_each(|chunk| unused(chunk))?;
        if !self.chunks.iter().all(is_unreferenced) {
            let text = "a buffer of the memory map is being made or dropped by another thread";
            return Err(Error::plain(ErrorKind::InUse, text));
        }
        for chunk in self.chunks.iter_mut().filter_map(Arc::get_mut) {
            chunk.deregister(dev);
        }
        self.devices.remove(at);
        Ok(())
    }

    /// Adds a range (`doca_mmap_populate`) and registers it with all devices. `page_size` is the
    /// required alignment of its first address, a power of two. `free` is called after the last use
    /// of the range: when the map and the last buffer of it are dropped, in the thread of the last
    /// drop. It is not called if a device refuses to deregister the range, because the device may
    /// still write there.
    ///
    /// The program's own memory is [`Memory::from_raw`]: see [the module](crate::memory).
    ///
    /// # Errors
    /// As [`DynamicMmap::dev_add`]; [`ErrorKind::Full`] at the maximum number of ranges;
    /// [`ErrorKind::InvalidValue`] for misaligned memory, or memory without bytes;
    /// [`ErrorKind::AlreadyExist`] if bytes of it are in the map already. Then nothing has changed,
    /// and the error returns the arguments.
    pub fn populate(
        &mut self,
        memory: Memory,
        page_size: usize,
        free: Option<FreeCallback>,
    ) -> std::result::Result<(), Refused<NotPopulated>> {
        let freed = free.map(|callback| Arc::new(Freed::new(&memory, callback)));
        let kept = match &freed {
            Some(freed) => memory.guarded(freed.clone()),
            None => memory.clone(),
        };
        match self.registered(kept, page_size) {
            Ok((at, chunk)) => {
                self.chunks.insert(at, Arc::new(chunk));
                Ok(())
            }
            Err(error) => {
                let free = freed.and_then(|freed| freed.take());
                Err(Refused::new(error, NotPopulated { memory, free }))
            }
        }
    }

    /// Registers memory with all devices; returns the new range and its index.
    fn registered(&self, memory: Memory, page_size: usize) -> Result<(usize, Chunk)> {
        self.may_change()?;
        if self.chunks.len() >= self.max_chunks as usize {
            let text = format!(
                "the memory map has {} ranges, as many as it takes: set_max_chunks before start",
                self.chunks.len()
            );
            return Err(Error::new(ErrorKind::Full, text));
        }
        let (address, length) = (memory.address(), memory.len() as u64);
        if !page_size.is_power_of_two() || !address.is_multiple_of(page_size as u64) {
            let text = format!("memory at {address:#x} is not aligned to pages of {page_size}");
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        if length == 0 {
            let text = "the range has 0 bytes: a range of a memory map has at least 1";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        let at = self.chunks.partition_point(|chunk| chunk.address() < address);
        let near = self.chunks[at.saturating_sub(1)..].iter().take(2);
        if let Some(there) = near.into_iter().find(|chunk| chunk.overlaps(address, length)) {
            let text = format!(
                "{length} bytes from {address:#x} on have some in common with a range that the \
                 memory map has: {} bytes from {:#x} on",
                there.length(),
                there.address()
            );
            return Err(Error::new(ErrorKind::AlreadyExist, text));
        }
        let chunk = Chunk::local(memory, self.access);
        self.devices.iter().try_for_each(|dev| chunk.register(dev).map(|key| chunk.add(key)))?;
        Ok((at, chunk))
    }

    /// Exports the map for the DPU of the same card (`doca_mmap_export`): the descriptor gives
    /// access to the one range. After that the map can neither change nor be exported again, but
    /// the descriptor can be copied.
    ///
    /// # Errors
    /// As [`DynamicMmap::export_rdma`], for the `DPU_` permissions; [`ErrorKind::NotSupported`] if
    /// `dev` cannot share mkeys.
    pub fn export_dpu(&mut self, dev: &Dev) -> Result<ExportDescriptor> {
        self.export(dev, true)
    }

    /// Exports the map for peers that reach its one range through `dev`. After that the map cannot
    /// change.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map was exported or imported, started or not, has no
    /// `RDMA_` permission, or `dev` is not in it; [`ErrorKind::BadState`] if it is not started;
    /// [`ErrorKind::InvalidValue`] if it does not have exactly one range.
    pub fn export_rdma(&mut self, dev: &Dev) -> Result<ExportDescriptor> {
        self.export(dev, false)
    }

    fn export(&mut self, dev: &Dev, to_dpu: bool) -> Result<ExportDescriptor> {
        self.may_change()?;
        let [chunk] = &self.chunks[..] else {
            let text = format!(
                "the memory map has {} ranges; only a map of one can be exported",
                self.chunks.len()
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        };
        let descriptor = export::export(chunk, dev, to_dpu)?;
        self.exported = true;
        Ok(descriptor)
    }

    /// Destroys the map (`doca_mmap_destroy`): deregisters all ranges, then calls their callbacks.
    /// If another thread drops the last buffer at the same time, that thread calls the callback,
    /// and this call may return earlier.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while buffers point into it.
    #[expect(clippy::result_large_err, reason = "it gives back the map")]
    pub fn destroy(self) -> std::result::Result<(), Refused<Self>> {
        match self.chunks.iter().try_for_each(|chunk| unused(chunk)) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    fn must_be_started(&self) -> Result<()> {
        if self.is_started() {
            return Ok(());
        }
        Err(Error::plain(ErrorKind::BadState, "the memory map is not started: call `start` first"))
    }

    /// Checks that ranges and devices may change, and that the map may be exported.
    fn may_change(&self) -> Result<()> {
        self.must_not_be_shared()?;
        self.must_be_started()
    }

    /// Checked before the state, because no start or stop would help.
    fn must_not_be_shared(&self) -> Result<()> {
        let text = match (self.exported, self.from_export) {
            (false, false) => return Ok(()),
            (true, _) => "the memory map was exported: it does not change any more",
            (_, true) => "the memory map was made from an export: it does not change",
        };
        Err(Error::plain(ErrorKind::NotPermitted, text))
    }

    fn may_be_configured(&self) -> Result<()> {
        self.must_not_be_shared()?;
        if self.state != MmapState::New {
            let text = "properties of a memory map are fixed from its first start on";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        Ok(())
    }
}

/// Whether this is the only reference to a chunk without buffers. A thread that drops a buffer may
/// hold one for a moment longer.
fn is_unreferenced(chunk: &Arc<Chunk>) -> bool {
    (0..1000).any(|turn| {
        if turn > 0 {
            std::thread::yield_now();
        }
        Arc::strong_count(chunk) == 1
    })
}

fn at_least_one(count: u32) -> Result<u32> {
    match count {
        0 => Err(Error::plain(ErrorKind::InvalidValue, "a memory map takes at least one")),
        some => Ok(some),
    }
}

impl sealed::Sealed for DynamicMmap {
    fn chunk(&self, address: u64, length: u64) -> Result<&Arc<Chunk>> {
        self.must_be_started()?;
        let behind = self.chunks.partition_point(|chunk| chunk.address() <= address);
        let found = behind.checked_sub(1).map(|at| &self.chunks[at]);
        found
            .filter(|chunk| chunk.contains(address, length))
            .ok_or_else(|| not_in_map(address, length, &self.chunks))
    }

    fn whole(&self) -> Result<(u64, u64)> {
        match &self.chunks[..] {
            [chunk] => Ok((chunk.address(), chunk.length())),
            chunks => {
                let text = format!(
                    "the memory map has {} ranges, and this needs a map of one: for a pool of \
                     buffers choose a range (BufPoolBuilder::range)",
                    chunks.len()
                );
                Err(Error::new(ErrorKind::InvalidValue, text))
            }
        }
    }
}

impl MemoryMap for DynamicMmap {}

impl fmt::Debug for DynamicMmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicMmap")
            .field("name", &self.name)
            .field("state", &self.state)
            .field("chunks", &self.chunks.len())
            .field("devices", &self.devices)
            .field("access", &self.access)
            .field("exported", &self.exported)
            .field("from_export", &self.from_export)
            .finish_non_exhaustive()
    }
}
