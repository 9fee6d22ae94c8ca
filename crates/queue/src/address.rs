//! Where datagrams go: an address vector, which every one of them carries.
//!
//! An [`AddressHandle`] is the way to a port, and a [`Destination`] a queue pair there and the key that it asks for. Both are
//! plain values: the device keeps nothing of them, and hundreds of peers cost hundreds of 48-byte values.

use verbless_command::{Error, Path, QKey};
use verbless_prm::WqeDatagramSegment;

use crate::types::Qpn;

/// Bytes in front of every datagram in the memory that receives it: the global route header, or the IPv4 header in the
/// last 20 of them, where the packet had one; else they keep what they were.
pub const HEADER_BYTES: usize = 40;

/// The way to a port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AddressHandle(WqeDatagramSegment);

impl AddressHandle {
    /// The way along `path`. [`Domain::path`](crate::Domain::path) finds one, with the MAC that Ethernet needs.
    ///
    /// # Errors
    /// A field of the path that does not fit.
    pub fn new(path: &Path) -> Result<Self, Error> {
        path.address_vector().map(Self)
    }

    /// A queue pair at the end of the way. `q_key` is what that one asks for: without it the message is dropped. One with
    /// its top bit set stands for the sender's own.
    pub fn to(&self, qpn: Qpn, q_key: QKey) -> Destination {
        let mut vector = self.0;
        vector.set_q_key(q_key.0).set_dqp_dct(qpn.0 & 0xff_ffff);
        Destination { segments: zerocopy::transmute!(vector) }
    }
}

impl std::fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddressHandle")
            .field("lid", &self.0.rlid())
            .field("gid", &verbless_command::Gid(*self.0.rgid()))
            .finish_non_exhaustive()
    }
}

/// Whom a datagram is for. [`AddressHandle::to`] makes it, [`Send::to`](crate::wr::Send::to) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address vector as it stands in a WQE.
    pub(crate) segments: [[u64; 2]; 3],
}

/// Where a message came from: what the transport tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sender's number, bits 23:0; 29:24 tell of the headers.
    pub(crate) flags_qpn: u32,
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
    /// IPv4: RoCE v2. It stands in the last 20 of the 40 bytes.
    Ipv4,
}

impl Source {
    /// The queue pair that sent it.
    pub const fn qpn(&self) -> Qpn {
        Qpn(self.flags_qpn & 0xff_ffff)
    }

    /// LID of the port that it came from (InfiniBand).
    pub const fn lid(&self) -> u16 {
        self.lid
    }

    /// Which of our port's LIDs it was sent to: the low bits (InfiniBand).
    pub const fn path_bits(&self) -> u8 {
        self.path_bits & 0x7f
    }

    /// Service level, 0 to 15 (InfiniBand).
    pub const fn service_level(&self) -> u8 {
        (self.flags_qpn >> 24) as u8 & 0xf
    }

    /// Whether the packet had a global route header, or an IP header: the first [`HEADER_BYTES`] of a datagram's memory
    /// then hold it.
    pub const fn has_header(&self) -> bool {
        self.flags_qpn >> 28 & 3 != 0
    }

    /// What that header is, of a packet that came over Ethernet.
    pub const fn network_header(&self) -> NetworkHeader {
        match self.flags_qpn >> 24 & 3 {
            2 => NetworkHeader::Ipv4,
            1 => NetworkHeader::Ipv6,
            _ => NetworkHeader::Global,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbless_command::{Gid, GlobalRoute};
    use zerocopy::IntoBytes;

    /// What libmlx5 builds of the same attributes: `mlx5_create_ah`, and the Q_Key and QPN that posting adds.
    #[test]
    fn an_infiniband_destination_has_the_bytes_that_libmlx5_writes() {
        let mut grh = GlobalRoute::new(Gid(*b"the peer's gid.."), 3);
        (grh.traffic_class, grh.flow_label, grh.hop_limit) = (0x12, 0x3_4567, 9);
        let path = Path::InfiniBand { dlid: 0xbeef, sl: 5, source_path_bits: 2, grh: Some(grh) };
        let to = AddressHandle::new(&path).unwrap().to(Qpn(0x00ab_cdef), QKey(0x1122_3344));
        let mut expected = [0; 48];
        expected[..16].copy_from_slice(&[
            0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x80, 0xab, 0xcd, 0xef, 0x05, 0x02, 0xbe, 0xef,
        ]);
        expected[26..32].copy_from_slice(&[0x12, 9, 0x40, 0x33, 0x45, 0x67]);
        expected[32..].copy_from_slice(b"the peer's gid..");
        assert_eq!(to.segments.as_bytes(), expected);

        let plain = AddressHandle::new(&Path::to_lid(7)).unwrap().to(Qpn(1), QKey(2));
        let mut expected = [0; 48];
        expected[..16].copy_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0x80, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(plain.segments.as_bytes(), expected);
    }

    #[test]
    fn a_roce_destination_has_a_mac_a_port_and_no_bit_for_the_header_that_is_always_there() {
        let route = GlobalRoute::new(Gid(*b"over ethernet..."), 1);
        let path = Path::Roce {
            version: verbless_command::RoceVersion::V2,
            route,
            destination_mac: [2, 3, 4, 5, 6, 7],
            udp_source_port: 0xc123,
            priority: 3,
        };
        let to = AddressHandle::new(&path).unwrap().to(Qpn(1), QKey(0));
        let bytes = to.segments.as_bytes();
        assert_eq!(bytes[12..16], [0x06, 0, 0xc1, 0x23], "the priority is in bits 3:1");
        assert_eq!(bytes[20..32], [2, 3, 4, 5, 6, 7, 0, 64, 0, 0x10, 0, 0]);
    }

    #[test]
    fn a_source_says_what_the_cqe_says() {
        let source = Source { flags_qpn: 0x1512_3456, lid: 7, path_bits: 0x83 };
        assert_eq!((source.qpn(), source.lid(), source.path_bits()), (Qpn(0x12_3456), 7, 3));
        assert_eq!((source.service_level(), source.has_header()), (5, true));
        let plain = Source { flags_qpn: 0x0200_0001, ..source };
        assert!(!plain.has_header());
        assert_eq!(plain.network_header(), NetworkHeader::Ipv4);
    }
}
