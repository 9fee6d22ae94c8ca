//! Export descriptors: what one side sends the other so that it can reach its memory.
//!
//! The format is this project's own; both sides must speak it. All numbers are in network order.
//!
//! | byte | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `vbdm` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | kind: 1 for RDMA |
//! | 7 | 1 | 0 |
//! | 8 | 4 | length of the descriptor in bytes |
//! | 12 | 4 | permissions, as `doca_access_flags` has them |
//! | 16 | 8 | node GUID of the device that exports |
//! | 24 | 8 | system image GUID of its card |
//! | 32 | 8 | address of the first byte |
//! | 40 | 8 | bytes |
//! | 48 | 4 | remote key |
//! | 52 | 8 | the first 8 bytes of SHA-256 over all that stands before |
//!
//! The checksum finds damage. It is no signature: whoever has a descriptor can reach the memory,
//! and can make another for what its key covers. Send it over a channel that you trust.

use std::fmt;

use sha2::{Digest, Sha256};
use verbless_queue::Rkey;

use super::Chunk;
use crate::types::AccessFlags;
use crate::{Dev, Error, ErrorKind, Result};

const MAGIC: [u8; 4] = *b"vbdm";
const VERSION: u16 = 1;
/// Bytes of a descriptor of version 1.
const BYTES: usize = 60;
/// Bytes of it that the checksum covers.
const COVERED: usize = BYTES - 8;

/// Whom a descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Rdma = 1,
}

/// What a peer needs to reach a map's memory. It is sent as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExportDescriptor([u8; BYTES]);

impl ExportDescriptor {
    /// It as bytes.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ExportDescriptor {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Its key is not shown.
impl fmt::Debug for ExportDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportDescriptor(..)")
    }
}

fn checksum(covered: &[u8]) -> [u8; 8] {
    let digest = Sha256::digest(covered);
    std::array::from_fn(|at| digest[at])
}

/// Describes a chunk for a peer of `dev`.
pub(super) fn export(chunk: &Chunk, dev: &Dev, kind: Kind) -> Result<ExportDescriptor> {
    if chunk.memory().is_none() {
        let text = "memory that was made from an export cannot be exported: its owner exports it";
        return Err(Error::plain(ErrorKind::NotPermitted, text));
    }
    if !chunk.access().is_rdma() {
        let text = "the map has no permission for RDMA: give it RDMA_READ, RDMA_WRITE or \
                    RDMA_ATOMIC before it is started";
        return Err(Error::plain(ErrorKind::NotPermitted, text));
    }
    let Some(key) = chunk.key(dev) else {
        let text = format!("{dev:?} was not added to the map: export it for a device that was");
        return Err(Error::new(ErrorKind::InvalidValue, text));
    };
    let rkey = key.rkey().ok_or_else(|| {
        Error::plain(ErrorKind::Unexpected, "a map with a permission for RDMA has no remote key")
    })?;
    let info = dev.info().device_info();
    let mut bytes = [0; BYTES];
    let mut rest = &mut bytes[..];
    let mut put = |field: &[u8]| {
        let (here, behind) = std::mem::take(&mut rest).split_at_mut(field.len());
        here.copy_from_slice(field);
        rest = behind;
    };
    put(&MAGIC);
    put(&VERSION.to_be_bytes());
    put(&[kind as u8, 0]);
    put(&(BYTES as u32).to_be_bytes());
    put(&chunk.access().bits().to_be_bytes());
    put(&info.node_guid.to_be_bytes());
    put(&info.system_image_guid.to_be_bytes());
    put(&chunk.address().to_be_bytes());
    put(&chunk.length().to_be_bytes());
    put(&rkey.0.to_be_bytes());
    let sum = checksum(&bytes[..COVERED]);
    bytes[COVERED..].copy_from_slice(&sum);
    Ok(ExportDescriptor(bytes))
}

fn refuse(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidValue, why)
}

/// The numbers of a descriptor.
#[derive(Debug, PartialEq, Eq)]
struct Fields {
    access: AccessFlags,
    address: u64,
    length: u64,
    rkey: Rkey,
}

