//! The invariant CRC, which protects the fields that switches and routers do not change.
//!
//! It is the CRC-32 of Ethernet over the packet from its network header on (InfiniBand: from its
//! LRH on), where every bit that may change on the way counts as 1. That is the whole LRH of a
//! packet with a GRH. RoCE packets have no LRH: their CRC begins with as many bytes of ones. On the
//! wire the ICRC has the byte order of Ethernet's frame check sequence: lowest byte first.
//!
//! Sources: InfiniBand specification, volume 1, 7.8.1, annexes 16 and 17; Linux
//! `drivers/infiniband/sw/rxe/rxe_icrc.c`.

use verbless_prm::{Bth, Grh, Ipv4Header, Lrh, UdpHeader};

use super::crc::Crc;
pub(super) use super::crc::change;

/// Bytes of an ICRC.
pub const LENGTH: usize = 4;

/// The headers in front of the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// An LRH.
    Local,
    /// LRH and GRH.
    Global,
    /// A GRH (RoCE v1).
    Grh,
    /// IPv4 and UDP (RoCE v2).
    Ipv4,
    /// IPv6 and UDP (RoCE v2).
    Ipv6,
}

/// Bytes of a GRH or IPv6 header that a router may change, from its start: traffic class and flow
/// label, hop limit.
const OF_GRH: [(usize, u8); 5] = [(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];
/// Fields of an IPv4 header that the ICRC does not cover: type of service, time to live, checksum.
const OF_IPV4: [(usize, u8); 4] = [(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)];
/// Fields of an LRH that the ICRC does not cover: the virtual lane. With a GRH after it, the ICRC
/// covers no field of the LRH, since routers make a new LRH.
const OF_LRH: [(usize, u8); 1] = [(0, 0xf0)];
const OF_ROUTED_LRH: [(usize, u8); 8] =
    [(0, 0xff), (1, 0xff), (2, 0xff), (3, 0xff), (4, 0xff), (5, 0xff), (6, 0xff), (7, 0xff)];
/// Fields of a UDP header that the ICRC does not cover: the checksum.
const OF_UDP: [(usize, u8); 2] = [(6, 0xff), (7, 0xff)];
/// Fields of a BTH that the ICRC does not cover: the congestion bits, and the reserved bits beside
/// them.
const OF_BTH: [(usize, u8); 1] = [(4, 0xff)];

/// Maximum number of masked bytes in front of the payload: LRH, GRH, BTH.
const MAX_MASKED_BYTES: usize = Lrh::BYTES + Grh::BYTES + Bth::BYTES;

impl Front {
    /// The headers that the ICRC covers, each with its length and its bits that may change.
    fn headers(self) -> &'static [(usize, &'static [(usize, u8)])] {
        const LRH: (usize, &[(usize, u8)]) = (Lrh::BYTES, &OF_LRH);
        const ROUTED: (usize, &[(usize, u8)]) = (Lrh::BYTES, &OF_ROUTED_LRH);
        const GRH: (usize, &[(usize, u8)]) = (Grh::BYTES, &OF_GRH);
        const IPV4: (usize, &[(usize, u8)]) = (Ipv4Header::BYTES, &OF_IPV4);
        const UDP: (usize, &[(usize, u8)]) = (UdpHeader::BYTES, &OF_UDP);
        const BTH: (usize, &[(usize, u8)]) = (Bth::BYTES, &OF_BTH);
        match self {
            Self::Local => &[LRH, BTH],
            Self::Global => &[ROUTED, GRH, BTH],
            Self::Grh => &[GRH, BTH],
            Self::Ipv4 => &[IPV4, UDP, BTH],
            Self::Ipv6 => &[GRH, UDP, BTH],
        }
    }

    fn has_lrh(self) -> bool {
        matches!(self, Self::Local | Self::Global)
    }
}

/// The ICRC of a packet, from the first header that it covers to the pad.
///
/// # Panics
/// If `packet` ends before its BTH does.
pub(super) fn compute(front: Front, packet: &[u8]) -> u32 {
    let mut masked = [0; MAX_MASKED_BYTES];
    let mut at = 0;
    for &(length, bits) in front.headers() {
        masked[at..at + length].copy_from_slice(&packet[at..at + length]);
        bits.iter().for_each(|&(byte, mask)| masked[at + byte] |= mask);
        at += length;
    }
    let mut crc = Crc::new();
    if !front.has_lrh() {
        crc.update(&[0xff; Lrh::BYTES]);
    }
    crc.update(&masked[..at]);
    crc.update(&packet[at..]);
    crc.finish()
}
