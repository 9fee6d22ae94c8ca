//! Memory keys.

use verbless_prm::{
    CreateMkeyIn, CreateMkeyOut, HcaCap, MkeyAccessMode, MkeyContext, MkeyReadAfterWrite,
    QueryMkeyIn, QueryMkeyOut,
};

use super::call::{Call, Outcome};
use super::umem;
use crate::hca::budget::ChargedList;
use crate::hca::klm;
use crate::hca::objects::{Access, Mkey, Objects, QueueMemory, Translation};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// Fields of the context that CREATE_MKEY accepts.
const KNOWN: [&str; 24] = [
    "free",
    "access_mode_4_2",
    "relaxed_ordering_write",
    "small_fence_on_rdma_read_response",
    "umr_en",
    "a",
    "rw",
    "rr",
    "lw",
    "lr",
    "access_mode_1_0",
    "qpn",
    "mkey_7_0",
    "length64",
    "en_rinval",
    "pd",
    "start_addr",
    "len",
    "translations_octword_size",
    "order_read_after_write",
    "relaxed_ordering_read",
    "log_page_size",
    "crossed_side_mkey",
    "crossing_target_vhca_id",
];

/// Bytes of the unit of translation table sizes.
const OCTWORD: u64 = 16;

/// CREATE_MKEY.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateMkeyIn,
    output: &mut CreateMkeyOut,
) -> Outcome {
    let context = input.memory_key_mkey_entry();
    let general = call.hca().caps.general();
    call.find(kind::Pd, context.pd())?;
    call.check_count(call.hca().objects.keys(), general.log_max_mkey())?;
    call.check_known_fields(context, &KNOWN)?;
    // No modelled capability lets software choose the index.
    if input.input_mkey_index() != 0 {
        return Err(Refusal::Unsupported);
    }
    if (input.pg_access() && !general.pg())
        || input.data_direct()
        || (context.a() && !general.atomic())
        || (context.crossed_side_mkey() && !general.crossing_vhca_mkey())
        || (context.relaxed_ordering_write()
            && !general.relaxed_ordering_write()
            && !general.mkc_order_write_after_write_ro_only())
        || (!context.relaxed_ordering_write() && general.mkc_order_write_after_write_ro_only())
        || (context.relaxed_ordering_read()
            && !general.relaxed_ordering_read()
            && !general.relaxed_ordering_read_pci_enabled())
        || !allows_read_order(general, context.order_read_after_write())
    {
        return Err(Refusal::Unsupported);
    }
    let length = (!context.length64()).then(|| context.len());
    let translation = translation(call, input, context, length)?;
    let umem = matches!(translation, Translation::Pages(_))
        .then(|| input.mkey_umem_valid().then(|| input.mkey_umem_id()))
        .flatten();
    let table = table(call, input, context);
    let mkey = Mkey {
        uid: call.uid,
        variant: context.mkey_7_0(),
        pd: context.pd(),
        access: Access {
            local_read: context.lr(),
            local_write: context.lw(),
            remote_read: context.rr(),
            remote_write: context.rw(),
            atomic: context.a(),
        },
        start: context.start_addr(),
        length,
        translation,
        free: context.free(),
        qpn: context.qpn(),
        umem,
        table,
        offer: None,
        context: *context,
    };
    let key_owners = match mkey.translation {
        Translation::Crossing { function, .. } => Some(function),
        _ => None,
    };
    output.set_mkey_index(call.make(kind::Mkey, mkey)?);
    key_owners.into_iter().for_each(|function| call.hca_mut().add_key_owner(function));
    Ok(())
}

/// Whether a key may have this read-after-write order. A firmware that creates only keys with
/// relaxed writes requires relaxed reads after them too (DPDK 5003eaab7e).
fn allows_read_order(general: &HcaCap, order: MkeyReadAfterWrite) -> bool {
    match order {
        MkeyReadAfterWrite::RELAXED => general.mkc_order_read_after_write(),
        MkeyReadAfterWrite::SAME_ADDRESS | MkeyReadAfterWrite::STRICT => {
            let default = order == MkeyReadAfterWrite::STRICT;
            match general.mkc_order_read_after_write() {
                true => !general.mkc_order_write_after_write_ro_only(),
                false => default,
            }
        }
        _ => false,
    }
}

/// The translation entries of a key whose range UMR may change; `None` for any other key.
fn table(call: &Call<'_>, input: &CreateMkeyIn, context: &MkeyContext) -> Option<ChargedList<u8>> {
    let mode = MkeyAccessMode(context.access_mode_4_2() << 2 | context.access_mode_1_0());
    if !context.umr_en() || input.mkey_umem_valid() || mode == MkeyAccessMode::PA {
        return None;
    }
    let bytes = input.translations_octword_actual_size() as usize * OCTWORD as usize;
    let list = if context.free() { 0 } else { bytes.min(call.list.len()) };
    Some(call.hca().budget.list(&call.list[..list]))
}

