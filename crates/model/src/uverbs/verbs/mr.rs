//! Memory regions: REG_MR and DEREG_MR.
//!
//! Linux registers through UMR where the device allows it, and by CREATE_MKEY with the page list otherwise; the outcome
//! is the same key. This is the second way.

use nix::errno::Errno;
use verbless_prm::{CreateMkeyIn, CreateMkeyOut, MkeyAccessMode};
use zerocopy::IntoBytes;

use super::super::abi::{attr, object};
use super::super::client::PAGE;
use super::super::file::{Method, Object};
use super::super::mailbox::{NUMBER, inbox};
use super::super::refused::refused;
use super::super::rules::op;
use super::super::umem::{Pinned, best_page_size};
use super::memory::with_list;
use super::wire::{Core, Reply};

/// `ib_access_flags`.
mod access {
    pub(super) const LOCAL_WRITE: u32 = 1;
    pub(super) const REMOTE_WRITE: u32 = 1 << 1;
    pub(super) const REMOTE_READ: u32 = 1 << 2;
    pub(super) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(super) const MW_BIND: u32 = 1 << 4;
    pub(super) const ON_DEMAND: u32 = 1 << 6;
    pub(super) const RELAXED_ORDERING: u32 = 1 << 20;
    /// Flags that the kernel knows, and those that it may ignore.
    pub(super) const KNOWN: u32 = 0x1ff;
    pub(super) const OPTIONAL: u32 = 0x3ff0_0000;
}

/// A memory region.
#[derive(Debug)]
pub(in crate::uverbs) struct Mr {
    pub destroy: Vec<u8>,
    _pinned: Pinned,
}

/// Which page sizes a key may have: 4 KiB to 2 GiB.
const PAGE_SIZES: u64 = (1 << 32) - PAGE;

impl Method<'_> {
    pub(in crate::uverbs) fn reg_mr(&mut self, request: &Core) -> Result<(), Errno> {
        let (start, length, virtual_address) = (request.u64(8), request.u64(16), request.u64(24));
        let rights = request.u32(36);
        if start % PAGE != virtual_address % PAGE {
            return Err(Errno::EINVAL);
        }
        if rights & !(access::KNOWN | access::OPTIONAL) != 0
            || rights & (access::REMOTE_ATOMIC | access::REMOTE_WRITE) != 0
                && rights & access::LOCAL_WRITE == 0
        {
            return Err(Errno::EINVAL);
        }
        if rights & access::ON_DEMAND != 0 {
            return Err(refused(Errno::EOPNOTSUPP, "on-demand paging is not modelled"));
        }
        let pd = self.state.lookup(request.u32(32).into(), object::PD)?;
        let Some(&Object::Pd { pdn }) = self.state.object(pd) else { return Err(Errno::EINVAL) };
        let writable = rights
            & (access::LOCAL_WRITE
                | access::REMOTE_WRITE
                | access::REMOTE_ATOMIC
                | access::MW_BIND)
            != 0;
        let pinned = Pinned::new(self.client, start, length, writable)?;
        let (index, variant) = self.create_key(pdn, rights, start, length, virtual_address)?;
        let key = index << 8 | u32::from(variant);
        let mut destroy = inbox(op::DESTROY_MKEY, 0, 0, 16);
        NUMBER.set(&mut destroy, index);
        let handle = self.state.free_handle();
        let mut reply = Reply::default();
        reply.u32(handle).u32(key).u32(key);
        if let Err(errno) = self.attrs.put_or_zero(attr::CORE_OUT, reply.as_bytes()) {
            let _ = self.file.kernel.exec(&destroy, &mut [0; 16]);
            return Err(errno);
        }
        self.state.insert_using(handle, Object::Mr(Mr { destroy, _pinned: pinned }), vec![pd]);
        Ok(())
    }

    /// A key over a range of the client's memory: its index and its variant.
    fn create_key(
        &self,
        pdn: u32,
        rights: u32,
        start: u64,
        length: u64,
        virtual_address: u64,
    ) -> Result<(u32, u8), Errno> {
        let kernel = &self.file.kernel;
        let caps = &kernel.caps;
        let dma = self.client.dma_address(start);
        // Both the memory and what it is called begin at the same place of a page.
        let alike = (dma ^ virtual_address).trailing_zeros().min(63);
        let sizes = PAGE_SIZES & (u64::MAX >> (63 - alike));
        let size = best_page_size(dma, length, sizes).ok_or(Errno::EINVAL)?;
        let first = dma & !(size - 1);
        let pages = (dma + length).next_multiple_of(size).wrapping_sub(first) / size;
        let present = u64::from(caps.pg()) * 3;
        let mut list: Vec<u8> =
            (0..pages).flat_map(|page| ((first + page * size) | present).to_be_bytes()).collect();
        list.resize(list.len().next_multiple_of(16), 0);
        let octwords = (list.len() / 16) as u32;
        let has = |right: u32| rights & right != 0;
        let variant = kernel.next_key_variant();
        let mut input = CreateMkeyIn::new();
        input.set_pg_access(caps.pg()).set_translations_octword_actual_size(octwords);
        let key = input.memory_key_mkey_entry_mut();
        key.set_a(has(access::REMOTE_ATOMIC)).set_rw(has(access::REMOTE_WRITE));
        key.set_rr(has(access::REMOTE_READ)).set_lw(has(access::LOCAL_WRITE)).set_lr(true);
        if has(access::RELAXED_ORDERING) {
            key.set_relaxed_ordering_write(caps.relaxed_ordering_write());
            key.set_relaxed_ordering_read(caps.relaxed_ordering_read());
        }
        key.set_pd(pdn).set_qpn(0xff_ffff).set_start_addr(virtual_address).set_len(length);
        key.set_access_mode_1_0(MkeyAccessMode::MTT.0).set_umr_en(true);
        key.set_translations_octword_size(octwords).set_log_page_size(size.trailing_zeros() as u8);
        key.set_mkey_7_0(variant);
        let mut output = CreateMkeyOut::default();
        kernel.exec(&with_list(input.as_bytes(), &list), output.as_mut_bytes())?;
        Ok((output.mkey_index(), variant))
    }
}
