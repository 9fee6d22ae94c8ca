//! Export descriptors: one side sends them to the other to give access to its memory.
//!
//! The format is this project's own; both sides must speak it. All numbers are in network order.
//!
//! | byte | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `vbdm` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | kind: 1 for RDMA, 2 for the DPU, 3 for a sync event of the DPU |
//! | 7 | 1 | 0 |
//! | 8 | 4 | length of the descriptor in bytes |
//! | 12 | 4 | permissions, as in `doca_access_flags` |
//! | 16 | 8 | node GUID of the device that exports |
//! | 24 | 8 | system image GUID of its card |
//! | 32 | 8 | address of the first byte |
//! | 40 | 8 | bytes |
//! | 48 | 4 | remote key; for the DPU, the key to alias |
//! | 52 | 2 | for the DPU only: vhca_id of the function that owns the key |
//! | 54 | 2 | for the DPU only: 0 |
//! | 56 | 32 | for the DPU only: the access key, which the alias needs |
//! | 52 or 88 | 8 | the first 8 bytes of SHA-256 over all bytes before |
//!
//! The checksum finds damage. It is not a signature: every holder of a descriptor can reach the
//! memory, and can forge another descriptor for memory under its key. Send it over a trusted
//! channel.
//!
//! A host's memory, at its DPU:
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{Event, WorkQ, dma::Dma};
//! use verbless_doca::{AccessFlags, DevInfo, Inventory, Memory, Mmap};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let [host, dpu] = doc::sides();
//! # let (host, dpu) = (DevInfo::list_of(&host)?[0].open()?, DevInfo::list_of(&dpu)?[0].open()?);
//! // The host's program.
//! let map = Mmap::builder()
//!     .memrange(Memory::allocate(4096)?)
//!     .permissions(AccessFlags::LOCAL_READ_WRITE | AccessFlags::DPU_READ_ONLY)
//!     .add_dev(&host)
//!     .start()?;
//! map.write_at(0, b"of the host")?;
//! let descriptor = map.export_dpu(&host)?;
//!
//! // The DPU's program, which has got the descriptor's bytes.
//! let far = Mmap::create_from_export(descriptor.as_bytes(), &dpu)?;
//! assert_eq!((far.address(), far.len()), (map.address(), 4096));
//! let source = Inventory::builder(1).start()?.buf_by_data(&far, far.address(), 11)?;
//! # let dma = Dma::builder(&dpu).start()?;
//! # let mut workq = WorkQ::new(1)?;
//! # workq.add(&dma)?;
//! workq.submit(dma.memcpy(source, doc::room(&dpu)))?;
//! let Some(Event::Dma(done)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
//! assert_eq!(done.destination.to_vec()?, b"of the host");
//! # Ok(())
//! # }
//! ```

use std::fmt;

use sha2::{Digest, Sha256};
use verbless_command::AccessKey;
use verbless_queue::{Domain, ImportedRegion, Rkey, SharedRegion};

use super::chunk::Chunk;
use crate::device::{Dev, capability};
use crate::error::{Error, ErrorKind, Result};
use crate::types::AccessFlags;

const MAGIC: [u8; 4] = *b"vbdm";
const VERSION: u16 = 1;
/// Bytes of the checksum.
const SUM: usize = 8;

/// The receiver of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ExportKind {
    Rdma = 1,
    Dpu = 2,
    /// The counter word of a sync event, instead of bytes of a map.
    SyncEvent = 3,
}

impl ExportKind {
    /// Bytes of a descriptor.
    const fn bytes(self) -> usize {
        match self {
            Self::Rdma => 52 + SUM,
            Self::Dpu | Self::SyncEvent => MAX_DESCRIPTOR_BYTES,
        }
    }
}

/// Bytes of the longest descriptor.
const MAX_DESCRIPTOR_BYTES: usize = 88 + SUM;

/// Gives a peer or the DPU access to a map's memory. The program sends it as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExportDescriptor {
    /// Zero after `length`.
    bytes: [u8; MAX_DESCRIPTOR_BYTES],
    length: u8,
}

impl ExportDescriptor {
    /// The descriptor's bytes, to send to the importer.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl AsRef<[u8]> for ExportDescriptor {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// The keys are hidden.
impl fmt::Debug for ExportDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportDescriptor(..)")
    }
}

fn checksum(covered: &[u8]) -> [u8; SUM] {
    let digest = Sha256::digest(covered);
    std::array::from_fn(|at| digest[at])
}

