//! The host's memory as the device's DMA accesses it, and the UAR pages of its BAR.
//!
//! Only these modules of the model access memory that other code may write at the same time. They
//! access ring words, records and doorbells by atomics, and copy payload by code that is allowed to
//! race.

mod card;
mod clients;
mod guest;
mod host;
mod iommu;
mod mapping;
mod mover;
mod own;
mod pending;
mod process;
mod remote;
mod spaces;
mod uar;

pub(crate) use card::{Heaps, with_heaps};
pub use clients::{ClientMemory, dma_address};
pub use guest::GuestMemory;
pub(crate) use host::{CARD, DmaStopped, IOVA};
pub use host::{Fault, HostMemory, Interrupts};
pub use iommu::{Iommu, Mapped};
pub(crate) use mover::{MAX_MOVERS, set as set_mover};
pub use process::{ProcessMemory, probe};
pub use remote::{RemoteClient, RemoteMemory};
pub(crate) use spaces::{Space, Spaces};
pub(crate) use uar::{BLUEFLAME, BLUEFLAME_BUFFERS, BLUEFLAME_STRIDE, CQ_ARM, EQ_ARM, EQ_CONSUMER};
pub use uar::{UAR_PAGE, UarSpace};

/// The memory of this process, as a device in the same process reaches it.
pub(crate) fn in_process() -> std::sync::Arc<dyn HostMemory> {
    std::sync::Arc::new(ProcessMemory)
}
