//! Memory regions: REG_MR, REREG_MR, DEREG_MR, and the query of a process that imports a region.
//!
//! Linux registers by UMR if the device allows it, else by CREATE_MKEY with the page list; the mkey
//! is the same. This kernel uses CREATE_MKEY. A region that moves gets another mkey, as in Linux
//! when UMR cannot make the change. A change of access flags or PD keeps the mkey.

use nix::errno::Errno;
use verbless_prm::{CreateMkeyIn, CreateMkeyOut, HcaCap, MkeyAccessMode, MkeyContext, Opcode};

use super::super::abi::{attr, object};
use super::super::file::Method;
use super::super::handles::Object;
use super::super::mailbox::{NUMBER, inbox};
use super::super::page_lists::ListedPages;
use super::super::pages::SystemPage;
use super::super::pinned::Pinned;
use super::super::refused::refused;
use super::super::uapi::{UverbsRequest, UverbsResponse};
use super::super::umem::best_page_size;
use super::memory::append_list;
use super::objects::{Mr, RegionRange, Verbs};

/// `ib_access_flags`.
mod access {
    pub(super) const LOCAL_WRITE: u32 = 1;
    pub(super) const REMOTE_WRITE: u32 = 1 << 1;
    pub(super) const REMOTE_READ: u32 = 1 << 2;
    pub(super) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(super) const MW_BIND: u32 = 1 << 4;
    pub(super) const ON_DEMAND: u32 = 1 << 6;
    pub(super) const RELAXED_ORDERING: u32 = 1 << 20;
    /// Flags that the kernel knows, and optional flags that it may ignore.
    pub(super) const KNOWN: u32 = 0x1ff;
    pub(super) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// `ib_mr_rereg_flags`: which attributes of a region change.
mod rereg {
    pub(super) const TRANSLATION: u32 = 1;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const ACCESS: u32 = 1 << 2;
    pub(super) const KNOWN: u32 = 7;
}

impl RegionRange {
    /// Reads three consecutive numbers of a request.
    fn read(request: &UverbsRequest, at: usize, page: SystemPage) -> Result<Self, Errno> {
        let range = Self {
            start: request.u64(at),
            length: request.u64(at + 8),
            virtual_address: request.u64(at + 16),
        };
        if range.start % page.bytes() == range.virtual_address % page.bytes() {
            Ok(range)
        } else {
            let words = format!(
                "address {:#x} and iova {:#x} have different page offsets",
                range.start, range.virtual_address
            );
            Err(refused(Errno::EINVAL, words))
        }
    }

