//! Memory keys: a queue pair and its peer access memory through them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};

use verbless_devx::{Error, Pd};
use verbless_prm as prm;
use verbless_prm::{CreateMkeyIn, CreateMkeyOut, MkeyContext, QueryMkeyIn, QueryMkeyOut};

use crate::caps::Caps;
use crate::device::Device;
use crate::error::{all_of, invalid, refused};
use crate::execute;
use crate::memory::UserMemory;
use crate::owned::Owned;
use crate::random::random_u64;
use verbless_prm::access::KeyAccess;
use verbless_prm::number::{Lkey, Rkey};

/// A KLM entry of an indirect key: a range of memory under another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Klm {
    /// Key of the memory that the entry maps.
    pub key: Lkey,
    /// Address under that key.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

/// The memory that a key maps.
#[derive(Debug, Clone)]
pub enum KeyMemory {
    /// Registered user memory from a byte offset on.
    Umem {
        /// The registration; the key keeps it alive.
        umem: Arc<UserMemory>,
        /// First byte.
        offset: u64,
    },
    /// Ranges of 1 byte to 2 GiB, one after the other. The keys of the entries must outlive this
    /// one.
    Klms(Vec<Klm>),
    /// KSM: all entries have one power-of-two length, so the device indexes them. The first entry
    /// begins at `start` rounded down to that length. The keys of the entries must outlive this
    /// one.
    Ksms {
        /// log2 of an entry's length in bytes.
        log_length: u8,
        /// The entries; their `length` is not used.
        klms: Vec<Klm>,
    },
    /// CROSSING: forwards to the mkey `key` of function `vhca_id`. Addresses are the target's, and
    /// `start` is 0. Both mkeys check access flags. Another function must create the target with
    /// `KeyAccess::crossing`; a target of this function must belong to this context.
    Crossing {
        /// The function that owns the target; it may be this function.
        vhca_id: u16,
        /// The target.
        key: Rkey,
    },
    /// No memory yet: a UMR WQE writes the KLMs and the access flags. Until then the mkey is free
    /// and `length` is 0.
    Umr {
        /// Capacity in KLM entries, 1 to 65532.
        klms: u32,
        /// A peer's SEND with invalidate may free the key.
        remote_invalidate: bool,
    },
}

/// Attributes of a memory key.
#[derive(Debug, Clone)]
pub struct MkeyAttr {
    /// Protection domain.
    pub pd: Pd,
    /// Rights of holders of the key.
    pub access: KeyAccess,
    /// Address of the first byte, for WQEs.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// The memory.
    pub memory: KeyMemory,
}

/// A memory key on the device. It is destroyed before its memory is released.
#[derive(Debug)]
pub struct MkeyObject {
    key: u32,
    owned: Owned<MkeyAttr>,
}

/// The variant (bits 7:0) of the next mkey. Two mkeys with the same index differ in it, so an
/// access by an old rkey fails. The first variant is random, because a restarted program gets the
/// same indexes.
fn next_variant() -> u8 {
    static FIRST: LazyLock<u8> = LazyLock::new(|| random_u64() as u8);
    static COUNT: AtomicU8 = AtomicU8::new(0);
    FIRST.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// KLM entries that one UMR request can count; a multiple of four.
const MAX_UMR_KLMS: u32 = 65_532;

/// Any queue pair of the protection domain may use the key.
const ANY_QP: u32 = 0xff_ffff;

impl MkeyObject {
    /// Whether the key belongs to the device's context.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.owned.object().context().is(device)
    }
}