/// The translation of the key that a command describes.
fn translation(
    call: &Call<'_>,
    input: &CreateMkeyIn,
    context: &MkeyContext,
    length: Option<u64>,
) -> Result<Translation, Refusal> {
    let mode = MkeyAccessMode(context.access_mode_4_2() << 2 | context.access_mode_1_0());
    if context.start_addr().checked_add(length.unwrap_or(0)).is_none() {
        return Err(Refusal::MkeyLength);
    }
    // A free key has no entries until UMR writes some.
    if context.free() {
        if !context.umr_en() || input.mkey_umem_valid() {
            return Err(Refusal::MkeyMode);
        }
        let known = [MkeyAccessMode::MTT, MkeyAccessMode::KLMS, MkeyAccessMode::KSM];
        if !known.contains(&mode) {
            return Err(Refusal::MkeyMode);
        }
        return Ok(Translation::Indirect { entries: [].into(), log_entry_size: None });
    }
    if length == Some(0) {
        return Err(Refusal::MkeyLength);
    }
    if mode != MkeyAccessMode::CROSSING && context.crossing_target_vhca_id() != 0 {
        return Err(Refusal::MkeyMode);
    }
    match mode {
        // Only the kernel may give bus addresses.
        MkeyAccessMode::PA if call.uid == 0 && !input.mkey_umem_valid() => {
            Ok(Translation::Physical)
        }
        MkeyAccessMode::MTT => {
            let length = length.ok_or(Refusal::MkeyLength64)?;
            pages(call, input, context, length).map(Translation::Pages)
        }
        MkeyAccessMode::KLMS | MkeyAccessMode::KSM if !input.mkey_umem_valid() => {
            entries(call, input, context, mode, length)
        }
        MkeyAccessMode::CROSSING if call.hca().caps.general().crossing_vhca_mkey() => {
            crossing(call, context)
        }
        _ => Err(Refusal::MkeyMode),
    }
}

/// A key that refers to a key of another function. The kernel marks it as a UMEM key, like all user
/// keys that it does not know as indirect; the device ignores that flag. Linux's own
/// (`reg_create_crossing_vhca_mr`) begin at 0.
fn crossing(call: &Call<'_>, context: &MkeyContext) -> Result<Translation, Refusal> {
    if context.start_addr() != 0 || context.umr_en() {
        return Err(Refusal::MkeyMode);
    }
    let to = call.hca().neighbours.get(&context.crossing_target_vhca_id());
    let function = *to.ok_or(Refusal::NoSuchFunction)?;
    Ok(Translation::Crossing { function, key: context.crossing_target_mkey() })
}

/// The pages of a key of mode MTT: those of a UMEM, or the command's list.
fn pages(
    call: &Call<'_>,
    input: &CreateMkeyIn,
    context: &MkeyContext,
    length: u64,
) -> Result<QueueMemory, Refusal> {
    if input.mkey_umem_valid() {
        return umem_pages(call, input, context, length);
    }
    let log_page_size = u32::from(context.log_page_size());
    if !call.hca().caps.log_entity_sizes(false).contains(&log_page_size) {
        return Err(Refusal::MkeyPageSize);
    }
    let mask = (1_u64 << log_page_size) - 1;
    let offset = context.start_addr() & mask;
    let end = offset.checked_add(length).ok_or(Refusal::MkeyLength)?;
    let count = end.div_ceil(1 << log_page_size);
    let octwords = u64::from(input.translations_octword_actual_size());
    if octwords.saturating_mul(OCTWORD / 8) < count {
        return Err(Refusal::MkeyTranslations);
    }
    let bytes = usize::try_from(count * 8).ok();
    let list = bytes.and_then(|bytes| call.list.get(..bytes)).ok_or(Refusal::ListTooShort)?;
    // The access flags in the entries are ignored: the key has access bits, and not all drivers set
    // both.
    let (pages, _) = umem::pages(list, log_page_size, &call.hca().iommu)?;
    Ok(QueueMemory { pages: call.hca().budget.list(pages), log_page_size, offset, length })
}

/// The pages of a key in a UMEM, of the UMEM's page size: UCX writes no size into the key
/// (a8c655658d), DPDK on Windows writes the system's. The number of pages is ignored: UCX writes 1.
fn umem_pages(
    call: &Call<'_>,
    input: &CreateMkeyIn,
    context: &MkeyContext,
    length: u64,
) -> Result<QueueMemory, Refusal> {
    let umem = call.find(kind::Umem, input.mkey_umem_id())?;
    let memory = umem.memory.slice(input.mkey_umem_offset(), length);
    let memory = memory.ok_or(Refusal::UmemBounds)?;
    let wanted = u32::from(context.log_page_size());
    let sizes = call.hca().caps.log_entity_sizes(false);
    let fits = wanted == 0 || sizes.contains(&wanted) && wanted <= memory.log_page_size;
    if !fits || !sizes.contains(&memory.log_page_size) {
        return Err(Refusal::MkeyPageSize);
    }
    // On a card, syndrome 0x317175 (UCX PR 8689).
    let within = (1 << memory.log_page_size) - 1;
    if (memory.offset ^ context.start_addr()) & within != 0 {
        return Err(Refusal::MkeyOffset);
    }
    if (context.lw() || context.rw() || context.a()) && !umem.writable {
        return Err(Refusal::UmemReadOnly);
    }
    Ok(memory)
}

