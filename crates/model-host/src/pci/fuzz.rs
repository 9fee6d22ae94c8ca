//! A device without a socket, for fuzzers, which replace the VMM.
//!
//! Everything that a guest can do reaches the model as over a socket: accesses to regions, stores
//! to mapped doorbell pages, and memory.

use std::sync::Arc;

use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::ServerBackend;

use super::function::PciFunction;
use super::server::attach;
use verbless_model::memory::{GuestMemory, HostMemory, UAR_PAGE};
use verbless_model::{Model, Profile};

/// A part of a function that a guest reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// Configuration space.
    Config,
    /// BAR 0: registers and doorbells.
    Bar,
}

impl Region {
    fn index(self) -> u32 {
        match self {
            Self::Config => VFIO_PCI_CONFIG_REGION_INDEX,
            Self::Bar => VFIO_PCI_BAR0_REGION_INDEX,
        }
    }
}

/// A stepped model of one device; each function has its own guest.
pub struct FuzzDevice {
    model: Model,
    functions: Vec<PciFunction>,
}

impl FuzzDevice {
    /// A device with a function for each memory.
    pub fn new(profile: &Profile, memories: Vec<Arc<dyn HostMemory>>) -> Self {
        let count = memories.len();
        let model = Model::builder().device_in(profile.clone(), memories).stepped().build();
        // `memories` are the guests'; no VMM maps memory.
        let functions = (0..count)
            .map(|id| attach(&model, id, Arc::new(GuestMemory::default()), false))
            .collect();
        Self { model, functions }
    }

    /// The model, for stepping it.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Reads as the guest of a function.
    pub fn read(&mut self, function: usize, region: Region, at: u64, into: &mut [u8]) {
        let _ = self.functions[function].region_read(region.index(), at, into);
    }

    /// Writes as the guest of a function.
    pub fn write(&mut self, function: usize, region: Region, at: u64, bytes: &[u8]) {
        let _ = self.functions[function].region_write(region.index(), at, bytes);
    }

    /// Stores a big-endian word into a mapped doorbell page as the guest of a function. The model
    /// sees it at its next step.
    pub fn store(&self, function: usize, page: u32, register: u64, value: u64) {
        let pages = self.functions[function].device.uars();
        pages.store64(page % pages.pages(), register % UAR_PAGE & !7, value);
    }

    /// Resets a function, as by its PCI Express capability.
    pub fn reset(&mut self, function: usize) {
        let _ = self.functions[function].reset();
    }
}
