//! The segments of a WQE after its control segment.

use verbless_prm::hot::{AtomicSegment, RaddrSegment, WaitDataSegment};
use zerocopy::transmute;

use super::encode::{Limits, PostError};
use super::scratch::Scratch;
use super::wait::WaitCondition;
use crate::ring::Wqe;
use crate::types::{Lkey, RemoteAddr, Sge};

/// A segment, or several that belong together. Sealed, because a wrong `ds` would corrupt the next
/// WQE.
pub trait Segment: Copy {
    /// Whether the segment is inline data.
    const INLINE: bool = false;
    /// Usual length of the segment in ds of 16 bytes; for a payload, that of one SGE.
    const DS: u32;

    /// Length of this value in ds of 16 bytes, at most 60.
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError>;
    /// The ds of a common segment, which the compiler can make a constant; `None` for others (an
    /// empty SGE, an unusual length of inline data) and invalid ones, for [`Segment::ds`].
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    #[inline(always)]
    fn fast_ds(&self, limits: &Limits) -> Option<u32> {
        self.ds(limits).ok()
    }
    /// Stores the segment at index `at` of the WQE; returns the index of the next one.
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize;
}

/// An SGE in the format of a WQE.
#[inline(always)]
pub(crate) fn data_segment(sge: &Sge) -> [u64; 2] {
    sge.segment()
}

/// Implements [`Segment`] for a type that is always valid and has one ds.
macro_rules! one_ds {
    ($type:ty, $self:ident => $bytes:expr) => {
        impl Segment for $type {
            const DS: u32 = 1;

            #[inline(always)]
            #[allow(private_interfaces, reason = "the trait cannot be named outside")]
            fn ds(&self, _: &Limits) -> Result<u32, PostError> {
                Ok(Self::DS)
            }

            #[inline(always)]
            fn write(&$self, wqe: &Wqe<'_>, at: usize) -> usize {
                wqe.store(at, $bytes);
                at + 1
            }
        }
    };
}

one_ds!(RemoteAddr, self => transmute!(RaddrSegment::new(self.address, self.rkey.0)));
one_ds!(AtomicSegment, self => transmute!(*self));
one_ds!(Scratch, self => self.segment());

/// The data segment for the 8 bytes that an atomic returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtomicResult(pub(super) Sge);

impl Segment for AtomicResult {
    const DS: u32 = 1;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        if self.0.length == 8 { Ok(Self::DS) } else { Err(PostError::AtomicLength) }
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        wqe.store(at, data_segment(&self.0));
        at + 1
    }
}

/// The two ends of a memory copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct DmaMmoSegments {
    pub(super) from: Sge,
    pub(super) to: Sge,
}

impl Segment for DmaMmoSegments {
    const DS: u32 = 2;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        let length = self.from.length;
        // A data segment of length 0 means 2 GiB.
        if length == self.to.length && length.wrapping_sub(1) < 0x7fff_ffff {
            Ok(Self::DS)
        } else {
            Err(PostError::DmaMmoLength)
        }
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        wqe.store(at, data_segment(&self.from));
        wqe.store(at + 1, data_segment(&self.to));
        at + 2
    }
}

/// A word in memory, and its wait condition.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitSegment {
    pub(super) address: u64,
    pub(super) lkey: Lkey,
    pub(super) until: WaitCondition,
}

impl Segment for WaitSegment {
    const DS: u32 = 2;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        // The low bits select an action on failure.
        if self.address.is_multiple_of(8) { Ok(Self::DS) } else { Err(PostError::UnalignedWait) }
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        let WaitCondition { operation, value, mask } = self.until;
        // It is not public whether a device masks the value as it masks the word.
        let value = value & mask;
        let segment = WaitDataSegment::new(operation, self.lkey.0, self.address, value, mask);
        let [first, second]: [[u64; 2]; 2] = transmute!(segment);
        wqe.store(at, first);
        wqe.store(at + 1, second);
        at + 2
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::address::AddressHandle;
    use crate::ring::{RingMemory, SendRing, SharedMemory};
    use crate::types::Rkey;
    use crate::types::{QKey, Qpn};
    use crate::wr::encode::{Encode, UmrRules};
    use crate::wr::umr::LocalInv;
    use crate::wr::{Capability, EthSend, Inline, Send, Umr, Write};
    use verbless_prm::DatagramSegment;
    use verbless_prm::access::KeyAccess;

    const LIMITS: Limits =
        Limits { sges: 4, inline: 200, header: 0, lacks: 0, umr: UmrRules::STRICT };

    /// Stores a segment at index `at` of a WQE; returns the written words and the next index.
    #[allow(unsafe_code, reason = "ordinary memory stands in for a ring")]
    fn written(segment: impl Segment, at: usize) -> (Vec<usize>, usize) {
        let memory = SharedMemory::zeroed(4096);
        memory.fill(0xa5);
        // SAFETY: only this thread reads it, after the segment was stored.
        let ring = SendRing::new(unsafe { RingMemory::new(memory.clone()) }).unwrap();
        let next = segment.write(&ring.wqe(0), at);
        let mut bytes = vec![0; 4096];
        memory.read_at(0, &mut bytes).unwrap();
        let words = bytes.chunks(8).enumerate();
        (words.filter(|(_, word)| *word != [0xa5; 8]).map(|(at, _)| at).collect(), next)
    }