/// Describes a chunk for a peer of `dev`, or for the DPU of its card.
pub(super) fn export(chunk: &Chunk, dev: &Dev, to_dpu: bool) -> Result<ExportDescriptor> {
    if chunk.memory().is_none() {
        let text = "memory that was made from an export cannot be exported: its owner exports it";
        return Err(Error::plain(ErrorKind::NotPermitted, text));
    }
    let (permitted, text) = match to_dpu {
        false => (
            chunk.access().is_rdma(),
            "the map has no permission for RDMA: give it RDMA_READ, RDMA_WRITE or RDMA_ATOMIC \
             before it is started",
        ),
        true => (
            chunk.access().is_dpu(),
            "the map has no permission for the DPU: give it DPU_READ_ONLY or DPU_READ_WRITE before \
             it is started",
        ),
    };
    if !permitted {
        return Err(Error::plain(ErrorKind::NotPermitted, text));
    }
    let Some(key) = chunk.key(dev) else {
        let text = format!("{dev:?} was not added to the map: export it for a device that was");
        return Err(Error::new(ErrorKind::NotPermitted, text));
    };
    if to_dpu {
        capability::check_export_to_dpu(dev)?;
        let (shared, secret) = chunk.share(key)?;
        return describe_shared(dev, ExportKind::Dpu, chunk.access(), &shared, &secret);
    }
    let rkey = key.rkey().ok_or_else(|| {
        let text = "a map with a permission for RDMA has no remote key";
        Error::plain(ErrorKind::Unexpected, text)
    })?;
    let range = (chunk.address(), chunk.length());
    let mut bytes = begin(dev, ExportKind::Rdma, chunk.access(), range);
    bytes.extend(rkey.0.to_be_bytes());
    finish(bytes)
}

/// Describes a sync event's word for the DPU.
pub(crate) fn export_event(
    dev: &Dev,
    shared: &SharedRegion,
    secret: &AccessKey,
) -> Result<ExportDescriptor> {
    describe_shared(dev, ExportKind::SyncEvent, AccessFlags::DPU_READ_WRITE, shared, secret)
}

