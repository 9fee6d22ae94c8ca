//! A guest's memory, and a count of the device's accesses to it.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::memfd::{MFdFlags, memfd_create};
use verbless_model::memory::{Fault, GuestMemory, HostMemory};

/// Address and size of a guest's memory.
pub const START: u64 = 0x10_0000;
pub const BYTES: u64 = 1 << 20;
/// Size of the read-only memory after it.
pub const READ_ONLY_BYTES: u64 = 0x1_0000;

/// Maximum that one turn of the device may move: the longest message on either side, and its
/// overhead.
const MAX_TURN_BYTES: u64 = 1 << 32;
/// Minimum count of an access, in bytes.
const ACCESS: u64 = 64;

/// Memory that counts accesses.
pub struct Memory {
    inner: GuestMemory,
    moved: AtomicU64,
}

fn ram(bytes: u64) -> File {
    let file = memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    nix::unistd::ftruncate(&file, bytes as i64).expect("room");
    file.into()
}

impl Memory {
    /// Zeroed memory.
    pub fn new() -> Arc<Self> {
        Self::with_files().0
    }

    /// Zeroed memory, and its two files: the writable part, and the read-only part.
    pub fn with_files() -> (Arc<Self>, [File; 2]) {
        let inner = GuestMemory::default();
        let files = [ram(BYTES), ram(READ_ONLY_BYTES)];
        inner.map(START, BYTES, &files[0], 0, true).expect("a mapping");
        inner.map(START + BYTES, READ_ONLY_BYTES, &files[1], 0, false).expect("a mapping");
        (Arc::new(Self { inner, moved: AtomicU64::new(0) }), files)
    }

    /// The number of bytes that the device has moved.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Panics if the device moved more since `before` than a turn can take.
    pub fn check_turn(&self, before: u64) {
        let moved = self.moved() - before;
        assert!(moved <= MAX_TURN_BYTES, "{moved} bytes were moved in one turn");
    }

    /// The guest's own store; without memory there, it has no effect.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let _ = self.inner.write(address, bytes);
    }

    /// The guest's own load; without memory there, it returns zeros.
    pub fn get<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.inner.read(address, &mut bytes);
        bytes
    }

    fn count(&self, bytes: u64) {
        self.moved.fetch_add(bytes.max(ACCESS), Ordering::Relaxed);
    }
}

impl HostMemory for Memory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.count(into.len() as u64);
        self.inner.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.count(from.len() as u64);
        self.inner.write(address, from)
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        self.count(4);
        self.inner.load32(address)
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        self.count(4);
        self.inner.store32(address, value)
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        self.count(1);
        self.inner.store8(address, value)
    }

    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        self.count(8);
        self.inner.compare_exchange64(address, expected, new)
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        self.count(length);
        self.inner.copy_to(address, target, target_address, length)
    }

    fn direct(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        self.count(length);
        self.inner.direct(address, length)
    }
}
