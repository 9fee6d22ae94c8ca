//! The address of a queue pair, as its owner sends it to the peer, and its byte format.

use verbless_command::{Error, ErrorKind, Gid, Mtu, Qpn};

/// Address of a queue pair for its peer. Send it by any means; it fits into 28 bytes.
/// [`Domain::handshake`](crate::Domain::handshake) sends it over a stream. The feature `serde`
/// serializes it as these bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "[u8; 28]", try_from = "[u8; 28]"))]
pub struct PeerAddress {
    /// The queue pair.
    pub qpn: Qpn,
    /// First packet sequence number that the peer will send, 24 bits.
    pub psn: u32,
    /// Whether the peer's port is an Ethernet one.
    pub ethernet: bool,
    /// LID of the peer's port; 0 on Ethernet.
    pub lid: u16,
    /// GID of the peer's port; zero if it has none.
    pub gid: Gid,
    /// Whether packets to the peer's port need a global route header, as on a virtual port of
    /// InfiniBand.
    pub grh_required: bool,
    /// Service level, 0 to 15; on Ethernet the 802.1p priority.
    pub service_level: u8,
    /// The longest packet that the peer accepts.
    pub mtu: Mtu,
    /// READs and atomics that the peer answers at a time (its responder resources): 0, or a power
    /// of two up to 128. The peer refuses more, which breaks the connection, so the other side
    /// limits itself to this number.
    pub reads: u8,
}

/// Version of the encoding.
const VERSION: u8 = 1;
/// Flags of the encoding.
const GRH_REQUIRED: u8 = 1;
const ETHERNET: u8 = 1 << 1;
/// The lowest flag bit of the responder resources: their base-2 logarithm plus one, or 0 for none.
const READS_SHIFT: u32 = 4;
/// The first multicast LID.
pub(super) const FIRST_MULTICAST_LID: u16 = 0xc000;

impl PeerAddress {
    /// Length of the encoding in bytes.
    pub const BYTES: usize = 28;

    /// The address as bytes, each number in network order: version 1, QPN (3 bytes), flags with the
    /// code of the responder resources in their upper half, PSN (3), LID (2), service level, MTU
    /// code, GID (16).
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.qpn.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_be_bytes());
        bytes[0] = VERSION;
        bytes[4] = if self.grh_required { GRH_REQUIRED } else { 0 };
        bytes[4] |= if self.ethernet { ETHERNET } else { 0 };
        bytes[4] |= self.reads.checked_ilog2().map_or(0, |log| (log as u8 + 1) << READS_SHIFT);
        bytes[8..10].copy_from_slice(&self.lid.to_be_bytes());
        bytes[10] = self.service_level;
        bytes[11] = self.mtu as u8;
        bytes[12..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Decodes an address that a peer sent.
    ///
    /// # Errors
    /// Another version, or a value that no port has; the error says which.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, Error> {
        let [version, q0, q1, q2, flags, p0, p1, p2, l0, l1, service_level, mtu, gid @ ..] = *bytes;
        let refuse = |why: String| Error::new(ErrorKind::Peer, "reading a peer's address", why);
        if version != VERSION {
            return Err(refuse(format!(
                "its version is {version}, not {VERSION}: the peer runs another release, or these \
                 bytes are no address"
            )));
        }
        let (flags, resources) = (flags & ((1 << READS_SHIFT) - 1), flags >> READS_SHIFT);
        if flags & !(GRH_REQUIRED | ETHERNET) != 0 {
            return Err(refuse(format!("its flags {flags:#x} contain unknown ones")));
        }
        let reads = match resources.checked_sub(1).map(|log| 1_u8.checked_shl(log.into())) {
            None => 0,
            Some(Some(reads)) => reads,
            Some(None) => {
                return Err(refuse(format!(
                    "its code of responder resources is {resources}; valid are 0 (none) to 8 (128)"
                )));
            }
        };
        let (ethernet, grh_required) = (flags & ETHERNET != 0, flags & GRH_REQUIRED != 0);
        let (lid, gid) = (u16::from_be_bytes([l0, l1]), Gid(gid));
        let mtu = Mtu::of_code(mtu).ok_or_else(|| {
            refuse(format!("its MTU code is {mtu}; valid are 1 (256) to 5 (4096)"))
        })?;
        let highest = if ethernet { 7 } else { 15 };
        if service_level > highest {
            return Err(refuse(format!("its service level is {service_level}, above {highest}")));
        }
        if gid.0[0] == 0xff {
            return Err(refuse(format!("its GID {gid} is a multicast one")));
        }
        if !ethernet && !gid.is_zero() && gid.lacks_interface_id() {
            return Err(refuse(format!(
                "its GID {gid} has interface id 0, which no InfiniBand port has: it is an unused \
                 entry of the port's table"
            )));
        }
        if (ethernet || grh_required) && gid.is_zero() {
            return Err(refuse("it has no GID, which its port needs".into()));
        }
        if lid >= FIRST_MULTICAST_LID || (ethernet && lid != 0) {
            return Err(refuse(format!("its LID {lid:#x} is not valid for its kind of port")));
        }
        if ethernet && grh_required {
            return Err(refuse(
                "its flags say both that its port is an Ethernet one and that it requires a GRH, \
                 which only InfiniBand ports do"
                    .into(),
            ));
        }
        Ok(Self {
            qpn: Qpn(u32::from_be_bytes([0, q0, q1, q2])),
            psn: u32::from_be_bytes([0, p0, p1, p2]),
            ethernet,
            lid,
            gid,
            grh_required,
            service_level,
            mtu,
            reads,
        })
    }
}

