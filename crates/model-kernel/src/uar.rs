//! UAR pages: allocation, and the offsets at which a client maps them.
//!
//! An mmap offset counts pages: bits 15:8 are a command, bits 7:0 an index. Individually allocated
//! pages have commands from 9 on, and bits 23:16 are the high byte of their index. The pages of the
//! context and the clock page have other commands, with an 8-bit index: Linux's `get_index` ignores
//! all bits above, while `get_extended_index` and `mlx5_ib_mmap_offset` take the high byte.

use verbless_prm::Opcode;

use nix::errno::Errno;

use super::abi::attr;
use super::file::Method;
use super::handles::{Context, FileState, Object};
use super::pages::SystemPage;
use super::refused::refused;

const TYPE_BLUEFLAME: u64 = 0;
const TYPE_NON_CACHED: u64 = 1;
/// mmap commands: a page of the context, mapped any way, write-combined, or uncached.
const MMAP_REGULAR: u64 = 0;
const MMAP_WC: u64 = 2;
const MMAP_NC: u64 = 3;
const MMAP_CORE_CLOCK: u64 = 5;
const MMAP_CLOCK_INFO: u64 = 7;
/// Pages of a file that covers every command and 16-bit index.
const MMAP_PAGES: u64 = 1 << 24;

/// Bytes of a file that covers every mmap offset of a kernel with pages of this size.
pub fn mmap_span(page: SystemPage) -> u64 {
    MMAP_PAGES * page.bytes()
}

