//! The host of a device: memory for DMA, and a receiver of interrupts.

use std::fmt;

/// The first bus address of an IOMMU ([`Iommu`](super::Iommu)); addresses of processes and guests
/// are below.
pub(crate) const IOVA: u64 = 0xfffe << 48;

/// The first address on the card: no host has memory from this address on.
pub(crate) const CARD: u64 = 0xffff << 48;

/// A DMA access that the platform refused: nothing is mapped at the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// First address of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub length: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory at {:#x}, {} bytes", self.address, self.length)
    }
}

impl std::error::Error for Fault {}

/// An address space for the DMA of a device function.
///
/// In process an address is a virtual address of this process; for the PCI front end it is a
/// guest-physical address; for `run` its top 16 bits are the number of its client. Words are
/// returned in memory byte order, so a big-endian field is `u32::from_be(load32(…))`.
pub trait HostMemory: Send + Sync {
    /// Copies out of memory; for bytes that change meanwhile, the copy has the old or the new
    /// value.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// Copies into memory, lowest address first.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault>;
    /// Loads an aligned 32-bit word with acquire ordering.
    fn load32(&self, address: u64) -> Result<u32, Fault>;
    /// Stores an aligned 32-bit word with release ordering.
    fn store32(&self, address: u64, value: u32) -> Result<(), Fault>;
    /// Stores one byte with release ordering: the owner byte of a CQE or EQE.
    fn store8(&self, address: u64, value: u8) -> Result<(), Fault>;
    /// Writes an entry of a queue; its last byte shows software that it is complete. Earlier writes
    /// become visible first, then the rest of the entry, then that byte.
    fn write_entry(&self, address: u64, entry: &[u8]) -> Result<(), Fault> {
        let Some((&last, rest)) = entry.split_last() else { return Ok(()) };
        self.write(address, rest)?;
        self.store8(address.wrapping_add(rest.len() as u64), last)
    }
    /// Compares and exchanges an aligned 64-bit word (in memory byte order); returns the old word.
    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault>;
    /// Copies `length` bytes from here to an address of `target`, in one step if this process maps
    /// both.
    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault>;
    /// The range as writable memory of this process, if this process maps it, for direct copies.
    /// The pointer is valid while the caller holds any function of the model: only a thread that
    /// holds all functions removes memory.
    fn direct(&self, address: u64, length: u64) -> Option<std::ptr::NonNull<u8>>;
    /// Whether the address belonged to a program that has ended, rather than being a wrong one.
    fn is_gone(&self, _address: u64) -> bool {
        false
    }
    /// Whether each access is a system call, so that an access of many bytes costs no more than one
    /// of a few.
    fn is_remote(&self) -> bool {
        false
    }
    /// Delays accesses from here on, so that they can be batched. Reads through this trait see no
    /// difference, and other readers of the memory see the order that
    /// [`write_entry`](Self::write_entry) promises.
    fn hold(&self) {}
    /// Completes the delayed transfers; none are delayed until the next [`hold`](Self::hold).
    fn release(&self) {}
}

/// Copies `length` bytes from one memory to another, a buffer at a time, lowest address first.
pub(super) fn copy_through(
    buffer: &mut [u8],
    from: &dyn HostMemory,
    address: u64,
    to: &dyn HostMemory,
    target: u64,
    length: u64,
) -> Result<(), Fault> {
    let end = |start: u64| start.checked_add(length).ok_or(Fault { address: start, length });
    end(address).and(end(target))?;
    let mut done = 0;
    while done < length {
        let here = (length - done).min(buffer.len() as u64);
        let part = &mut buffer[..here as usize];
        from.read(address + done, part)?;
        to.write(target + done, part)?;
        done += here;
    }
    Ok(())
}

/// Proves that no data moves: its holder has exclusive access to whatever moves data, so no pointer
/// of [`HostMemory::direct`] is in use.
pub(crate) struct DmaStopped<'a>(std::marker::PhantomData<&'a mut ()>);

impl<'a> DmaStopped<'a> {
    /// Proves it by exclusive access to `_mover`, the only path to all memory.
    pub(crate) fn new<M>(_mover: &'a mut M) -> Self {
        Self(std::marker::PhantomData)
    }
}

/// Receives the device's interrupts. The model calls it with none of its locks held.
pub trait Interrupts: Send + Sync {
    /// MSI-X vector `vector` fired.
    fn raise(&self, vector: u32);

    /// The function died or was reset: a driver sees it by its health counter, and gets no further
    /// interrupt until it starts the function again.
    fn fatal(&self) {}
}
