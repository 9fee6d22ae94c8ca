//! Regions that are reached as 64-bit words only.
#![allow(unsafe_code, reason = "views memory as words; no other view of it exists")]

use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use verbless_ring::types::{Lkey, RemoteAddr, Rkey, Sge};

use super::{RangeError, Region, RemoteRegion};

/// Registered memory as 64-bit atomics in the machine's byte order, word `n` at byte `8 * n`: for
/// lock-free structures that a peer reads, writes, or changes by atomics.
/// [`Domain::words`](crate::Domain::words) creates it.
///
/// The language does not define concurrent atomics of different sizes on the same bytes. No copy
/// and no view in bytes reaches this memory, so safe code may use its words at any time.
///
/// RDMA READs and WRITEs move an aligned word as a whole, if neither the range nor a packet ends
/// inside it: begin the range at a word, so that packets, whose payloads are multiples of 8 bytes,
/// end between words. RDMA atomics and CPU atomics are atomic to each other only if the device
/// reports it: otherwise use either those of one device or those of the CPU on a word.
///
/// The words of one READ are read in no promised order. A peer that reads a version and a value by
/// one READ may get the new version and the old value, so write a version on either side of the
/// value (the reader takes it if the two are equal), or let the peer read the version by one READ
/// and the value by a second, posted when the first has completed.
///
/// The orderings of these atomics hold between CPUs. Towards a device, the barriers of
/// [`uar::barrier`](crate::uar::barrier) order stores; posting a request has the barriers that it
/// needs for earlier stores.
///
/// ```no_run
/// # fn f(domain: &verbless_queue::Domain) -> Result<(), Box<dyn std::error::Error>> {
/// # use verbless_command::KeyAccess;
/// use std::sync::atomic::Ordering;
///
/// use verbless_queue::uar::barrier::before_doorbell_record as before_later_stores;
///
/// // A version on either side of the value: a reader that sees two that differ reads again.
/// let words = domain.words(3, KeyAccess::ALL)?;
/// for (word, value) in [(0, 1), (1, 42), (2, 1)] {
///     words[word].store(value, Ordering::Relaxed);
///     before_later_stores();
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WordRegion(Region);

impl WordRegion {
    /// The words of a fresh region, which nothing else holds.
    pub(crate) fn new(region: Region) -> Self {
        Self(region)
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        self.0.lkey()
    }

    /// The remote key, if a peer may have access.
    pub fn rkey(&self) -> Option<Rkey> {
        self.0.rkey()
    }

    /// The IOVA of the first word, for both keys.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// `length` bytes from byte `offset` on, for our own work request: [`Region::sge`].
    ///
    /// # Errors
    /// As [`Region::sge`].
    pub fn sge(&self, offset: usize, length: usize) -> Result<Sge, RangeError> {
        self.0.sge(offset, length)
    }

    /// `length` bytes from byte `offset` on, for a peer's work request: [`Region::remote`].
    ///
    /// # Errors
    /// As [`Region::remote`].
    pub fn remote(&self, offset: usize, length: usize) -> Result<RemoteAddr, RangeError> {
        self.0.remote(offset, length)
    }

    /// The address and key of all words, for a peer that addresses them by byte offset.
    ///
    /// # Errors
    /// As [`Region::remote_region`].
    pub fn remote_region(&self) -> Result<RemoteRegion, RangeError> {
        self.0.remote_region()
    }
}

impl Deref for WordRegion {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the memory was allocated for this region, which gives out no other view of it.
        unsafe { self.0.words() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use verbless_command::{Device, KeyAccess};
    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    use crate::domain::Domain;

    #[test]
    fn word_region_has_count_words_under_its_keys() {
        let model = Model::builder().device(Profile::load("connectx6dx").unwrap()).build();
        let backend = InProcess::of(&model);
        let device = Device::open(&backend, &backend.enumerate().unwrap()[0]).unwrap();
        let domain = Domain::new(&device).unwrap();
        let words = domain.words(3, KeyAccess::ALL).unwrap();
        assert_eq!(words.len(), 3);
        words[2].store(7, Ordering::Relaxed);
        assert_eq!(words[2].load(Ordering::Relaxed), 7);
        assert_eq!(words.sge(16, 8).unwrap().address, words.address() + 16);
        assert!(words.sge(16, 9).is_err() && words.remote(24, 1).is_err());
        assert_eq!(words.remote_region().unwrap().len(), 24);
        assert!(domain.words(0, KeyAccess::ALL).is_err());
        assert!(domain.words(usize::MAX, KeyAccess::ALL).is_err());
    }
}
