//! User access regions: the pages through which doorbells are rung.

use crate::abi::attr::{uar_obj_alloc, uar_obj_destroy};
use crate::abi::{method, mlx5};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{DestroyError, Handle, Release};
use crate::sys::{Mapping, Protection, Request};

const RELEASE: Release =
    Release { what: "uar", method: method::UAR_OBJ_DESTROY, attribute: uar_obj_destroy::HANDLE };

/// How the page of a UAR is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UarKind {
    /// Write-combining, for BlueFlame copies of whole WQEs.
    BlueFlame,
    /// Non-cached, for 8-byte doorbells.
    NonCached,
}

/// A mapped UAR page. CQ and QP contexts name it by [`page_id`](Self::page_id); a doorbell rung on
/// another page than the one named is ignored.
#[derive(Debug)]
pub struct Uar {
    // Field order: destroyed first; the kernel keeps the page until it is unmapped too.
    handle: Handle,
    mapping: Mapping,
    page_id: u32,
    kind: UarKind,
}

impl Context {
    /// Allocates a UAR page and maps it.
    ///
    /// # Errors
    /// EOPNOTSUPP for BlueFlame on a machine without write combining; ENOMEM at the device's limit.
    pub fn uar_alloc(&self, kind: UarKind) -> Result<Uar> {
        let code = match kind {
            UarKind::BlueFlame => mlx5::UAR_BLUE_FLAME,
            UarKind::NonCached => mlx5::UAR_NON_CACHED,
        };
        let (mut offset, mut length, mut page_id) = (0u64, 0u32, 0u32);
        let answer = Request::new(method::UAR_OBJ_ALLOC)
            .new_handle(uar_obj_alloc::HANDLE)
            .input_u64(uar_obj_alloc::TYPE, code)
            .output_of(uar_obj_alloc::MMAP_OFFSET, &mut offset)
            .output_of(uar_obj_alloc::MMAP_LENGTH, &mut length)
            .output_of(uar_obj_alloc::PAGE_ID, &mut page_id)
            .send(self.device())?;
        let handle = Handle::new(self, &RELEASE, answer.handle(uar_obj_alloc::HANDLE)?);
        answer.filled(&[
            uar_obj_alloc::MMAP_OFFSET,
            uar_obj_alloc::MMAP_LENGTH,
            uar_obj_alloc::PAGE_ID,
        ])?;
        let page = self.page_size();
        if length as usize != page || !offset.is_multiple_of(page as u64) {
            let what =
                format_args!("UAR of {length:#x} bytes at {offset:#x}, with pages of {page:#x}");
            return Err(Error::answer(method::UAR_OBJ_ALLOC, what));
        }
        let mapping = self.device().mmap(offset, page, Protection::Write).map_err(|errno| {
            Error::new(
                ErrorKind::Refused,
                format!("mapping UAR page {page_id:#x} at offset {offset:#x}"),
                "the hypervisor must let the guest map the BAR of a passed-through device",
            )
            .with_errno(errno)
        })?;
        if mapping.len() < page {
            let what = format_args!("a mapping of {} bytes for a page", mapping.len());
            return Err(Error::answer(method::UAR_OBJ_ALLOC, what));
        }
        Ok(Uar { handle, mapping, page_id, kind })
    }
}

impl Uar {
    /// The uar_page of CQ and QP contexts.
    #[must_use]
    pub const fn page_id(&self) -> u32 {
        self.page_id
    }

    /// How the page is mapped.
    #[must_use]
    pub const fn kind(&self) -> UarKind {
        self.kind
    }

    /// The mapped page, one page of the kernel long, whose first 4 KiB are the UAR; store only.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The context in which the page was allocated.
    #[must_use]
    pub const fn context(&self) -> &Context {
        self.handle.context()
    }

    /// Unmaps the page and gives it back to the kernel.
    ///
    /// # Errors
    /// EBUSY while an object uses the page; the error returns the page, still mapped.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |uar| &mut uar.handle)
    }
}
