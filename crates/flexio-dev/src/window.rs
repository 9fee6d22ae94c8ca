//! Windows: a thread's access to memory of the host, or of another process of the DPA, through a
//! memory key.
//!
//! A window has one key at a time, shared by all threads that use the window. An access beyond the
//! key's rights ends the process (status 10).

use core::marker::PhantomData;

use crate::mmio;
use crate::status::Failed;

/// A window of the thread's process.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    id: u16,
    /// Address of the register that holds the window's key.
    config: u64,
    /// Address in the window of address 0 of its key.
    base: u64,
    log_bytes: u8,
    /// Makes this type `!Send` and `!Sync`: a second thread could change the window's key.
    not_send: PhantomData<(&'a (), *const ())>,
}

impl Window<'_> {
    /// The window with this configuration in a thread context.
    pub(crate) const fn at(id: u16, config: u64, base: u64, log_bytes: u8) -> Self {
        Self { id, config, base, log_bytes, not_send: PhantomData }
    }

    /// The window's number.
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// Selects the memory key `mkey` (`flexio_dev_window_mkey_config`).
    pub fn set_mkey(&self, mkey: u32) {
        mmio::write32(self.config, mkey);
    }

    /// The memory key that the window accesses.
    pub fn mkey(&self) -> u32 {
        mmio::read32(self.config)
    }

    /// The address in the window for `host`, an address under the key
    /// (`flexio_dev_window_ptr_acquire`).
    ///
    /// # Errors
    /// The address has more bits than the window.
    pub fn address(&self, host: u64) -> Result<u64, Failed> {
        self.range(host, 1)
    }

    fn range(&self, host: u64, bytes: usize) -> Result<u64, Failed> {
        let end = host.checked_add(bytes as u64).ok_or(Failed)?;
        match end <= 1 << self.log_bytes {
            true => Ok(self.base | host),
            false => Err(Failed),
        }
    }

    /// The address in the window for the aligned word of `bytes` bytes at `host`.
    fn aligned(&self, host: u64, bytes: usize) -> Result<u64, Failed> {
        match host.is_multiple_of(bytes as u64) {
            true => self.range(host, bytes),
            false => Err(Failed),
        }
    }

    /// Loads 1 byte at `host`.
    ///
    /// # Errors
    /// The address has more bits than the window, or is misaligned. This applies to the other
    /// accesses, too.
    pub fn read_u8(&self, host: u64) -> Result<u8, Failed> {
        Ok(mmio::read8(self.range(host, 1)?))
    }

    /// Loads 4 bytes at `host`, a multiple of 4, in the DPA's order (little-endian).
    pub fn read_u32(&self, host: u64) -> Result<u32, Failed> {
        Ok(mmio::read32(self.aligned(host, 4)?))
    }

    /// Loads 8 bytes at `host`, a multiple of 8.
    pub fn read_u64(&self, host: u64) -> Result<u64, Failed> {
        Ok(mmio::read64(self.aligned(host, 8)?))
    }

    /// Stores 1 byte at `host`.
    pub fn write_u8(&self, host: u64, value: u8) -> Result<(), Failed> {
        mmio::write8(self.range(host, 1)?, value);
        Ok(())
    }

    /// Stores 4 bytes at `host`, a multiple of 4.
    pub fn write_u32(&self, host: u64, value: u32) -> Result<(), Failed> {
        mmio::write32(self.aligned(host, 4)?, value);
        Ok(())
    }

    /// Stores 8 bytes at `host`, a multiple of 8.
    pub fn write_u64(&self, host: u64, value: u64) -> Result<(), Failed> {
        mmio::write64(self.aligned(host, 8)?, value);
        Ok(())
    }

    /// Copies bytes from the host, in accesses of up to 8 bytes and in the order of addresses
    /// (`flexio_dev_window_copy_from_host`).
    ///
    /// # Errors
    /// The range has addresses of more bits than the window. Then nothing was copied.
    pub fn copy_from_host(&self, into: &mut [u8], host: u64) -> Result<(), Failed> {
        let mut at = self.range(host, into.len())?;
        let mut rest = into;
        while !rest.is_empty() {
            let (part, more) = rest.split_at_mut(step(at, rest.len()));
            match part.len() {
                8 => part.copy_from_slice(&mmio::read64(at).to_le_bytes()),
                4 => part.copy_from_slice(&mmio::read32(at).to_le_bytes()),
                2 => part.copy_from_slice(&mmio::read16(at).to_le_bytes()),
                _ => part[0] = mmio::read8(at),
            }
            at += part.len() as u64;
            rest = more;
        }
        Ok(())
    }

    /// Copies bytes to the host, in accesses of up to 8 bytes and in the order of addresses
    /// (`flexio_dev_window_copy_to_host`).
    ///
    /// # Errors
    /// The range has addresses of more bits than the window. Then nothing was copied.
    pub fn copy_to_host(&self, host: u64, from: &[u8]) -> Result<(), Failed> {
        let mut at = self.range(host, from.len())?;
        let mut rest = from;
        while !rest.is_empty() {
            let (part, more) = rest.split_at(step(at, rest.len()));
            match *part {
                [a, b, c, d, e, f, g, h] => {
                    mmio::write64(at, u64::from_le_bytes([a, b, c, d, e, f, g, h]));
                }
                [a, b, c, d] => mmio::write32(at, u32::from_le_bytes([a, b, c, d])),
                [a, b] => mmio::write16(at, u16::from_le_bytes([a, b])),
                _ => mmio::write8(at, part[0]),
            }
            at += part.len() as u64;
            rest = more;
        }
        Ok(())
    }
}

