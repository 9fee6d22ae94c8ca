//! Registered memory: ranges of this process, or of a dmabuf, that the device may reach.

use std::fmt;
use std::os::fd::BorrowedFd;

use super::backend::Errno;
use super::request::{IoctlFailure, IoctlOutputs, Request};
use crate::abi::attr::{devx_umem_dereg, devx_umem_reg};
use crate::abi::core::access::RELAXED_ORDERING;
use crate::abi::method;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{DestroyError, Handle, Release};

const RELEASE: Release =
    Release { what: "umem", method: method::DEVX_UMEM_DEREG, attribute: devx_umem_dereg::HANDLE };

/// A registered range. Command mailboxes name it by [`id`](Self::id) and an offset.
///
/// Dropping it deregisters it. The owner of the memory must use [`destroy`](Self::destroy) instead,
/// and keep the memory when that fails.
#[derive(Debug)]
pub struct Umem {
    handle: Handle,
    id: u32,
    page_limit: u64,
}

/// Page sizes that the device may use for a UMEM.
///
/// The kernel takes the largest that the bus addresses allow. It looks at bus addresses and the
/// length, not at virtual addresses: behind an IOMMU a page can be larger than the memory's
/// alignment.
///
/// A kernel before Linux 5.13 does not know page sizes
/// ([`Context::pages_follow_address`]): its pages divide the address of the memory's first page,
/// and [`Umem::page_limit`] says how large they may be. A kernel whose own pages are larger than
/// 4 KiB may refuse all sizes below ([`Context::umems_lack_small_pages`]): a registration that
/// allows only those then gets the kernel's page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSizes {
    /// Any from the system's page size up. Then every command must use offset 0 in this UMEM, and a
    /// key over it must begin at a multiple of [`Umem::page_limit`].
    Any,
    /// The sizes whose bit is set: bit 12 for 4 KiB, and so on. The largest one bounds the offsets
    /// that commands use: the buffer of a CQ or QP must begin at a multiple of a 64th of that page;
    /// that of a work queue (SQ, RQ, RMP) must also be in the first half of a page.
    Bitmap(u64),
}

/// Size of the smallest page of a UMEM in bytes (`MLX5_ADAPTER_PAGE_SHIFT`).
const SMALLEST: u64 = 1 << 12;

impl PageSizes {
    /// For memory of mkeys: all sizes up to the kernel's page size `system`
    /// ([`Context::page_size`]), and the larger ones that divide `address`, up to `2^log_most`
    /// bytes. A device refuses a key whose start address has another offset in the UMEM's page than
    /// the memory has (syndrome 0x317175).
    #[must_use]
    pub fn of_address(address: u64, system: usize, log_most: u8) -> Self {
        let aligned = address & (system as u64).wrapping_neg();
        // The lowest bit that is set, and all below it.
        let up_to = aligned ^ aligned.wrapping_sub(1);
        // Linux holds the size that it chooses in 32 bits (`devx_umem_find_best_pgsize`).
        let most = (2_u64 << log_most.min(31)) - 1;
        Self::Bitmap(up_to & most & SMALLEST.wrapping_neg())
    }

    /// The bitmap, and whether the request must fail on a kernel that does not know it.
    fn bitmap(self, system: u64) -> (u64, bool) {
        match self {
            Self::Any => (system.wrapping_neg(), false),
            Self::Bitmap(bits) => (bits, true),
        }
    }
}

/// The bitmap for a kernel that refuses page sizes below its own, if `bitmap` allows no other size:
/// the kernel's page size.
fn without_small_pages(bitmap: u64, system: u64) -> Option<u64> {
    let sizes = bitmap & SMALLEST.wrapping_neg();
    (sizes != 0 && sizes < system).then_some(system)
}

/// The largest page that Linux may choose (`devx_umem_find_best_pgsize`). One above the system's
/// page size needs page-aligned memory, and divides its length.
fn page_limit(bitmap: u64, address: u64, length: u64, system: u64) -> u64 {
    let whole = (address & (system - 1) == 0).then_some(length & length.wrapping_neg());
    let most = whole.unwrap_or(0).max(system);
    let allowed = bitmap.checked_ilog2().map_or(SMALLEST, |top| 1 << top);
    allowed.min(most)
}

