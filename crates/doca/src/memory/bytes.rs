//! The bytes of maps and sync events.
#![allow(unsafe_code, reason = "the caller's promise is passed on to the queue layer")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};

use crate::error::{Error, ErrorKind, Result};

/// Memory for maps and sync events. Clones share the same memory, which lives until the last clone
/// and the last map, buffer and event of it are dropped.
///
/// Its bytes are copied in and out by copies that may race with each other and with a device.
/// [`verbless_queue::Memory`] is the same for the queue layer: `From` converts both ways.
#[derive(Clone, Debug)]
pub struct Memory(verbless_queue::Memory);

impl Memory {
    /// Fresh zeroed memory of `length` bytes, aligned to its length rounded up to a power of two,
    /// up to 2 MiB, in huge pages if the system has some.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for zero bytes; [`ErrorKind::NoMemory`] if the system has no
    /// room.
    pub fn allocate(length: usize) -> Result<Self> {
        Ok(Self(verbless_queue::Memory::allocate(length)?))
    }

    /// Memory that the caller provides. `owner` is dropped with the last handle to the memory.
    ///
    /// # Safety
    /// While `owner` lives, `length` bytes from `base` stay mapped readable and writable (no file
    /// mapping, not shared by fork). No Rust reference to any of them is used except to atomics.
    /// Raw accesses from elsewhere are volatile.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        length: usize,
        owner: impl Any + Send + Sync,
    ) -> Self {
        // SAFETY: the caller promises the same.
        Self(unsafe { verbless_queue::Memory::from_raw(base, length, owner) })
    }

    /// A handle to the same memory that keeps `guard` alive. `guard` is dropped after this handle,
    /// its clones and the objects made of them, but never while a device that failed to destroy a
    /// key may still reach the bytes.
    #[must_use]
    pub fn guarded(&self, guard: impl Any + Send + Sync) -> Self {
        Self(self.0.guarded(guard))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// `length` bytes from `offset` on, as a handle of its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a range that is not in the memory.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self> {
        self.0.slice(offset, length).map(Self).map_err(outside)
    }

    /// Copies `bytes` in, from `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a range that is not in the memory.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.0.write_at(offset, bytes).map_err(outside)
    }

    /// Copies out from `offset` on, as many bytes as `into` takes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a range that is not in the memory.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, into).map_err(outside)
    }

    /// The memory as 64-bit words in the machine's byte order, from its first byte on, without a
    /// remainder of less than 8 bytes. Memory that does not begin at a multiple of 8 has no words.
    /// A device and a peer may change them at any time, each aligned word as a whole.
    ///
    /// # Safety
    /// While the words are used, no access of another size reaches the same bytes at the same time:
    /// no copy, and no view in bytes, through this handle or another one.
    pub unsafe fn words(&self) -> &[AtomicU64] {
        // SAFETY: the caller promises the same.
        unsafe { self.0.words() }
    }

    /// The memory in place, byte by byte, at any alignment. A device, a peer and copies may change
    /// each byte at any time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.0.bytes()
    }

    pub(crate) const fn lower(&self) -> &verbless_queue::Memory {
        &self.0
    }
}

/// The refusal of a range that is not in the memory.
fn outside(error: verbless_queue::ring::OutOfBounds) -> Error {
    Error::new(ErrorKind::InvalidValue, error.to_string())
}

impl From<verbless_queue::Memory> for Memory {
    fn from(memory: verbless_queue::Memory) -> Self {
        Self(memory)
    }
}

impl From<Memory> for verbless_queue::Memory {
    fn from(memory: Memory) -> Self {
        memory.0
    }
}
