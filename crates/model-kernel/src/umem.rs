//! UMEM_REG, with the checks of `ib_umem_get` and `hw/mlx5/devx.c`.
//!
//! The device accesses a client's memory through an IOMMU, at consecutive bus addresses. So the
//! page size is the largest that bitmap and length allow, unless the memory starts inside a page.
//! Pages are not pinned: if a client unmaps registered memory, the device loses it.

use verbless_prm::{CreateUmemIn, Opcode};

use nix::errno::Errno;

use super::abi::attr;
use super::client::Client;
use super::file::Method;
use super::handles::Object;
use super::mailbox::{NUMBER, inbox};
use super::page::PAGE;
use super::page_lists::{ListedPages, MAX_PAGES};
use super::pages::SystemPage;
use super::pinned::Pinned;
use super::refused::{no_descriptor, refused};
use super::release::KernelRelease;

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const RELAXED_ORDERING: u32 = 1 << 20;
/// Low bits of an MTT entry: the device's access bits.
const MTT_READ: u64 = 1;
const MTT_WRITE: u64 = 2;

impl Method<'_> {
    pub(super) fn umem_reg(&mut self) -> Result<Object, Errno> {
        let uid = self.state.context()?.uid;
        if uid == 0 {
            return Err(refused(Errno::EINVAL, "the context has no flag DEVX (0x1)"));
        }
        let relaxed = match self.file.kernel.release {
            KernelRelease::V5_10 | KernelRelease::V5_15 => 0,
            KernelRelease::Newest => RELAXED_ORDERING,
        };
        let allowed = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | relaxed;
        let access = self.attrs.flags(attr::UMEM_ACCESS, allowed)?;
        let address = self.attrs.data(attr::UMEM_ADDR)?;
        let length = self.attrs.data(attr::UMEM_LEN)?;
        if access & REMOTE_WRITE != 0 && access & LOCAL_WRITE == 0 {
            let words =
                format!("access {access:#x} has REMOTE_WRITE (0x2) and not LOCAL_WRITE (0x1)");
            return Err(refused(Errno::EINVAL, words));
        }
        if self.attrs.has(attr::UMEM_DMABUF_FD) {
            let fd = self.attrs.data(attr::UMEM_DMABUF_FD)? as i32;
            return Err(dmabuf(self.attrs.client, address, length, fd));
        }
        let writable = access & (LOCAL_WRITE | REMOTE_WRITE) != 0;
        let pinned = Pinned::new((self.client, self.file.kernel.page), address, length, writable)?;
        self.create_umem(uid, address, length, writable, pinned)
    }

    fn create_umem(
        &mut self,
        uid: u16,
        address: u64,
        length: u64,
        writable: bool,
        pinned: Pinned,
    ) -> Result<Object, Errno> {
        let bitmap = match self.attrs.data(attr::UMEM_PGSZ_BITMAP) {
            Ok(bitmap) => bitmap,
            Err(_) => !(PAGE - 1),
        };
        let (release, page) = (self.file.kernel.release, self.file.kernel.page);
        let mapped = self.file.kernel.function.iommu();
        let mapped = mapped.map(self.attrs.client.dma_address(address), length, page.bytes());
        let mapped = mapped.ok_or_else(|| {
            let words = format!("no bus addresses are free for {length} bytes");
            refused(Errno::ENOMEM, words)
        })?;
        let start = mapped.bus_address();
        // Pages of the kernel that are not adjacent.
        let most = if mapped.is_fragmented() { 2 * page.bytes() - 1 } else { u64::MAX };
        let bitmap = bitmap & most & release.smallest_umem_page(page).wrapping_neg();
        // `devx_umem_find_best_pgsize` returns 32 bits: a larger page size becomes 0.
        let size = match release {
            KernelRelease::V5_10 if mapped.is_fragmented() => Some(page.bytes()),
            KernelRelease::V5_10 => Some(page_size_of_address(address, start, length, page)),
            KernelRelease::V5_15 | KernelRelease::Newest => {
                best_page_size(start, length, bitmap, page).filter(|&size| size <= u32::MAX.into())
            }
        };
        let size = size.ok_or_else(|| {
            let words = format!(
                "no page size of pgsz_bitmap {bitmap:#x} suits {length:#x} bytes at bus address \
                 {start:#x}"
            );
            refused(Errno::EINVAL, words)
        })?;
        let pages = pages_of(start, length, size);
        let listed = ListedPages::of(pages, self.attrs.client);
        let input = listed.and_then(|listed| create_umem(uid, (start, size), listed, writable));
        let input = input.ok_or_else(|| {
            let words = format!(
                "a list of {pages} pages of {size:#x} bytes does not fit: all lists in progress \
                 have at most {MAX_PAGES} entries, and others did not end in time"
            );
            refused(Errno::ENOMEM, words)
        })?;
        let mut output = [0; 16];
        self.file.kernel.exec(&input.input, &mut output)?;
        drop(input);
        let number = NUMBER.get(&output);
        let mut destroy = inbox(Opcode::DESTROY_UMEM, 0, uid, 16);
        NUMBER.set(&mut destroy, number);
        let umem = Object::Umem { destroy, _mapped: mapped, _pinned: pinned };
        match self.attrs.put(attr::UMEM_OUT_ID, &number.to_ne_bytes()) {
            Ok(()) => Ok(umem),
            Err(errno) => Err(self.abort(umem, Vec::new(), errno)),
        }
    }
}

