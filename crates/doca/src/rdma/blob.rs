//! Connection descriptors: each instance sends one to the other, and both connect.
//!
//! The format is this project's own; both sides must speak it. All numbers are in network order.
//!
//! | byte | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `vbdr` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | transport type: 1 for RC |
//! | 7 | 1 | 0 |
//! | 8 | 4 | length of the descriptor in bytes, 68 |
//! | 12 | 4 | the peer's permissions, as in `doca_access_flags` |
//! | 16 | 16 | a random number, unique to the descriptor |
//! | 32 | 28 | queue pair, PSN, port and path: [`PeerAddress::to_bytes`] |
//! | 60 | 8 | the first 8 bytes of SHA-256 over all bytes before |
//!
//! The checksum finds damage. It is not a signature: every holder of a descriptor can connect in
//! the place of the intended peer. Send it over a trusted channel.

use std::fmt;

use sha2::{Digest, Sha256};
use verbless_queue::PeerAddress;

use crate::error::{Error, ErrorKind, Result};
use crate::types::AccessFlags;

const MAGIC: [u8; 4] = *b"vbdr";
const VERSION: u16 = 1;
const RC: u8 = 1;
/// Bytes of the checksum.
const SUM: usize = 8;
const ADDRESS: usize = 32;
const BYTES: usize = ADDRESS + PeerAddress::BYTES + SUM;

/// The random number of a descriptor.
pub(super) type Nonce = [u8; 16];

/// Gives a peer the data to connect to an instance. The program sends it as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionDescriptor([u8; BYTES]);

impl ConnectionDescriptor {
    /// Bytes of every descriptor.
    pub const BYTES: usize = BYTES;

    /// The bytes to send to the peer.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ConnectionDescriptor {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// The contents are hidden: every holder of them can connect.
impl fmt::Debug for ConnectionDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionDescriptor(..)")
    }
}

/// The fields of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorFields {
    pub(super) permissions: AccessFlags,
    pub(super) nonce: Nonce,
    pub(super) address: PeerAddress,
}

fn checksum(covered: &[u8]) -> [u8; SUM] {
    let digest = Sha256::digest(covered);
    std::array::from_fn(|at| digest[at])
}

pub(super) fn describe(fields: &DescriptorFields) -> ConnectionDescriptor {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
    bytes[6] = RC;
    bytes[8..12].copy_from_slice(&(BYTES as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&fields.permissions.bits().to_be_bytes());
    bytes[16..ADDRESS].copy_from_slice(&fields.nonce);
    bytes[ADDRESS..BYTES - SUM].copy_from_slice(&fields.address.to_bytes());
    let sum = checksum(&bytes[..BYTES - SUM]);
    bytes[BYTES - SUM..].copy_from_slice(&sum);
    ConnectionDescriptor(bytes)
}

fn refuse(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidValue, why)
}

/// Parses the bytes of the other side.
pub(super) fn parse(bytes: &[u8]) -> Result<DescriptorFields> {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    if bytes.len() < 12 || bytes[..4] != MAGIC {
        return Err(refuse(format!("these {} bytes are not a connection descriptor", bytes.len())));
    }
    let version = u16::from_be_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        let text = format!("the connection descriptor is of version {version}, not {VERSION}");
        return Err(Error::new(ErrorKind::UnsupportedVersion, text));
    }
    if bytes[6..8] != [RC, 0] {
        let text = format!("transport type {} of connections is not known here", bytes[6]);
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    let (length, claimed) = (bytes.len(), word(8));
    let Some(bytes): Option<&[u8; BYTES]> =
        bytes.try_into().ok().filter(|_| claimed as usize == BYTES)
    else {
        return Err(refuse(format!(
            "the connection descriptor has {length} bytes and claims {claimed}; it must have \
             {BYTES}: parts were lost or added on the way"
        )));
    };
    let (covered, sum) = bytes.split_at(BYTES - SUM);
    if checksum(covered) != sum {
        let text = "the connection descriptor was altered on the way: its checksum is wrong";
        return Err(refuse(text));
    }
    let permissions = AccessFlags::from_bits(word(12)).ok_or_else(|| {
        refuse(format!("the connection descriptor's permissions {:#x} are unknown", word(12)))
    })?;
    let address = std::array::from_fn(|i| bytes[ADDRESS + i]);
    let address = PeerAddress::from_bytes(&address).map_err(|error| {
        refuse(format!("the connection descriptor's address: {error}")).with_source(error)
    })?;
    Ok(DescriptorFields { permissions, nonce: std::array::from_fn(|i| bytes[16 + i]), address })
}

/// Parses bytes as [`Rdma::connect`](super::Rdma::connect) does, for the fuzz target.
#[doc(hidden)]
pub fn check(bytes: &[u8]) -> Result<()> {
    parse(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use verbless_queue::Qpn;

    use super::*;
    use crate::rdma::Mtu;

    fn fields() -> DescriptorFields {
        let address = PeerAddress {
            qpn: Qpn(0x12_3456),
            psn: 0xab_cdef,
            ethernet: false,
            lid: 7,
            gid: Default::default(),
            grh_required: false,
            service_level: 5,
            mtu: Mtu::B2048,
            reads: 16,
        };
        DescriptorFields { permissions: AccessFlags::RDMA_READ, nonce: [0xa5; 16], address }
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let covered = bytes.len() - SUM;
        let sum = checksum(&bytes[..covered]);
        bytes[covered..].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn descriptor_round_trips_fields() {
        let described = describe(&fields());
        assert_eq!(parse(described.as_bytes()).unwrap(), fields());
        check(described.as_bytes()).unwrap();
        assert!(check(&described.as_bytes()[1..]).is_err());
    }

    #[test]
    fn truncated_or_altered_descriptor_is_rejected() {
        let good = describe(&fields()).as_bytes().to_vec();
        for length in 0..good.len() {
            assert!(parse(&good[..length]).is_err(), "{length} bytes");
        }
        assert!(parse(&[&good[..], &[0]].concat()).is_err());
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn sealed_descriptor_with_invalid_fields_is_rejected() {
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = describe(&fields()).as_bytes().to_vec();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            parse(&sealed(bad)).unwrap_err().kind()
        };
        assert_eq!(with(0, b"vbdm"), ErrorKind::InvalidValue, "of a map");
        assert_eq!(with(4, &[0, 2]), ErrorKind::UnsupportedVersion);
        assert_eq!(with(6, &[2]), ErrorKind::NotSupported);
        assert_eq!(with(8, &[0, 0, 0, 67]), ErrorKind::InvalidValue);
        assert_eq!(with(12, &[0x80]), ErrorKind::InvalidValue);
        assert_eq!(with(ADDRESS, &[9]), ErrorKind::InvalidValue);
    }
}
