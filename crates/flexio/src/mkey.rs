//! Keys to memory of a process's heap, for queues and peers.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_command::KeyAccess;
//! use verbless_flexio::{Mkey, MkeyConfig};
//!
//! let buffer = process.alloc(4096)?;
//! let key = Mkey::create(&buffer, &MkeyConfig::new(KeyAccess::ALL))?;
//! // A peer writes by it, at the process's own addresses.
//! assert_eq!(key.remote().address, buffer.address());
//! key.destroy()?;
//! # Ok(())
//! # }
//! ```

use verbless_command::{KeyAccess, KeyMemory, Lkey, MkeyAttr, MkeyObject, Rkey};
use verbless_devx::Pd;
use verbless_queue::RemoteAddr;

use crate::error::Error;
use crate::holders::Holding;
use crate::ids::MkeyId;
use crate::memory::Buffer;
use crate::process::Process;

/// Configuration of a key (`flexio_mkey_attr`): its protection domain and its rights.
#[derive(Debug, Clone)]
pub struct MkeyConfig {
    /// The protection domain; by default the process's.
    pub pd: Option<Pd>,
    /// Rights of holders of the key.
    pub access: KeyAccess,
}

impl MkeyConfig {
    /// A key of the process's protection domain.
    pub const fn new(access: KeyAccess) -> Self {
        Self { pd: None, access }
    }
}

/// A key to memory of the heap (`flexio_mkey`). Addresses are the process's.
#[derive(Debug)]
pub struct Mkey {
    object: MkeyObject,
    address: u64,
    length: u64,
    process: Process,
    _buffer: Option<Buffer>,
    holding: Holding,
}

impl Mkey {
    /// Creates a key to a buffer, which it keeps alive (`flexio_device_mkey_create`).
    ///
    /// # Errors
    /// As [`Mkey::to_range`].
    pub fn create(buffer: &Buffer, config: &MkeyConfig) -> Result<Self, Error> {
        let made = Self::to_range(buffer.process(), buffer.address(), buffer.len(), config)?;
        made.holding.add(buffer.key());
        Ok(Self { _buffer: Some(buffer.clone()), ..made })
    }

    /// Creates a key to a range of the heap, which may span several buffers.
    ///
    /// # Errors
    /// The range is not in the heap or has no bytes; the rights cannot be combined in one key.
    pub fn to_range(
        process: &Process,
        address: u64,
        length: u64,
        config: &MkeyConfig,
    ) -> Result<Self, Error> {
        let heap = process.heap_memory().clone();
        let offset = address.checked_sub(heap.address());
        let offset = offset.filter(|_| process.heap().holds(address, length)).ok_or_else(|| {
            Error::Failed(format!(
                "a key to {length} bytes at {address:#x}, which are not in the heap"
            ))
        })?;
        process.alive()?;
        let object = process.device().create_mkey(MkeyAttr {
            pd: config.pd.as_ref().unwrap_or_else(|| process.pd()).clone(),
            access: config.access,
            start: address,
            length,
            memory: KeyMemory::Umem { umem: heap, offset },
        })?;
        let name = format!("key {:#x}", object.lkey().0);
        let holding = Holding::new(name, vec![process.key()]);
        Ok(Self { object, address, length, process: process.clone(), _buffer: None, holding })
    }

    /// The key's number (`flexio_mkey_get_id`).
    pub fn id(&self) -> MkeyId {
        MkeyId(self.object.lkey().0)
    }

    /// The [`MkeyObject`] of `verbless-command`.
    pub const fn object(&self) -> &MkeyObject {
        &self.object
    }

    /// The key for local requests of the device's queues.
    pub fn lkey(&self) -> Lkey {
        self.object.lkey()
    }

    /// The key for requests of peers.
    pub fn rkey(&self) -> Rkey {
        self.object.rkey()
    }

    /// The start of the key's range, for a peer's request.
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr::new(self.address, self.rkey())
    }

    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are no bytes: never.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Destroys the key (`flexio_device_mkey_destroy`). A drop destroys it too, and ignores the
    /// error.
    ///
    /// # Errors
    /// The device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        Ok(self.object.destroy()?)
    }
}
