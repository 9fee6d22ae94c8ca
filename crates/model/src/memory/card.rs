//! The memory on the card, in the address space of a function: heaps of the DPA's processes, above
//! all addresses of a host.
//! The top 16 bits of such an address are all set; the next 16 are the heap's number. No host has
//! memory there: processes, this one and clients, are below 2^48 ([`super::dma_address`] gives no
//! client the last number), and commands refuse lists with such pages.

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use verbless_riscv::Ram;

use super::host::{CARD, Fault, HostMemory, copy_through};
use crate::numbered::Numbered;

const LOG_HEAP: u32 = 32;

/// The heaps of a function.
#[derive(Clone, Default)]
pub(crate) struct Heaps(Arc<RwLock<Numbered<u16, Ram>>>);

impl Heaps {
    /// Adds the heap of process `number`; returns its first address.
    pub(crate) fn add(&self, number: u16, heap: Ram) -> u64 {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(number, heap);
        CARD | u64::from(number) << LOG_HEAP
    }

    /// Removes a heap.
    pub(crate) fn remove(&self, number: u16) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// Calls `each` with the heap of an address and the offset in it.
    fn with<R>(
        &self,
        address: u64,
        length: u64,
        each: impl FnOnce(&Ram, u64) -> Option<R>,
    ) -> Result<R, Fault> {
        let number = (address >> LOG_HEAP) as u16;
        let at = address & ((1 << LOG_HEAP) - 1);
        let heaps = self.0.read().unwrap_or_else(PoisonError::into_inner);
        heaps.get(&number).and_then(|heap| each(heap, at)).ok_or(Fault { address, length })
    }

    fn has(&self, address: u64) -> bool {
        let heaps = self.0.read().unwrap_or_else(PoisonError::into_inner);
        heaps.contains_key(&((address >> LOG_HEAP) as u16))
    }
}

/// A host's memory, with the heaps of the card beside it if `has_heaps`; also returns the heaps.
pub(crate) fn with_heaps(
    host: Arc<dyn HostMemory>,
    has_heaps: bool,
) -> (Arc<dyn HostMemory>, Heaps) {
    let heaps = Heaps::default();
    let memory = match has_heaps {
        true => Arc::new(WithCard::new(host, heaps.clone())),
        false => host,
    };
    (memory, heaps)
}

/// A host's memory and the card's.
struct WithCard {
    host: Arc<dyn HostMemory>,
    heaps: Heaps,
}

impl WithCard {
    fn new(host: Arc<dyn HostMemory>, heaps: Heaps) -> Self {
        Self { host, heaps }
    }
}

impl HostMemory for WithCard {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        if address < CARD {
            return self.host.read(address, into);
        }
        let length = into.len() as u64;
        self.heaps.with(address, length, |heap, at| heap.read(at, into).then_some(()))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        if address < CARD {
            return self.host.write(address, from);
        }
        let length = from.len() as u64;
        self.heaps.with(address, length, |heap, at| heap.write(at, from).then_some(()))
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        if address < CARD {
            return self.host.load32(address);
        }
        self.heaps.with(address, 4, Ram::load32)
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        if address < CARD {
            return self.host.store32(address, value);
        }
        self.heaps.with(address, 4, |heap, at| heap.store32(at, value).then_some(()))
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        if address < CARD {
            return self.host.store8(address, value);
        }
        self.heaps.with(address, 1, |heap, at| heap.store8(at, value).then_some(()))
    }

    fn write_entry(&self, address: u64, entry: &[u8]) -> Result<(), Fault> {
        if address < CARD {
            return self.host.write_entry(address, entry);
        }
        let Some((&last, rest)) = entry.split_last() else { return Ok(()) };
        self.write(address, rest)?;
        self.store8(address.wrapping_add(rest.len() as u64), last)
    }

    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        if address < CARD {
            return self.host.compare_exchange64(address, expected, new);
        }
        self.heaps.with(address, 8, |heap, at| heap.compare_exchange64(at, expected, new))
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        if address < CARD {
            return self.host.copy_to(address, target, target_address, length);
        }
        copy_through(&mut [0; 4096], self, address, target, target_address, length)
    }

    /// Direct memory of the host only: a process frees its heap at its end, even while a thread
    /// holds a function.
    fn direct(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        if address < CARD { self.host.direct(address, length) } else { None }
    }

    fn is_gone(&self, address: u64) -> bool {
        if address < CARD { self.host.is_gone(address) } else { !self.heaps.has(address) }
    }

    fn is_remote(&self) -> bool {
        self.host.is_remote()
    }

    fn hold(&self) {
        self.host.hold();
    }

    fn release(&self) {
        self.host.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_process;
    use super::*;

    #[test]
    fn heap_is_accessible_until_removed() {
        let heaps = Heaps::default();
        let memory = WithCard::new(in_process(), heaps.clone());
        let heap = heaps.add(7, Ram::new(8192));
        let host: Vec<u64> = (0..512).collect();
        let at = host.as_ptr() as u64;
        memory.copy_to(at, &memory, heap + 4096, 4096).unwrap();
        let back = vec![0_u64; 512];
        memory.copy_to(heap + 4096, &memory, back.as_ptr() as u64, 4096).unwrap();
        assert_eq!(back, host);
        memory.store32(heap + 8, 5).unwrap();
        memory.store8(heap + 12, 1).unwrap();
        assert_eq!(memory.load32(heap + 8), Ok(5));
        assert_eq!(memory.compare_exchange64(heap + 8, 0x1_0000_0005, 9), Ok(0x1_0000_0005));
        memory.write_entry(heap, &[1, 2, 3]).unwrap();
        let mut bytes = [0; 9];
        memory.read(heap, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 0, 0, 0, 0, 0, 9]);
        assert!(memory.read(heap + 8190, &mut bytes).is_err(), "past the heap");
        assert!(memory.read(heap + (1 << 32), &mut bytes).is_err(), "no such heap");
        assert!(memory.load32(at).is_ok() && memory.direct(at, 8).is_some());
        assert!(memory.direct(heap, 8).is_none() && !memory.is_gone(heap));
        heaps.remove(7);
        assert!(memory.load32(heap).is_err() && memory.is_gone(heap));
    }
}
