//! The address vector that every datagram carries.
//!
//! An [`AddressHandle`] is the path to a port, a [`Destination`] that path with a queue pair and
//! its Q_Key. Both are plain values of 48 bytes; the device keeps no state of them.

use core::net::Ipv6Addr;
use verbless_prm::IntoBytes;

use verbless_prm::hot::{CqeRoceSourceQp, CqeSourceQp};
use verbless_prm::{CqeRoceL3Type, DatagramSegment};

use crate::types::{QKey, Qpn};

/// Bytes before every datagram in its receive memory. They hold the packet's global route header,
/// or its IPv4 header in the last 20 bytes; without a header they do not change.
pub const GRH_BYTES: usize = 40;

/// Address vector of a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AddressHandle(DatagramSegment);

impl AddressHandle {
    /// The path that `vector` describes; its Q_Key and queue pair are ignored. Path::address_handle
    /// of verbless-command makes one from a path.
    pub const fn new(vector: DatagramSegment) -> Self {
        Self(vector)
    }

    /// A queue pair of this port. `q_key` must be its Q_Key, or the message is dropped. If the top
    /// bit of `q_key` is set, the sender's own Q_Key is used instead.
    pub fn to(&self, qpn: Qpn, q_key: QKey) -> Destination {
        let mut vector = self.0;
        vector.set_q_key(q_key.0).set_dqp_dct(qpn.0 & 0xff_ffff);
        Destination { segments: zerocopy::transmute!(vector) }
    }
}

impl core::fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AddressHandle")
            .field("lid", &self.0.rlid())
            .field("gid", &Ipv6Addr::from(*self.0.rgid()))
            .finish_non_exhaustive()
    }
}

/// Destination of a datagram. [`AddressHandle::to`] makes it, [`Send::to`](crate::wr::Send::to)
/// takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address vector in the format of a WQE.
    pub(crate) segments: [[u64; 2]; 3],
}

impl Destination {
    /// The 48 bytes of the address vector in a WQE.
    pub fn as_bytes(&self) -> &[u8] {
        self.segments.as_bytes()
    }
}

/// Source of a message in its CQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub(crate) qp: CqeSourceQp,
    pub(crate) lid: u16,
    pub(crate) path_bits: u8,
}

/// The network header of a packet that came over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// A global route header: RoCE v1.
    Global,
    /// IPv6: RoCE v2.
    Ipv6,
    /// IPv4: RoCE v2, in the last 20 of the 40 bytes.
    Ipv4,
}

impl Source {
    /// The queue pair that sent the message.
    pub const fn qpn(&self) -> Qpn {
        Qpn(self.qp.rqpn())
    }

    /// LID of the port that sent the message (InfiniBand).
    pub const fn lid(&self) -> u16 {
        self.lid
    }

    /// The low bits of the destination LID, which is our port's (InfiniBand).
    pub const fn path_bits(&self) -> u8 {
        self.path_bits
    }

    /// Service level, 0 to 15 (InfiniBand).
    pub const fn service_level(&self) -> u8 {
        self.qp.sl()
    }

    /// Whether the packet had a global route header, or an IP header: the first [`GRH_BYTES`] of
    /// a datagram's memory then hold it.
    pub const fn has_header(&self) -> bool {
        self.qp.g() != 0
    }

    /// The type of the header at the start of the datagram's memory, if the packet came over
    /// Ethernet.
    pub const fn network_header(&self) -> NetworkHeader {
        let qp = CqeRoceSourceQp::from_bits(self.qp.into_bits());
        match CqeRoceL3Type(qp.roce_l3_type()) {
            CqeRoceL3Type::IPV4 => NetworkHeader::Ipv4,
            CqeRoceL3Type::IPV6 => NetworkHeader::Ipv6,
            _ => NetworkHeader::Global,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_fields_come_from_cqe() {
        let source = Source { qp: CqeSourceQp::from_bits(0x1512_3456), lid: 7, path_bits: 3 };
        assert_eq!((source.qpn(), source.lid(), source.path_bits()), (Qpn(0x12_3456), 7, 3));
        assert_eq!((source.service_level(), source.has_header()), (5, true));
        // g, a UDP header, IPv4.
        let udp = Source { qp: CqeSourceQp::from_bits(0x1a00_0001), ..source };
        assert_eq!(udp.network_header(), NetworkHeader::Ipv4);
        let plain = Source { qp: CqeSourceQp::from_bits(0x0200_0001), ..source };
        assert!(!plain.has_header());
        assert_eq!(plain.network_header(), NetworkHeader::Ipv4);
    }
}
