//! Encodes a request as a WQE: its options, its limits, and the reasons to refuse it.

use core::fmt;

use verbless_prm::hot::{CtrlFlags, completion, fence};

use super::capability::Capability;
use super::info::OperationInfo;
use crate::ring::Wqe;

/// Why a request was not posted; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PostError {
    /// The ring has too few free wqebbs. Poll: completions free them.
    Full,
    /// The WQE is longer than the whole ring.
    TooLong,
    /// The device lacks a capability that the operation needs:
    /// [`SendQueue::supports`](crate::SendQueue::supports) names it.
    Unsupported,
    /// The queue pair is not ready to send.
    NotConnected,
    /// More SGEs than the queue was created for, or than a READ WQE can have: 30, because it has at
    /// most 512 bytes (32 ds).
    TooManySges,
    /// More inline data than the queue was created for; of a frame, header and payload together.
    InlineTooLong,
    /// An SGE of more than 0x7fff_ffff bytes.
    SgeTooLong,
    /// The SGE of an atomic is not 8 bytes long.
    AtomicLength,
    /// A memory copy of no bytes, or of two lengths that differ.
    DmaMmoLength,
    /// A WAIT for a word whose address is not a multiple of 8.
    UnalignedWait,
    /// A UMR that gives peers writes or atomics without the local write flag.
    UmrAccess,
    /// A UMR that sets the atomic access flag, on a device whose UMRs cannot change it.
    UmrAtomicAccess,
    /// A KLM of no bytes, or of more than 2 GiB.
    KlmLength,
    /// More KLMs than a UMR can hold ([`UmrRules::max_klms`]).
    TooManyKlms,
    /// A key for atomics whose start or length is not a multiple of the largest atomic
    /// ([`UmrRules::max_atomic_bytes`]).
    AtomicRange,
    /// A KLM list in memory that is not 2048-byte aligned, or not a multiple of four entries.
    BadKlmList,
    /// A frame with fewer bytes inline than its send queue needs, or without any bytes.
    HeaderTooShort,
    /// A frame with a VLAN tag to insert and an inline header: both use the same field of the
    /// Ethernet segment.
    VlanWithInlineHeader,
    /// A frame with checksums to compute, on a device that cannot compute them.
    NoChecksums,
    /// A VLAN tag to insert, on a device that cannot insert one.
    NoVlanInsertion,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue is full: poll for completions first",
            Self::TooLong => {
                "the WQE is longer than the send ring: create the queue pair with more send WQEBBs \
                 (more sends, or more SGEs per send)"
            }
            Self::Unsupported => {
                "the device lacks a capability that the operation needs: `SendQueue::supports` \
                 names it"
            }
            Self::NotConnected => {
                "the queue pair is not connected: connect it (to RTS) before sends are posted"
            }
            Self::TooManySges => {
                "more SGEs than the queue was created for, or than a READ can have (30)"
            }
            Self::InlineTooLong => {
                "more inline data than the queue was created for (of a frame: header and payload \
                 together)"
            }
            Self::SgeTooLong => "an SGE of more than 0x7fffffff bytes",
            Self::AtomicLength => "an atomic returns 8 bytes: its SGE must have that length",
            Self::DmaMmoLength => {
                "a memory copy has one SGE of 1 to 0x7fffffff bytes on each side, of equal lengths"
            }
            Self::UnalignedWait => "WAIT on data: the address must be a multiple of 8",
            Self::UmrAccess => {
                "the access has remote writes or atomics without local writes, which no key \
                 permits: set `local_write` too (KeyAccess::ALL has both)"
            }
            Self::AtomicRange => {
                "start and length of a key for atomics must be multiples of the device's largest \
                 atomic (8 bytes on most): choose such KLM entries, or leave out `remote.atomic` \
                 (KeyAccess::READ_WRITE)"
            }
            Self::UmrAtomicAccess => {
                "UMR cannot set the atomic access flag on this device (it lacks `atomic`, or \
                 `umr_modify_atomic_disabled` is 1): clear `remote.atomic`"
            }
            Self::KlmLength => {
                "a KLM entry has 1 byte to 2 GiB: leave out empty ones, split longer ones"
            }
            Self::TooManyKlms => {
                "more KLM entries than a request holds (52, or fewer if the device's longest WQE \
                 has less than 960 bytes): put the list into memory"
            }
            Self::BadKlmList => {
                "a list of KLM entries in memory must begin at a multiple of 2048 and have a \
                 multiple of four entries, at most 65532"
            }
            Self::HeaderTooShort => {
                "a frame needs at least one byte, and at least `SendQueue::min_inline_header` \
                 bytes inline (18 if the device needs the Ethernet header)"
            }
            Self::VlanWithInlineHeader => {
                "VLAN insertion and inline headers share one field of the Ethernet segment: write \
                 the tag into the inline header, after the MACs"
            }
            Self::NoChecksums => {
                "the device computes no checksums of frames (capability `csum_cap` of its \
                 Ethernet page): leave out `ip_checksum` and `l4_checksum`, and compute them"
            }
            Self::NoVlanInsertion => {
                "the device inserts no VLAN tags that WQEs carry (capability `wqe_vlan_insert` \
                 of its Ethernet page): write the tag into the header"
            }
        })
    }
}

impl core::error::Error for PostError {}