impl Device {
    /// CREATE_MKEY.
    ///
    /// # Errors
    /// The memory does not cover the key; `start` and the memory have different offsets within a
    /// page of the UMEM; remote writes or atomics without local writes; sizes that the device does
    /// not support ([`Caps::log_max_key_page`], [`Caps::log_fixed_buffers`]); an indirect key with
    /// `remote.atomic` whose start or length is not a multiple of [`Caps::max_atomic_bytes`].
    pub fn create_mkey(&self, attr: MkeyAttr) -> Result<MkeyObject, Error> {
        check_attr(&attr)?;
        check_caps(&attr, self.caps())?;
        let crosses = attr.access.crossing || matches!(attr.memory, KeyMemory::Crossing { .. });
        if crosses && !self.caps().general.crossing_vhca_mkey() {
            let what = "the device has no crossing keys (hca_cap.crossing_vhca_mkey is 0)";
            return Err(invalid("CREATE_MKEY", what));
        }
        let umem = match &attr.memory {
            KeyMemory::Umem { umem, .. } => Some(("memory", umem.context())),
            _ => None,
        };
        let parts = [("protection domain", attr.pd.context())].into_iter().chain(umem);
        all_of(self, "CREATE_MKEY", parts)?;
        let variant = next_variant();
        let mut head = CreateMkeyIn::new();
        let mut tail = Vec::new();
        let (access, caps) = (attr.access, self.caps());
        let relaxed = access.relaxed_ordering || caps.relaxed_writes_only;
        let relaxed_writes = relaxed && caps.relaxed_writes || caps.relaxed_writes_only;
        // Future firmware that does not order writes refuses order_read_after_write STRICT (DPDK
        // `mlx5_devx_mkey_attr_set_ordering`).
        let reads = match relaxed && caps.reads_after_writes {
            true => prm::MkeyReadAfterWrite::RELAXED,
            false => prm::MkeyReadAfterWrite::STRICT,
        };
        let context = head.memory_key_mkey_entry_mut();
        context
            .set_lr(true)
            .set_lw(access.local_write)
            .set_rr(access.remote.read)
            .set_rw(access.remote.write)
            .set_a(access.remote.atomic && caps.atomics)
            .set_relaxed_ordering_write(relaxed_writes)
            .set_relaxed_ordering_read(relaxed && caps.relaxed_reads)
            .set_order_read_after_write(reads)
            .set_crossed_side_mkey(access.crossing)
            .set_qpn(ANY_QP)
            .set_mkey_7_0(variant)
            .set_pd(attr.pd.pdn())
            .set_start_addr(attr.start)
            .set_len(attr.length);
        match &attr.memory {
            KeyMemory::Umem { umem, offset } => {
                // The device takes page size and count from the UMEM, so the mkey has neither. The
                // 1 is what UCX writes into the mkeys that it exports, as crossing_target_mkey:
                // that field shares bits with translations_octword_size.
                set_access_mode(context, prm::MkeyAccessMode::MTT);
                context.set_translations_octword_size(1);
                head.set_translations_octword_actual_size(1)
                    .set_mkey_umem_id(umem.id())
                    .set_mkey_umem_offset(*offset)
                    .set_mkey_umem_valid(true);
            }
            KeyMemory::Klms(klms) => {
                set_access_mode(context, prm::MkeyAccessMode::KLMS);
                emit_klms(&mut head, &mut tail, klms, |klm| klm.length);
            }
            KeyMemory::Umr { klms, remote_invalidate } => {
                if self.caps().general.umr_indirect_mkey_disabled() {
                    return Err(invalid(
                        "CREATE_MKEY",
                        "UMR cannot change indirect mkeys on this device \
                         (umr_indirect_mkey_disabled is 1)",
                    ));
                }
                set_access_mode(context, prm::MkeyAccessMode::KLMS);
                context
                    .set_free(true)
                    .set_umr_en(true)
                    .set_en_rinval(*remote_invalidate)
                    .set_translations_octword_size(klms.next_multiple_of(4));
            }
            &KeyMemory::Crossing { vhca_id, key: Rkey(key) } => {
                set_access_mode(context, prm::MkeyAccessMode::CROSSING);
                context.set_crossing_target_vhca_id(vhca_id).set_crossing_target_mkey(key);
            }
            KeyMemory::Ksms { log_length, klms } => {
                set_access_mode(context, prm::MkeyAccessMode::KSM);
                context.set_log_page_size(*log_length);
                emit_klms(&mut head, &mut tail, klms, |_| 0);
            }
        }
        let mut output = CreateMkeyOut::zeroed();
        let object = {
            let input = [head.as_bytes().as_slice(), &tail].concat();
            self.obj_create(&input, output.as_bytes_mut())?
        };
        let key = output.mkey_index() << 8 | u32::from(variant);
        Ok(MkeyObject { key, owned: Owned::new(object, attr) })
    }
}

/// Checks that the access has local writes if it has remote writes or atomics.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the access has no local writes.
pub fn check_access(access: KeyAccess) -> Result<(), Error> {
    if (access.remote.write || access.remote.atomic) && !access.local_write {
        let what = "the access has remote writes or atomics without local writes, which no key \
                    permits: set `local_write` too (KeyAccess::ALL has both)";
        return Err(invalid("CREATE_MKEY", what));
    }
    Ok(())
}

