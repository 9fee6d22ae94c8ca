//! Registered user memory, and the owner that keeps it mapped.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use verbless_devx::{Context, Umem};
use verbless_prm::WqContext;

/// A registration and the owner of its memory, which is dropped only after deregistration.
///
/// Keys and queues hold it in an `Arc`. If deregistration fails, the owner is leaked: the device
/// may still write there. If the device was removed, the owner is kept until the device's file
/// closes, and then dropped.
pub struct UserMemory {
    /// `None` during the drop, and for memory of the device itself.
    umem: Option<Umem>,
    context: Context,
    id: u32,
    address: u64,
    length: u64,
    page_limit: u64,
    owner: Option<Box<dyn Any + Send + Sync>>,
}

impl UserMemory {
    /// Combines a registration of `length` bytes at `address` with the owner of that memory.
    pub fn new<T: Any + Send + Sync>(umem: Umem, address: u64, length: u64, owner: T) -> Self {
        let (id, context, page_limit) = (umem.id(), umem.context().clone(), umem.page_limit());
        let owner: Option<Box<dyn Any + Send + Sync>> = Some(Box::new(owner));
        Self { umem: Some(umem), context, id, address, length, page_limit, owner }
    }

    /// Memory of the device itself, such as a heap. It lives as long as `owner`, an object of the
    /// device.
    #[cfg(feature = "dpa")]
    pub(crate) fn on_device<T: Any + Send + Sync>(
        context: Context,
        id: u32,
        address: u64,
        length: u64,
        owner: T,
    ) -> Self {
        let page_limit = context.page_size() as u64;
        let owner: Option<Box<dyn Any + Send + Sync>> = Some(Box::new(owner));
        Self { umem: None, context, id, address, length, page_limit, owner }
    }

    /// The device context in which the memory is registered.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The umem id for commands.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Address of the first byte in this process; for memory of the DPA, in the DPA process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The largest page, in bytes, that the UMEM may have ([`Umem::page_limit`]).
    pub fn page_limit(&self) -> u64 {
        self.page_limit
    }

    /// The offset of byte `offset` in its UMEM page, and the largest page size that the UMEM may
    /// have. If the kernel may use pages larger than its own, the first page begins at the first
    /// byte of the UMEM, or at the start of that byte's page of the kernel.
    pub(crate) fn page_offset(&self, offset: u64) -> (u64, u64) {
        let limit = self.page_limit;
        let first = self.address & (self.context.page_size() as u64 - 1);
        (first.wrapping_add(offset) & (limit - 1), limit)
    }
}

impl Drop for UserMemory {
    fn drop(&mut self) {
        if let Some(Err(failed)) = self.umem.take().map(Umem::destroy) {
            let context = failed.object.context().clone();
            // The drop of `failed` deregisters again and counts a leak if that fails. A leaked UMEM
            // keeps the device file open, so `owner` is never dropped.
            drop(failed);
            if let Some(owner) = self.owner.take() {
                context.hold_until_closed(owner);
            }
        }
    }
}

impl fmt::Debug for UserMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "umem {:#x}: {} bytes at {:#x}", self.id(), self.length, self.address)
    }
}

/// The location of a queue in registered memory, and the owners to keep alive while the queue
/// lives.
#[derive(Clone)]
pub struct QueueMemory {
    umem: Arc<UserMemory>,
    offset: u64,
    _lease: Option<Arc<dyn Any + Send + Sync>>,
}

impl QueueMemory {
    /// Byte `offset` of a registration.
    pub fn new(umem: Arc<UserMemory>, offset: u64) -> Self {
        Self { umem, offset, _lease: None }
    }

    /// Byte `offset` of a registration, leased from a pool: `lease` is dropped only after the
    /// device has destroyed the queue.
    pub fn leased(umem: Arc<UserMemory>, offset: u64, lease: Arc<dyn Any + Send + Sync>) -> Self {
        Self { umem, offset, _lease: Some(lease) }
    }

    /// Also keeps `owner` alive until the device has destroyed the queue. It is dropped before the
    /// lease, because it may use the leased memory.
    #[must_use]
    pub fn keeping(mut self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        self._lease = Some(match self._lease {
            Some(lease) => Arc::new((owner, lease)),
            None => owner,
        });
        self
    }

    /// The registration.
    pub fn umem(&self) -> &UserMemory {
        &self.umem
    }

    /// Byte offset in the registration.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "umem {:#x} + {:#x}", self.umem.id(), self.offset)
    }
}

/// Sets the doorbell record of a queue's context.
macro_rules! set_record {
    ($context:expr, $record:expr) => {
        $context
            .set_dbr_umem_id($record.umem().id())
            .set_dbr_addr($record.offset())
            .set_dbr_umem_valid(true)
    };
}

pub(crate) use set_record;

/// Sets the ring and the doorbell record of an SQ, RQ or RMP.
pub(crate) fn set_wq_memory(wq: &mut WqContext, ring: &QueueMemory, record: &QueueMemory) {
    wq.set_wq_umem_id(ring.umem().id()).set_wq_umem_offset(ring.offset()).set_wq_umem_valid(true);
    set_record!(wq, record);
}

/// The device contexts of a queue's memory, with names for error messages.
pub(crate) fn memory_parts<'a>(
    ring: &'a QueueMemory,
    record: &'a QueueMemory,
) -> [(&'static str, &'a Context); 2] {
    [
        ("memory of the ring", ring.umem().context()),
        ("memory of the doorbell record", record.umem().context()),
    ]
}
