//! Memory that the device may access: registered memory, and the keys to it.

use verbless_prm::MkeyContext;

use super::queue_memory::QueueMemory;
use super::uid::Uid;
use crate::hca::budget::ChargedList;

/// A registered range of user memory (CREATE_UMEM).
#[derive(Debug)]
pub(crate) struct Umem {
    pub uid: Uid,
    pub memory: QueueMemory,
    /// Whether the device may write every page.
    pub writable: bool,
    /// Whether it is the heap of a DPA process, which destroys it at its end.
    pub device: bool,
}

/// The access flags of an mkey.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Access {
    pub local_read: bool,
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub atomic: bool,
}

/// How a memory key turns an address into host memory.
#[derive(Debug, Clone)]
pub(crate) enum Translation {
    /// The address is the DMA address.
    Physical,
    /// Pages of one size.
    Pages(QueueMemory),
    /// KLM entries, each a range of another key; KSM when all have the same length.
    Indirect { entries: ChargedList<Klm>, log_entry_size: Option<u32> },
    /// Interleaved KLM entries (repeat block).
    Interleaved(Interleaved),
    /// The null key: reads return zeros, writes are discarded.
    Null,
    /// A key of a function, this one or another of its card; addresses are those of that key.
    Crossing { function: usize, key: u32 },
}

/// The repeating memory of an indirect key: a round takes some bytes of each KLM in turn; each
/// round starts one stride further in each KLM.
#[derive(Debug, Clone)]
pub(crate) struct Interleaved {
    pub rounds: u32,
    /// Bytes of a round.
    pub length: u64,
    pub klms: ChargedList<(Klm, Stride)>,
}

/// Bytes between the starts of two consecutive rounds in a KLM.
pub(crate) type Stride = u16;

/// An entry of an indirect key: a range of another key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Klm {
    pub key: u32,
    pub length: u32,
    pub address: u64,
}

/// A memory key.
#[derive(Debug, Clone)]
pub(crate) struct Mkey {
    pub uid: Uid,
    /// The low byte of lkey and rkey; the index is the map's key.
    pub variant: u8,
    pub pd: u32,
    pub access: Access,
    pub start: u64,
    /// Length in bytes; `None` when length64 is set: the whole address space.
    pub length: Option<u64>,
    pub translation: Translation,
    /// `free` state: a key that UMR has not filled; it refuses every access.
    pub free: bool,
    /// Restricts the key to one QP (0xffffff: any).
    pub qpn: u32,
    pub umem: Option<u32>,
    /// The translation entries as software wrote them, if UMR may change the key's range.
    pub table: Option<ChargedList<u8>>,
    /// The offer that lets other functions create aliases of the key, if any.
    pub offer: Option<SharedAccess>,
    pub context: MkeyContext,
}

/// The owner's permission for other functions to access an object (ALLOW_OTHER_VHCA_ACCESS).
#[derive(Clone)]
pub(crate) struct SharedAccess {
    pub access_key: [u8; 32],
    /// Distinguishes the object from later ones of the same number.
    pub serial: u64,
}

impl std::fmt::Debug for SharedAccess {
    /// Omits the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedAccess").field("serial", &self.serial).finish_non_exhaustive()
    }
}

/// A memory key that its owner, this function or another, shared with other functions.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub function: usize,
    pub index: u32,
    pub offer: SharedAccess,
}

/// An alias of a memory key of a function, this one or another.
#[derive(Debug)]
pub(crate) struct Alias {
    pub uid: Uid,
    pub pd: u32,
    /// The owner's number in the model, and the key's index there.
    pub function: usize,
    pub index: u32,
    /// The serial number of the offer that it was created with.
    pub serial: u64,
}

impl Mkey {
    /// The null key, which every function has without creating it.
    pub(crate) fn null(variant: u8) -> Self {
        Self {
            uid: 0,
            variant,
            pd: 0,
            access: Access {
                local_read: true,
                local_write: true,
                remote_read: true,
                remote_write: true,
                atomic: false,
            },
            start: 0,
            length: None,
            translation: Translation::Null,
            free: false,
            qpn: 0xff_ffff,
            umem: None,
            table: None,
            offer: None,
            context: MkeyContext::zeroed(),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.translation, Translation::Null)
    }
}