fn check_attr(attr: &MkeyAttr) -> Result<(), Error> {
    if let KeyMemory::Umr { klms, .. } = attr.memory {
        if attr.length != 0 || !(1..=MAX_UMR_KLMS).contains(&klms) {
            let what = "a key for UMR has length 0 until it is mapped, and room for 1 to 65532 KLM \
                        entries";
            return Err(invalid("CREATE_MKEY", what));
        }
        return Ok(());
    }
    if attr.length == 0 {
        return Err(invalid("CREATE_MKEY", "a key over zero bytes: give it at least one"));
    }
    if attr.start.checked_add(attr.length).is_none() {
        return Err(invalid("CREATE_MKEY", "start and length pass the end of the address space"));
    }
    check_access(attr.access)?;
    match &attr.memory {
        KeyMemory::Umem { umem, offset } => {
            let fits = offset.checked_add(attr.length).is_some_and(|end| end <= umem.length());
            if !fits {
                return Err(invalid("CREATE_MKEY", "the key passes the end of its UMEM"));
            }
            let (in_umem, page) = umem.page_offset(*offset);
            let in_key = attr.start & (page - 1);
            if in_key != in_umem {
                let what = format!(
                    "start {:#x} and the memory differ in their page offset ({in_key:#x} and \
                     {in_umem:#x}; pages of this UMEM may have {page:#x} bytes): choose a start \
                     with the offset of the memory, or register the UMEM with smaller pages \
                     (PageSizes::of_address for addresses of this process)",
                    attr.start
                );
                return Err(refused("CREATE_MKEY", what));
            }
        }
        KeyMemory::Crossing { .. } if attr.start != 0 => {
            return Err(invalid("CREATE_MKEY", "a crossing key begins at address 0"));
        }
        KeyMemory::Klms(klms) | KeyMemory::Ksms { klms, .. } if klms.is_empty() => {
            return Err(invalid("CREATE_MKEY", "an indirect key needs at least one KLM entry"));
        }
        KeyMemory::Klms(klms) if klms.iter().any(|klm| klm.length > prm::Klm::MAX_BYTES) => {
            return Err(invalid("CREATE_MKEY", "a KLM entry has at most 2 GiB: split the range"));
        }
        // No public source says what byte_count 0 means in a KLM. In a data segment it means 2 GiB.
        KeyMemory::Klms(klms) if klms.iter().any(|klm| klm.length == 0) => {
            return Err(invalid("CREATE_MKEY", "a KLM entry has no bytes: leave it out"));
        }
        _ => {}
    }
    Ok(())
}

/// Fails if the key has more KLM entries than this device supports.
fn check_klm_count(memory: &KeyMemory, caps: &Caps) -> Result<(), Error> {
    let (entries, sent) = match memory {
        KeyMemory::Klms(klms) | KeyMemory::Ksms { klms, .. } => (klms.len() as u64, true),
        KeyMemory::Umr { klms, .. } => (u64::from(*klms), false),
        _ => return Ok(()),
    };
    if caps.general.max_indirection() == 0 {
        let what = "the device has no indirect keys (hca_cap.max_indirection is 0): create \
                    one direct mkey per region";
        return Err(invalid("CREATE_MKEY", what));
    }
    let log = caps.general.log_max_klm_list_size();
    if entries > 1 << log {
        let what = format!(
            "the key has {entries} KLM entries; this device supports at most {} (2^{log}, \
             log_max_klm_list_size): use several keys",
            1_u64 << log
        );
        return Err(refused("CREATE_MKEY", what));
    }
    if sent && entries > MAX_CREATE_KLMS {
        let what = format!(
            "the key has {entries} KLM entries, and CREATE_MKEY takes at most {MAX_CREATE_KLMS} \
             (an ioctl's attribute has 65535 bytes): use several keys, or write them by UMR"
        );
        return Err(refused("CREATE_MKEY", what));
    }
    Ok(())
}

/// KLM entries that fit after CREATE_MKEY's input in an ioctl attribute; a multiple of four.
const MAX_CREATE_KLMS: u64 = ((u16::MAX as u64 - size_of::<CreateMkeyIn>() as u64) / 16) & !3;