/// The largest page that a kernel without the bitmap may choose: at most the alignment of the
/// memory's first page, the number of pages rounded up to a power of two, and 2 GiB (Linux 5.10,
/// `mlx5_ib_cont_pages`). Linux 5.11 and 5.12 use the system's pages only.
fn page_limit_of_address(address: u64, length: u64, system: u64) -> u64 {
    let first = address & system.wrapping_neg();
    let alignment = first & first.wrapping_neg();
    let bytes = (address - first).saturating_add(length).checked_next_multiple_of(system);
    let range = bytes.and_then(u64::checked_next_power_of_two).unwrap_or(1 << 63);
    let alignment = if alignment == 0 { 1 << 31 } else { alignment };
    alignment.min(range).min(1 << 31)
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
    /// `access` and later keys allow. The caller keeps the range mapped, and holds no Rust
    /// reference to it that these accesses would violate. Private file mappings and memory shared
    /// by fork do not qualify.
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
    /// As [`umem_reg`](Self::umem_reg); EBADF or EINVAL when the file is not a dmabuf, EOPNOTSUPP
    /// when its exporter cannot pin.
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
        let system = self.page_size() as u64;
        let (wanted, mandatory) = pages.bitmap(system);
        let send = |id: &mut u32, access: u32, bitmap: Option<u64>| {
            Request::new(method::DEVX_UMEM_REG)
                .input_u64(devx_umem_reg::ADDR, address)
                .input_u64(devx_umem_reg::LEN, length)
                .input_u32(devx_umem_reg::ACCESS, access)
                .with(|request| match dmabuf {
                    Some(file) => request.descriptor(devx_umem_reg::DMABUF_FD, file),
                    None => request,
                })
                .with(|request| match bitmap {
                    Some(bits) if mandatory => request.input_u64(devx_umem_reg::PGSZ_BITMAP, bits),
                    Some(bits) => request.input_u64(devx_umem_reg::PGSZ_BITMAP, bits).optional(),
                    None => request,
                })
                .output_of(devx_umem_reg::OUT_ID, id)
                .new_handle(devx_umem_reg::HANDLE)
                .send(self.device())
        };
        let mut id = 0u32;
        let mut send = |access, bitmap| -> Result<IoctlOutputs, IoctlFailure> {
            let known = !self.pages_follow_address();
            match send(&mut id, access, known.then_some(bitmap)) {
                Err(IoctlFailure::Errno { errno: Errno::EPROTONOSUPPORT, .. })
                    if known && mandatory =>
                {
                    let answer = send(&mut id, access, None);
                    // Flags are checked after the attributes.
                    let other = [Errno::EPROTONOSUPPORT];
                    if answer.as_ref().err().is_none_or(|failure| !failure.is(&other)) {
                        self.set_pages_follow_address();
                    }
                    answer
                }
                answer => answer,
            }
        };
        let plain = access & !RELAXED_ORDERING;
        let larger = without_small_pages(wanted, system);
        // What a kernel may refuse with EINVAL, and what this device's kernel is known to refuse.
        let flags = [Some(access), (plain != access).then_some(plain)];
        let sizes = [Some(wanted), larger];
        let first = usize::from(self.umems_lack_relaxed_ordering() && flags[1].is_some());
        let small = usize::from(self.umems_lack_small_pages() && larger.is_some());
        let attempts = sizes[small..].iter().flatten();
        let mut attempts =
            attempts.flat_map(|&sizes| flags[first..].iter().flatten().map(move |&it| (it, sizes)));
        let (mut access_used, mut bitmap) = attempts.next().unwrap_or((access, wanted));
        let mut answer = send(access_used, bitmap);
        for (access, sizes) in attempts {
            if !answer.as_ref().is_err_and(|failure| failure.is(&[Errno::EINVAL])) {
                break;
            }
            (access_used, bitmap) = (access, sizes);
            answer = send(access, sizes);
        }
        let answer = match answer {
            Err(failure) if dmabuf.is_some() && failure.is(&[Errno::EPROTONOSUPPORT]) => {
                return Err(Error::new(
                    ErrorKind::NotSupported,
                    "DEVX_UMEM_REG of a dmabuf",
                    "this kernel's mlx5_ib registers no dmabuf through DevX: it must be that of \
                     Linux 6.1 or later; copy the data through memory of this process instead",
                )
                .with_errno(Errno::EPROTONOSUPPORT));
            }
            answer => answer?,
        };
        if access_used != access {
            self.set_umems_lack_relaxed_ordering();
        }
        if bitmap != wanted {
            self.set_umems_lack_small_pages();
        }
        let handle = Handle::new(self, &RELEASE, answer.handle(devx_umem_reg::HANDLE)?);
        answer.filled(&[devx_umem_reg::OUT_ID])?;
        let by_address = page_limit_of_address(address, length, system);
        let page_limit = match page_limit(bitmap, address, length, system) {
            _ if self.pages_follow_address() => by_address,
            chosen if mandatory => chosen,
            // A kernel that does not know the bitmap has ignored it.
            chosen => chosen.max(by_address),
        };
        Ok(Umem { handle, id, page_limit })
    }
}

impl Umem {
    /// The UMEM's number in command mailboxes.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The largest page, in bytes, in which the kernel may have registered the memory: at most the
    /// largest allowed size, and at most the system's page or, if larger, the largest power of two
    /// that divides the length. Without page sizes ([`Context::pages_follow_address`]), at most the
    /// alignment of the memory's first page.
    #[must_use]
    pub const fn page_limit(&self) -> u64 {
        self.page_limit
    }

