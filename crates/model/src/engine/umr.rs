//! UMR: work requests that change an mkey's access flags, range and translation entries.
//!
//! A key that UMR may change (`umr_en`) keeps its translation entries as software wrote them. When
//! it becomes valid, the model builds the translation of the data path from them. The kernel's own
//! QP for this (REG_UMR) reaches keys of every domain; other QPs reach only keys of their own. Page
//! addresses are addresses of host memory, so only the kernel's queues may set them. Sources: Linux
//! `drivers/infiniband/hw/mlx5/{umr,wr}.c`, `include/linux/mlx5/device.h` (MLX5_UMR_*,
//! MLX5_MKEY_MASK_*).

use verbless_prm::hot::{CtrlSegment, OCTOWORD, cqe_syndrome};
use verbless_prm::{HcaCap, MkeyAccessMode, MkeyContext, UmrCheck, UmrCtrlSegment, UmrMkeyMask};

use super::completion;
use super::context::Context;
use super::gather;
use super::keys::{self, AccessRight, KeyUser, Keys, Range};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::sender::Turn;
use super::state::UnfencedKey;
use super::transfer;
use super::work::{PostedWqe, Segment, segments};
use crate::hca::budget::Budget;
use crate::hca::capability::Capabilities;
use crate::hca::klm;
use crate::hca::objects::{Access, Limits, Mkey, QpObject, QueueMemory, Translation};
use crate::memory::Spaces;

/// Offsets of the segments in the WQE.
const CONTROL: usize = CtrlSegment::BYTES;
const CONTEXT: usize = CONTROL + UmrCtrlSegment::BYTES;
const ENTRIES: usize = CONTEXT + MkeyContext::BYTES;
/// The number of octowords (16 bytes) of entries, and their offset in the list, are multiples of
/// this (Linux `mlx5r_umr_update_offset`, MLX5_IB_UMR_XLT_ALIGNMENT).
const GRANULE: u64 = 4;
/// Maximum number of octowords of translation entries that the model keeps of one key: enough MTTs
/// for 32 GiB in pages of 4 KiB.
const MAX_KEPT_OCTOWORDS: u64 = 1 << 22;
/// The translation of an absent page: no host has memory at so high an address.
const ABSENT: u64 = 1 << 63;
/// The bits of an entry that let the device read and write the page.
const PRESENT: u64 = 3;
/// Syndrome of a UMR that is malformed, or that this device does not support.
const MALFORMED: u8 = cqe_syndrome::LOCAL_QP_OPERATION;
/// Syndrome of a change that the key does not allow.
const REFUSED: u8 = cqe_syndrome::MEMORY_WINDOW_BIND;

/// Changes the key that a UMR names.
#[inline(never)]
pub(super) fn execute(pair: &mut QueuePair<'_>, posted: &PostedWqe, scratch: &mut Scratch) -> Turn {
    let requester = UmrRequester::of(pair.qpn, pair.qp);
    let number = posted.work.immediate >> 8;
    let request = posted.index.wrapping_add(posted.wqebbs);
    let followed = pair.qp.sq.as_ref().is_some_and(|sq| sq.producer != request);
    let before = followed.then(|| pair.context.mkeys.get(&number).cloned()).flatten();
    let done = change(&mut pair.context, &requester, posted.work.immediate, scratch);
    if let (Ok(()), Some(before)) = (done, before) {
        gather::keep_unfenced(pair, UnfencedKey { request, number, before });
    }
    completion::finish(pair, posted, done)
}