impl From<PeerAddress> for [u8; PeerAddress::BYTES] {
    fn from(address: PeerAddress) -> Self {
        address.to_bytes()
    }
}

impl TryFrom<[u8; Self::BYTES]> for PeerAddress {
    type Error = Error;

    fn try_from(bytes: [u8; Self::BYTES]) -> Result<Self, Error> {
        Self::from_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> PeerAddress {
        PeerAddress {
            qpn: Qpn(0x12_3456),
            psn: 0xab_cdef,
            ethernet: false,
            lid: 7,
            gid: Gid([0x20; 16]),
            grh_required: true,
            service_level: 5,
            mtu: Mtu::B2048,
            reads: 16,
        }
    }

    #[test]
    fn peer_address_round_trips() {
        let infiniband = address();
        let ethernet = PeerAddress { ethernet: true, grh_required: false, lid: 0, ..infiniband };
        let none = PeerAddress { reads: 0, ..infiniband };
        for address in [infiniband, ethernet, none, PeerAddress { reads: 128, ..infiniband }] {
            let read = PeerAddress::from_bytes(&address.to_bytes()).expect("the address is whole");
            assert_eq!(read, address);
        }
        let bytes = infiniband.to_bytes();
        assert_eq!(bytes[..12], [1, 0x12, 0x34, 0x56, 0x51, 0xab, 0xcd, 0xef, 0, 7, 5, 4]);
    }

    #[test]
    fn invalid_peer_address_is_rejected_with_reason() {
        for (edit, reason) in [
            (&[(0usize, 0u8)][..], "version is 0"),
            (&[(0, 2)], "version is 2"),
            (&[(4, 4)], "flags 0x4 contain"),
            (&[(4, 0x91)], "responder resources is 9"),
            (&[(11, 0)], "MTU code is 0"),
            (&[(11, 6)], "MTU code is 6"),
            (&[(10, 16)], "service level is 16, above 15"),
            (&[(12, 0xff)], "multicast"),
            (&[(8, 0xc0)], "LID 0xc007"),
            (&[(4, 2)], "LID 0x7"),
            (&[(4, 3), (9, 0)], "both that its port is an Ethernet one"),
            (&[(4, 2), (9, 0), (10, 8)], "service level is 8, above 7"),
        ] {
            let mut bytes = address().to_bytes();
            edit.iter().for_each(|&(at, value)| bytes[at] = value);
            let error = PeerAddress::from_bytes(&bytes).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error:?} does not say {reason:?}");
        }
        let mut bytes = address().to_bytes();
        bytes[20..].fill(0);
        let error = PeerAddress::from_bytes(&bytes).expect_err("a prefix alone").to_string();
        assert!(error.contains("2020:0000:0000:0000:0000 has interface id 0"), "{error}");
        let over_ip = PeerAddress { ethernet: true, grh_required: false, lid: 0, ..address() };
        let mut bytes = over_ip.to_bytes();
        bytes[20..].fill(0);
        PeerAddress::from_bytes(&bytes).expect("an IPv6 address may end in zeros");
        let mut bytes = address().to_bytes();
        bytes[12..].fill(0);
        let error = PeerAddress::from_bytes(&bytes).expect_err("no GID").to_string();
        assert!(error.contains("no GID"), "{error}");
    }
}
