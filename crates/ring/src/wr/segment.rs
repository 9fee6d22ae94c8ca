//! The segments of a WQE that stand behind its control segment.

use bytemuck::must_cast;
use verbless_prm::hot::{AtomicSegment, RaddrSegment, WaitDataSegment};

use super::copy::Scratch;
use super::encode::{Limits, PostError};
use super::payload::data_segment;
use super::wait::Until;
use crate::ring::Wqe;
use crate::types::{Lkey, RemoteAddr, Sge};

/// A segment, or several that belong together. It cannot be named outside, because a wrong `ds`
/// would corrupt the next WQE.
pub trait Segment: Copy {
    /// Whether the segment is inline data.
    const INLINE: bool = false;
    /// Usual length of the segment in ds of 16 bytes; of a payload, that of one SGE.
    const DS: u32;

    /// Length of this value in ds of 16 bytes, at most 60.
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError>;
    /// The ds of a common segment, which the compiler can make a constant; `None` for others (an
    /// empty SGE, an unusual length of inline data) and invalid ones: then [`Segment::ds`] decides.
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    #[inline(always)]
    fn usual_ds(&self, limits: &Limits) -> Option<u32> {
        self.ds(limits).ok()
    }
    /// Stores the segment at index `at` of the WQE; returns the index of the next one.
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize;
}

/// Implements [`Segment`] for what is always one ds and always right.
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

one_ds!(RemoteAddr, self => must_cast(RaddrSegment::new(self.address, self.rkey.0)));
one_ds!(AtomicSegment, self => must_cast(*self));
one_ds!(Scratch, self => self.segment());

/// The data segment for the 8 bytes that an atomic returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found(pub(super) Sge);

impl Segment for Found {
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
pub(super) struct Ends {
    pub(super) from: Sge,
    pub(super) to: Sge,
}

impl Segment for Ends {
    const DS: u32 = 2;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        let length = self.from.length;
        // A data segment of length 0 means 2 GiB.
        if length == self.to.length && length.wrapping_sub(1) < 0x7fff_ffff {
            Ok(Self::DS)
        } else {
            Err(PostError::CopyLength)
        }
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        wqe.store(at, data_segment(&self.from));
        wqe.store(at + 1, data_segment(&self.to));
        at + 2
    }
}

/// A word in memory, and what is waited for there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) address: u64,
    pub(super) lkey: Lkey,
    pub(super) until: Until,
}

impl Segment for Word {
    const DS: u32 = 2;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        // The low bits would name an action on failure.
        if self.address.is_multiple_of(8) { Ok(Self::DS) } else { Err(PostError::Unaligned) }
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        let Until { operation, value, mask } = self.until;
        // Whether a device masks the value as it does the word is not public.
        let value = value & mask;
        let segment = WaitDataSegment::new(operation, self.lkey.0, self.address, value, mask);
        let [first, second]: [[u64; 2]; 2] = must_cast(segment);
        wqe.store(at, first);
        wqe.store(at + 1, second);
        at + 2
    }
}