/// Changes a key as the UMR in `scratch.wqe` says; the error is the syndrome, and then the key has
/// not changed.
fn change(
    context: &mut Context<'_>,
    requester: &UmrRequester,
    key: u32,
    scratch: &mut Scratch,
) -> Result<(), u8> {
    let part = |at: usize| scratch.wqe.get(at..).unwrap_or_default();
    let control = *UmrCtrlSegment::from_prefix(part(CONTROL)).ok_or(MALFORMED)?;
    let new = *MkeyContext::from_prefix(part(CONTEXT)).ok_or(MALFORMED)?;
    let mkey = context.mkeys.get(&(key >> 8)).ok_or(REFUSED)?;
    let fields = ChangedFields::new(control.mkey_mask())?;
    let general = context.caps.general();
    requester.check(mkey, key, &control, &fields, &new, general)?;

    let entries = entries(general, mkey, &control, requester)?;
    if entries.is_some() && context.budget.is_full() {
        tracing::info!(
            qpn = requester.qpn,
            key,
            "the memory budget allows no more translation entries"
        );
        return Err(REFUSED);
    }
    let mut bytes = vec![0; entries.map_or(0, |(_, length)| length)];
    let mut wanted = mkey.context;
    fields.apply(&mut wanted, &new);
    let retranslates = !wanted.free() && (mkey.free || entries.is_some() || fields.moves());
    if retranslates && !is_valid_range(&wanted, context.caps) {
        return Err(REFUSED);
    }
    if !wanted.free() && !is_aligned_for_atomics(&wanted, context.caps.largest_atomic()) {
        tracing::info!(qpn = requester.qpn, key, "a key for atomics is not aligned to the largest");
        return Err(REFUSED);
    }
    if !bytes.is_empty() {
        read_entries(context.keys(), context.spaces, requester, &control, &mut bytes, scratch)?;
    }

    let mkey = context.mkeys.get_mut(&(key >> 8)).ok_or(REFUSED)?;
    if let Some(table) = &mkey.table {
        let part = control.translation_offset_en();
        let table = match entries {
            Some((at, _)) => context.budget.list(merged(table, at, part, &bytes)),
            None => table.clone(),
        };
        if retranslates {
            let new = translation(context.budget, &wanted, &table, context.limits);
            mkey.translation = new.ok_or(REFUSED)?;
        }
        mkey.table = Some(table);
    }
    update_from_context(mkey, wanted);
    Ok(())
}

/// The QP that requests the change.
pub(super) struct UmrRequester {
    qpn: u32,
    any_domain: bool,
    pd: u32,
    /// Whether the queue may set the pages of a key (`fre`): only the kernel's queues can.
    fast_registration: bool,
    reserved_lkey: bool,
}

impl UmrRequester {
    pub(super) fn of(qpn: u32, qp: &QpObject) -> Self {
        let fast_registration = qp.uid == 0 && qp.context.fre();
        let reserved_lkey = qp.context.rlky();
        Self { qpn, any_domain: qp.qp_type.any_domain, pd: qp.pd, fast_registration, reserved_lkey }
    }

    /// Refuses a change that this QP may not make to this key.
    fn check(
        &self,
        mkey: &Mkey,
        key: u32,
        control: &UmrCtrlSegment,
        fields: &ChangedFields,
        new: &MkeyContext,
        general: &HcaCap,
    ) -> Result<(), u8> {
        let checked = match control.check() {
            UmrCheck::NONE => true,
            UmrCheck::NOT_FREE => mkey.free,
            UmrCheck::FREE => !mkey.free,
            _ => return Err(MALFORMED),
        };
        // A UMR that makes a key valid under another variant names the key by the new variant.
        let renamed = fields.has(UmrMkeyMask::KEY) && !new.free();
        let right_variant = renamed || u32::from(mkey.variant) == key & 0xff;
        let same_domain = self.any_domain || (mkey.pd == self.pd && !fields.has(UmrMkeyMask::PD));
        let right_qp = !control.check_qpn() || [keys::ANY_QP, self.qpn].contains(&mkey.qpn);
        let supported = !(fields.has(UmrMkeyMask::A) && general.umr_modify_atomic_disabled()
            || fields.has(UmrMkeyMask::PAGE_SIZE) && general.umr_modify_entity_size_disabled()
            || fields.has(UmrMkeyMask::RELAXED_ORDERING_WRITE)
                && (!general.relaxed_ordering_write_umr()
                    || general.mkc_order_write_after_write_ro_only()
                        && !new.relaxed_ordering_write())
            || fields.has(UmrMkeyMask::RELAXED_ORDERING_READ)
                && !general.relaxed_ordering_read_umr());
        let movable = !fields.moves() || mkey.table.is_some();
        let allowed = checked && right_variant && same_domain && right_qp && supported && movable;
        if allowed && mkey.context.umr_en() && !mkey.is_null() {
            return Ok(());
        }
        tracing::info!(
            qpn = self.qpn,
            key,
            checked,
            right_variant,
            same_domain,
            right_qp,
            supported,
            movable,
            umr_en = mkey.context.umr_en(),
            "a UMR that its key does not allow"
        );
        Err(REFUSED)
    }
}

/// Which fields of the key change.
struct ChangedFields(u64);

