//! The memory map of 2.2: one range, fixed once it is started.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::chunk::Chunk;
use super::export::{self, ExportDescriptor};
use super::{Memory, MemoryMap, bytes_of, not_in_map, outside, sealed};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::AccessFlags;

/// A started memory map (`struct doca_mmap`): one range of memory, mapped to one or several
/// devices.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::{AccessFlags, Memory, Mmap};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dev = doc::dev();
/// let map = Mmap::builder()
///     .memrange(Memory::allocate(4096)?)
///     .permissions(AccessFlags::LOCAL_READ_WRITE)
///     .add_dev(&dev)
///     .start()?;
/// map.write_at(0, b"data")?;
/// assert_eq!(map.len(), 4096);
/// # Ok(())
/// # }
/// ```
///
/// It is `Send`, and used by one thread at a time: it is not `Sync`.
pub struct Mmap {
    chunk: Arc<Chunk>,
    /// The configuration; `None` if the map was made from an export.
    config: Option<MmapBuilder>,
    _not_sync: PhantomData<Cell<()>>,
}

/// A memory map that is being configured.
#[derive(Clone, Debug, Default)]
pub struct MmapBuilder {
    memory: Option<Memory>,
    access: AccessFlags,
    devices: Vec<Dev>,
}

impl MmapBuilder {
    /// Sets the memory of the map (`doca_mmap_set_memrange`): allocated for it, or the program's
    /// own, as [the module](crate::memory) shows.
    #[must_use = "a map exists when it is started"]
    pub fn memrange(self, memory: Memory) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Sets the access rights (`doca_mmap_set_permissions`); by default devices of this side may
    /// read.
    #[must_use = "a map exists when it is started"]
    pub fn permissions(self, access: AccessFlags) -> Self {
        Self { access, ..self }
    }

    /// Lets a device use the memory (`doca_mmap_dev_add`). Adding it twice adds it once.
    #[must_use = "a map exists when it is started"]
    pub fn add_dev(mut self, dev: &Dev) -> Self {
        if !self.devices.contains(dev) {
            self.devices.push(dev.clone());
        }
        self
    }