/// The errno for a dmabuf: the model cannot import one.
fn dmabuf(client: &dyn Client, offset: u64, length: u64, fd: i32) -> Errno {
    use std::os::fd::AsRawFd;
    if offset.checked_add(length).is_none() {
        return refused(Errno::EINVAL, "offset and length of the dmabuf go past 2^64");
    }
    let ours = match client.borrow(fd) {
        Ok(ours) => ours,
        Err(errno) => return no_descriptor(errno, fd),
    };
    match std::fs::read_link(format!("/proc/self/fd/{}", ours.as_raw_fd())) {
        Ok(target) if target.to_string_lossy().starts_with("/dmabuf:") => {
            refused(Errno::EOPNOTSUPP, "regions of a dmabuf are not modelled")
        }
        _ => refused(Errno::EINVAL, "the descriptor is not a dmabuf"),
    }
}

/// The largest page size in `bitmap` for a contiguous range at `start`, whose pages of the kernel
/// have the size `page`. `None`: none fits.
pub(super) fn best_page_size(
    start: u64,
    length: u64,
    bitmap: u64,
    page: SystemPage,
) -> Option<u64> {
    let ahead = length.checked_sub(1)?;
    start.checked_add(ahead)?;
    let log_length = u64::BITS - ahead.leading_zeros();
    let top = log_length.max(page.bytes().trailing_zeros()).min(63);
    let bitmap = bitmap & !(PAGE - 1) & (u64::MAX >> (63 - top));
    if bitmap == 0 {
        return None;
    }
    // Every remaining size is at most the range, rounded up, or a page of the kernel.
    let mut size = 1 << (63 - bitmap.leading_zeros());
    // A page larger than the CPU's must not exceed the range.
    while (!start.is_multiple_of(size) || !length.is_multiple_of(size)) && size > page.bytes() {
        size /= 2;
    }
    Some(size)
}

/// The page size of Linux 5.10 for a contiguous range (`mlx5_ib_cont_pages`): at most 2 GiB, the
/// alignments of address and bus address, and the number of pages, rounded up.
fn page_size_of_address(address: u64, start: u64, length: u64, page: SystemPage) -> u64 {
    let bytes = page.bytes();
    let pages = pages_of(start, length, bytes).max(1).next_power_of_two();
    let most = 31 - bytes.trailing_zeros();
    let aligned = |it: u64| (it / bytes).trailing_zeros().min(most);
    bytes << aligned(address).min(aligned(start)).min(pages.trailing_zeros())
}

/// A CREATE_UMEM command, counted against the bound.
#[derive(Debug)]
struct CreateUmem {
    input: Vec<u8>,
    _pages: ListedPages,
}

/// Number of pages of `size` bytes in a range.
fn pages_of(start: u64, length: u64, size: u64) -> u64 {
    let first = start & !(size - 1);
    (start + length).next_multiple_of(size).wrapping_sub(first) / size
}

