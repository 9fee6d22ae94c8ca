//! A client of the in-process front end with memory outside this process, which changes while it is
//! read.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use arbitrary::Arbitrary;
use verbless_model::memory::{Fault, HostMemory, ProcessMemory};

use crate::memory::{BYTES, Memory, READ_ONLY_BYTES, START};

/// A byte that changes after this many reads, at `at` bytes from the start of the last one.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub struct Change {
    after: u8,
    at: u16,
    value: u8,
}

/// The client's memory as its kernel reads and writes it.
pub struct ChangingMemory {
    arena: Arc<Memory>,
    changes: Mutex<Vec<Change>>,
}

impl ChangingMemory {
    pub fn new(arena: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { arena, changes: Mutex::default() })
    }

    /// Sets the next changes.
    pub fn set(&self, changes: Vec<Change>) {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner) = changes;
    }

    fn changed(&self, address: u64) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain_mut(|change| {
            if change.after == 0 {
                self.arena.put(address.wrapping_add(change.at.into()), &[change.value]);
            }
            change.after = change.after.wrapping_sub(1);
            change.after != u8::MAX
        });
    }
}

/// The device's DMA memory: the client's memory, and this process's memory for the kernel's event
/// queues.
pub struct Split(pub Arc<Memory>);

impl Split {
    fn of(&self, address: u64) -> &dyn HostMemory {
        let ours = (START..START + BYTES + READ_ONLY_BYTES).contains(&address);
        if ours { &*self.0 } else { &ProcessMemory }
    }
}

macro_rules! forward {
    ($type:ident, $self:ident, $address:ident => $to:expr, $after:expr) => {
        impl HostMemory for $type {
            fn read(&$self, $address: u64, into: &mut [u8]) -> Result<(), Fault> {
                let result = $to.read($address, into);
                $after;
                result
            }
            fn write(&$self, $address: u64, from: &[u8]) -> Result<(), Fault> {
                $to.write($address, from)
            }
            fn load32(&$self, $address: u64) -> Result<u32, Fault> {
                $to.load32($address)
            }
            fn store32(&$self, $address: u64, value: u32) -> Result<(), Fault> {
                $to.store32($address, value)
            }
            fn store8(&$self, $address: u64, value: u8) -> Result<(), Fault> {
                $to.store8($address, value)
            }
            fn compare_exchange64(
                &$self,
                $address: u64,
                expected: u64,
                new: u64,
            ) -> Result<u64, Fault> {
                $to.compare_exchange64($address, expected, new)
            }
            fn copy_to(
                &$self,
                $address: u64,
                target: &dyn HostMemory,
                target_address: u64,
                length: u64,
            ) -> Result<(), Fault> {
                $to.copy_to($address, target, target_address, length)
            }
            fn direct(&$self, $address: u64, length: u64) -> Option<NonNull<u8>> {
                $to.direct($address, length)
            }
        }
    };
}

forward!(ChangingMemory, self, address => self.arena, self.changed(address));
forward!(Split, self, address => self.of(address), ());
