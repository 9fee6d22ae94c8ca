//! Ethernet frames: the request of a raw send queue.

use core::mem::offset_of;
use verbless_prm::hot::{self, EthChecksums, EthInline, EthVlan, WQEBB};

use super::capability::Capability;
use super::encode::{Encode, Fence, Limits, Options, PostError, Request};
use super::payload::{Payload, tail};
use crate::ring::Wqe;

/// Inline bytes of a frame if the device needs the Ethernet header: the length with a VLAN tag,
/// whether the frame has one or not.
///
/// Source: Linux `drivers/net/ethernet/mellanox/mlx5/core/en_tx.c` (`MLX5E_MIN_INLINE`), rdma-core
/// `providers/mlx5/wqe.h` (`MLX5_ETH_L2_INLINE_HEADER_SIZE`).
pub const MIN_INLINE_HEADER: u32 = 18;

/// Ds of the control and the Ethernet segment.
const HEAD: u32 = 2;
/// Bit position of the checksum flags in the first word of the Ethernet segment.
const CHECKSUMS_SHIFT: u32 = 56 - 8 * offset_of!(hot::EthSegment, eth_checksums) as u32;
/// Bytes of the header in the Ethernet segment itself.
const START: usize = 2;

/// An Ethernet frame, from the destination address to the end of the payload: the device adds
/// padding and checksum. Its first bytes, the header, are copied to the WQE; the rest is an
/// [`Sge`](crate::Sge), several, or [`Inline`](super::Inline).
///
/// ```
/// # use verbless_ring::{Eth, SendQueue, Sge, wr::{EthSend, PostError}};
/// # fn f(queue: &mut SendQueue<Eth>, header: &[u8; 18], rest: Sge) -> Result<(), PostError> {
/// queue.post(&EthSend::new(header, rest).ip_checksum().l4_checksum().signaled(), 7)?;
/// # Ok(())
/// # }
/// ```
///
/// Source of the WQE: Linux `drivers/net/ethernet/mellanox/mlx5/core/en_tx.c`
/// (`mlx5e_sq_xmit_wqe`, `mlx5e_sq_calc_wqe_attr`), rdma-core `providers/mlx5/qp.c`
/// (`copy_eth_inline_headers`).
#[derive(Clone, Copy, Debug)]
pub struct EthSend<'a, P: Payload> {
    header: &'a [u8],
    body: P,
    /// The checksums that the device computes: [`EthChecksums`].
    checksums: u8,
    /// The VLAN tag to insert, or nothing: [`EthVlan`].
    vlan: u32,
    options: Options,
}

impl<'a, P: Payload> EthSend<'a, P> {
    /// The frame of `header` followed by `body`. The header has at least the bytes that the queue
    /// needs inline ([`SendQueue::min_inline_header`](crate::SendQueue::min_inline_header)); in a
    /// short frame they include payload. It may be empty if the queue needs none.
    #[inline(always)]
    pub const fn new(header: &'a [u8], body: P) -> Self {
        let options = Options { fence: Fence::None, signaled: false, solicited: false };
        Self { header, body, checksums: 0, vlan: 0, options }
    }

    /// Requests a completion. Without it, only a failed request has one.
    #[inline(always)]
    pub const fn signaled(mut self) -> Self {
        self.options.signaled = true;
        self
    }

    /// The device writes the checksum of the IPv4 header.
    #[inline(always)]
    pub const fn ip_checksum(mut self) -> Self {
        self.checksums |= EthChecksums::new().with_l3_cs(true).into_bits();
        self
    }

    /// The device writes the checksum of TCP or UDP; the frame has the checksum of the pseudo
    /// header in its place.
    #[inline(always)]
    pub const fn l4_checksum(mut self) -> Self {
        self.checksums |= EthChecksums::new().with_l4_cs(true).into_bits();
        self
    }

    /// The device inserts a VLAN tag (0x8100) with these 16 bits: priority, DEI, VLAN id. Only for
    /// a frame without inline header, because the tag uses the header's field in the WQE.
    #[inline(always)]
    pub const fn vlan(mut self, tci: u16) -> Self {
        self.vlan = EthVlan::new().with_insert_vlan(true).with_vlan_tci(tci).into_bits();
        self
    }

