//! The word of a sync event's counter, and access to it.
//!
//! It is in the host's byte order, little-endian on all supported hosts: the device's atomics and
//! the CPU's count alike.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use verbless_command::AccessKey;
use verbless_queue::access::{KeyAccess, RemoteAccess};
use verbless_queue::{Domain, ImportedRegion, Lkey, Region, RemoteAddr, SharedRegion};

use crate::device::{Dev, capability};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::memory::export::{self, ExportDescriptor};

/// Bytes of the word.
pub(super) const BYTES: usize = 8;

/// The word. Its keys are in their own protection domain, whose queue pairs are connected to each
/// other: no other peer can use them.
pub(super) struct CounterWord {
    held: WordMemory,
    local: Lkey,
    remote: RemoteAddr,
    domain: Domain,
    dev: Dev,
}

enum WordMemory {
    /// Memory of this process, and its key for the DPU after an export.
    Own { region: Region, shared: OnceLock<(SharedRegion, AccessKey)> },
    /// The host's memory, at its DPU.
    Imported { _alias: ImportedRegion },
}

impl CounterWord {
    /// Creates the word in `memory`, or in newly allocated memory with value 0.
    pub(super) fn own(dev: &Dev, memory: Option<Memory>) -> Result<Self> {
        let memory = match memory {
            Some(memory) => memory,
            None => Memory::allocate(BYTES)?,
        };
        if memory.len() != BYTES || !memory.address().is_multiple_of(BYTES as u64) {
            let text = format!(
                "the memory of a sync event is {BYTES} bytes at a multiple of {BYTES}, and this is \
                 {} bytes at {:#x}",
                memory.len(),
                memory.address()
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        let domain = Domain::new(dev.device())?;
        let region = domain.region_of(memory.lower(), rights(dev))?;
        let unnamed = |_| Error::plain(ErrorKind::Unexpected, "a sync event's key is not remote");
        let remote = region.remote(0, BYTES).map_err(unnamed)?;
        let local = region.lkey();
        let held = WordMemory::Own { region, shared: OnceLock::new() };
        Ok(Self { held, local, remote, domain, dev: dev.clone() })
    }

    /// Creates a word from the host's export.
    pub(super) fn imported(dev: &Dev, descriptor: &[u8]) -> Result<Self> {
        let domain = Domain::new(dev.device())?;
        let alias = export::import_event(descriptor, dev, &domain)?;
        let (local, remote) = (alias.lkey(), RemoteAddr::new(alias.address(), alias.rkey()));
        Ok(Self {
            held: WordMemory::Imported { _alias: alias },
            local,
            remote,
            domain,
            dev: dev.clone(),
        })
    }

    /// The data that the DPU needs to reach the word; the same every time.
    pub(super) fn export(&self) -> Result<ExportDescriptor> {
        let WordMemory::Own { region, shared } = &self.held else {
            let text = "an imported sync event cannot be exported: its owner exports it";
            return Err(Error::plain(ErrorKind::NotPermitted, text));
        };
        capability::check_export_to_dpu(&self.dev)?;
        if shared.get().is_none() {
            let secret = AccessKey::random().map_err(|error| {
                let text = format!("making a secret: {error}");
                Error::new(ErrorKind::OperatingSystem, text).with_source(error)
            })?;
            let named = self.domain.share(region, &secret)?;
            let _second = shared.set((named, secret));
        }
        let (named, secret) = shared.get().expect("the shared key was set");
        export::export_event(&self.dev, named, secret)
    }

    /// The word, if it is in memory of this process.
    pub(super) fn here(&self) -> Option<&AtomicU64> {
        match &self.held {
            WordMemory::Own { region, .. } => {
                // SAFETY: the word's own memory has no other handle; the caller that gave the
                // memory prevents accesses of other sizes (`SyncEventBuilder::memory`).
                #[allow(unsafe_code, reason = "who gives the memory makes the promise")]
                let words = unsafe { region.words() };
                words.first()
            }
            WordMemory::Imported { .. } => None,
        }
    }

    /// Whether another function may change it.
    pub(super) fn is_shared(&self) -> bool {
        match &self.held {
            WordMemory::Own { shared, .. } => shared.get().is_some(),
            WordMemory::Imported { .. } => true,
        }
    }

    pub(super) fn dev(&self) -> &Dev {
        &self.dev
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Address and key of the word as local memory of a request.
    pub(super) fn local(&self) -> (u64, Lkey) {
        (self.remote.address, self.local)
    }

    /// Address and key of the word as remote memory of a request.
    pub(super) fn remote(&self) -> RemoteAddr {
        self.remote
    }
}

/// Access rights of a word's key.
fn rights(dev: &Dev) -> KeyAccess {
    let atomic = dev.caps().atomics;
    let remote = RemoteAccess { read: true, write: true, atomic };
    KeyAccess { local_write: true, remote, relaxed_ordering: false, crossing: false }
}

impl fmt::Debug for CounterWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({:#x} on {:?})", self.remote.address, self.dev)
    }
}
