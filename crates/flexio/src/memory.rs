//! Memory of a process: buffers in its heap, copies between it and the host, and memory of queues.
//!
//! The host allocates the heap. A [`Buffer`] is freed when the last of its clones is dropped; a
//! queue or key in it holds a clone. Copies are RDMA WRITEs and READs by a key over the heap. They
//! are ordered among themselves, but not with the process's own accesses.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{Destination, Source};
//!
//! let buffer = process.alloc_from(b"of the host")?;
//! let copy = process.alloc_aligned(64, 4096)?;
//! let (from, to) = (Source::Dpa(buffer.address()), Destination::Dpa(copy.address()));
//! process.memcpy(from, to, 11)?;
//! let mut back = [0; 11];
//! copy.read_at(0, &mut back)?;
//! assert_eq!(&back, b"of the host");
//! buffer.free()?;
//! assert_eq!(process.heap_info().requested, 64);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::UserMemory;
use verbless_devx::Pd;
use verbless_queue::{RangeError, Region, RemoteAddr};

use crate::error::{Error, FreeError};
use crate::heap::{GRANULE, HeapInfo};
use crate::holders::{Holding, Key, in_use, key};
use crate::process::Process;

/// Bytes of a process's heap (`flexio_buf_dev_alloc`). Clones are the same bytes.
#[derive(Debug, Clone)]
pub struct Buffer {
    shared: Arc<BufferShared>,
}

#[derive(Debug)]
struct BufferShared {
    process: Process,
    _holding: Holding,
    address: u64,
    length: u64,
    /// Host memory that gets a copy of the bytes at the free.
    recovered: Option<(Arc<Region>, RemoteAddr)>,
}

impl BufferShared {
    /// Copies the bytes to the host when the buffer is freed, once.
    fn recover(&mut self) -> Result<(), Error> {
        if let Some((_, into)) = self.recovered {
            self.process.copying(|copier| copier.forward(self.address, into, self.length))?;
            self.recovered = None;
        }
        Ok(())
    }
}

impl Drop for BufferShared {
    fn drop(&mut self) {
        if let Err(error) = self.recover() {
            crate::log::warning!(
                "the content of a recoverable buffer of {} bytes is lost: {error}",
                self.length
            );
        }
        self.process.heap().free(self.address);
    }
}

/// Bytes of a memory block; a recoverable buffer has a power of two of them. No document states the
/// block size of a DPA: this is verbless's own.
pub const MEMORY_BLOCK: u64 = 4096;

/// The source of [`Process::memcpy`].
#[derive(Debug)]
pub enum Source<'a> {
    /// Memory of the host (`FLEXIO_MEMTYPE_HOST`).
    Host(&'a [u8]),
    /// An address in the heap of the process (`FLEXIO_MEMTYPE_DPA`).
    Dpa(u64),
}

/// The destination of [`Process::memcpy`].
#[derive(Debug)]
pub enum Destination<'a> {
    /// Memory of the host (`FLEXIO_MEMTYPE_HOST`).
    Host(&'a mut [u8]),
    /// An address in the heap of the process (`FLEXIO_MEMTYPE_DPA`).
    Dpa(u64),
}

/// Kinds of memory, by the C library's numbers (`flexio_memtype`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MemoryKind {
    /// The process's heap (`FLEXIO_MEMTYPE_DPA`).
    #[default]
    Dpa = 0,
    /// Registered memory of the host (`FLEXIO_MEMTYPE_HOST`).
    Host = 1,
}

/// Memory of a queue or its doorbell record (`flexio_qmem`). Queues refuse memory that is too
/// short, in the heap of another process, or registered with another device context.
#[derive(Debug, Clone)]
pub struct QueueMemory {
    inner: verbless_command::QueueMemory,
    address: u64,
    /// Bytes to the end of the buffer or registration.
    room: u64,
    /// The process of the heap; `None` for host memory.
    process: Option<Process>,
    /// The key of its buffer, for holders.
    pub(crate) buffer: Option<Key>,
}