/// Fails if the attributes exceed this device's limits.
fn check_caps(attr: &MkeyAttr, caps: &Caps) -> Result<(), Error> {
    check_klm_count(&attr.memory, caps)?;
    match &attr.memory {
        KeyMemory::Umem { umem, offset } => {
            let (_, page) = umem.page_offset(*offset);
            let most = caps.log_max_key_page();
            if page.ilog2() > most.into() {
                let what = format!(
                    "pages of this UMEM may have {page:#x} bytes, and those of a key have at most \
                     2^{most} (max_mkey_log_entity_size_mtt): register the memory with smaller \
                     pages (PageSizes::Bitmap)"
                );
                return Err(refused("CREATE_MKEY", what));
            }
            return Ok(());
        }
        KeyMemory::Ksms { log_length, klms } => check_ksms(attr, *log_length, klms, caps)?,
        KeyMemory::Klms(_) => {}
        _ => return Ok(()),
    }
    if !attr.access.remote.atomic || !caps.atomics {
        return Ok(());
    }
    let unit = caps.max_atomic_bytes();
    if !attr.start.is_multiple_of(unit) || !attr.length.is_multiple_of(unit) {
        let what = format!(
            "start and length of an indirect key with `remote.atomic` must be multiples of {unit} \
             bytes (the largest atomic of this device); this key has {} bytes from {:#x}: align \
             them, or use KeyAccess::READ_WRITE",
            attr.length, attr.start
        );
        return Err(refused("CREATE_MKEY", what));
    }
    Ok(())
}

/// Fails if the device does not support the entry size, or if the entries do not cover the key. The
/// device counts entries from `start` rounded down to the entry size (UCX works around this check).
fn check_ksms(attr: &MkeyAttr, log: u8, klms: &[Klm], caps: &Caps) -> Result<(), Error> {
    let Some(sizes) = caps.log_fixed_buffers() else {
        let what = "the device has no keys with entries of one size (hca_cap.fixed_buffer_size): \
                    use KeyMemory::Klms";
        return Err(invalid("CREATE_MKEY", what));
    };
    if !sizes.contains(&log) {
        let (least, most) = (sizes.start(), sizes.end());
        let what =
            format!("log2 of the bytes of an entry is {log}; this device takes {least} to {most}");
        return Err(refused("CREATE_MKEY", what));
    }
    let size = 1_u128 << log;
    let end = u128::from(attr.start) % size + u128::from(attr.length);
    if end > size * klms.len() as u128 {
        let what = format!(
            "{} entries of {size:#x} bytes do not cover {:#x} bytes from {:#x} on, counted from \
             `start` rounded down to {size:#x}: add an entry, or align the start",
            klms.len(),
            attr.length,
            attr.start
        );
        return Err(refused("CREATE_MKEY", what));
    }
    Ok(())
}

fn set_access_mode(context: &mut MkeyContext, mode: prm::MkeyAccessMode) {
    context.set_access_mode_1_0(mode.0 & 3).set_access_mode_4_2(mode.0 >> 2);
}

fn emit_klms(
    head: &mut CreateMkeyIn,
    tail: &mut Vec<u8>,
    klms: &[Klm],
    length: impl Fn(&Klm) -> u32,
) {
    for klm in klms {
        let mut entry = prm::Klm::zeroed();
        entry.set_byte_count(length(klm)).set_mkey(klm.key.0).set_address(klm.address);
        tail.extend_from_slice(entry.as_bytes());
    }
    // One entry is one octword; the table is padded to four of them.
    let entries = u32::try_from(klms.len()).unwrap_or(u32::MAX).next_multiple_of(4);
    tail.resize(entries as usize * prm::Klm::BYTES, 0);
    head.memory_key_mkey_entry_mut().set_translations_octword_size(entries);
    head.set_translations_octword_actual_size(entries);
}

impl MkeyObject {
    /// The key for local segments.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// The key to give to a peer. Its value is that of [`lkey`](Self::lkey); `KeyAccess::remote`
    /// says what the peer may do with it.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// The attributes that the key was created with.
    pub fn attr(&self) -> &MkeyAttr {
        self.owned.attr()
    }

    /// The DevX object.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// QUERY_MKEY: the current context.
    pub fn query(&self) -> Result<MkeyContext, Error> {
        let mut input = QueryMkeyIn::new();
        input.set_mkey_index(self.key >> 8);
        let mut output = QueryMkeyOut::zeroed();
        execute::query_object(self.owned.object(), &input, &mut output)?;
        Ok(*output.memory_key_mkey_entry())
    }

    /// DESTROY_MKEY. On failure the key and its memory are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
