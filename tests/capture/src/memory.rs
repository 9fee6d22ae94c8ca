//! Memory for regions and queues.
#![allow(
    unsafe_code,
    reason = "memory at a chosen address, and handed to devices; this module holds it"
)]

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;
use verbless_command::{Error, KeyAccess};
use verbless_devx::{Context, PageSizes, Umem};
use verbless_queue::{Domain, Region};

/// Zeroed pages. This program neither reads nor writes them.
#[derive(Clone)]
pub struct Pages {
    base: NonNull<u8>,
    map: Arc<MmapMut>,
}

impl Pages {
    /// `bytes` bytes from the start of a page.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let mut map = MmapMut::map_anon(bytes)?;
        let base = NonNull::new(map.as_mut_ptr()).ok_or_else(std::io::Error::last_os_error)?;
        Ok(Self { base, map: Arc::new(map) })
    }

    /// Their address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Their length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A region over a part of the pages.
    ///
    /// # Errors
    /// As [`Domain::region_from_raw`]; also if the part exceeds the pages.
    pub fn region(
        &self,
        domain: &Domain,
        offset: usize,
        length: usize,
        access: KeyAccess,
    ) -> crate::result::Result<Region> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            return Err("the part passes the end of its pages".into());
        }
        // SAFETY: the sum stays within the mapping.
        let base = unsafe { self.base.add(offset) };
        // SAFETY: the mapping lives as long as its clone and is anonymous, and this program makes
        // no reference into it.
        Ok(unsafe { domain.region_from_raw(base, length, access, self.map.clone()) }?)
    }

    /// Registers all pages. The caller must keep them longer than the registration.
    ///
    /// # Errors
    /// As [`Context::umem_reg`].
    pub fn register(
        &self,
        context: &Context,
        access: u32,
        pages: PageSizes,
    ) -> Result<Umem, Error> {
        // SAFETY: the mapping is leaked with its clone, so the registration cannot outlive it; this
        // program makes no reference into it.
        unsafe {
            std::mem::forget(self.map.clone());
            context.umem_reg(self.address(), self.len() as u64, access, pages)
        }
    }
}
