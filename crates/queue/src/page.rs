//! UAR pages that the kernel maps, as doorbells.
#![allow(unsafe_code, reason = "device registers are mapped; this module is the place for it")]

use std::sync::Arc;

use verbless_devx::Uar;

use verbless_ring::ring::{LayoutError, SharedMemory};
use verbless_ring::uar::UarPage;

/// The page that the kernel mapped for us. The driver only writes to it.
pub fn map_uar(uar: Arc<Uar>) -> Result<UarPage, LayoutError> {
    let (base, length) = (uar.mapping().as_ptr(), uar.mapping().len());
    // SAFETY: the mapping lives in its owner; a `UarPage` stores to it and never loads, and makes
    // no reference. It is a page of device registers, outside of all memory that Rust knows.
    unsafe { UarPage::new(SharedMemory::from_raw(base, length, uar)) }
}
