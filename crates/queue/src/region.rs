//! Memory regions: memory, and the keys under which the device reaches it.
//!
//! A device reads and writes the memory for requests that are outstanding, and a peer that holds
//! the remote key does so at any time. So safe code reaches the bytes by copies that are allowed to
//! race ([`Region::write_at`], [`Region::write_slice`]) and as atomics of one byte
//! ([`Region::bytes`]), or as those of 64 bits in a [`WordRegion`]. Words of a [`Region`], and
//! plain slices in place ([`Region::slice`], [`Region::slice_mut`]), are unsafe.

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicU8;

use bytemuck::{AnyBitPattern, NoUninit};

use verbless_command::MkeyObject;
use verbless_ring::ring::{OutOfBounds, SharedMemory};
use verbless_ring::types::{Lkey, RemoteAddr, Rkey, Sge};

mod memory;
mod pinned;
mod remote;
mod views;
mod words;

pub use memory::Memory;
pub(crate) use pinned::Pinned;
pub use remote::{RangeError, RemoteRegion};
pub use words::WordRegion;

/// The parts of a region.
pub(crate) struct RegionParts {
    /// The registration, which keeps the keys alive. Dropped before `memory`, so that no key
    /// outlives it.
    pub(crate) registration: Box<dyn Any + Send + Sync>,
    /// The memory.
    pub(crate) memory: SharedMemory,
    /// The local key.
    pub(crate) lkey: Lkey,
    /// The remote key, if a peer may have access.
    pub(crate) rkey: Option<Rkey>,
    /// The IOVA of the first byte, as in SGEs and remote addresses.
    pub(crate) address: u64,
    /// Whether any key lets a device write there.
    pub(crate) device_writable: bool,
}

/// Registered memory. Copies in and out may race with the device's accesses: each byte is then an
/// old or a new one.
///
/// Values of any type with the traits of [`bytemuck`] are copied in and out:
///
/// ```no_run
/// use bytemuck::{Pod, Zeroable};
/// # use verbless_command::KeyAccess;
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// struct Quote {
///     id: u64,
///     price: f64,
/// }
///
/// # fn f(domain: &verbless_queue::Domain) -> Result<(), Box<dyn std::error::Error>> {
/// let region = domain.region(4096, KeyAccess::ALL)?;
/// region.write_slice(0, &[Quote { id: 7, price: 1.5 }])?;
/// let mut quotes = [Quote::zeroed(); 16];
/// region.read_slice(0, &mut quotes)?;
/// # Ok(())
/// # }
/// ```
pub struct Region {
    /// Declared before `memory`, and so dropped first.
    registration: Box<dyn Any + Send + Sync>,
    memory: SharedMemory,
    lkey: Lkey,
    rkey: Option<Rkey>,
    address: u64,
    /// Whether a key lets a device write there.
    device_writable: bool,
}

