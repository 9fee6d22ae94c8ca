//! Registered memory: ranges of this process, or of a dmabuf, that the device may reach.

use std::fmt;
use std::os::fd::BorrowedFd;

use super::request::Request;
use crate::abi::attr::{devx_umem_dereg, devx_umem_reg};
use crate::abi::method;
use crate::context::Context;
use crate::error::Result;
use crate::handle::{DestroyError, Handle, Release};
use crate::page::page_size;

const RELEASE: Release =
    Release { what: "umem", method: method::DEVX_UMEM_DEREG, attribute: devx_umem_dereg::HANDLE };

/// A registered range. Command mailboxes name it by [`id`](Self::id) and an offset.
///
/// Dropping it deregisters it. Whoever owns the memory must use [`destroy`](Self::destroy) instead,
/// and keep the memory when that fails.
#[derive(Debug)]
pub struct Umem {
    handle: Handle,
    id: u32,
}

/// Which page sizes the device may use for a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSizes {
    /// Any from the system's page size up. Then every command must use offset 0 in this UMEM.
    Any,
    /// The sizes whose bit is set: bit 12 for 4 KiB, and so on. The largest one bounds the offsets
    /// that commands use: the buffer of a CQ or QP must begin at a multiple of a 64th of that page;
    /// that of a work queue (SQ, RQ, RMP) must also be in the first half of a page.
    Bitmap(u64),
}

impl PageSizes {
    /// The bitmap, and whether the request must fail on a kernel that does not know it.
    fn bitmap(self) -> (u64, bool) {
        match self {
            Self::Any => ((page_size() as u64).wrapping_neg(), false),
            Self::Bitmap(bits) => (bits, true),
        }
    }
}

impl Context {
    /// Pins and registers `length` bytes from `address`. `access` is flags of
    /// [`access`](crate::abi::core::access).
    ///
    /// # Errors
    /// [`ErrorKind::MemoryLimit`](crate::ErrorKind::MemoryLimit) when it cannot be pinned; EFAULT
    /// when it is not mapped; EINVAL for an empty or overflowing range, bad access flags, or page
    /// sizes that do not fit.
    ///
    /// # Safety
    /// Until [`Umem::destroy`] has succeeded, the device may read the range, and write it as
    /// `access` and later keys allow. The caller keeps the range mapped and uses it for nothing
    /// that this could harm. Private file mappings and memory shared by fork do not qualify.
    pub unsafe fn umem_reg(
        &self,
        address: u64,
        length: u64,
        access: u32,
        pages: PageSizes,
    ) -> Result<Umem> {
        self.umem(address, length, access, pages, None)
    }

    /// Registers `length` bytes from `offset` of a dmabuf, which the kernel keeps alive.
    ///
    /// # Errors
    /// As [`umem_reg`](Self::umem_reg); EBADF or EINVAL when the file is no dmabuf, EOPNOTSUPP when
    /// its exporter cannot pin.
    pub fn umem_reg_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        access: u32,
        pages: PageSizes,
    ) -> Result<Umem> {
        self.umem(offset, length, access, pages, Some(dmabuf))
    }

    fn umem(
        &self,
        address: u64,
        length: u64,
        access: u32,
        pages: PageSizes,
        dmabuf: Option<BorrowedFd<'_>>,
    ) -> Result<Umem> {
        let mut id = 0u32;
        let (bitmap, mandatory) = pages.bitmap();
        let answer = Request::new(method::DEVX_UMEM_REG)
            .input_u64(devx_umem_reg::ADDR, address)
            .input_u64(devx_umem_reg::LEN, length)
            .input_u32(devx_umem_reg::ACCESS, access)
            .with(|request| match dmabuf {
                Some(file) => request.descriptor(devx_umem_reg::DMABUF_FD, file),
                None => request,
            })
            .input_u64(devx_umem_reg::PGSZ_BITMAP, bitmap)
            .with(|request| if mandatory { request } else { request.optional() })
            .output_of(devx_umem_reg::OUT_ID, &mut id)
            .fresh(devx_umem_reg::HANDLE)
            .send(self.device())?;
        let handle = Handle::new(self, &RELEASE, answer.handle(devx_umem_reg::HANDLE)?);
        answer.filled(&[devx_umem_reg::OUT_ID])?;
        Ok(Umem { handle, id })
    }
}

impl Umem {
    /// The number by which command mailboxes refer to the registration.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The context in which the memory was registered.
    #[must_use]
    pub const fn context(&self) -> &Context {
        self.handle.context()
    }

    /// Deregisters the memory. After success the device cannot reach it any more.
    ///
    /// # Errors
    /// EBUSY while an object lives on it. The object comes back, and the memory must be kept.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |umem| &mut umem.handle)
    }
}

impl fmt::Display for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "umem {:#x}", self.id)
    }
}