/// Reads what a peer sent.
fn parse(bytes: &[u8]) -> Result<Fields> {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    let double = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    if bytes.len() < 12 || bytes[..4] != MAGIC {
        return Err(refuse(format!("these {} bytes are no export descriptor", bytes.len())));
    }
    let version = u16::from_be_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        let text = format!("the export descriptor is of version {version}, not {VERSION}");
        return Err(Error::new(ErrorKind::UnsupportedVersion, text));
    }
    let (length, claimed) = (bytes.len(), word(8));
    if length != BYTES || claimed as usize != BYTES {
        return Err(refuse(format!(
            "the export descriptor has {length} bytes and claims {claimed}; it must have {BYTES}: \
             parts were lost or added on the way"
        )));
    }
    if checksum(&bytes[..COVERED]) != bytes[COVERED..] {
        return Err(refuse("the export descriptor was altered on the way: its checksum is wrong"));
    }
    if bytes[6] != Kind::Rdma as u8 || bytes[7] != 0 {
        let text = format!("kind {} of export descriptors is not known here", bytes[6]);
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    let access = AccessFlags::from_bits(word(12)).filter(|access| access.is_rdma());
    let access = access.ok_or_else(|| {
        refuse(format!("the export descriptor's permissions {:#x} let no peer in", word(12)))
    })?;
    let fields = Fields { access, address: double(32), length: double(40), rkey: Rkey(word(48)) };
    if fields.length == 0 || fields.address.checked_add(fields.length).is_none() {
        return Err(refuse(format!(
            "the export descriptor's {:#x} bytes from {:#x} on are no range of memory",
            fields.length, fields.address
        )));
    }
    Ok(fields)
}

/// The memory of a descriptor, for jobs of `dev`.
pub(super) fn import(bytes: &[u8], dev: &Dev) -> Result<Chunk> {
    let Fields { access, address, length, rkey } = parse(bytes)?;
    Ok(Chunk::of_peer(dev, rkey, (address, length), access))
}

/// For the fuzz target: reads bytes as [`Mmap::create_from_export`](super::Mmap) does.
#[doc(hidden)]
pub fn check(bytes: &[u8]) -> Result<()> {
    parse(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> [u8; BYTES] {
        let mut bytes = [0xa5; BYTES];
        bytes[..12].copy_from_slice(b"vbdm\0\x01\x01\0\0\0\0\x3c");
        bytes[12..16].copy_from_slice(&AccessFlags::RDMA_READ.bits().to_be_bytes());
        bytes[32..40].copy_from_slice(&0x7000_0000_0000u64.to_be_bytes());
        bytes[40..48].copy_from_slice(&4096u64.to_be_bytes());
        bytes[48..52].copy_from_slice(&0x1234_5678u32.to_be_bytes());
        sealed(bytes)
    }

    fn sealed(mut bytes: [u8; BYTES]) -> [u8; BYTES] {
        let sum = checksum(&bytes[..COVERED]);
        bytes[COVERED..].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn a_descriptor_says_what_was_put_into_it() {
        let fields = parse(&descriptor()).unwrap();
        assert_eq!(fields.access, AccessFlags::RDMA_READ);
        assert_eq!((fields.address, fields.length), (0x7000_0000_0000, 4096));
        assert_eq!(fields.rkey, Rkey(0x1234_5678));
    }

    #[test]
    fn a_descriptor_that_lost_bytes_or_had_any_bit_changed_is_refused() {
        let good = descriptor();
        for length in 0..BYTES {
            assert!(parse(&good[..length]).is_err(), "{length} bytes");
        }
        assert!(parse(&[&good[..], &[0]].concat()).is_err());
        for bit in 0..8 * BYTES {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_descriptor_with_a_right_checksum_and_impossible_numbers_is_refused() {
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = descriptor();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            parse(&sealed(bad)).unwrap_err().kind()
        };
        assert_eq!(with(4, &[0, 2]), ErrorKind::UnsupportedVersion);
        assert_eq!(with(6, &[9]), ErrorKind::NotSupported);
        assert_eq!(with(8, &[0; 4]), ErrorKind::InvalidValue);
        assert_eq!(with(12, &[0; 4]), ErrorKind::InvalidValue, "nobody may do anything");
        assert_eq!(with(12, &[0xff; 4]), ErrorKind::InvalidValue, "unknown permissions");
        assert_eq!(with(40, &[0; 8]), ErrorKind::InvalidValue, "no bytes");
        assert_eq!(with(40, &[0xff; 8]), ErrorKind::InvalidValue, "past all memory");
    }
}