    /// Checks that a segment in the middle of a WQE writes exactly its ds.
    fn takes(segment: impl Segment, ds: u32) {
        assert_eq!((segment.ds(&LIMITS), segment.fast_ds(&LIMITS)), (Ok(ds), Some(ds)));
        let end = 3 + ds as usize;
        assert_eq!(written(segment, 3), ((6..2 * end).collect(), end));
    }

    #[test]
    fn segments_occupy_their_ds() {
        let sge = |length| Sge::new(0x1000, length, Lkey(7));
        takes(RemoteAddr::new(0x2000, Rkey(1)), 1);
        takes(AtomicSegment::new(1, 2), 1);
        takes(Scratch::new(sge(64)).unwrap(), 1);
        takes(AtomicResult(sge(8)), 1);
        takes(sge(8), 1);
        takes([sge(8), sge(9)], 2);
        takes(&[sge(8), sge(9), sge(10)][..], 3);
        takes(DmaMmoSegments { from: sge(8), to: sge(8) }, 2);
        takes(WaitSegment { address: 0x1000, lkey: Lkey(7), until: WaitCondition::equal(1) }, 2);
        takes(LocalInv, 7);
        takes(Inline(&[1; 12]), 1);
    }

    #[test]
    fn empty_segment_takes_no_space() {
        let empty = Sge::new(0x1000, 0, Lkey(7));
        assert_eq!((empty.ds(&LIMITS), empty.fast_ds(&LIMITS)), (Ok(0), None));
        assert_eq!(written(empty, 3), (vec![6, 7], 3));
        assert_eq!(written(empty, 4), (vec![], 4));
        assert_eq!(written([empty; 2], 3), (vec![], 3));
        assert_eq!(written(Inline(&[]), 3), (vec![], 3));
    }

    #[test]
    fn inline_of_8_to_20_bytes_takes_fast_path() {
        for (length, ds) in [(7, None), (8, Some(1)), (12, Some(1)), (13, Some(2)), (20, Some(2))] {
            let limits = Limits { inline: length, ..LIMITS };
            let bytes = vec![0; length as usize];
            assert_eq!(Inline(&bytes).fast_ds(&limits), ds, "{length}");
            let less = Limits { inline: length - 1, ..LIMITS };
            assert_eq!(Inline(&bytes).fast_ds(&less), None);
            assert_eq!(Inline(&bytes).ds(&less), Err(PostError::InlineTooLong));
        }
        assert_eq!(Inline(&[0; 21]).fast_ds(&LIMITS), None);
    }

    #[test]
    fn copy_ends_must_have_equal_valid_length() {
        let ends = |from, to| {
            let [from, to] = [from, to].map(|length| Sge::new(0x1000, length, Lkey(7)));
            DmaMmoSegments { from, to }.ds(&LIMITS)
        };
        for length in [1, 0x7fff_ffff] {
            assert_eq!(ends(length, length), Ok(2), "{length:#x}");
        }
        for (from, to) in [(0, 0), (0x8000_0000, 0x8000_0000), (1, 2), (0, 1), (1, 0)] {
            assert_eq!(ends(from, to), Err(PostError::DmaMmoLength), "{from:#x} to {to:#x}");
        }
    }

    #[test]
    fn fast_path_ds_equals_checked_ds() {
        let sge = Sge::new(0x1000, 8, Lkey(7));
        let destination = AddressHandle::new(DatagramSegment::zeroed()).to(Qpn(1), QKey(2));
        let all = |ds, request: &dyn Fn(&Limits) -> [Option<u32>; 2]| {
            assert_eq!(request(&LIMITS), [Some(ds); 2]);
        };
        fn both(request: impl Encode) -> impl Fn(&Limits) -> [Option<u32>; 2] {
            move |limits| [request.fast_ds(limits), request.ds(limits).ok()]
        }
        all(5, &both(Send::new(sge).to(&destination)));
        all(8, &both(Umr::access_flags(Rkey(1), KeyAccess::LOCAL)));
        all(3, &both(Write::new(sge, RemoteAddr::new(0, Rkey(1)))));
        all(4, &both(EthSend::new(&[0; 18], sge)));
        all(11, &both(EthSend::new(&[0; 128], Inline(&[0; 12]))));
        all(4, &both(EthSend::new(&[0; 18], sge).ip_checksum()));
        // These take the checked path.
        let bare = Limits { header: 0, lacks: 1 << Capability::FrameChecksums as u32, ..LIMITS };
        for (frame, limits) in [
            (EthSend::new(&[0; 13], sge), LIMITS),
            (EthSend::new(&[0; 129], sge), LIMITS),
            (EthSend::new(&[], sge).vlan(5), bare),
            (EthSend::new(&[0; 18], sge).ip_checksum(), bare),
            (EthSend::new(&[0; 18], sge), Limits { header: 19, ..LIMITS }),
            (EthSend::new(&[0; 18], sge), Limits { inline: 17, ..LIMITS }),
        ] {
            assert_eq!(frame.fast_ds(&limits), None, "{frame:?}");
        }
        assert_eq!(EthSend::new(&[0; 14], sge).fast_ds(&LIMITS), Some(4));
    }
}