    /// The device inserts a service VLAN tag (0x88a8) with these 16 bits, as [`Self::vlan`] a
    /// customer tag.
    #[inline(always)]
    pub const fn service_vlan(mut self, tci: u16) -> Self {
        self = self.vlan(tci);
        self.vlan |= EthVlan::new().with_insert_svlan(true).into_bits();
        self
    }

    /// Ds of the header after the Ethernet segment.
    #[inline(always)]
    fn header_ds(&self) -> u32 {
        self.header.len().saturating_sub(START).div_ceil(16) as u32
    }

    /// The limits of the body: header and inline body share the limit of inline bytes, which the
    /// header does not exceed.
    #[inline(always)]
    fn body_limits(&self, limits: &Limits) -> Limits {
        Limits { inline: limits.inline - self.header.len() as u32, ..*limits }
    }

    /// Checks that the device has the frame's offloads.
    #[inline(always)]
    fn check_offloads(&self, limits: &Limits) -> Result<(), PostError> {
        if self.checksums != 0 && !limits.has(Capability::FrameChecksums) {
            return Err(PostError::NoChecksums);
        }
        if self.vlan != 0 {
            if !limits.has(Capability::VlanInsertion) {
                return Err(PostError::NoVlanInsertion);
            }
            if !self.header.is_empty() {
                return Err(PostError::VlanWithInlineHeader);
            }
        }
        Ok(())
    }
}

impl<P: Payload> Encode for EthSend<'_, P> {
    const INLINE: bool = true;
    const DS: u32 = HEAD + 1 + P::DS;

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn ds(&self, limits: &Limits) -> Result<u32, PostError> {
        let length = self.header.len();
        if length < limits.header as usize {
            return Err(PostError::HeaderTooShort);
        }
        if length > limits.inline as usize {
            return Err(PostError::InlineTooLong);
        }
        self.check_offloads(limits)?;
        let body = self.body.ds(&self.body_limits(limits))?;
        if length == 0 && body == 0 {
            return Err(PostError::HeaderTooShort);
        }
        match HEAD + self.header_ds() + body {
            ds if ds <= <Self as Request>::INFO.max_ds() => Ok(ds),
            _ if P::INLINE => Err(PostError::InlineTooLong),
            _ => Err(PostError::TooManySges),
        }
    }

    /// The ds of a frame with a usual header length and no VLAN tag to insert.
    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn fast_ds(&self, limits: &Limits) -> Option<u32> {
        let length = self.header.len();
        // A WQE of these lengths is known to fit.
        let usual = length >= limits.header as usize && length <= limits.inline as usize;
        let usual = usual && FAST_LENGTHS.contains(&length) && self.vlan == 0;
        if !usual || (self.checksums != 0 && !limits.has(Capability::FrameChecksums)) {
            return None;
        }
        let ds = HEAD + self.header_ds() + self.body.fast_ds(&self.body_limits(limits))?;
        (ds <= const { <Self as Request>::INFO.max_ds() }).then_some(ds)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn write(&self, wqe: &Wqe<'_>, at: usize, _: &Limits) {
        let (start, rest) = match self.header.split_first_chunk::<START>() {
            Some((first, rest)) => (u16::from_be_bytes(*first), rest),
            None => (u16::from(self.header.first().copied().unwrap_or(0)) << 8, &[][..]),
        };
        let length = self.header.len() as u16;
        let inlined = EthInline::new().with_inline_hdr_sz(length).with_inline_hdr_start(start);
        let start = self.vlan | inlined.into_bits();
        wqe.store(
            at,
            [(u64::from(self.checksums) << CHECKSUMS_SHIFT).to_be(), u64::from(start).to_be()],
        );
        let mut word = 2 * (at + 1);
        let mut left = rest;
        while let Some((eight, behind)) = left.split_first_chunk::<8>() {
            wqe.store_word(word, u64::from_ne_bytes(*eight));
            word += 1;
            left = behind;
        }
        // The device does not read the bytes after the header up to the next segment.
        if !left.is_empty() {
            wqe.store_word(word, tail(left).to_le());
        }
        self.body.write(wqe, at + 1 + self.header_ds() as usize);
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "the trait cannot be named outside")]
    fn options(&self) -> Options {
        self.options
    }
}

/// Header lengths of the inlined fast path: from Ethernet to TCP over IPv6.
const FAST_LENGTHS: core::ops::RangeInclusive<usize> = 14..=2 * WQEBB;
