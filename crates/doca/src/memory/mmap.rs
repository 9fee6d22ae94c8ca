//! The memory map of 2.2: one range, fixed after its start.

use std::fmt;
use std::sync::Arc;

use super::chunk::Chunk;
use super::export::{self, ExportDescriptor};
use super::{Memory, MemoryMap, bytes_of, not_in_map, sealed};
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
/// It is `Send` and `Sync`: threads may create buffers of one map at the same time, and copy bytes
/// in and out. The guide does not require that.
pub struct Mmap {
    chunk: Arc<Chunk>,
    /// The configuration; `None` for an imported map.
    config: Option<MmapBuilder>,
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
    /// own, as in [the module](crate::memory).
    #[doc(alias = "doca_mmap_set_memrange")]
    #[doc(alias = "doca_mmap_set_memrang")]
    #[must_use = "a map exists when it is started"]
    pub fn memrange(self, memory: Memory) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Sets the permissions (`doca_mmap_set_permissions`); by default devices of this side may
    /// read.
    #[must_use = "a map exists when it is started"]
    pub fn permissions(self, access: AccessFlags) -> Self {
        Self { access, ..self }
    }

    /// The memory, if it is set (`doca_mmap_get_memrange`).
    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// The permissions (`doca_mmap_get_permissions`).
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The devices of the map.
    pub fn devices(&self) -> &[Dev] {
        &self.devices
    }

    /// Gives a device access to the memory (`doca_mmap_dev_add`). Adding it twice adds it once.
    #[must_use = "a map exists when it is started"]
    pub fn add_dev(mut self, dev: &Dev) -> Self {
        if !self.devices.contains(dev) {
            self.devices.push(dev.clone());
        }
        self
    }

    /// Registers the memory with the devices (`doca_mmap_start`). This is slow, because it pins the
    /// memory page by page.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] without memory or without a device; [`ErrorKind::InvalidValue`] for
    /// memory without bytes; [`ErrorKind::NoMemory`] if the memory cannot be pinned; the device
    /// refuses.
    pub fn start(self) -> Result<Mmap> {
        let Some(memory) = &self.memory else {
            let text = "starting a memory map without memory: call `memrange` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        };
        if memory.is_empty() {
            let text = "starting a memory map of 0 bytes: give `memrange` at least 1";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        if self.devices.is_empty() {
            let text = "starting a memory map without devices: call `add_dev` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        let chunk = Chunk::local(memory.clone(), self.access);
        self.devices.iter().try_for_each(|dev| chunk.register(dev).map(|key| chunk.add(key)))?;
        Ok(Mmap { chunk: Arc::new(chunk), config: Some(self) })
    }
}

impl Mmap {
    /// A map to configure (`doca_mmap_create`).
    #[must_use = "a map exists when it is started"]
    pub fn builder() -> MmapBuilder {
        MmapBuilder::default()
    }

    /// A map of a peer's exported memory (`doca_mmap_create_from_export`), for jobs of `dev`. It is
    /// started.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for bytes that are not a descriptor, or are damaged;
    /// [`ErrorKind::UnsupportedVersion`] for another version; [`ErrorKind::NotSupported`] if `dev`
    /// cannot reach such memory.
    pub fn create_from_export(descriptor: &[u8], dev: &Dev) -> Result<Self> {
        let chunk = Arc::new(export::import(descriptor, dev)?);
        Ok(Self { chunk, config: None })
    }

    /// The address of the first byte; of an imported map, its address at the owner.
    pub fn address(&self) -> u64 {
        self.chunk.address()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.chunk.length()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The permissions.
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
    /// [`ErrorKind::InvalidValue`] for a range outside of the map; [`ErrorKind::NotPermitted`] for
    /// an imported map.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        bytes_of(&self.chunk)?.write_at(offset, bytes)
    }

    /// Copies out from byte `offset` on, as many bytes as `into` takes.
    ///
    /// # Errors
    /// As [`Mmap::write_at`].
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        bytes_of(&self.chunk)?.read_at(offset, into)
    }

    /// Exports the map for peers that access this memory by RDMA (`doca_mmap_export_rdma`) through
    /// `dev`. Another call returns an equal descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map has no `RDMA_` permission, is imported, or was not
    /// added to `dev`.
    pub fn export_rdma(&self, dev: &Dev) -> Result<ExportDescriptor> {
        export::export(&self.chunk, dev, false)
    }

    /// Exports the map for the DPU of the same card (`doca_mmap_export_dpu`); `dev` is a function
    /// of that card. Another call returns an equal descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the map has no `DPU_` permission, is imported, or was not
    /// added to `dev`; [`ErrorKind::NotSupported`] if the device cannot share mkeys.
    pub fn export_dpu(&self, dev: &Dev) -> Result<ExportDescriptor> {
        export::export(&self.chunk, dev, true)
    }

    /// Destroys the keys (`doca_mmap_stop`) and returns the configuration, which can be started
    /// again unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while buffers point into it; [`ErrorKind::NotPermitted`] for an
    /// imported map, which has no configuration: drop it instead. An imported
    /// [`DynamicMmap`](super::DynamicMmap) can be stopped, because that keeps everything in it.
    pub fn stop(mut self) -> std::result::Result<MmapBuilder, Refused<Self>> {
        if let Err(error) = unused(&self.chunk) {
            return Err(Refused::new(error, self));
        }
        match self.config.take() {
            Some(config) => Ok(config),
            None => {
                let text = "an imported map has no configuration and cannot be stopped: drop it";
                Err(Refused::new(Error::plain(ErrorKind::NotPermitted, text), self))
            }
        }
    }

    /// Stops and destroys the map (`doca_mmap_destroy`). A drop while buffers point into it leaves
    /// them its memory and keys.
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

/// Refuses while buffers point into a chunk, or a pool uses it.
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