/// Bytes of the largest aligned access at `at` that is not longer than `left`, which is not 0.
const fn step(at: u64, left: usize) -> usize {
    let aligned = 1 << (at | 8).trailing_zeros();
    let fits = 1 << left.ilog2();
    if aligned < fits { aligned } else { fits }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::context::{ThreadContext, WindowEntity};

    const BYTES: usize = 64;

    /// Memory of a host, and slots for three windows' keys. The tests' addresses have at most 48
    /// bits, and the context's window 2 becomes window 0 so that its addresses are the host's.
    struct Host {
        memory: Vec<u64>,
        keys: [AtomicU32; 48],
    }

    impl Host {
        fn new() -> Self {
            let memory = vec![0; BYTES / 8];
            Self { memory, keys: [const { AtomicU32::new(0) }; 48] }
        }

        fn context(&self) -> ThreadContext {
            let context = ThreadContext::at(0, self.keys.as_ptr().expose_provenance() as u64, 0);
            context.set_window(WindowEntity::Primary, 0, 0x1234).unwrap();
            context
        }

        fn address(&mut self) -> u64 {
            self.memory.as_mut_ptr().expose_provenance() as u64
        }

        fn bytes(&self) -> Vec<u8> {
            self.memory.iter().flat_map(|word| word.to_le_bytes()).collect()
        }
    }

    #[test]
    fn window_uses_last_mkey() {
        let host = Host::new();
        let context = host.context();
        let window = context.window(WindowEntity::Primary).unwrap();
        assert_eq!((window.id(), window.mkey()), (0, 0x1234));
        window.set_mkey(0x5678);
        assert_eq!(host.keys[0].load(Ordering::Relaxed), 0x5678);
        context.set_window(WindowEntity::Secondary, 2, 9).unwrap();
        assert_eq!(host.keys[32].load(Ordering::Relaxed), 9);
    }

    #[test]
    fn window_copies_every_range_exactly() {
        let mut host = Host::new();
        let base = host.address();
        let context = host.context();
        let window = context.window(WindowEntity::Primary).unwrap();
        for first in 0..16 {
            for length in 0..BYTES - 32 {
                host.memory.fill(0xa5a5_a5a5_a5a5_a5a5);
                host.address();
                let data: Vec<u8> = (0..length).map(|n| n as u8 + 1).collect();
                window.copy_to_host(base + first, &data).unwrap();
                let mut expected = vec![0xa5; BYTES];
                expected[first as usize..][..length].copy_from_slice(&data);
                assert_eq!(host.bytes(), expected, "{length} bytes at {first}");
                let mut back = vec![0; length];
                window.copy_from_host(&mut back, base + first).unwrap();
                assert_eq!(back, data, "{length} bytes at {first}");
            }
        }
    }

    #[test]
    fn window_words_are_read_and_written_whole() {
        let mut host = Host::new();
        let base = host.address();
        let context = host.context();
        let window = context.window(WindowEntity::Primary).unwrap();
        window.write_u64(base, 0x0807_0605_0403_0201).unwrap();
        window.write_u32(base + 8, 0x0c0b_0a09).unwrap();
        window.write_u8(base + 12, 0x0d).unwrap();
        assert_eq!(host.bytes()[..13], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        assert_eq!(window.read_u64(base), Ok(0x0807_0605_0403_0201));
        assert_eq!(
            (window.read_u32(base + 8), window.read_u8(base + 12)),
            (Ok(0x0c0b_0a09), Ok(13))
        );
    }

    #[test]
    fn addresses_outside_window_are_rejected() {
        let host = Host::new();
        let context = host.context();
        let window = context.window(WindowEntity::Primary).unwrap();
        assert_eq!(window.address((1 << 48) - 1), Ok((1 << 48) - 1));
        assert_eq!(window.address(1 << 48), Err(Failed));
        assert_eq!(window.read_u64(4), Err(Failed));
        assert_eq!(window.read_u32(2), Err(Failed));
        assert_eq!(window.write_u64(1, 0), Err(Failed));
        assert_eq!(window.write_u32(1, 0), Err(Failed));
        assert_eq!(window.copy_to_host((1 << 48) - 2, &[1, 2, 3]), Err(Failed));
        assert_eq!(window.copy_from_host(&mut [0; 3], u64::MAX), Err(Failed));
    }

    #[test]
    fn access_step_is_largest_aligned_size() {
        assert_eq!((step(8, 9), step(8, 7), step(4, 8), step(6, 8), step(1, 8)), (8, 4, 4, 2, 1));
    }
}