impl QueueMemory {
    /// A buffer of the heap. The queue keeps it alive.
    pub fn dpa(buffer: &Buffer) -> Self {
        Self::at(buffer, 0)
    }

    /// A buffer of the heap, from byte `offset` on.
    ///
    /// # Panics
    /// `offset` is not in the buffer.
    pub fn at(buffer: &Buffer, offset: u64) -> Self {
        assert!(offset < buffer.len().max(1), "byte {offset} of {} bytes", buffer.len());
        let process = buffer.process();
        let address = buffer.address() + offset;
        let in_heap = address - process.heap().info().base;
        let heap = process.heap_memory().clone();
        let lease = buffer.shared.clone();
        let inner = verbless_command::QueueMemory::leased(heap, in_heap, lease);
        let room = buffer.len().saturating_sub(offset);
        let buffer_key = Some(buffer.key());
        Self { inner, address, room, process: Some(process.clone()), buffer: buffer_key }
    }

    /// Registered memory of the host, from byte `offset` on.
    pub fn host(memory: Arc<UserMemory>, offset: u64) -> Self {
        let address = memory.address().saturating_add(offset);
        let room = memory.length().saturating_sub(offset);
        let inner = verbless_command::QueueMemory::new(memory, offset);
        Self { inner, address, room, process: None, buffer: None }
    }

    /// Whether it is memory of the host or of the DPA.
    pub const fn kind(&self) -> MemoryKind {
        match self.process {
            Some(_) => MemoryKind::Dpa,
            None => MemoryKind::Host,
        }
    }

    /// Fails unless the memory has `bytes` bytes for a queue of `process`.
    pub(crate) fn check(&self, what: &str, process: &Process, bytes: u64) -> Result<(), Error> {
        if self.process.as_ref().is_some_and(|of| !of.is(process)) {
            return Err(Error::Failed(format!("the {what} is in the heap of another process")));
        }
        if self.room < bytes {
            return Err(Error::Failed(format!(
                "the {what} takes {bytes} bytes, and its memory has {}",
                self.room
            )));
        }
        Ok(())
    }

    /// The first address: in the process's address space, or the host's.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The UMEM of the memory, and the byte offset in it.
    pub fn umem_offset(&self) -> (u32, u64) {
        (self.inner.umem().id(), self.inner.offset())
    }

    /// Allocates memory in the heap, with this content.
    pub(crate) fn holding(process: &Process, bytes: &[u8]) -> Result<Self, Error> {
        Ok(Self::dpa(&process.alloc_from(bytes)?))
    }

    /// Also keeps `owner` alive until the device has destroyed the queue.
    pub(crate) fn keeping(mut self, owner: Arc<dyn std::any::Any + Send + Sync>) -> Self {
        self.inner = self.inner.keeping(owner);
        self
    }

    /// This memory as the parameter of a command.
    pub fn for_command(&self) -> verbless_command::QueueMemory {
        self.inner.clone()
    }
}

/// Bytes of a doorbell record.
pub(crate) const RECORD: u64 = 8;

/// The address of a thread's storage, 0 if it has none; it is in the heap of the thread's process.
pub(crate) fn storage_of(storage: Option<&Buffer>, process: &Process) -> Result<u64, Error> {
    match storage {
        Some(buffer) if !buffer.process().is(process) => {
            Err(Error::Failed("the storage of a thread is in the heap of another process".into()))
        }
        storage => Ok(storage.map_or(0, Buffer::address)),
    }
}

fn range(error: RangeError) -> Error {
    Error::Failed(error.to_string())
}

impl Process {
    /// Allocates `length` bytes of the heap, at a multiple of 64 (`flexio_buf_dev_alloc`). Their
    /// contents are undefined. A buffer of 0 bytes has a unique address.
    ///
    /// # Errors
    /// The heap has no such free range; the process has ended.
    pub fn alloc(&self, length: u64) -> Result<Buffer, Error> {
        self.alloc_aligned(length, GRANULE)
    }

