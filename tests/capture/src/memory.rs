//! Memory for regions and queues.
#![allow(
    unsafe_code,
    reason = "memory at a chosen place, and handed to devices; this module is the place for it"
)]

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;
use verbless_command::{Error, KeyAccess};
use verbless_devx::{Context, PageSizes, Umem};
use verbless_queue::{Domain, Region};

/// Zeroed pages. Nobody here reads or writes them.
#[derive(Clone)]
pub struct Pages {
    base: NonNull<u8>,
    map: Arc<MmapMut>,
}

impl Pages {
    /// So many bytes, from a page's start on.
    ///
    /// # Errors
    /// When there is no memory.
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

    /// How many bytes they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A region over a part of them.
    ///
    /// # Errors
    /// As [`Domain::region_from_raw`]; when the part passes their end.
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
        // SAFETY: the mapping lives as long as its clone, is anonymous, and nobody makes a
        // reference into it.
        Ok(unsafe { domain.region_from_raw(base, length, access, self.map.clone()) }?)
    }

    /// Registers all of them. They must be kept for longer than the registration.
    ///
    /// # Errors
    /// As [`Context::umem_reg`].
    pub fn register(
        &self,
        context: &Context,
        access: u32,
        pages: PageSizes,
    ) -> Result<Umem, Error> {
        // SAFETY: the mapping is leaked with its clone, so the registration cannot outlive it;
        // nobody looks into it.
        unsafe {
            std::mem::forget(self.map.clone());
            context.umem_reg(self.address(), self.len() as u64, access, pages)
        }
    }
}
