//! The host's memory as the device's DMA engine reaches it, and the UAR pages of its BAR.
//!
//! These modules are the only place of the model that touches memory which somebody else may write at the same
//! time. Ring words, records and doorbells are atomics; payload is copied in a way that is allowed to race.

pub(crate) mod clients;
pub(crate) mod descriptor;
mod guest;
mod process;
mod uar;

use std::fmt;

pub use clients::ClientMemory;
pub use guest::GuestMemory;
pub use process::{ProcessMemory, probe};
pub(crate) use uar::{CQ_ARM, EQ_ARM, EQ_CONSUMER, SEND, SEND_BUFFERS, SEND_STRIDE};
pub use uar::{UAR_PAGE, UarSpace};

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
    /// The range as memory of this process, if it is mapped here and may be written: what makes a direct copy possible.
    /// The pointer is good while the world's lock is held; memory is taken away under that lock only.
    fn direct(&self, address: u64, length: u64) -> Option<std::ptr::NonNull<u8>>;
    /// Whether the address was that of somebody who is no more, and not merely a wrong one.
    fn is_gone(&self, _address: u64) -> bool {
        false
    }
}

/// Receives the device's interrupts. Called with no lock of the model held.
pub trait Interrupts: Send + Sync {
    /// MSI-X vector `vector` fired.
    fn raise(&self, vector: u32);

    /// The device died; a driver sees it by its health counter, and nothing comes any more.
    fn fatal(&self) {}
}

/// The memory of this process, as a device in the same process reaches it.
pub(crate) fn in_process() -> std::sync::Arc<dyn HostMemory> {
    std::sync::Arc::new(ProcessMemory)
}