    /// Allocates `length` bytes in the heap at a multiple of `alignment`, a power of two and a
    /// multiple of 64 (`flexio_buf_dev_memalign`).
    ///
    /// # Errors
    /// Another alignment, and as [`Process::alloc`].
    pub fn alloc_aligned(&self, length: u64, alignment: u64) -> Result<Buffer, Error> {
        self.allocate(length, alignment, None)
    }

    /// Allocates a buffer whose bytes are copied to `into` when it is freed, even after a fatal
    /// error (`flexio_recoverable_buf_dev_alloc`). `length` must be 2^n blocks of [`MEMORY_BLOCK`]
    /// bytes. `into` must be as long, with a remote key with write access, in the process's
    /// protection domain: create it by the process's [`domain`](Process::domain).
    ///
    /// # Errors
    /// Another length; a region of another length, without such a key, or in another protection
    /// domain or device context; as [`Process::alloc`].
    pub fn alloc_recoverable(&self, length: u64, into: &Arc<Region>) -> Result<Buffer, Error> {
        let blocks = length / MEMORY_BLOCK;
        if !length.is_multiple_of(MEMORY_BLOCK) || !blocks.is_power_of_two() {
            return Err(Error::Failed(format!(
                "a recoverable buffer of {length} bytes: it must be a power of two of \
                 {MEMORY_BLOCK}-byte blocks"
            )));
        }
        if into.len() as u64 != length {
            return Err(Error::Failed(format!(
                "a recoverable buffer of {length} bytes and a region of {} bytes: they must have \
                 the same length",
                into.len()
            )));
        }
        let attr = into.key().map(|key| key.attr());
        let own = |pd: &Pd| pd.context().is(self.device()) && pd.pdn() == self.pd().pdn();
        if !attr.is_some_and(|attr| own(&attr.pd)) {
            let why = "the region of a recoverable buffer is in another protection domain than the \
                       process's, so the buffer could not be copied there: make the region by \
                       Process::domain";
            return Err(Error::Failed(why.into()));
        }
        if !attr.is_some_and(|attr| attr.access.remote.write) {
            let why = "the mkey of a recoverable buffer's region lacks remote write: register the \
                       region with KeyAccess::ALL";
            return Err(Error::Failed(why.into()));
        }
        let to = into.remote(0, into.len()).map_err(range)?;
        self.allocate(length, MEMORY_BLOCK, Some((into.clone(), to)))
    }

    fn allocate(
        &self,
        length: u64,
        alignment: u64,
        recovered: Option<(Arc<Region>, RemoteAddr)>,
    ) -> Result<Buffer, Error> {
        if !alignment.is_power_of_two() || alignment < GRANULE {
            return Err(Error::Failed(format!(
                "an alignment of {alignment}: it must be a power of two, {GRANULE} or more"
            )));
        }
        self.alive()?;
        let mut heap = self.heap();
        let found = heap.allocate(length, alignment);
        let HeapInfo { size, allocated, .. } = heap.info();
        drop(heap);
        let address = found.ok_or_else(|| {
            Error::Failed(format!(
                "the heap of {size} bytes, of which {allocated} are allocated, has no {length} \
                 bytes at a multiple of {alignment}; ProcessConfig::heap makes it larger"
            ))
        })?;
        let name = format!("buffer of {length} bytes at {address:#x}");
        let _holding = Holding::minor(name, vec![self.key()]);
        let process = self.clone();
        let shared = BufferShared { process, _holding, address, length, recovered };
        Ok(Buffer { shared: Arc::new(shared) })
    }

    /// Allocates a buffer with these bytes (`flexio_copy_from_host`).
    ///
    /// # Errors
    /// As [`Process::alloc`] and [`Process::write`]. Then no buffer is left.
    pub fn alloc_from(&self, bytes: &[u8]) -> Result<Buffer, Error> {
        let buffer = self.alloc(bytes.len() as u64)?;
        buffer.write_at(0, bytes)?;
        Ok(buffer)
    }

    /// Usage of the heap (`flexio_process_mem_info_get`).
    pub fn heap_info(&self) -> HeapInfo {
        self.heap().info()
    }

