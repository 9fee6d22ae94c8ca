//! Memory keys: what lets a queue pair, and the peer's, reach memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use verbless_devx::{Pd, page_size};
use verbless_prm as prm;
use verbless_prm::{CreateMkeyIn, CreateMkeyOut, MkeyContext, QueryMkeyIn, QueryMkeyOut};

use crate::error::invalid;
use crate::owned::Owned;
use crate::{Device, Error, Lkey, RemoteAccess, Rkey, UserMemory};

/// What a key lets its holders do. Local reads are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyAccess {
    /// The local device may write (receives, READ responses, atomic results).
    pub local_write: bool,
    /// What peers may do; writes and atomics need `local_write`.
    pub remote: RemoteAccess,
    /// Reads and writes may pass each other on PCI. It is a wish: a device that can have only one of them so, or none, does
    /// what it can ([`Caps::relaxed_reads`](crate::Caps::relaxed_reads), [`relaxed_writes`](crate::Caps::relaxed_writes)).
    pub relaxed_ordering: bool,
}

impl KeyAccess {
    /// Reading by the local device only.
    pub const LOCAL_READ: Self = Self {
        local_write: false,
        remote: RemoteAccess { read: false, write: false, atomic: false },
        relaxed_ordering: false,
    };
    /// Reading and writing by the local device only.
    pub const LOCAL: Self = Self { local_write: true, ..Self::LOCAL_READ };
    /// Everything, by everybody who knows the key.
    pub const ALL: Self = Self { remote: RemoteAccess::ALL, ..Self::LOCAL };
}

/// One piece of an indirect key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPiece {
    /// Key of the memory behind it.
    pub key: Lkey,
    /// Address under that key.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

/// What is behind a key.
#[derive(Debug, Clone)]
pub enum KeyMemory {
    /// Registered user memory from a byte offset on.
    Umem {
        /// The registration; the key keeps it.
        umem: Arc<UserMemory>,
        /// First byte.
        offset: u64,
    },
    /// Pieces of any length, one after the other (KLM). The keys that they name must outlive this one.
    Pieces(Vec<KeyPiece>),
    /// Pieces of one power-of-two length (KSM), which the device translates without a search.
    EqualPieces {
        /// log2 of the length of each.
        log_length: u8,
        /// The pieces; their `length` is not used.
        pieces: Vec<KeyPiece>,
    },
    /// None yet: UMR requests say which pieces (KLM), under which rights. The key is free until then; its `length` is 0.
    Changeable {
        /// Pieces that there is room for.
        pieces: u32,
        /// A peer's SEND with invalidate may free the key.
        remote_invalidate: bool,
    },
}

/// What a memory key is made of.
#[derive(Debug, Clone)]
pub struct MkeyAttr {
    /// Protection domain.
    pub pd: Pd,
    /// What holders may do.
    pub access: KeyAccess,
    /// Address of the first byte as WQEs will name it.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// The memory.
    pub memory: KeyMemory,
}

/// A memory key. It is destroyed before its memory is let go.
#[derive(Debug)]
pub struct Mkey {
    key: u32,
    owned: Owned<MkeyAttr>,
}

/// The variant of the next key: a key that is created anew differs from the one that had its index before, so that a peer
/// which kept the old one fails.
static NEXT_VARIANT: AtomicU8 = AtomicU8::new(1);

/// Pieces that one UMR request can count, in fours.
const MOST_PIECES: u32 = 65_532;

/// A key that any queue pair of its protection domain may use.
const ANY_QP: u32 = 0xff_ffff;

