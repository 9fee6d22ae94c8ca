//! UMR: requests that change memory keys.
//!
//! A key that UMR may change has room for KLMs, ranges of memory under other keys. [`Umr::map`]
//! sets them, [`Umr::access_flags`] sets access flags, and
//! [`LocalInvalidate`](super::LocalInvalidate) invalidates the key until it is mapped again. The
//! next request waits for the change, and a [`Umr`] waits as its device requires ([`UmrRules`]):
//! the queue adds these fences itself, as rdma-core and Linux do.
//!
//! [`UmrRules`]: super::UmrRules
//!
//! The device must let UMR change indirect keys ([`Capability::Umr`]);
//! [`LocalInvalidate`](super::LocalInvalidate) needs no capability. Changing the atomic access flag
//! is a separate capability ([`Capability::UmrAtomic`]): without it, requests keep that flag, and
//! posting refuses one that gives it. No request here changes the entity size of a key, so
//! `umr_modify_entity_size_disabled` does not matter. Linux checks the same (`umr_check_mkey_mask`
//! and `get_umr_update_access_mask` in `umr.c` of mlx5_ib).

use verbless_prm::hot::{DataSegment, OCTOWORD, UmrCtrlSegment, WQEBB};
use verbless_prm::{Klm, MkeyContext, UmrMkeyMask};
use zerocopy::transmute;

use super::capability::Capability;
use super::declare::options;
use super::encode::{Encode, Fence, Limits, Options, PostError, UmrRules};
use super::segment::{Segment, data_segment};
use crate::ring::Wqe;
use crate::types::{Rkey, Sge};
use verbless_prm::access::KeyAccess;

/// The ds of a request before its list: control, UMR control and key.
const HEAD: u32 = UmrRules::HEAD_DS;
/// The number of entries in a list is a multiple of this.
const GRANULE: usize = UmrRules::LIST_GRANULE;
/// A list in memory begins at a multiple of this number of bytes.
const LIST_ALIGNMENT: u64 = 2048;

/// Any queue pair may use the key.
const ANY_QP: u32 = 0xff_ffff;
/// The access flags that a request sets or clears, besides atomics. Local reads are always allowed.
const ACCESS_FLAGS: u64 = UmrMkeyMask::LW.0 | UmrMkeyMask::RR.0 | UmrMkeyMask::RW.0;