    fn in_heap(&self, address: u64, length: u64) -> Result<(), Error> {
        self.alive()?;
        let heap = self.heap();
        if heap.holds(address, length) {
            return Ok(());
        }
        let HeapInfo { base, size, .. } = heap.info();
        Err(Error::Failed(format!(
            "{length} bytes at {address:#x} are not in the heap, which has {size} bytes at \
             {base:#x}"
        )))
    }

    /// Copies bytes to the heap (`flexio_host2dev_memcpy`).
    ///
    /// # Errors
    /// [`Error::Failed`]: the range is not in the heap. [`Error::Fatal`]: the process has ended.
    /// [`Error::CopyTimeout`]: any of the bytes may be copied; nothing is in flight any more.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.in_heap(address, bytes.len() as u64)?;
        self.copying(|copier| copier.write(address, bytes))
    }

    /// Copies bytes from the heap.
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.in_heap(address, bytes.len() as u64)?;
        self.copying(|copier| copier.read(address, bytes))
    }

    /// Sets `length` bytes of the heap (`flexio_buf_dev_memset`).
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn fill(&self, address: u64, length: u64, value: u8) -> Result<(), Error> {
        self.in_heap(address, length)?;
        self.copying(|copier| copier.fill(address, length, value))
    }

    /// Copies `length` bytes between any two of host and heap (`flexio_memcpy`). Ranges of the heap
    /// must not overlap.
    ///
    /// # Errors
    /// As [`Process::write`]; a slice of the host is shorter than `length`; ranges of the heap
    /// overlap.
    pub fn memcpy(&self, from: Source<'_>, to: Destination<'_>, length: u64) -> Result<(), Error> {
        let short = |has: usize| {
            Error::Failed(format!("a copy of {length} bytes with a slice of {has} bytes"))
        };
        let bytes = usize::try_from(length).map_err(|_| short(0))?;
        match (from, to) {
            (Source::Host(from), Destination::Host(to)) => {
                self.alive()?;
                let part = from.get(..bytes).ok_or_else(|| short(from.len()))?;
                let has = to.len();
                to.get_mut(..bytes).ok_or_else(|| short(has))?.copy_from_slice(part);
                Ok(())
            }
            (Source::Host(from), Destination::Dpa(to)) => {
                self.write(to, from.get(..bytes).ok_or_else(|| short(from.len()))?)
            }
            (Source::Dpa(from), Destination::Host(to)) => {
                let has = to.len();
                self.read(from, to.get_mut(..bytes).ok_or_else(|| short(has))?)
            }
            (Source::Dpa(from), Destination::Dpa(to)) => {
                self.in_heap(from, length)?;
                self.in_heap(to, length)?;
                if from < to + length && to < from + length {
                    return Err(Error::Failed(format!(
                        "{length} bytes at {from:#x} and at {to:#x} overlap"
                    )));
                }
                self.copying(|copier| copier.within(from, to, length))
            }
        }
    }
}

impl Buffer {
    /// The first address in the process's address space.
    pub fn address(&self) -> u64 {
        self.shared.address
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.shared.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The process whose heap has the buffer.
    pub fn process(&self) -> &Process {
        &self.shared.process
    }

    fn part(&self, offset: u64, length: usize) -> Result<u64, Error> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.len() => Ok(self.address() + offset),
            _ => Err(Error::Failed(format!(
                "{length} bytes from byte {offset} on are not in a buffer of {} bytes",
                self.len()
            ))),
        }
    }

    /// Copies bytes in, from byte `offset` on.
    ///
    /// # Errors
    /// The range is not in the buffer, and as [`Process::write`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.process().write(self.part(offset, bytes.len())?, bytes)
    }

    /// Copies bytes out, from byte `offset` on.
    ///
    /// # Errors
    /// As [`Buffer::write_at`].
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.process().read(self.part(offset, bytes.len())?, bytes)
    }

    /// Sets all bytes of the buffer to `value`.
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn fill(&self, value: u8) -> Result<(), Error> {
        self.process().fill(self.address(), self.len(), value)
    }

    /// The key under which holders of the buffer are registered.
    pub(crate) fn key(&self) -> Key {
        key(&self.shared)
    }

    /// Frees the buffer (`flexio_buf_dev_free`). The drop of the last clone frees it too, and
    /// ignores the error.
    ///
    /// # Errors
    /// A clone, a queue or a key keeps it. [`Error::NotRecovered`]: the bytes of a recoverable
    /// buffer could not be copied to the host; it is still allocated, and the error has it.
    pub fn free(self) -> Result<(), Error> {
        let (address, length, key) = (self.address(), self.len(), self.key());
        let mut shared = Arc::into_inner(self.shared)
            .ok_or_else(|| in_use(&format!("the buffer of {length} bytes at {address:#x}"), key))?;
        shared.recover().map_err(|error| {
            let buffer = Self { shared: Arc::new(shared) };
            Error::NotRecovered(FreeError::new(error, (address, length), buffer))
        })
    }
}