    /// Registers the memory with the devices (`doca_mmap_start`). This takes long: a page of
    /// memory after the other is pinned.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] without memory or without a device; [`ErrorKind::NoMemory`] if the
    /// memory cannot be pinned; the device's refusal.
    pub fn start(self) -> Result<Mmap> {
        let Some(memory) = &self.memory else {
            let text = "starting a memory map without memory: call `memrange` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        };
        if self.devices.is_empty() {
            let text = "starting a memory map without devices: call `add_dev` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        let chunk = Chunk::local(memory.clone(), self.access);
        self.devices.iter().try_for_each(|dev| chunk.register(dev).map(|key| chunk.add(key)))?;
        Ok(Mmap { chunk: Arc::new(chunk), config: Some(self), _not_sync: PhantomData })
    }
}

impl Mmap {
    /// A map to configure (`doca_mmap_create`).
    #[must_use = "a map exists when it is started"]
    pub fn builder() -> MmapBuilder {
        MmapBuilder::default()
    }

    /// A map of the memory that a peer exported (`doca_mmap_create_from_export`), for jobs of
    /// `dev`. It is started.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for bytes that are no descriptor, or were altered;
    /// [`ErrorKind::UnsupportedVersion`] for another version's; [`ErrorKind::NotSupported`] if
    /// `dev` cannot reach such memory.
    pub fn create_from_export(descriptor: &[u8], dev: &Dev) -> Result<Self> {
        let chunk = Arc::new(export::import(descriptor, dev)?);
        Ok(Self { chunk, config: None, _not_sync: PhantomData })
    }

    /// The address of the first byte; of an imported map, its address at the owner.
    pub fn address(&self) -> u64 {
        self.chunk.address()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.chunk.length()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The access rights.
    pub fn permissions(&self) -> AccessFlags {
        self.chunk.access()
    }

    /// Whether the map was made from an export.
    pub fn is_from_export(&self) -> bool {
        self.config.is_none()
    }

    /// The number of buffers that point into the map.
    pub fn buffers(&self) -> u64 {
        self.chunk.buffers()
    }

    /// Copies `bytes` in, from byte `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a range that is not in the map; [`ErrorKind::NotPermitted`]
    /// if it was made from an export.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        bytes_of(&self.chunk)?.write_at(offset, bytes).map_err(outside)
    }

    /// Copies out from byte `offset` on, as many bytes as `into` takes.
    ///
    /// # Errors
    /// As [`Mmap::write_at`].
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        bytes_of(&self.chunk)?.read_at(offset, into).map_err(outside)
    }

    /// Exports the map for peers that access this memory by RDMA (`doca_mmap_export_rdma`) through
    /// `dev`. Exporting again gives an equal descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map has no `RDMA_` permission, was made from an export,
    /// or was not added to `dev`.
    pub fn export_rdma(&self, dev: &Dev) -> Result<ExportDescriptor> {
        export::export(&self.chunk, dev, false)
    }

    /// Exports the map for the DPU of the same card (`doca_mmap_export_dpu`), of which `dev` is a
    /// function. Exporting again gives an equal descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map has no `DPU_` permission, was made from an export, or
    /// was not added to `dev`; [`ErrorKind::NotSupported`] if the device shares no keys.
    pub fn export_dpu(&self, dev: &Dev) -> Result<ExportDescriptor> {
        export::export(&self.chunk, dev, true)
    }

    /// Takes back the keys (`doca_mmap_stop`) and gives back the configuration, which can be
    /// started again as it was.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while buffers point into it, and [`ErrorKind::NotPermitted`] of a map
    /// from an export, which has no configuration: it is dropped instead. A
    /// [`DynamicMmap`](super::DynamicMmap) from an export can be stopped, as that keeps all that it
    /// has.
    pub fn stop(mut self) -> std::result::Result<MmapBuilder, Refused<Self>> {
        if let Err(error) = unused(&self.chunk) {
            return Err(Refused::new(error, self));
        }
        match self.config.take() {
            Some(config) => Ok(config),
            None => {
                let text = "a map from an export is born started and cannot be stopped: destroy it";
                Err(Refused::new(Error::plain(ErrorKind::NotPermitted, text), self))
            }
        }
    }

    /// Stops and destroys the map (`doca_mmap_destroy`). If it is dropped while buffers point into
    /// it, they keep its memory and keys.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while buffers point into it.
    pub fn destroy(self) -> std::result::Result<(), Refused<Self>> {
        match unused(&self.chunk) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

/// Refuses while buffers point into a chunk, or a pool is made of it.
pub(super) fn unused(chunk: &Chunk) -> Result<()> {
    match chunk.buffers() {
        0 if chunk.pools() == 0 => Ok(()),
        0 => {
            let text = "a buffer pool or array is made of the memory map: drop it first";
            Err(Error::plain(ErrorKind::InUse, text))
        }
        some => {
            let text = format!("{some} buffers point into the memory map: drop them first");
            Err(Error::new(ErrorKind::InUse, text))
        }
    }
}

impl sealed::Sealed for Mmap {
    fn chunk(&self, address: u64, length: u64) -> Result<&Arc<Chunk>> {
        match self.chunk.contains(address, length) {
            true => Ok(&self.chunk),
            false => Err(not_in_map(address, length, std::slice::from_ref(&self.chunk))),
        }
    }

    fn whole(&self) -> Result<(u64, u64)> {
        Ok((self.address(), self.len()))
    }
}

impl MemoryMap for Mmap {}

impl fmt::Debug for Mmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mmap")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len())
            .field("permissions", &self.permissions())
            .field("buffers", &self.buffers())
            .finish_non_exhaustive()
    }
}