impl ChangedFields {
    fn new(mask: u64) -> Result<Self, u8> {
        const KNOWN: u64 = UmrMkeyMask::LEN.0
            | UmrMkeyMask::PAGE_SIZE.0
            | UmrMkeyMask::PAGE_SIZE_5.0
            | UmrMkeyMask::START_ADDR.0
            | UmrMkeyMask::PD.0
            | UmrMkeyMask::EN_RINVAL.0
            | UmrMkeyMask::KEY.0
            | UmrMkeyMask::QPN.0
            | UmrMkeyMask::LR.0
            | UmrMkeyMask::LW.0
            | UmrMkeyMask::RR.0
            | UmrMkeyMask::RW.0
            | UmrMkeyMask::A.0
            | UmrMkeyMask::SMALL_FENCE.0
            | UmrMkeyMask::RELAXED_ORDERING_WRITE.0
            | UmrMkeyMask::RELAXED_ORDERING_READ.0
            | UmrMkeyMask::FREE.0;
        if mask & !KNOWN == 0 { Ok(Self(mask)) } else { Err(MALFORMED) }
    }

    fn has(&self, field: UmrMkeyMask) -> bool {
        self.0 & field.0 != 0
    }

    /// The range or the page size change.
    fn moves(&self) -> bool {
        [
            UmrMkeyMask::LEN,
            UmrMkeyMask::START_ADDR,
            UmrMkeyMask::PAGE_SIZE,
            UmrMkeyMask::PAGE_SIZE_5,
        ]
        .into_iter()
        .any(|field| self.has(field))
    }

    fn apply(&self, context: &mut MkeyContext, new: &MkeyContext) {
        macro_rules! take {
            ($($bit:ident $get:ident $set:ident;)*) => {
                $(if self.has(UmrMkeyMask::$bit) { context.$set(new.$get()); })*
            };
        }
        take! {
            LEN len set_len;
            LEN length64 set_length64;
            START_ADDR start_addr set_start_addr;
            PD pd set_pd;
            EN_RINVAL en_rinval set_en_rinval;
            KEY mkey_7_0 set_mkey_7_0;
            QPN qpn set_qpn;
            LR lr set_lr;
            LW lw set_lw;
            RR rr set_rr;
            RW rw set_rw;
            A a set_a;
            SMALL_FENCE small_fence_on_rdma_read_response set_small_fence_on_rdma_read_response;
            RELAXED_ORDERING_WRITE relaxed_ordering_write set_relaxed_ordering_write;
            RELAXED_ORDERING_READ relaxed_ordering_read set_relaxed_ordering_read;
            FREE free set_free;
        }
        const LOW: u8 = 0x1f;
        let (mut log, wanted) = (context.log_page_size(), new.log_page_size());
        if self.has(UmrMkeyMask::PAGE_SIZE) {
            log = log & !LOW | wanted & LOW;
        }
        if self.has(UmrMkeyMask::PAGE_SIZE_5) {
            log = log & LOW | wanted & !LOW;
        }
        context.set_log_page_size(log);
    }
}

fn mode(context: &MkeyContext) -> MkeyAccessMode {
    MkeyAccessMode(context.access_mode_4_2() << 2 | context.access_mode_1_0())
}

/// The range of the key's table that the request's entries replace, and their length in bytes;
/// `None` if there are none.
fn entries(
    general: &HcaCap,
    mkey: &Mkey,
    control: &UmrCtrlSegment,
    requester: &UmrRequester,
) -> Result<Option<(usize, usize)>, u8> {
    let count = u64::from(control.xlt_octowords());
    if count == 0 {
        return Ok(None);
    }
    let high = u64::from(control.xlt_offset_47_16());
    let offset = match control.translation_offset_en() {
        true => high << 16 | u64::from(control.xlt_offset()),
        false => 0,
    };
    if count % GRANULE != 0
        || offset % GRANULE != 0
        || (high != 0 && !general.umr_extended_translation_offset())
    {
        return Err(MALFORMED);
    }
    let room = u64::from(mkey.context.translations_octword_size()).next_multiple_of(GRANULE);
    let may_set_entries = match mode(&mkey.context) {
        MkeyAccessMode::MTT => requester.fast_registration,
        _ => !general.umr_indirect_mkey_disabled(),
    };
    if !may_set_entries || mkey.table.is_none() || offset + count > room.min(MAX_KEPT_OCTOWORDS) {
        return Err(REFUSED);
    }
    Ok(Some((offset as usize * OCTOWORD, count as usize * OCTOWORD)))
}

