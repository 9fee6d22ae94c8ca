//! Registered user memory together with what keeps it mapped.

use std::any::Any;
use std::fmt;

use verbless_devx::Umem;

/// A registration and the owner of its memory, which is let go only after the device has.
///
/// Keys and queues hold it in an `Arc`. If it cannot be deregistered the owner is leaked: the device may still
/// write there.
pub struct UserMemory {
    /// `None` only while dropping.
    umem: Option<Umem>,
    address: u64,
    length: u64,
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl UserMemory {
    /// Joins a registration of `length` bytes at `address` with the owner of that memory.
    pub fn new<T: Any + Send + Sync>(umem: Umem, address: u64, length: u64, owner: T) -> Self {
        Self { umem: Some(umem), address, length, owner: Some(Box::new(owner)) }
    }

    /// The number by which commands name it.
    pub fn id(&self) -> u32 {
        self.umem.as_ref().map_or(0, Umem::id)
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        if let Some(Err(failed)) = self.umem.take().map(Umem::destroy) {
            // Dropping the registration tries once more and counts it as leaked.
            drop(failed);
            std::mem::forget(self.owner.take());
        }
    }
}

impl fmt::Debug for UserMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "umem {:#x}: {} bytes at {:#x}", self.id(), self.length, self.address)
    }
}