/// The fence mode (fm): which earlier requests must finish before this one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fence {
    /// None.
    None = fence::NONE,
    /// Earlier changes of keys (UMR, [`LocalInvalidate`](super::LocalInvalidate)).
    Small = fence::INITIATOR_SMALL,
    /// Earlier READs and atomics.
    Reads = fence::FENCE,
    /// Strong ordering.
    Strong = fence::STRONG_ORDERING,
    /// READs and atomics, and changes of keys.
    Full = fence::FENCE_AND_INITIATOR_SMALL,
}

impl Fence {
    /// The bit to clear when this fence replaces `INITIATOR_SMALL`. Modes are numbers, not flags:
    /// `FENCE_AND_INITIATOR_SMALL` (4) with the bit of `INITIATOR_SMALL` (1) is mode 5.
    #[inline(always)]
    pub(crate) const fn cleared_small_bits(self) -> CtrlFlags {
        // Bit 2 is set in `Full` only.
        CtrlFlags::new().with_fm(self as u8 >> 2)
    }

    /// The fence that waits for the requests of both.
    #[inline(always)]
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Strong, _) | (_, Self::Strong) => Self::Strong,
            (Self::None, fence) | (fence, Self::None) => fence,
            (Self::Small, Self::Small) => Self::Small,
            (Self::Reads, Self::Reads) => Self::Reads,
            _ => Self::Full,
        }
    }
}

/// A device's rules for UMR WQEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmrRules {
    /// The fence of a [`Umr`](super::Umr), so that earlier requests see the old key (`umr_fence`).
    pub fence: Fence,
    /// Bytes of the largest operand of an atomic, a power of two: start and length of a key that is
    /// mapped for atomics are multiples of it.
    pub max_atomic_bytes: u32,
    /// Maximum KLMs of a list in the request itself: 52, or fewer on a device whose longest WQE is
    /// shorter.
    pub max_klms: usize,
}

impl UmrRules {
    /// The ds of a UMR before its list: control, UMR control and key.
    pub(super) const HEAD_DS: u32 = 1 + 3 + 4;
    /// The number of entries in a list is a multiple of this.
    pub(super) const LIST_GRANULE: usize = 4;
    /// Maximum KLMs of a list in a WQE of 960 bytes.
    pub(super) const MAX_INLINE_KLMS: usize = 52;

    /// The rules that suit every device with atomics of 8 bytes and WQEs of 960 bytes.
    pub const STRICT: Self =
        Self { fence: Fence::Strong, max_atomic_bytes: 8, max_klms: Self::MAX_INLINE_KLMS };

    /// Limits these rules to send WQEs of at most `bytes` bytes, the device's `max_wqe_sz_sq`.
    #[must_use]
    pub const fn with_max_wqe_bytes(mut self, bytes: usize) -> Self {
        // 16 bytes of a WQE, as ds counts them, hold one KLM.
        let room = (bytes / 16).saturating_sub(Self::HEAD_DS as usize);
        let room = room / Self::LIST_GRANULE * Self::LIST_GRANULE;
        self.max_klms = if room < Self::MAX_INLINE_KLMS { room } else { Self::MAX_INLINE_KLMS };
        self
    }
}

/// A queue's limits for a request, and the capabilities of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) sges: u32,
    pub(crate) inline: u32,
    /// Minimum inline bytes of a frame.
    pub(crate) header: u32,
    /// A bit for each [`Capability`] that the device is known to lack.
    pub(crate) lacks: u32,
    pub(crate) umr: UmrRules,
}

impl Limits {
    /// Whether the device may have `capability`.
    #[inline(always)]
    pub(crate) const fn has(&self, capability: Capability) -> bool {
        self.lacks & 1 << capability as u32 == 0
    }
}

/// The optional parts of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) fence: Fence,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
}

impl Options {
    pub(super) const NONE: Self = Self { fence: Fence::None, signaled: false, solicited: false };

    /// The second word of the control segment.
    #[inline(always)]
    pub(crate) const fn flags(self, fence: Fence, immediate: u32) -> CtrlFlags {
        let ce = if self.signaled { completion::ALWAYS } else { completion::ON_ERROR };
        CtrlFlags::new()
            .with_fm(fence as u8)
            .with_ce(ce)
            .with_se(self.solicited)
            .with_imm(immediate)
    }
}

/// Encodes a request as a WQE. Sealed, because a wrong `ds` or `write` would corrupt the
/// neighbouring WQEs.
pub trait Encode: Copy {
    /// Whether the WQE holds inline data.
    const INLINE: bool = false;
    /// ds of the WQE with one SGE, or without data if the operation has no payload.
    const DS: u32;
    /// Whether the operation changes a mkey: it takes the fence of [`UmrRules`], and the next WQE
    /// gets a small fence.
    const CHANGES_MKEY: bool = false;

    /// The WQE's ds, control segment included; at most 63.
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError>;
    /// ds of the common case, which the compiler folds to a constant. `None`: call [`Encode::ds`]
    /// (empty SGE, rare inline length, or an invalid request).
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    #[inline(always)]
    fn fast_ds(&self, limits: &Limits) -> Option<u32> {
        self.ds(limits).ok()
    }
    /// Stores all segments after control and address, from segment `at` on.
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn write(&self, wqe: &Wqe<'_>, at: usize, limits: &Limits);
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn options(&self) -> Options;
    /// Bytes 12 to 15 of the control segment: the immediate, or the mkey of a UMR.
    fn ctrl_imm(&self) -> u32 {
        0
    }
}

/// A work request. The types in [`wr`](crate::wr) implement it.
pub trait Request: Encode {
    /// Operation class; a service accepts the classes that its transport supports.
    type Class;
    /// The operation's entry in [`OPERATIONS`](super::OPERATIONS).
    const INFO: OperationInfo;
}
