//! The host's memory as the device's DMA engine reaches it, and the UAR pages of its BAR.
//!
//! This is the only place of the model that touches memory which somebody else may write at the same time. Ring
//! words, records and doorbells are atomics; payload is copied in a way that is allowed to race.

use std::fmt;

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

/// An address space that a function of the device does DMA in.
///
/// In process an address is a virtual address of this process; for the PCI front end it is a guest-physical address;
/// for `run` its top 16 bits say which client it belongs to. Words are returned as they stand in memory, so a
/// big-endian field is `u32::from_be(load32(…))`.
pub trait HostMemory: Send + Sync {
    /// Copies out of memory; bytes that change meanwhile arrive old or new.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// Copies into memory, lowest address first.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault>;
    /// Loads an aligned 32-bit word with acquire ordering.
    fn load32(&self, address: u64) -> Result<u32, Fault>;
    /// Stores an aligned 32-bit word with release ordering.
    fn store32(&self, address: u64, value: u32) -> Result<(), Fault>;
    /// Stores one byte with release ordering: the owner byte of a CQE or EQE.
    fn store8(&self, address: u64, value: u8) -> Result<(), Fault>;
    /// Compares and exchanges an aligned 64-bit word (as it stands in memory); returns what was there.
    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault>;
    /// Copies `length` bytes from here to an address of `target`, in one go where both are mapped here.
    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault>;
    /// The range as memory of this process, if it is mapped here: what makes a direct copy possible.
    fn direct(&self, address: u64, length: u64) -> Option<std::ptr::NonNull<u8>>;
}

/// Receives the device's interrupts. Called with no lock of the model held.
pub trait Interrupts: Send + Sync {
    /// MSI-X vector `vector` fired.
    fn raise(&self, vector: u32);
}

/// The memory of this process, as a device in the same process reaches it.
pub(crate) fn in_process() -> std::sync::Arc<dyn HostMemory> {
    std::sync::Arc::new(InProcessMemory)
}

/// DMA addresses are virtual addresses of this process.
struct InProcessMemory;

impl HostMemory for InProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        Err(Fault { address, length: into.len() as u64 })
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        Err(Fault { address, length: from.len() as u64 })
    }
    fn load32(&self, address: u64) -> Result<u32, Fault> {
        Err(Fault { address, length: 4 })
    }
    fn store32(&self, address: u64, _value: u32) -> Result<(), Fault> {
        Err(Fault { address, length: 4 })
    }
    fn store8(&self, address: u64, _value: u8) -> Result<(), Fault> {
        Err(Fault { address, length: 1 })
    }
    fn compare_exchange64(&self, address: u64, _expected: u64, _new: u64) -> Result<u64, Fault> {
        Err(Fault { address, length: 8 })
    }
    fn copy_to(
        &self,
        address: u64,
        _target: &dyn HostMemory,
        _target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        Err(Fault { address, length })
    }
    fn direct(&self, _address: u64, _length: u64) -> Option<std::ptr::NonNull<u8>> {
        None
    }
}

/// The UAR pages of a function's BAR: one memory file, mapped here and, page by page, by clients.
#[derive(Debug)]
pub(crate) struct UarSpace {
    /// Number of 4 KiB pages.
    pub pages: u32,
}

impl UarSpace {
    pub(crate) fn new(pages: u32) -> Self {
        Self { pages }
    }
}