    /// The context in which the memory was registered.
    #[must_use]
    pub const fn context(&self) -> &Context {
        self.handle.context()
    }

    /// Deregisters the memory. After success the device cannot reach it.
    ///
    /// # Errors
    /// EBUSY while an object lives on it. The error returns the UMEM, and the memory must be kept.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |umem| &mut umem.handle)
    }
}

impl fmt::Display for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "umem {:#x}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_of_address_end_at_lowest_set_bit() {
        let up_to = |size: u64| PageSizes::Bitmap((2 * size - 1) & !0xfff);
        for page in [0x1000, 0x4000, 0x1_0000] {
            for (address, largest) in [
                (0x7000_0000_0000 + page, page),
                (0x7000_0000_0000 + page + 8, page),
                (0x7000_0000_0000 + 2 * page, 2 * page),
                (0x7000_0000_0000 + 2 * page + 1, 2 * page),
                (0x7000_0000_0000 + 3 * page - 0x1000, 2 * page),
                (0x7000_0020_0000, 0x20_0000),
                (0x7000_0000_0000, 0x8000_0000),
            ] {
                let got = PageSizes::of_address(address, page as usize, 31);
                assert_eq!(got, up_to(largest), "{address:#x} with pages of {page:#x}");
            }
            assert_eq!(PageSizes::Any.bitmap(page), (page.wrapping_neg(), false));
            assert_eq!(PageSizes::Bitmap(0x3000).bitmap(page), (0x3000, true));
        }
        let most = PageSizes::of_address(0x7000_0000_0000, 0x1000, 63);
        assert_eq!(most, up_to(1 << 31), "Linux holds the size in 32 bits");
        assert_eq!(PageSizes::of_address(0x7000_0020_0000, 0x1000, 14), up_to(0x4000));
    }

    #[test]
    fn small_page_sizes_alone_have_a_substitute() {
        for (bitmap, system, substitute) in [
            (0x1000, 0x1_0000, Some(0x1_0000)),
            (0x7000, 0x1_0000, Some(0x1_0000)),
            (0x1000, 0x4000, Some(0x4000)),
            (0x1_1000, 0x1_0000, None),
            (0x1000, 0x1000, None),
            (0x20, 0x1_0000, None),
            (0, 0x1_0000, None),
        ] {
            let got = without_small_pages(bitmap, system);
            assert_eq!(got, substitute, "{bitmap:#x} with pages of {system:#x}");
        }
    }

    #[test]
    fn page_limit_without_bitmap_follows_address() {
        for (address, length, system, limit) in [
            (0x7000_1000, 0x10_0000, 0x1000, 0x1000),
            (0x7000_2000, 0x10_0000, 0x1000, 0x2000),
            (0x7000_2008, 0x10_0000, 0x1000, 0x2000),
            (0x7000_0000, 0x1000, 0x1000, 0x1000),
            (0x7000_0000, 0x1001, 0x1000, 0x2000),
            (0x7000_0008, 0x1000, 0x1000, 0x2000),
            (0x7000_0000, 0x18_0000, 0x1000, 0x20_0000),
            (0x7001_1000, 0x10_0000, 0x1_0000, 0x1_0000),
            (1 << 40, 1 << 40, 0x1000, 1 << 31),
        ] {
            let got = page_limit_of_address(address, length, system);
            assert_eq!(got, limit, "{length:#x} bytes at {address:#x}");
        }
    }

    #[test]
    fn page_limit_divides_length_or_is_system_page() {
        const ANY: u64 = !0xfff;
        for (bitmap, address, length, system, limit) in [
            (ANY, 0x7000_1000, 0x10_0000, 0x1000, 0x10_0000),
            (ANY, 0x7000_1000, 0x18_0000, 0x1000, 0x8_0000),
            (ANY, 0x7000_1000, 0x18_0008, 0x1000, 0x1000),
            (ANY, 0x7000_1008, 0x10_0000, 0x1000, 0x1000),
            (0x1f000, 0x7001_0000, 0x10_0000, 0x1000, 0x1_0000),
            (0x1000, 0x7001_0000, 0x10_0000, 0x1000, 0x1000),
            (0x1000, 0x7001_0000, 0x10_0000, 0x1_0000, 0x1000),
            (ANY, 0x7000_1000, 0x10_0000, 0x1_0000, 0x1_0000),
            (0, 0x7000_1000, 0x10_0000, 0x1000, 0x1000),
        ] {
            let got = page_limit(bitmap, address, length, system);
            assert_eq!(got, limit, "{length:#x} bytes at {address:#x} of {bitmap:#x}");
        }
    }
}
