//! The local memory of a request: SGEs, or inline data.

use verbless_prm::hot::{DataSegment, InlineHeader, InlineWord, OCTOWORD, WQEBB};

use super::encode::{Limits, PostError};
use super::segment::Segment;
use crate::ring::Wqe;
use crate::types::Sge;

/// The data that a request sends: an [`Sge`], an array or a slice of them, or [`Inline`] data.
pub trait Payload: Segment {}
impl<T: Segment + AsSges> Payload for T {}
impl Payload for Inline<'_> {}

/// Memory that a request sends or fills: an [`Sge`], or an array or a slice of them.
pub trait SgList: Payload + AsSges {}
impl<T: Payload + AsSges> SgList for T {}

/// Data that is copied to the WQE: its memory need not be registered, and can be reused once the
/// request is posted.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(
    /// The data.
    pub &'a [u8],
);

/// The SGEs, as a slice.
pub trait AsSges {
    /// The SGEs, in order.
    fn as_sges(&self) -> &[Sge];
}

impl AsSges for Sge {
    #[inline(always)]
    fn as_sges(&self) -> &[Sge] {
        core::slice::from_ref(self)
    }
}

impl AsSges for &[Sge] {
    #[inline(always)]
    fn as_sges(&self) -> &[Sge] {
        self
    }
}

impl<const N: usize> AsSges for [Sge; N] {
    #[inline(always)]
    fn as_sges(&self) -> &[Sge] {
        self
    }
}

/// An SGE in the format of a WQE.
#[inline(always)]
pub(crate) fn data_segment(sge: &Sge) -> [u64; 2] {
    sge.segment()
}

/// The ds of one SGE: none if it is empty, because a data segment of length 0 means 2 GiB.
#[inline(always)]
pub(crate) fn sge_ds(sge: &Sge) -> Result<u32, PostError> {
    if is_plain(sge) {
        Ok(1)
    } else if sge.length == 0 {
        Ok(0)
    } else {
        Err(PostError::SgeTooLong)
    }
}

/// Whether a data segment encodes the length directly.
#[inline(always)]
fn is_plain(sge: &Sge) -> bool {
    sge.length.wrapping_sub(1) < DataSegment::MAX_BYTES
}

impl Segment for Sge {
    const DS: u32 = 1;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, _: &Limits) -> Result<u32, PostError> {
        sge_ds(self)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn fast_ds(&self, _: &Limits) -> Option<u32> {
        is_plain(self).then_some(1)
    }

    /// Stores an empty SGE too where it does no harm: after the end of the WQE, but in its first
    /// wqebb, which belongs to this WQE.
    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        if at < WQEBB / OCTOWORD || self.length != 0 {
            wqe.store(at, data_segment(self));
        }
        at + usize::from(self.length != 0)
    }
}

/// `ds` of several SGEs.
#[inline(always)]
fn ds(sges: &[Sge], limits: &Limits) -> Result<u32, PostError> {
    if sges.len() > limits.sges as usize {
        return Err(PostError::TooManySges);
    }
    let mut ds = 0;
    for sge in sges {
        ds += sge_ds(sge)?;
    }
    Ok(ds)
}

#[inline(always)]
fn write(sges: &[Sge], wqe: &Wqe<'_>, mut at: usize) -> usize {
    for sge in sges {
        if sge.length != 0 {
            wqe.store(at, data_segment(sge));
            at += 1;
        }
    }
    at
}

impl Segment for &[Sge] {
    const DS: u32 = 1;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        ds(self, limits)
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        write(self, wqe, at)
    }
}

impl<const N: usize> Segment for [Sge; N] {
    const DS: u32 = 1;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        ds(self, limits)
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        write(self, wqe, at)
    }
}

impl Segment for Inline<'_> {
    const INLINE: bool = true;
    const DS: u32 = 1;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        let length = self.0.len();
        if length > limits.inline as usize {
            return Err(PostError::InlineTooLong);
        }
        Ok(self.whole_ds())
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn fast_ds(&self, limits: &Limits) -> Option<u32> {
        let length = self.0.len();
        if !FAST_LENGTHS.contains(&length) || length > limits.inline as usize {
            return None;
        }
        // The same as `ds` for these lengths; this form shows that a request has one wqebb.
        Some(if length <= OCTOWORD - InlineHeader::BYTES { 1 } else { 2 })
    }

    #[inline(always)]
    fn write(&self, wqe: &Wqe<'_>, at: usize) -> usize {
        self.store(wqe, 2 * at);
        at + self.whole_ds() as usize
    }
}

impl Inline<'_> {
    /// Length in ds, not checked against the queue's limits.
    #[inline(always)]
    fn whole_ds(&self) -> u32 {
        let length = self.0.len();
        if length == 0 { 0 } else { (InlineHeader::BYTES + length).div_ceil(OCTOWORD) as u32 }
    }

    /// Stores header and data at 8-byte word `word` of the WQE.
    #[inline(always)]
    fn store(&self, wqe: &Wqe<'_>, word: usize) {
        let data = self.0;
        if data.is_empty() {
            return;
        }
        const INLINE: u32 = InlineWord::new().with_inline(true).into_bits();
        let header = (INLINE | data.len() as u32).to_be();
        let Some((four, rest)) = data.split_first_chunk::<4>() else {
            wqe.store_word(word, pair(header, tail(data) as u32));
            return;
        };
        wqe.store_word(word, pair(header, u32::from_le_bytes(*four)));
        let Some(last) = data.last_chunk::<8>() else {
            wqe.store_word(word + 1, tail(rest).to_le());
            return;
        };
        // The last word of 8 holds the remaining 1 to 8 bytes, shifted out of the last 8 bytes of
        // the data. Most requests have no whole word before it.
        let ending = |rest: &[u8]| {
            let others = 64 - 8 * rest.len() as u32;
            (u64::from_le_bytes(*last) >> (others & 63)).to_le()
        };
        let Some((eight, behind)) = rest.split_first_chunk::<8>().filter(|it| !it.1.is_empty())
        else {
            wqe.store_word(word + 1, ending(rest));
            return;
        };
        wqe.store_word(word + 1, u64::from_ne_bytes(*eight));
        if behind.len() <= 8 {
            wqe.store_word(word + 2, ending(behind));
            return;
        }
        let mut word = word + 2;
        let mut rest = behind;
        while let Some((eight, behind)) = rest.split_first_chunk::<8>()
            && !behind.is_empty()
        {
            wqe.store_word(word, u64::from_ne_bytes(*eight));
            word += 1;
            rest = behind;
        }
        wqe.store_word(word, ending(rest));
    }
}

/// Lengths of inline data with an inlined fast path. Other lengths are posted by a function that is
/// not inlined: its loop would need the fast path's registers.
const FAST_LENGTHS: core::ops::RangeInclusive<usize> = 8..=20;

/// A word of `header` (in the byte order of memory) followed by the bytes of `data`
/// (little-endian).
#[inline(always)]
fn pair(header: u32, data: u32) -> u64 {
    (u64::from(u32::from_le(header)) | u64::from(data) << 32).to_le()
}

/// Up to 7 bytes as a little-endian number.
#[inline(always)]
pub(super) fn tail(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two overlap, and agree in the overlap.
        let last_at = 8 * (bytes.len() as u32 & 7) - 32;
        return u64::from(u32::from_le_bytes(*first))
            | u64::from(u32::from_le_bytes(*last)) << (last_at & 63);
    }
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