/// The entries of an indirect key.
fn entries(
    call: &Call<'_>,
    input: &CreateMkeyIn,
    context: &MkeyContext,
    mode: MkeyAccessMode,
    length: Option<u64>,
) -> Result<Translation, Refusal> {
    let count = input.translations_octword_actual_size() as usize;
    let max = 1_usize << call.hca().caps.general().log_max_klm_list_size().min(31);
    if count > max {
        return Err(Refusal::MkeyEntries);
    }
    let list = call.list.get(..count * OCTWORD as usize).ok_or(Refusal::ListTooShort)?;
    let log_entry_size = match mode {
        MkeyAccessMode::KSM => {
            let log = u32::from(context.log_page_size());
            let caps = &call.hca().caps;
            if !caps.general().fixed_buffer_size() {
                return Err(Refusal::Unsupported);
            }
            if !caps.log_entity_sizes(true).contains(&log) {
                return Err(Refusal::MkeyPageSize);
            }
            // A length in an entry is ignored and legal: UCX and mlx5_ib's populate_klm write one.
            Some(log)
        }
        _ => None,
    };
    let hca = call.hca();
    let translation = klm::translation(&hca.budget, list, log_entry_size, &hca.objects.limits)
        .map_err(|why| call.with_detail(Refusal::MkeyTranslations, why))?;
    // Firmware counts the entries of a KSM from a multiple of their size (UCX: "workaround
    // CREATE_MKEY range check"), but translates addresses from the start.
    let before = log_entry_size.map_or(0, |log| context.start_addr() & ((1 << log) - 1));
    if length.is_some_and(|length| translation.covers() < length.saturating_add(before)) {
        return Err(Refusal::MkeyTranslations);
    }
    if context.a() {
        atomics(hca, context, length)?;
    }
    Ok(translation)
}

/// Whether an indirect key may allow atomics: both ends must be aligned to the largest atomic (UCX
/// `atomic_align`). `umr_modify_atomic_disabled` concerns only UMR: Linux sets the right here
/// because of it (mlx5_ib `set_cache_mkc`).
fn atomics(hca: &Hca, context: &MkeyContext, length: Option<u64>) -> Result<(), Refusal> {
    let unit = hca.caps.largest_atomic();
    let is_aligned = context.start_addr().is_multiple_of(unit)
        && length.is_none_or(|length| length.is_multiple_of(unit));
    if is_aligned { Ok(()) } else { Err(Refusal::MkeyAtomic) }
}

/// Moves a key to another PD and gives it other access flags, as the kernel does by UMR on a queue
/// of its own; false when no such key exists or UMR may not change it.
pub(crate) fn reconfigure(hca: &mut Hca, index: u32, change: &MkeyContext) -> bool {
    let Some(mkey) = hca.objects.mkeys.get_mut(&index) else { return false };
    let context = &mut mkey.context;
    if !context.umr_en() {
        return false;
    }
    context.set_pd(change.pd()).set_a(change.a()).set_lr(change.lr()).set_lw(change.lw());
    context.set_rr(change.rr()).set_rw(change.rw());
    context.set_relaxed_ordering_write(change.relaxed_ordering_write());
    context.set_relaxed_ordering_read(change.relaxed_ordering_read());
    mkey.pd = change.pd();
    mkey.access = Access {
        local_read: change.lr(),
        local_write: change.lw(),
        remote_read: change.rr(),
        remote_write: change.rw(),
        atomic: change.a(),
    };
    true
}

/// QUERY_MKEY.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QueryMkeyIn,
    output: &mut QueryMkeyOut,
) -> Outcome {
    let mkey = call.find(kind::Mkey, input.mkey_index())?;
    let entry = output.memory_key_mkey_entry_mut();
    *entry = mkey.context;
    entry.set_free(mkey.free);
    Ok(())
}

/// Adds the null key, which a function with that capability has from INIT_HCA on.
pub(super) fn add_null(hca: &mut Hca) {
    if hca.caps.general().null_mkey() {
        let key = hca.profile.keys().null_mkey;
        hca.objects.add(kind::Mkey, key >> 8, Mkey::null(key as u8));
    }
}

/// Counts a removed crossing key.
pub(in crate::hca) fn removed(hca: &mut Hca, _: u32, mkey: Mkey) {
    if let Translation::Crossing { function, .. } = mkey.translation {
        hca.remove_key_owner(function);
    }
}

impl Objects {
    /// The number of memory keys, including aliases.
    pub(super) fn keys(&self) -> usize {
        self.mkeys.len() + self.aliases.len()
    }
}