impl Device {
    /// CREATE_MKEY.
    pub fn create_mkey(&self, attr: MkeyAttr) -> Result<Mkey, Error> {
        check(&attr)?;
        let variant = NEXT_VARIANT.fetch_add(1, Ordering::Relaxed);
        let mut head = CreateMkeyIn::new();
        let mut tail = Vec::new();
        let (access, caps) = (attr.access, self.caps());
        let context = head.memory_key_mkey_entry_mut();
        context
            .set_lr(true)
            .set_lw(access.local_write)
            .set_rr(access.remote.read)
            .set_rw(access.remote.write)
            .set_a(access.remote.atomic && caps.atomics)
            .set_relaxed_ordering_write(access.relaxed_ordering && caps.relaxed_writes)
            .set_relaxed_ordering_read(access.relaxed_ordering && caps.relaxed_reads)
            .set_qpn(ANY_QP)
            .set_mkey_7_0(variant)
            .set_pd(attr.pd.pdn())
            .set_start_addr(attr.start)
            .set_len(attr.length);
        match &attr.memory {
            KeyMemory::Umem { umem, offset } => {
                // The key is cut into pages of the system's size, whatever pages the kernel cut the UMEM into.
                let page = page_size() as u64;
                set_access_mode(context, prm::MkeyAccessMode::MTT);
                context.set_log_page_size(page.ilog2() as u8);
                let octwords = translation_octwords(attr.start, attr.length, page);
                context.set_translations_octword_size(octwords);
                head.set_translations_octword_actual_size(octwords)
                    .set_mkey_umem_id(umem.id())
                    .set_mkey_umem_offset(*offset)
                    .set_mkey_umem_valid(true);
            }
            KeyMemory::Pieces(pieces) => {
                set_access_mode(context, prm::MkeyAccessMode::KLMS);
                emit_pieces(&mut head, &mut tail, pieces, |piece| piece.length);
            }
            KeyMemory::Changeable { pieces, remote_invalidate } => {
                if self.caps().general.umr_indirect_mkey_disabled() {
                    return Err(invalid(
                        "CREATE_MKEY",
                        "the device lets no UMR change indirect keys",
                    ));
                }
                set_access_mode(context, prm::MkeyAccessMode::KLMS);
                context
                    .set_free(true)
                    .set_umr_en(true)
                    .set_en_rinval(*remote_invalidate)
                    .set_translations_octword_size(pieces.next_multiple_of(4));
            }
            KeyMemory::EqualPieces { log_length, pieces } => {
                set_access_mode(context, prm::MkeyAccessMode::KSM);
                context.set_log_page_size(*log_length);
                emit_pieces(&mut head, &mut tail, pieces, |_| 0);
            }
        }
        let mut output = CreateMkeyOut::zeroed();
        let object = {
            let input = [head.as_bytes().as_slice(), &tail].concat();
            self.obj_create(&input, output.as_bytes_mut())?
        };
        let key = output.mkey_index() << 8 | u32::from(variant);
        Ok(Mkey { key, owned: Owned::new(object, attr) })
    }
}

fn check(attr: &MkeyAttr) -> Result<(), Error> {
    if let KeyMemory::Changeable { pieces, .. } = attr.memory {
        if attr.length != 0 || !(1..=MOST_PIECES).contains(&pieces) {
            let what = "a key for UMR has no length yet, and room for 1 to 65532 pieces";
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
    let remote = attr.access.remote;
    if (remote.write || remote.atomic) && !attr.access.local_write {
        return Err(invalid("CREATE_MKEY", "remote write and atomics need local write"));
    }
    match &attr.memory {
        KeyMemory::Umem { umem, offset } => {
            let fits = offset.checked_add(attr.length).is_some_and(|end| end <= umem.length());
            if !fits {
                return Err(invalid("CREATE_MKEY", "the key passes the end of its UMEM"));
            }
            if (umem.address().wrapping_add(*offset) ^ attr.start) & (page_size() as u64 - 1) != 0 {
                return Err(invalid(
                    "CREATE_MKEY",
                    "start and memory must lie at the same offset within a page",
                ));
            }
        }
        KeyMemory::Pieces(pieces) | KeyMemory::EqualPieces { pieces, .. } if pieces.is_empty() => {
            return Err(invalid("CREATE_MKEY", "an indirect key needs at least one piece"));
        }
        _ => {}
    }
    Ok(())
}

fn set_access_mode(context: &mut MkeyContext, mode: prm::MkeyAccessMode) {
    context.set_access_mode_1_0(mode.0 & 3).set_access_mode_4_2(mode.0 >> 2);
}

/// 16-byte units of the translation table: two 8-byte page addresses each.
fn translation_octwords(start: u64, length: u64, page: u64) -> u32 {
    let pages = ((start & (page - 1)) + length).div_ceil(page);
    u32::try_from(pages.div_ceil(2)).unwrap_or(u32::MAX)
}

fn emit_pieces(
    head: &mut CreateMkeyIn,
    tail: &mut Vec<u8>,
    pieces: &[KeyPiece],
    length: impl Fn(&KeyPiece) -> u32,
) {
    for piece in pieces {
        let mut entry = prm::Klm::zeroed();
        entry.set_byte_count(length(piece)).set_mkey(piece.key.0).set_address(piece.address);
        tail.extend_from_slice(entry.as_bytes());
    }
    // One entry is one octword; the table is padded to four of them.
    let entries = u32::try_from(pieces.len()).unwrap_or(u32::MAX).next_multiple_of(4);
    tail.resize(entries as usize * prm::Klm::BYTES, 0);
    head.memory_key_mkey_entry_mut().set_translations_octword_size(entries);
    head.set_translations_octword_actual_size(entries);
}

impl Mkey {
    /// The key for local segments.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// The key to give to a peer. It has the value of the local one; what it allows is in `KeyAccess::remote`.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// What it was created from.
    pub fn attr(&self) -> &MkeyAttr {
        self.owned.parents()
    }

    /// The DevX object.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// QUERY_MKEY: the context as the device holds it now.
    pub fn query(&self) -> Result<MkeyContext, Error> {
        let mut input = QueryMkeyIn::new();
        input.set_mkey_index(self.key >> 8);
        let mut output = QueryMkeyOut::zeroed();
        crate::query_object(self.owned.object(), &input, &mut output)?;
        Ok(*output.memory_key_mkey_entry())
    }

    /// DESTROY_MKEY. On failure the key and its memory are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }
}