impl FreeError {
    /// The buffer, unchanged.
    pub fn into_buffer(self) -> Buffer {
        *self.buffer.downcast().expect("only buffers are put there")
    }
}

#[cfg(test)]
mod tests {
    use verbless_command::DpaEntry;

    use super::*;
    use crate::cq::{CqElement, DpaCq, DpaCqConfig, UNWRITTEN};
    use crate::outbox::{Outbox, OutboxConfig};
    use crate::process::ProcessConfig;
    use crate::program::{CODE, process};

    const RETURNS: [u32; 1] = [0x0000_8067];

    fn refused<T>(made: Result<T, Error>, why: &str) {
        let Err(error) = made else { panic!("not refused: {why}") };
        assert!(error.to_string().contains(why), "{error}");
    }

    fn cq(ring: Option<QueueMemory>, record: Option<QueueMemory>) -> DpaCqConfig {
        DpaCqConfig { ring, record, ..DpaCqConfig::new(2, CqElement::NonDpa { vector: 0 }) }
    }

    #[test]
    fn queue_memory_must_be_own_and_large_enough() {
        let (_model, own) = process(&RETURNS, &[], &[], &ProcessConfig::default());
        let other = Process::create(own.device(), own.app(), &ProcessConfig::default()).unwrap();
        let [mine, theirs] = [&own, &other].map(|it| {
            let buffer = it.alloc(256).unwrap();
            buffer.fill(UNWRITTEN).unwrap();
            buffer
        });
        let foreign = || Some(QueueMemory::dpa(&theirs));
        refused(DpaCq::create(&own, &cq(foreign(), None)), "ring of the CQ is in the heap of an");
        refused(DpaCq::create(&own, &cq(None, foreign())), "record of the CQ is in the heap of an");
        let short = QueueMemory::at(&mine, 64);
        refused(
            DpaCq::create(&own, &cq(Some(short), None)),
            "takes 256 bytes, and its memory has 1",
        );
        let short = QueueMemory::at(&mine, 252);
        refused(DpaCq::create(&own, &cq(None, Some(short))), "takes 8 bytes, and its memory has 4");
        DpaCq::create(&own, &cq(Some(QueueMemory::dpa(&mine)), None)).unwrap();
    }

    #[test]
    fn entry_rejects_outbox_or_storage_of_another_process() {
        let (_model, own) = process(&RETURNS, &[], &[], &ProcessConfig::default());
        let other = Process::create(own.device(), own.app(), &ProcessConfig::default()).unwrap();
        let outbox = |of| Outbox::create(of, &OutboxConfig::default()).unwrap();
        let [mine, theirs] = [outbox(&own), outbox(&other)];
        let entry = |outbox: &Outbox| DpaEntry {
            outbox: Some(outbox.object().clone()),
            ..DpaEntry::at(CODE)
        };
        let call = own.begin(&entry(&mine), [0; 8]).unwrap();
        own.finish(call).unwrap();
        refused(own.begin(&entry(&theirs), [0; 8]), "the outbox is of another process");
        let storage = other.alloc(64).unwrap();
        refused(storage_of(Some(&storage), &own), "in the heap of another process");
        assert_eq!(storage_of(Some(&storage), &other).unwrap(), storage.address());
    }
}