/// Builds CREATE_UMEM, with one entry per page of `size` bytes. `None`: allocation failed.
fn create_umem(
    uid: u16,
    (start, size): (u64, u64),
    listed: ListedPages,
    writable: bool,
) -> Option<CreateUmem> {
    let (first, count) = (start & !(size - 1), listed.count);
    let pages = count as u64;
    let mut whole = CreateUmem { input: Vec::new(), _pages: listed };
    let mut command = CreateUmemIn::zeroed();
    command.set_opcode(Opcode::CREATE_UMEM.0).set_uid(uid);
    let umem = command.umem_mut();
    umem.set_log_page_size((size.trailing_zeros() - PAGE.trailing_zeros()) as u8);
    umem.set_page_offset((start - first) as u32).set_num_of_mtt(pages);
    let input = &mut whole.input;
    let bytes = command.as_bytes();
    input.try_reserve_exact(bytes.len() + count * 8).ok()?;
    input.extend_from_slice(bytes);
    let access = if writable { MTT_READ + MTT_WRITE } else { MTT_READ };
    for page in 0..pages {
        input.extend_from_slice(&(first + page * size + access).to_be_bytes());
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::super::client::OwnProcess;
    use super::*;
    use crate::mailbox::Field;

    const ANY: u64 = !0xfff;

    fn page(kibibytes: u32) -> SystemPage {
        SystemPage::new(kibibytes).expect("a size that a kernel has")
    }

    /// The command for a range.
    fn listed(start: u64, length: u64, size: u64, writable: bool) -> Option<CreateUmem> {
        let listed = ListedPages::of(pages_of(start, length, size), &OwnProcess::default())?;
        create_umem(7, (start, size), listed, writable)
    }

    #[test]
    fn page_lists_have_a_bound() {
        let most = (MAX_PAGES as u64) << 12;
        assert!(listed(0, 16 << 40, 0x1000, true).is_none(), "16 TiB");
        assert!(listed(0, most + 0x1000, 0x1000, true).is_none());
    }

    #[test]
    fn best_page_size_follows_bitmap_address_and_length() {
        let cases = [
            (0x10000, 0x1000, ANY, Some(0x1000)),
            (0x10000, 0x10000, ANY, Some(0x10000)),
            (0x11000, 0x10000, ANY, Some(0x1000)),
            (0x10000, 0x18000, ANY, Some(0x8000)),
            (0x10000, 0x10000, 0x1000, Some(0x1000)),
            (0x10000, 0x10000, 0x3000, Some(0x2000)),
            (0x10040, 8, ANY, Some(0x1000)),
            (0x20_0000, 0x40_0000, 0x20_0000, Some(0x20_0000)),
            (0x10000, 0x1000, 0x2000, None),
            (0x10000, 0x1000, 0xfff, None),
            (0x10000, 0, ANY, None),
            (0x10000, 0x1000, 0, None),
        ];
        for (start, length, bitmap, expected) in cases {
            let got = best_page_size(start, length, bitmap, page(4));
            assert_eq!(got, expected, "{start:#x}+{length:#x} of {bitmap:#x}");
        }
    }

    #[test]
    fn best_page_size_on_pages_of_64_kib_is_any_up_to_one() {
        for (start, length, bitmap, expected) in [
            (0x10000, 0x1000, ANY, Some(0x1_0000)),
            (0x13000, 0x1000, ANY, Some(0x1_0000)),
            (0x13000, 0x1000, 0x1000, Some(0x1000)),
            (0x13008, 0x3_0000, 0x7000, Some(0x4000)),
            (0x20000, 0x2_0000, ANY, Some(0x2_0000)),
            (0x20000, 0x2_1000, ANY, Some(0x1_0000)),
            (0x10000, 0x1000, 0x2_0000, None),
        ] {
            let got = best_page_size(start, length, bitmap, page(64));
            assert_eq!(got, expected, "{start:#x}+{length:#x} of {bitmap:#x}");
        }
    }

    #[test]
    fn page_size_of_linux_5_10_follows_address() {
        for (address, start, length, expected) in [
            (0x1000, 0x10_0000, 0x1_0000, 0x1000),
            (0x2000, 0x10_0000, 0x1_0000, 0x2000),
            (0x2008, 0x10_0008, 0x1_0000, 0x2000),
            (0x10_0000, 0x2000, 0x1_0000, 0x2000),
            (0x10_0000, 0x10_0000, 0x3000, 0x4000),
            (0x10_0000, 0x10_0000, 0x1000, 0x1000),
            (1 << 40, 1 << 40, 1 << 40, 1 << 31),
        ] {
            let got = page_size_of_address(address, start, length, page(4));
            assert_eq!(got, expected, "{length:#x} bytes at {address:#x}, bus {start:#x}");
        }
        for (address, start, length, expected) in [
            (0x1000, 0x10_1000, 0x1000, 0x1_0000),
            (0x2_0000, 0x10_0000, 0x1_0000, 0x1_0000),
            (0x2_0000, 0x10_0000, 0x1_0001, 0x2_0000),
            (1 << 40, 1 << 40, 1 << 40, 1 << 31),
        ] {
            let got = page_size_of_address(address, start, length, page(64));
            assert_eq!(got, expected, "{length:#x} bytes at {address:#x}, bus {start:#x}");
        }
    }

    #[test]
    fn create_umem_lists_pages_with_rights() {
        let input = listed(0x7fff_0000_1040, 0x2000, 0x1000, true).expect("a list");
        let input = &input.input;
        assert_eq!(input.len(), 0x30 + 3 * 8);
        assert_eq!(input[..4], [0x0a, 0x08, 0, 7]);
        assert_eq!(input[0x20..0x30], [0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(input[0x30..0x38], 0x7fff_0000_1003u64.to_be_bytes());
        assert_eq!(input[0x40..0x48], 0x7fff_0000_3003u64.to_be_bytes());
        let read_only = listed(0x10000, 0x10000, 0x10000, false).expect("a list");
        let read_only = &read_only.input;
        assert_eq!(read_only[0x30..], 0x10001u64.to_be_bytes());
        assert_eq!(Field(0x20, 4, 0).get(read_only), 4);
    }
}