/// Copies the request's entries from the WQE, or from the memory that it points to.
fn read_entries(
    known: Keys<'_>,
    spaces: &Spaces,
    requester: &UmrRequester,
    control: &UmrCtrlSegment,
    bytes: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), u8> {
    if control.inline() {
        let inline = scratch.wqe.get(ENTRIES..ENTRIES + bytes.len()).ok_or(MALFORMED)?;
        bytes.copy_from_slice(inline);
        return Ok(());
    }
    scratch.local.clear();
    let (mut rest, mut visits) = (bytes.len() as u64, keys::VISITS);
    for segment in segments(&scratch.wqe, ENTRIES) {
        if rest == 0 {
            break;
        }
        let Ok(Segment::Pointer { lkey, address, length }) = segment else {
            return Err(MALFORMED);
        };
        let here = length.min(rest);
        // The kernel's own QP is in no domain: its pointers are in the domain of the key that they
        // name.
        let pd = match known.mkeys.get(&(lkey >> 8)) {
            Some(mkey) if requester.any_domain => mkey.pd,
            _ => requester.pd,
        };
        let user = KeyUser { pd, qpn: requester.qpn, reserved_lkey: requester.reserved_lkey };
        let range = Range { key: lkey, address, length: here };
        known
            .resolve(user, range, AccessRight::LocalRead, &mut visits, &mut scratch.local)
            .map_err(|refusal| {
                tracing::info!(?range, ?refusal, "translation entries out of reach");
                cqe_syndrome::LOCAL_PROTECTION
            })?;
        rest -= here;
    }
    if rest > 0 {
        return Err(MALFORMED);
    }
    transfer::gather(spaces, &scratch.local, &scratch.wqe, bytes)
        .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)
}

/// The table with the entries at their offset; without an offset they are the whole list.
fn merged(table: &[u8], at: usize, part: bool, bytes: &[u8]) -> Vec<u8> {
    let end = at + bytes.len();
    let mut new = vec![0; if part { table.len().max(end) } else { end }];
    let kept = table.len().min(new.len());
    new[..kept].copy_from_slice(&table[..kept]);
    new[at..end].copy_from_slice(bytes);
    new
}

/// Whether a key's range and the size of its pages or entries are valid, as CREATE_MKEY requires.
fn is_valid_range(context: &MkeyContext, caps: &Capabilities) -> bool {
    let log = u32::from(context.log_page_size());
    let ends = context.length64() || context.start_addr().checked_add(context.len()).is_some();
    let sized = match mode(context) {
        MkeyAccessMode::MTT => !context.length64() && caps.log_entity_sizes(false).contains(&log),
        MkeyAccessMode::KSM => {
            caps.general().fixed_buffer_size() && caps.log_entity_sizes(true).contains(&log)
        }
        _ => true,
    };
    ends && sized
}

/// Whether a key's start and length are aligned to `unit`, the largest atomic, if it is indirect
/// and allows atomics, as CREATE_MKEY requires.
fn is_aligned_for_atomics(context: &MkeyContext, unit: u64) -> bool {
    let length = if context.length64() { 0 } else { context.len() };
    mode(context) == MkeyAccessMode::MTT
        || !context.a()
        || context.start_addr().is_multiple_of(unit) && length.is_multiple_of(unit)
}

/// The translation by a key's entries; `None` if they are invalid. Accesses that the entries do not
/// cover will fail.
fn translation(
    budget: &Budget,
    context: &MkeyContext,
    table: &[u8],
    limits: &Limits,
) -> Option<Translation> {
    let log = u32::from(context.log_page_size());
    if mode(context) == MkeyAccessMode::MTT {
        let offset = context.start_addr() & ((1 << log) - 1);
        let length = context.len();
        let count = (u128::from(offset) + u128::from(length)).div_ceil(1 << log);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let page = |bytes: &[u8]| match bytes.try_into().map_or(0, u64::from_be_bytes) {
            entry if entry & PRESENT == 0 => ABSENT,
            entry => entry & (u64::MAX << log),
        };
        let pages: Vec<u64> = table.chunks_exact(8).take(count).map(page).collect();
        let pages = budget.list(pages);
        return Some(Translation::Pages(QueueMemory { pages, log_page_size: log, offset, length }));
    }
    let log_entry_size = (mode(context) == MkeyAccessMode::KSM).then_some(log);
    let translation = klm::translation(budget, table, log_entry_size, limits);
    translation
        .inspect_err(|why| tracing::info!(why, "a UMR with invalid translation entries"))
        .ok()
}

/// Updates the fields that the data path reads from the context.
fn update_from_context(mkey: &mut Mkey, context: MkeyContext) {
    mkey.variant = context.mkey_7_0();
    mkey.pd = context.pd();
    mkey.qpn = context.qpn();
    mkey.free = context.free();
    mkey.start = context.start_addr();
    mkey.length = (!context.length64()).then(|| context.len());
    mkey.access = Access {
        local_read: context.lr(),
        local_write: context.lw(),
        remote_read: context.rr(),
        remote_write: context.rw(),
        atomic: context.a(),
    };
    mkey.context = context;
}