    /// Bytes to pin. A range of 0 bytes inside a page pins that page; at the start of a page it
    /// pins none and is refused (Linux `ib_umem_num_pages`). Newer Linux also refuses the former
    /// (`ib_umem_find_best_pgsz`, by an overflow check).
    fn bytes(&self, page: SystemPage) -> u64 {
        if self.start.is_multiple_of(page.bytes()) { self.length } else { self.length.max(1) }
    }
}

/// Refuses invalid combinations of access flags, and access flags that the device does not offer.
fn check_access_flags(access_flags: u32) -> Result<(), Errno> {
    let unknown = access_flags & !(access::KNOWN | access::OPTIONAL);
    if unknown != 0 {
        let words = format!("access flags have bits {unknown:#x}, which Linux does not know");
        return Err(refused(Errno::EINVAL, words));
    }
    if access_flags & (access::REMOTE_ATOMIC | access::REMOTE_WRITE) != 0
        && access_flags & access::LOCAL_WRITE == 0
    {
        let words = format!(
            "access {access_flags:#x} lets peers write and not the device: \
             IBV_ACCESS_LOCAL_WRITE is missing"
        );
        return Err(refused(Errno::EINVAL, words));
    }
    if access_flags & access::ON_DEMAND != 0 {
        return Err(refused(Errno::EOPNOTSUPP, "on-demand paging is not modelled"));
    }
    Ok(())
}

/// The access flags of a key.
fn set_access_flags(key: &mut MkeyContext, caps: &HcaCap, access_flags: u32) {
    let has = |flag: u32| access_flags & flag != 0;
    key.set_a(has(access::REMOTE_ATOMIC)).set_rw(has(access::REMOTE_WRITE));
    key.set_rr(has(access::REMOTE_READ)).set_lw(has(access::LOCAL_WRITE)).set_lr(true);
    if has(access::RELAXED_ORDERING) {
        key.set_relaxed_ordering_write(caps.relaxed_ordering_write());
        key.set_relaxed_ordering_read(caps.relaxed_ordering_read());
    }
}

/// Whether the device may write a region with these access flags.
fn is_writable(access_flags: u32) -> bool {
    let writing =
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::MW_BIND;
    access_flags & writing != 0
}

/// The largest page size of a key: 2 GiB.
const LARGEST_PAGE: u64 = 1 << 31;

impl Method<'_> {
    pub(crate) fn reg_mr(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let range = RegionRange::read(request, 8, self.file.kernel.page)?;
        self.state.context()?;
        let access_flags = request.u32(36);
        check_access_flags(access_flags)?;
        let pd = self.state.lookup(request.u32(32).into(), object::PD)?;
        let Some(&Object::Pd { pdn }) = self.state.object(pd) else { return Err(Errno::EINVAL) };
        let handle = self.state.free_handle()?;
        let writable = is_writable(access_flags);
        let page = self.file.kernel.page;
        let pinned = Pinned::new((self.client, page), range.start, range.bytes(page), writable)?;
        let mr = self.make_region(pdn, access_flags, range, pinned, writable)?;
        let mut reply = UverbsResponse::default();
        reply.u32(handle).u32(mr.key).u32(mr.key);
        let (object, uses) = (Object::Verbs(Verbs::Mr(mr)), vec![pd]);
        if let Err(errno) = self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes()) {
            return Err(self.abort(object, uses, errno));
        }
        self.state.insert_using(handle, object, uses);
        Ok(())
    }

    /// Changes the range, access flags or PD of a region; its handle stays.
    pub(crate) fn rereg_mr(&mut self, request: &UverbsRequest) -> Result<(), Errno> {
        let changes = request.u32(12);
        if changes == 0 {
            return Err(refused(Errno::EINVAL, "no flag selects a change of the region"));
        }
        if changes & !rereg::KNOWN != 0 {
            let words = format!("flags {changes:#x} have bits beyond {:#x}", rereg::KNOWN);
            return Err(refused(Errno::EOPNOTSUPP, words));
        }
        let changes = |part: u32| changes & part != 0;
        let moved = changes(rereg::TRANSLATION)
            .then(|| RegionRange::read(request, 16, self.file.kernel.page))
            .transpose()?;
        let handle = self.state.lookup(request.u32(8).into(), object::MR)?;
        let new_access_flags = changes(rereg::ACCESS).then(|| request.u32(44));
        if let Some(access_flags) = new_access_flags {
            check_access_flags(access_flags)?;
        }
        let pd = match changes(rereg::PD) {
            true => self.state.lookup(request.u32(40).into(), object::PD)?,
            false => *self.state.uses(handle).first().ok_or(Errno::EINVAL)?,
        };
        let Some(&Object::Pd { pdn }) = self.state.object(pd) else { return Err(Errno::EINVAL) };
        let Some(Object::Verbs(Verbs::Mr(old))) = self.state.object(handle) else {
            return Err(Errno::EINVAL);
        };
        let access_flags = new_access_flags.unwrap_or(old.access_flags);
        let end = old.destroy.clone();
        let Some(range) = moved else {
            // A region pinned for reading stays read-only.
            if is_writable(access_flags) && !old.writable {
                let words = "the region's memory is pinned for reading: register it anew to write";
                return Err(refused(Errno::EACCES, words));
            }
            let key = old.key;
            return self.reconfigure(handle, key, pd, pdn, access_flags);
        };
        let writable = is_writable(access_flags);
        let page = self.file.kernel.page;
        let pinned = Pinned::new((self.client, page), range.start, range.bytes(page), writable)?;
        let mr = self.make_region(pdn, access_flags, range, pinned, writable)?;
        if let Err(errno) = self.file.kernel.exec(&end, &mut [0; 16]) {
            return Err(self.abort(Object::Verbs(Verbs::Mr(mr)), vec![pd], errno));
        }
        let mut reply = UverbsResponse::default();
        reply.u32(mr.key).u32(mr.key);
        if let Some(object) = self.state.object_mut(handle) {
            *object = Object::Verbs(Verbs::Mr(mr));
        }
        self.state.replace_uses(handle, vec![pd]);
        self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes())
    }

    /// Changes the PD and access flags of a region; range and mkey stay the same.
    fn reconfigure(
        &mut self,
        handle: u32,
        key: u32,
        pd: u32,
        pdn: u32,
        access_flags: u32,
    ) -> Result<(), Errno> {
        let kernel = &self.file.kernel;
        let mut change = MkeyContext::default();
        set_access_flags(&mut change, &kernel.caps, access_flags);
        change.set_pd(pdn);
        if !kernel.function.is_alive() {
            return Err(refused(Errno::EIO, "no UMR is posted to a dead device"));
        }
        if !kernel.function.reconfigure_key(key >> 8, &change) {
            return Err(refused(Errno::EOPNOTSUPP, "UMR may not change this region's key"));
        }
        if let Some(Object::Verbs(Verbs::Mr(mr))) = self.state.object_mut(handle) {
            mr.access_flags = access_flags;
        }
        self.state.replace_uses(handle, vec![pd]);
        let mut reply = UverbsResponse::default();
        reply.u32(key).u32(key);
        self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes())
    }

    /// Returns a region's keys, length and address to a process that shares the file and imports
    /// the region.
    pub(crate) fn query_mr(&mut self) -> Result<(), Errno> {
        let handle = self.named.handle.ok_or(Errno::EINVAL)?;
        let Some(Object::Verbs(Verbs::Mr(mr))) = self.state.object(handle) else {
            return Err(Errno::EINVAL);
        };
        let (key, range) = (mr.key.to_ne_bytes(), mr.range);
        self.attrs.put(attr::QUERY_MR_LKEY, &key)?;
        self.attrs.put(attr::QUERY_MR_RKEY, &key)?;
        self.attrs.put(attr::QUERY_MR_LENGTH, &range.length.to_ne_bytes())?;
        let address = range.virtual_address.to_ne_bytes();
        self.attrs.put_if_present(attr::QUERY_MR_IOVA, &address)
    }

    fn make_region(
        &self,
        pdn: u32,
        access_flags: u32,
        range: RegionRange,
        pinned: Pinned,
        writable: bool,
    ) -> Result<Mr, Errno> {
        let RegionRange { start, length, virtual_address } = range;
        let (index, variant) =
            self.create_key(pdn, access_flags, start, length, virtual_address)?;
        let key = (index << 8) + u32::from(variant);
        let mut destroy = inbox(Opcode::DESTROY_MKEY, 0, 0, 16);
        NUMBER.set(&mut destroy, index);
        Ok(Mr { destroy, key, range, access_flags, _pinned: pinned, writable })
    }

    /// Creates an mkey over a range of the client's memory; returns its index and variant.
    fn create_key(
        &self,
        pdn: u32,
        access_flags: u32,
        start: u64,
        length: u64,
        virtual_address: u64,
    ) -> Result<(u32, u8), Errno> {
        let kernel = &self.file.kernel;
        let caps = &kernel.caps;
        let dma = self.client.dma_address(start);
        // The DMA address and the virtual address must have the same offset within a page.
        let common_bits = (dma ^ virtual_address).trailing_zeros().min(63);
        let page = kernel.page;
        // A kernel's own pages are the smallest that suit every release.
        let sizes = (2 * LARGEST_PAGE - page.bytes()) & (u64::MAX >> (63 - common_bits));
        // A range of 0 bytes inside a page maps that page.
        let size = best_page_size(dma, length.max(1), sizes, page).ok_or_else(|| {
            let words = format!(
                "no page size suits {length} bytes at {start:#x} with hca_va {virtual_address:#x}"
            );
            refused(Errno::EINVAL, words)
        })?;
        let first = dma & !(size - 1);
        let pages = (dma + length).next_multiple_of(size).wrapping_sub(first) / size;
        let present = u64::from(caps.pg()) * 3;
        let too_long = || {
            let words =
                format!("a list of {pages} pages of {size:#x} bytes is too long at the moment");
            refused(Errno::ENOMEM, words)
        };
        let _listed = ListedPages::of(pages, &**self.client).ok_or_else(too_long)?;
        let mut list = Vec::new();
        let bytes = (pages as usize * 8).next_multiple_of(16);
        list.try_reserve_exact(bytes).map_err(|_| too_long())?;
        for page in 0..pages {
            list.extend_from_slice(&(first + page * size + present).to_be_bytes());
        }
        list.resize(bytes, 0);
        let octwords = (list.len() / 16) as u32;
        let variant = kernel.next_key_variant();
        let mut input = CreateMkeyIn::new();
        input.set_pg_access(caps.pg()).set_translations_octword_actual_size(octwords);
        let key = input.memory_key_mkey_entry_mut();
        set_access_flags(key, caps, access_flags);
        key.set_pd(pdn).set_qpn(0xff_ffff).set_start_addr(virtual_address).set_len(length);
        key.set_access_mode_1_0(MkeyAccessMode::MTT.0).set_umr_en(true);
        key.set_translations_octword_size(octwords).set_log_page_size(size.trailing_zeros() as u8);
        key.set_mkey_7_0(variant);
        let mut output = CreateMkeyOut::default();
        kernel.exec(&append_list(input.as_bytes(), &list), output.as_bytes_mut())?;
        Ok((output.mkey_index(), variant))
    }
}

#[cfg(test)]
mod tests {
    use super::{access, is_writable};

    #[test]
    fn write_rights_make_mr_writable() {
        let writing =
            [access::LOCAL_WRITE, access::REMOTE_WRITE, access::REMOTE_ATOMIC, access::MW_BIND];
        for bit in 0..u32::BITS {
            let right = 1 << bit;
            assert_eq!(is_writable(right), writing.contains(&right), "{right:#x}");
        }
        assert!(!is_writable(0));
        assert!(is_writable(access::LOCAL_WRITE | access::REMOTE_READ));
    }
}
