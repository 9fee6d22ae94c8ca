//! Memory regions: memory, and the keys under which the device reaches it.
//!
//! A peer that holds the remote key may write at any time, so the bytes are reached by copies that are allowed to
//! race, never as a slice.

use std::any::Any;
use std::fmt;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::ring::{OutOfBounds, SharedMemory};
use crate::types::{Lkey, RemoteAddr, Rkey, Sge};

mod pinned;

pub(crate) use pinned::Pinned;

/// What a region is built from.
pub struct RegionParts {
    /// What keeps the keys alive. Dropped first: afterwards no key may reach the memory.
    pub registration: Box<dyn Any + Send + Sync>,
    /// The memory.
    pub memory: SharedMemory,
    /// The local key.
    pub lkey: Lkey,
    /// The remote key, if a peer may have access.
    pub rkey: Option<Rkey>,
    /// The address of the first byte, as the keys count.
    pub address: u64,
}

/// Registered memory. Reads and writes of it race with the device's, and yield each byte old or new.
pub struct Region {
    /// Declared, and so dropped, before the memory that it gives access to.
    _registration: Box<dyn Any + Send + Sync>,
    memory: SharedMemory,
    lkey: Lkey,
    rkey: Option<Rkey>,
    address: u64,
}

impl Region {
    /// A region of these parts.
    pub fn new(parts: RegionParts) -> Self {
        let RegionParts { registration, memory, lkey, rkey, address } = parts;
        Self { _registration: registration, memory, lkey, rkey, address }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// The remote key, if a peer may have access.
    pub fn rkey(&self) -> Option<Rkey> {
        self.rkey
    }

    /// The address of the first byte, as the keys count.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// `length` bytes from `offset` on, for a work request of ours.
    pub fn sge(&self, offset: usize, length: usize) -> Result<Sge, OutOfBounds> {
        let error =
            OutOfBounds { offset: offset as u64, length: length as u64, size: self.len() as u64 };
        match (offset.checked_add(length), u32::try_from(length)) {
            (Some(end), Ok(length)) if end <= self.len() => {
                Ok(Sge::new(self.address.wrapping_add(offset as u64), length, self.lkey))
            }
            _ => Err(error),
        }
    }

    /// The place at `offset`, for a work request of the peer; `None` if no peer may have access. The peer's device
    /// checks its bounds.
    pub fn remote(&self, offset: usize) -> Option<RemoteAddr> {
        Some(RemoteAddr::new(self.address.wrapping_add(offset as u64), self.rkey?))
    }

    /// Copies `bytes` in, from `offset` on.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.write_at(offset, bytes)
    }

    /// Copies values in, from byte `offset` on, as they stand in memory: of the machine's own byte order.
    ///
    /// ```no_run
    /// # fn f(region: &verbless_queue::Region) -> Result<(), verbless_queue::ring::OutOfBounds> {
    /// region.write_slice(0, &[1.5f32, 2.5])?;
    /// let mut back = [0f32; 2];
    /// region.read_slice(0, &mut back)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_slice<T: NoUninit>(&self, offset: usize, values: &[T]) -> Result<(), OutOfBounds> {
        self.write_at(offset, bytemuck::cast_slice(values))
    }

    /// Copies values out from byte `offset` on, as many as `into` takes. A value whose bytes a peer writes meanwhile may be of old ones
    /// and new ones.
    pub fn read_slice<T: NoUninit + AnyBitPattern>(
        &self,
        offset: usize,
        into: &mut [T],
    ) -> Result<(), OutOfBounds> {
        self.read_at(offset, bytemuck::cast_slice_mut(into))
    }

    /// Copies out from `offset` on, as many bytes as `into` takes.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory.read_at(offset, into)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len())
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn region(length: usize) -> Region {
        Region::new(RegionParts {
            registration: Box::new(()),
            memory: SharedMemory::zeroed(length).slice(0, length).unwrap(),
            lkey: Lkey(0x100),
            rkey: Some(Rkey(0x200)),
            address: 0xffff_ffff_ffff_f000,
        })
    }

    #[test]
    fn an_sge_outside_the_region_is_refused_even_when_it_overflows() {
        let region = region(4096);
        assert_eq!(region.sge(4000, 96).unwrap().address, 0xffff_ffff_ffff_ffa0);
        assert_eq!(region.sge(4096, 0).unwrap().length, 0);
        assert!(region.sge(4000, 97).is_err());
        assert!(region.sge(usize::MAX, 2).is_err());
        assert!(region.sge(0, usize::MAX).is_err());
    }

    #[test]
    fn values_go_in_and_come_out_at_any_offset_and_never_past_the_end() {
        let region = region(64);
        for offset in [0, 3, 40] {
            region.write_slice(offset, &[[1u64, 2], [3, u64::MAX]][..1 + offset % 2]).unwrap();
            let mut back = [[0u64; 2]];
            region.read_slice(offset, &mut back).unwrap();
            assert_eq!(back, [[1, 2]]);
        }
        region.write_slice(60, &[0x0102_0304u32]).unwrap();
        let mut bytes = [0; 4];
        region.read_at(60, &mut bytes).unwrap();
        assert_eq!(bytes, 0x0102_0304u32.to_ne_bytes());
        assert!(region.write_slice(61, &[0u32]).is_err());
        assert!(region.read_slice(60, &mut [0u32; 2]).is_err());
        region.write_slice::<u64>(64, &[]).unwrap();
    }

    #[test]
    fn a_region_of_no_bytes_has_no_bytes() {
        let region = region(0);
        assert!(region.is_empty());
        assert!(region.write_at(0, &[]).is_ok());
        assert!(region.write_at(0, &[1]).is_err());
    }

    #[test]
    fn the_keys_go_before_the_memory() {
        struct Keys(Arc<AtomicBool>);
        impl Drop for Keys {
            fn drop(&mut self) {
                assert!(!self.0.load(Ordering::Relaxed), "the memory was there");
            }
        }
        struct Memory(SharedMemory, Arc<AtomicBool>);
        impl Drop for Memory {
            fn drop(&mut self) {
                let _ = &self.0;
                self.1.store(true, Ordering::Relaxed);
            }
        }
        let gone = Arc::new(AtomicBool::new(false));
        let real = SharedMemory::zeroed(4096);
        let watched = real.held_with(Arc::new(Memory(real.clone(), gone.clone())));
        drop(Region::new(RegionParts {
            registration: Box::new(Keys(gone.clone())),
            memory: watched,
            lkey: Lkey(1),
            rkey: None,
            address: 0,
        }));
        assert!(gone.load(Ordering::Relaxed));
    }
}