/// A change of a memory key that UMR may change.
#[derive(Clone, Copy, Debug)]
pub struct Umr<'a> {
    key: Rkey,
    access: KeyAccess,
    list: KlmSource<'a>,
    start: u64,
    options: Options,
}
options!(impl () Umr<'_>);

/// The KLMs of a UMR.
#[derive(Clone, Copy, Debug)]
enum KlmSource<'a> {
    /// The key keeps its KLMs.
    Unchanged,
    /// KLMs in the WQE itself.
    Inline(&'a [Sge]),
    /// A list in registered memory, with entries as [`Umr::entry`] makes them.
    Memory { list: Sge, length: u64 },
}

impl<'a> Umr<'a> {
    /// Maximum KLMs of a list in the request itself, if the device's longest WQE has 960 bytes or
    /// more.
    pub const MAX_INLINE: usize = UmrRules::MAX_INLINE_KLMS;
    /// Bytes of an entry of a list in memory.
    pub const ENTRY_BYTES: usize = OCTOWORD;

    /// Maps the key to the KLMs, one after the other, as one range that begins at address 0. The
    /// key's low byte becomes that of `key`; keys with an earlier low byte no longer work.
    ///
    /// `access` must have `local_write` if it has remote writes or atomics; otherwise posting
    /// refuses it ([`PostError::UmrAccess`]).
    ///
    /// The device checks the KLMs' own keys when the key is used. A write needs their local write
    /// flag; their remote flags are apparently not checked (Linux maps keys with remote access over
    /// the local DMA key of its protection domain: `mlx5/mr.c`).
    #[inline]
    pub const fn map(key: Rkey, access: KeyAccess, klms: &'a [Sge]) -> Self {
        Self { key, access, list: KlmSource::Inline(klms), start: 0, options: Options::NONE }
    }

    /// Like [`Umr::map`], with the KLMs in memory: `list` holds an [`Umr::entry`] for each, a
    /// multiple of four entries, the last ones empty. It begins at a multiple of 2048; `length` is
    /// the total length of all KLMs.
    #[inline]
    pub const fn map_from(key: Rkey, access: KeyAccess, list: Sge, length: u64) -> Self {
        let list = KlmSource::Memory { list, length };
        Self { key, access, list, start: 0, options: Options::NONE }
    }

    /// Changes the access flags of the key. Relaxed ordering does not change.
    #[inline]
    pub const fn access_flags(key: Rkey, access: KeyAccess) -> Self {
        Self { key, access, list: KlmSource::Unchanged, start: 0, options: Options::NONE }
    }

    /// Sets the address at which the range begins, 0 by default.
    #[inline]
    pub const fn starting_at(mut self, address: u64) -> Self {
        self.start = address;
        self
    }

    /// An entry of a list in memory.
    pub fn entry(klm: &Sge) -> [u8; OCTOWORD] {
        transmute!(DataSegment::new(klm.length, klm.lkey.0, klm.address))
    }

    /// The number of list entries, rounded up, and the bytes of the KLMs.
    #[inline]
    fn extent(&self) -> (u64, u64) {
        match self.list {
            KlmSource::Unchanged => (0, 0),
            KlmSource::Inline(klms) => {
                let length = klms.iter().map(|klm| u64::from(klm.length)).sum();
                (klms.len().next_multiple_of(GRANULE) as u64, length)
            }
            KlmSource::Memory { list, length } => {
                (u64::from(list.length) / OCTOWORD as u64, length)
            }
        }
    }
}

impl Encode for Umr<'_> {
    const DS: u32 = HEAD;
    const CHANGES_MKEY: bool = true;

    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        let KeyAccess { local_write, remote, .. } = self.access;
        if (remote.write || remote.atomic) && !local_write {
            return Err(PostError::UmrAccess);
        }
        if remote.atomic {
            if !limits.has(Capability::UmrAtomic) {
                return Err(PostError::UmrAtomicAccess);
            }
            let unit = u64::from(limits.umr.max_atomic_bytes);
            if (self.start | self.extent().1) & (unit - 1) != 0 {
                return Err(PostError::AtomicRange);
            }
        }
        match self.list {
            KlmSource::Unchanged => Ok(HEAD),
            KlmSource::Inline(klms) if klms.len() <= limits.umr.max_klms => {
                // A device's reading of an empty KLM is not public: in a data segment, 0 is 2 GiB.
                match klms.iter().any(|klm| klm.length.wrapping_sub(1) >= Klm::MAX_BYTES) {
                    true => Err(PostError::KlmLength),
                    false => Ok(HEAD + klms.len().next_multiple_of(GRANULE) as u32),
                }
            }
            KlmSource::Inline(_) => Err(PostError::TooManyKlms),
            KlmSource::Memory { list, .. } => {
                let bytes = u64::from(list.length);
                let whole = list.address % LIST_ALIGNMENT == 0 && bytes % WQEBB as u64 == 0;
                match whole && bytes / OCTOWORD as u64 <= u64::from(u16::MAX) {
                    true => Ok(HEAD + 1),
                    false => Err(PostError::BadKlmList),
                }
            }
        }
    }

    /// The WQE has the layout that libmlx5 builds for mlx5dv_wr_mr_list, plus the start address.
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn write(&self, wqe: &Wqe<'_>, at: usize, limits: &Limits) {
        let (entries, length) = self.extent();
        let mut umr = UmrCtrlSegment::zeroed();
        umr.set_xlt_octowords(entries as u16);
        let mut mask = ACCESS_FLAGS;
        if limits.has(Capability::UmrAtomic) {
            mask |= UmrMkeyMask::A.0;
        }
        let mut mkey = MkeyContext::zeroed();
        let remote = self.access.remote;
        mkey.set_lw(self.access.local_write).set_rr(remote.read).set_rw(remote.write);
        mkey.set_a(remote.atomic).set_qpn(ANY_QP).set_mkey_7_0(self.key.0 as u8);
        match self.list {
            KlmSource::Unchanged => {}
            _ => {
                mask |= UmrMkeyMask::FREE.0 | UmrMkeyMask::KEY.0;
                mask |= UmrMkeyMask::LEN.0 | UmrMkeyMask::START_ADDR.0;
                mkey.set_start_addr(self.start).set_len(length);
            }
        }
        if !matches!(self.list, KlmSource::Memory { .. }) {
            umr.set_inline(true);
        }
        umr.set_mkey_mask(mask);
        write_head(wqe, at, umr, mkey);
        let at = at + HEAD as usize - 1;
        match self.list {
            KlmSource::Unchanged => {}
            KlmSource::Inline(klms) => {
                for (i, klm) in klms.iter().enumerate() {
                    wqe.store(at + i, data_segment(klm));
                }
                for i in klms.len()..entries as usize {
                    wqe.store(at + i, [0; 2]);
                }
            }
            KlmSource::Memory { list, .. } => wqe.store(at, data_segment(&list)),
        }
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn options(&self) -> Options {
        self.options
    }

    #[inline(always)]
    fn ctrl_imm(&self) -> u32 {
        self.key.0
    }
}

/// A UMR that frees the key: rdma-core sends these flags, mkey mask and fields for
/// IBV_WR_LOCAL_INV.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalInv;

impl Segment for LocalInv {
    const DS: u32 = HEAD - 1;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        Ok(Self::DS)
    }

    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        let mut umr = UmrCtrlSegment::zeroed();
        umr.set_inline(true).set_translation_offset_en(true).set_check_qpn(true);
        umr.set_mkey_mask(UmrMkeyMask::FREE.0 | UmrMkeyMask::QPN.0 | UmrMkeyMask::KEY.0);
        let mut mkey = MkeyContext::zeroed();
        mkey.set_free(true).set_qpn(ANY_QP);
        write_head(wqe, at, umr, mkey);
        at + Self::DS as usize
    }
}

/// Stores the UMR control segment and the key context, which follow the control segment of every
/// UMR.
#[inline(always)]
fn write_head(wqe: &Wqe<'_>, at: usize, umr: UmrCtrlSegment, mkey: MkeyContext) {
    let umr: [[u64; 2]; 3] = transmute!(umr);
    let mkey: [[u64; 2]; 4] = transmute!(mkey);
    for (i, segment) in umr.into_iter().chain(mkey).enumerate() {
        wqe.store(at + i, segment);
    }
}