impl Method<'_> {
    pub(super) fn uar_alloc(&mut self) -> Result<Object, Errno> {
        let uid = self.file.kernel.uar_uid(self.state.context()?.uid);
        let kind = self.attrs.number(attr::UAR_TYPE, u32::MAX.into())?;
        if kind != TYPE_BLUEFLAME && kind != TYPE_NON_CACHED {
            let words = format!("UAR type {kind} is neither BF (0) nor NC (1)");
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let kernel = &self.file.kernel;
        if kind == TYPE_BLUEFLAME && !kernel.has_write_combining() {
            let words = "UAR type BF needs write combining, which Linux uses with capability bf";
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let full = || refused(Errno::ENOMEM, "the file has reached its limit of UARs");
        let mmap = self.state.mmap_numbers.0.lowest().ok_or_else(full)?;
        let mappings = self.file.charge_mappings()?;
        let (page, system) = (kernel.allocate(Opcode::ALLOC_UAR, uid)?, kernel.page);
        let offset = offset(mmap, system);
        let mut put = |id, bytes: &[u8]| self.attrs.put(id, bytes);
        let written = put(attr::UAR_MMAP_OFFSET, &offset.to_ne_bytes())
            .and_then(|()| put(attr::UAR_PAGE_ID, &page.to_ne_bytes()))
            .and_then(|()| put(attr::UAR_MMAP_LENGTH, &(system.bytes() as u32).to_ne_bytes()));
        if let Err(errno) = written {
            let _ = kernel.free(Opcode::DEALLOC_UAR, uid, page);
            return Err(errno);
        }
        if let Err(errno) = self.file.back(page, offset) {
            let _ = kernel.free(Opcode::DEALLOC_UAR, uid, page);
            return Err(errno);
        }
        self.state.mmap_numbers.0.allocate_this(mmap);
        self.state.mmaps.insert(mmap, page);
        Ok(Object::Uar { page, mmap, _mappings: mappings })
    }
}

/// The byte offset at which a client maps page `index` of the context's pages.
pub(super) fn static_offset(index: usize, page: SystemPage) -> u64 {
    ((MMAP_REGULAR << 8) + index as u64) * page.bytes()
}

/// The byte offset at which a client maps entry `mmap` (command << 16 | index).
fn offset(mmap: u32, page: SystemPage) -> u64 {
    let (command, index) = (u64::from(mmap >> 16), u64::from(mmap & 0xffff));
    (((index >> 8) << 16) + (command << 8) + (index & 0xff)) * page.bytes()
}

/// The command of an offset.
fn command(at: u64) -> u64 {
    at >> 8 & 0xff
}

/// The index of an offset, for commands whose index has 8 bits.
fn index(at: u64) -> u64 {
    at & 0xff
}

/// The index of an offset, for commands whose index has 16 bits.
fn extended_index(at: u64) -> u64 {
    index(at) + ((at >> 16 & 0xff) << 8)
}

/// Whether the offset is that of the clock page: version 1, index 0.
pub(super) fn is_clock(at: u64) -> bool {
    command(at) == MMAP_CLOCK_INFO && index(at) == 0
}

/// The UAR page that a client maps at page number `at` of its file.
pub(super) fn mapped_page(state: &FileState, context: &Context, at: u64) -> Result<u32, Errno> {
    match command(at) {
        MMAP_REGULAR | MMAP_WC | MMAP_NC => {
            let number = usize::try_from(index(at)).ok();
            let page = number.and_then(|number| context.static_uars.get(number));
            page.copied().ok_or(Errno::EINVAL)
        }
        1 => Err(Errno::ENOSYS),
        MMAP_CORE_CLOCK => Err(refused(Errno::EOPNOTSUPP, "the core clock page is not modelled")),
        // The clock page has one version, and it is not a doorbell page.
        MMAP_CLOCK_INFO => Err(Errno::EOPNOTSUPP),
        command => {
            let entry = (command << 16) + extended_index(at);
            let entry = u32::try_from(entry).map_err(|_| Errno::EINVAL)?;
            state.mmaps.get(&entry).copied().ok_or(Errno::EINVAL)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mmap_offset_resolves_to_uar_page() {
        let context = Context::for_tests(vec![70, 71]);
        let mut state = FileState::default();
        for (mmap, page) in [(0x9_0000, 5), (0x9_0001, 6), (0x9_0123, 7), (0xff_ffff, 8)] {
            state.mmaps.insert(mmap, page);
            for size in ["16k", "64k"].map(|size| size.parse::<SystemPage>().unwrap()) {
                let at = offset(mmap, size) / size.bytes();
                assert_eq!(mapped_page(&state, &context, at), Ok(page), "{size}");
            }
        }
        assert_eq!(offset(0x9_0001, "64k".parse().unwrap()), 0x901_0000);
        assert_eq!(mapped_page(&state, &context, 0x902), Err(Errno::EINVAL));
        assert_eq!(mapped_page(&state, &context, 0x001), Ok(71));
        assert_eq!(mapped_page(&state, &context, 0x301), Ok(71));
        assert_eq!(mapped_page(&state, &context, 0x302), Err(Errno::EINVAL));
        assert!(is_clock(0x700) && !is_clock(0x701));
        assert_eq!(mapped_page(&state, &context, 0x701), Err(Errno::EOPNOTSUPP));
        assert_eq!(mapped_page(&state, &context, 0x500), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn high_offset_byte_selects_allocated_uars_only() {
        let context = Context::for_tests(vec![70, 71]);
        let mut state = FileState::default();
        state.mmaps.insert(0x9_0001, 6);
        for (low, page) in [(0x001, 71), (0x201, 71), (0x300, 70)] {
            for high in [0, 0x1_0000, 0xff_0000, 0x100_0000] {
                assert_eq!(mapped_page(&state, &context, high | low), Ok(page), "{high:#x}");
            }
        }
        assert!(is_clock(0x1_0700) && is_clock(0xff_0700) && !is_clock(0x1_0701));
        assert_eq!(mapped_page(&state, &context, 0x1_0901), Err(Errno::EINVAL));
        assert_eq!(
            mapped_page(&state, &context, 0x100_0901),
            Ok(6),
            "bits from 24 on have no effect"
        );
    }
}
