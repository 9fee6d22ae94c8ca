//! Metadata of each thread that a host creates with verbless-flexio: its number, its storage, its
//! name. The layout is the project's own; the C library's is not published.

use crate::mmio;

/// Bytes of a thread's metadata in memory.
pub const BYTES: usize = 32;
/// Bytes of a thread's name, padded with zeros.
pub const NAME_BYTES: usize = 16;

/// A thread's metadata, little-endian in memory: the number at 0 (4 bytes), the storage's address
/// at 8, the name at 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadMetadata {
    /// The thread's number in its process (`flexio_dev_get_thread_id`).
    pub id: u32,
    /// Address of the thread-local storage (`flexio_dev_get_thread_local_storage`); 0 if the thread
    /// has none.
    pub storage: u64,
    name: [u8; NAME_BYTES],
}

impl ThreadMetadata {
    /// Metadata of a thread; a name is cut to 16 bytes, at the end of a character.
    pub fn new(id: u32, storage: u64, name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES];
        let length = name.floor_char_boundary(NAME_BYTES);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        Self { id, storage, name: bytes }
    }

    /// The thread's name (`flexio_dev_get_current_thread_name`): the part that is valid UTF-8.
    pub fn name(&self) -> &str {
        let length = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        let name = &self.name[..length];
        core::str::from_utf8(name).unwrap_or_else(|error| {
            core::str::from_utf8(&name[..error.valid_up_to()]).unwrap_or_default()
        })
    }

    /// The metadata's bytes in the process's memory.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.storage.to_le_bytes());
        bytes[16..].copy_from_slice(&self.name);
        bytes
    }

    /// Reads the metadata at `address`, a multiple of 8 from the host.
    pub(crate) fn read(address: u64) -> Self {
        let mut name = [0; NAME_BYTES];
        name[..8].copy_from_slice(&mmio::read64(address + 16).to_le_bytes());
        name[8..].copy_from_slice(&mmio::read64(address + 24).to_le_bytes());
        Self { id: mmio::read32(address), storage: mmio::read64(address + 8), name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_memory(metadata: ThreadMetadata) -> ThreadMetadata {
        #[repr(align(8))]
        struct Memory([u8; BYTES]);
        let memory = Memory(metadata.to_bytes());
        ThreadMetadata::read(memory.0.as_ptr().expose_provenance() as u64)
    }

    #[test]
    fn metadata_round_trips() {
        let metadata = ThreadMetadata::new(7, 0x1_0000_0040, "reflector");
        let bytes = metadata.to_bytes();
        assert_eq!(bytes[..17], [7, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 1, 0, 0, 0, b'r']);
        assert_eq!(in_memory(metadata), metadata);
        assert_eq!(in_memory(metadata).name(), "reflector");
    }

    #[test]
    fn long_name_is_cut_and_invalid_utf8_truncated() {
        assert_eq!(ThreadMetadata::new(0, 0, "fifteen bytes, \u{e9}").name(), "fifteen bytes, ");
        assert_eq!(ThreadMetadata::new(0, 0, "sixteen bytes it").name(), "sixteen bytes it");
        let broken =
            ThreadMetadata { name: *b"ab\xff45678901\0\0\0\0\0", ..ThreadMetadata::new(0, 0, "") };
        assert_eq!(broken.name(), "ab");
    }
}