impl Region {
    /// Creates a region of `parts`.
    pub(crate) fn new(parts: RegionParts) -> Self {
        let RegionParts { registration, memory, lkey, rkey, address, device_writable } = parts;
        Self { registration, memory, lkey, rkey, address, device_writable }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are no bytes.
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

    /// The region's memory key object, which has the protection domain and the access flags; `None`
    /// if the region has no key of its own.
    pub fn key(&self) -> Option<&MkeyObject> {
        (*self.registration).downcast_ref()
    }

    /// The IOVA of the first byte, as in SGEs and remote addresses.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// `length` bytes from byte `offset` on, for our own work request.
    ///
    /// # Errors
    /// A range outside of the region, or longer than a request can express.
    pub fn sge(&self, offset: usize, length: usize) -> Result<Sge, RangeError> {
        let address = self.range(offset, length)?;
        match u32::try_from(length) {
            Ok(length) => Ok(Sge::new(address, length, self.lkey)),
            Err(_) => Err(RangeError::TooLong(length as u64)),
        }
    }

    /// `length` bytes from byte `offset` on, for a peer's work request. The peer gets the address
    /// and the key; its request has the length, and our device checks it.
    ///
    /// # Errors
    /// A range outside of the region; a region without remote access.
    pub fn remote(&self, offset: usize, length: usize) -> Result<RemoteAddr, RangeError> {
        let address = self.range(offset, length)?;
        Ok(RemoteAddr::new(address, self.rkey.ok_or(RangeError::NoRemoteKey)?))
    }

    /// The address and key of the whole region, for a peer that addresses parts of it by offset.
    ///
    /// # Errors
    /// A region without remote access.
    pub fn remote_region(&self) -> Result<RemoteRegion, RangeError> {
        Ok(RemoteRegion::new(self.remote(0, self.len())?, self.len() as u64))
    }

    /// The registration that keeps the region's keys alive.
    pub(crate) fn registration(&self) -> &(dyn Any + Send + Sync) {
        &*self.registration
    }

    /// Whether any key lets a device write there.
    pub(crate) fn is_device_writable(&self) -> bool {
        self.device_writable
    }

    /// The address of the first byte of a range.
    fn range(&self, offset: usize, length: usize) -> Result<u64, RangeError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(self.address.wrapping_add(offset as u64)),
            _ => {
                let (offset, length) = (offset as u64, length as u64);
                Err(OutOfBounds { offset, length, size: self.len() as u64 }.into())
            }
        }
    }

    /// A pointer to the first byte, for code that follows the rules of this memory by itself:
    /// volatile accesses, atomics, or copies that may race, within [`Region::len`] bytes, while the
    /// region lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// The region in place, byte by byte, at any alignment. Devices, peers and copies may change
    /// each byte at any time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.memory.bytes()
    }

    /// Sets `length` bytes from byte `offset` on to `byte`.
    ///
    /// # Errors
    /// A range outside of the region.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) -> Result<(), OutOfBounds> {
        self.memory.slice(offset, length)?.fill(byte);
        Ok(())
    }

    /// Copies `bytes` in, from byte `offset` on. `cargo bench -p verbless-ring --bench copies`
    /// measures its rate beside that of `memcpy`.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.write_at(offset, bytes)
    }

    /// Copies values in, from byte `offset` on, in their memory representation and the machine's
    /// byte order.
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

    /// Copies values out from byte `offset` on, as many as `into` takes. A value that a peer writes
    /// meanwhile may mix old and new bytes.
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
            device_writable: true,
        })
    }

    #[test]
    fn out_of_region_or_overflowing_sge_is_rejected() {
        let region = region(4096);
        assert_eq!(region.sge(4000, 96).unwrap().address, 0xffff_ffff_ffff_ffa0);
        assert_eq!(region.sge(4096, 0).unwrap().length, 0);
        assert!(region.sge(4000, 97).is_err());
        assert!(region.sge(usize::MAX, 2).is_err());
        assert!(region.sge(0, usize::MAX).is_err());
        assert_eq!(region.remote(4000, 96).unwrap().address, 0xffff_ffff_ffff_ffa0);
        assert!(region.remote(4000, 97).is_err());
        assert!(region.remote(usize::MAX, 2).is_err());
    }

    #[test]
    fn slices_copy_at_any_offset_within_region() {
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
    fn region_without_rkey_fails_with_no_remote_key() {
        let region = Region { rkey: None, ..region(64) };
        let error = region.remote(0, 8).unwrap_err();
        assert_eq!(error, RangeError::NoRemoteKey);
        assert!(error.to_string().contains("KeyAccess"), "{error}");
        assert_eq!(region.remote_region(), Err(RangeError::NoRemoteKey));
        assert!(matches!(region.remote(0, 65), Err(RangeError::OutOfBounds(_))));
    }

    #[test]
    fn words_and_slices_share_bytes() {
        let region = region(30);
        // SAFETY: this test has one thread.
        #[allow(unsafe_code, reason = "words take a promise")]
        let words = unsafe { region.words() };
        words[2].store(7, Ordering::Relaxed);
        let mut back = [0u64; 1];
        region.read_slice(16, &mut back).unwrap();
        assert_eq!((back, words.len()), ([7], 3));
        assert_eq!(region.as_ptr().addr(), words.as_ptr().addr());
    }

    #[test]
    fn bytes_and_fill_reach_range_only() {
        let region = region(30);
        region.fill(3, 20, 0x5a).unwrap();
        let seen: Vec<_> = region.bytes().iter().map(|it| it.load(Ordering::Relaxed)).collect();
        let expected: Vec<_> = (0..30).map(|at| 0x5a * u8::from((3..23).contains(&at))).collect();
        assert_eq!(seen, expected);
        region.bytes()[29].store(1, Ordering::Relaxed);
        let mut last = [0];
        region.read_at(29, &mut last).unwrap();
        assert_eq!(last, [1]);
        region.fill(30, 0, 1).unwrap();
        for (offset, length) in [(0, 31), (30, 1), (usize::MAX, 2)] {
            assert!(region.fill(offset, length, 1).is_err(), "{length} at {offset}");
        }
    }

    #[test]
    fn empty_region_accepts_only_empty_write() {
        let region = region(0);
        assert!(region.is_empty());
        assert!(region.write_at(0, &[]).is_ok());
        assert!(region.write_at(0, &[1]).is_err());
    }

    #[test]
    fn registration_drops_before_memory() {
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
            device_writable: true,
        }));
        assert!(gone.load(Ordering::Relaxed));
    }
}