/// The common head of all descriptors.
fn begin(
    dev: &Dev,
    kind: ExportKind,
    access: AccessFlags,
    (address, length): (u64, u64),
) -> Vec<u8> {
    let info = dev.info().device_info();
    let mut bytes = Vec::with_capacity(MAX_DESCRIPTOR_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([kind as u8, 0]);
    bytes.extend((kind.bytes() as u32).to_be_bytes());
    bytes.extend(access.bits().to_be_bytes());
    bytes.extend(info.node_guid.to_be_bytes());
    bytes.extend(info.system_image_guid.to_be_bytes());
    bytes.extend(address.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

fn describe_shared(
    dev: &Dev,
    kind: ExportKind,
    access: AccessFlags,
    shared: &SharedRegion,
    secret: &AccessKey,
) -> Result<ExportDescriptor> {
    let mut bytes = begin(dev, kind, access, (shared.address, shared.length));
    bytes.extend(shared.key.to_be_bytes());
    bytes.extend(shared.vhca_id.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(secret.as_bytes());
    finish(bytes)
}

fn finish(mut bytes: Vec<u8>) -> Result<ExportDescriptor> {
    bytes.extend(checksum(&bytes));
    let length = bytes.len() as u8;
    bytes.resize(MAX_DESCRIPTOR_BYTES, 0);
    let bytes = bytes.try_into().map_err(|_| {
        Error::plain(ErrorKind::Unexpected, "an export descriptor is longer than it can be")
    })?;
    Ok(ExportDescriptor { bytes, length })
}

fn refuse(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidValue, why)
}

/// The numbers of a descriptor.
#[derive(Debug, PartialEq, Eq)]
struct ExportFields {
    kind: ExportKind,
    access: AccessFlags,
    node_guid: u64,
    system_image_guid: u64,
    address: u64,
    length: u64,
    export_access: ExportAccess,
}

/// How the memory is accessed.
#[derive(Debug, PartialEq, Eq)]
enum ExportAccess {
    Rdma(Rkey),
    Dpu { vhca_id: u16, key: u32, secret: [u8; 32] },
}

/// Parses the bytes of the other side.
fn parse(bytes: &[u8]) -> Result<ExportFields> {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    let double = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    if bytes.len() < 12 || bytes[..4] != MAGIC {
        return Err(refuse(format!("these {} bytes are not an export descriptor", bytes.len())));
    }
    let version = u16::from_be_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        let text = format!("the export descriptor is of version {version}, not {VERSION}");
        return Err(Error::new(ErrorKind::UnsupportedVersion, text));
    }
    let kind = match bytes[6..8] {
        [1, 0] => ExportKind::Rdma,
        [2, 0] => ExportKind::Dpu,
        [3, 0] => ExportKind::SyncEvent,
        _ => {
            let text = format!("kind {} of export descriptors is not known here", bytes[6]);
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
    };
    let (length, claimed, right) = (bytes.len(), word(8), kind.bytes());
    if length != right || claimed as usize != right {
        return Err(refuse(format!(
            "the export descriptor has {length} bytes and claims {claimed}; it must have {right}: \
             parts were lost or added on the way"
        )));
    }
    let (covered, sum) = bytes.split_at(right - SUM);
    if checksum(covered) != sum {
        return Err(refuse("the export descriptor was altered on the way: its checksum is wrong"));
    }
    let permitted = |access: &AccessFlags| match kind {
        ExportKind::Rdma => access.is_rdma(),
        ExportKind::Dpu => access.is_dpu(),
        ExportKind::SyncEvent => access.contains(AccessFlags::DPU_READ_WRITE),
    };
    let access = AccessFlags::from_bits(word(12)).filter(permitted).ok_or_else(|| {
        refuse(format!("the export descriptor's permissions {:#x} grant no access", word(12)))
    })?;
    let export_access = match kind {
        ExportKind::Rdma => ExportAccess::Rdma(Rkey(word(48))),
        ExportKind::Dpu | ExportKind::SyncEvent => ExportAccess::Dpu {
            key: word(48),
            vhca_id: (word(52) >> 16) as u16,
            secret: std::array::from_fn(|i| bytes[56 + i]),
        },
    };
    let fields = ExportFields {
        kind,
        access,
        node_guid: double(16),
        system_image_guid: double(24),
        address: double(32),
        length: double(40),
        export_access,
    };
    if fields.length == 0 || fields.address.checked_add(fields.length).is_none() {
        return Err(refuse(format!(
            "the export descriptor's {:#x} bytes from {:#x} on are not a range of memory",
            fields.length, fields.address
        )));
    }
    Ok(fields)
}

/// Imports the memory of a descriptor, for jobs of `dev`.
pub(super) fn import(bytes: &[u8], dev: &Dev) -> Result<Chunk> {
    let fields = parse(bytes)?;
    let (access, range) = (fields.access, (fields.address, fields.length));
    match (fields.kind, &fields.export_access) {
        (ExportKind::SyncEvent, _) => {
            Err(refuse("the export descriptor is of a sync event: make a sync event from it"))
        }
        (_, ExportAccess::Rdma(rkey)) => Ok(Chunk::of_peer(dev, *rkey, range, access)),
        (_, ExportAccess::Dpu { .. }) => {
            Ok(Chunk::of_host(dev, alias(&fields, dev, dev.domain())?, range, access))
        }
    }
}

/// Imports the word of a sync event's descriptor, for requests of `domain`, which is of `dev`.
pub(crate) fn import_event(bytes: &[u8], dev: &Dev, domain: &Domain) -> Result<ImportedRegion> {
    let fields = parse(bytes)?;
    if fields.kind != ExportKind::SyncEvent {
        return Err(refuse("the export descriptor is of a memory map: make a map from it"));
    }
    if fields.length != 8 || !fields.address.is_multiple_of(8) {
        return Err(refuse(format!(
            "the sync event's {} bytes at {:#x} are not one aligned word",
            fields.length, fields.address
        )));
    }
    alias(&fields, dev, domain)
}

/// Creates an alias of the host's key on `dev`.
fn alias(fields: &ExportFields, dev: &Dev, domain: &Domain) -> Result<ImportedRegion> {
    let &ExportFields { system_image_guid, address, length, .. } = fields;
    let ExportAccess::Dpu { vhca_id, key, secret } = fields.export_access else {
        return Err(refuse("the export descriptor is for a peer, and not for the DPU"));
    };
    capability::check_import_from_host(dev)?;
    let here = dev.info().device_info();
    if here.system_image_guid != system_image_guid {
        let text = format!(
            "the export is of a function of card {system_image_guid:016x}, and {dev:?} is of card \
             {:016x}: only the DPU of the same card reaches its memory",
            here.system_image_guid
        );
        return Err(Error::new(ErrorKind::InvalidValue, text));
    }
    if domain.device().vhca_id() == vhca_id {
        let text = "the export is this device's own: the DPU imports what its host exports";
        return Err(Error::plain(ErrorKind::InvalidValue, text));
    }
    let shared = SharedRegion { vhca_id, key, address, length };
    domain.import(&shared, &AccessKey::new(secret)).map_err(|error| {
        let kind = match error.kind() {
            verbless_command::ErrorKind::Command => ErrorKind::NotPermitted,
            _ => Error::from(error.clone()).kind(),
        };
        Error::new(kind, format!("importing the host's memory: {error}")).with_source(error)
    })
}

/// Parses bytes as [`Mmap::create_from_export`](super::Mmap) does, for the fuzz target.
#[doc(hidden)]
pub fn check(bytes: &[u8]) -> Result<()> {
    parse(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(kind: ExportKind) -> Vec<u8> {
        let mut bytes = vec![0xa5; kind.bytes()];
        bytes[..12].copy_from_slice(b"vbdm\0\x01\0\0\0\0\0\0");
        (bytes[6], bytes[11]) = (kind as u8, kind.bytes() as u8);
        let access = AccessFlags::RDMA_READ | AccessFlags::DPU_READ_WRITE;
        bytes[12..16].copy_from_slice(&access.bits().to_be_bytes());
        bytes[32..40].copy_from_slice(&0x7000_0000_0000u64.to_be_bytes());
        bytes[40..48].copy_from_slice(&4096u64.to_be_bytes());
        bytes[48..52].copy_from_slice(&0x1234_5678u32.to_be_bytes());
        sealed(bytes)
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let covered = bytes.len() - SUM;
        let sum = checksum(&bytes[..covered]);
        bytes[covered..].copy_from_slice(&sum);
        bytes
    }

    const ALL: [ExportKind; 3] = [ExportKind::Rdma, ExportKind::Dpu, ExportKind::SyncEvent];

    #[test]
    fn descriptor_round_trips_fields() {
        for kind in ALL {
            let fields = parse(&descriptor(kind)).unwrap();
            check(&descriptor(kind)).unwrap();
            assert!(check(&descriptor(kind)[1..]).is_err());
            assert_eq!(fields.access, AccessFlags::RDMA_READ | AccessFlags::DPU_READ_WRITE);
            assert_eq!((fields.address, fields.length), (0x7000_0000_0000, 4096));
            assert_eq!(fields.node_guid, 0xa5a5_a5a5_a5a5_a5a5);
            let key = 0x1234_5678;
            assert_eq!(
                fields.export_access,
                match kind {
                    ExportKind::Rdma => ExportAccess::Rdma(Rkey(key)),
                    _ => ExportAccess::Dpu { vhca_id: 0xa5a5, key, secret: [0xa5; 32] },
                }
            );
        }
    }

    #[test]
    fn truncated_or_altered_descriptor_is_rejected() {
        for good in ALL.map(descriptor) {
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
    }

    #[test]
    fn sealed_descriptor_with_invalid_fields_is_rejected() {
        for kind in ALL {
            let with = |at: usize, bytes: &[u8]| {
                let mut bad = descriptor(kind);
                bad[at..at + bytes.len()].copy_from_slice(bytes);
                parse(&sealed(bad)).unwrap_err().kind()
            };
            assert_eq!(with(4, &[0, 2]), ErrorKind::UnsupportedVersion);
            assert_eq!(with(6, &[9]), ErrorKind::NotSupported);
            let longer = if kind == ExportKind::Rdma { ExportKind::Dpu } else { ExportKind::Rdma };
            assert_eq!(with(6, &[longer as u8]), ErrorKind::InvalidValue, "of another length");
            assert_eq!(with(8, &[0; 4]), ErrorKind::InvalidValue);
            assert_eq!(with(12, &[0; 4]), ErrorKind::InvalidValue, "no access is granted");
            assert_eq!(with(12, &[0xff; 4]), ErrorKind::InvalidValue, "unknown permissions");
            let other = if kind == ExportKind::Rdma { 16u32 } else { 2 };
            assert_eq!(
                with(12, &other.to_be_bytes()),
                ErrorKind::InvalidValue,
                "not for this kind"
            );
            assert_eq!(with(40, &[0; 8]), ErrorKind::InvalidValue, "no bytes");
            assert_eq!(with(40, &[0xff; 8]), ErrorKind::InvalidValue, "past all memory");
        }
    }
}
