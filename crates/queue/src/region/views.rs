//! Registered memory as words and as slices of [`bytemuck`] types, on the caller's promise of what
//! else uses it meanwhile.
#![allow(unsafe_code, reason = "makes references to registered memory")]

use std::slice;
use std::sync::atomic::AtomicU64;

use bytemuck::{AnyBitPattern, NoUninit};
use verbless_command::{Error, ErrorKind};

use super::Region;

impl Region {
    /// `count` mutable values of `T` from byte `offset` on, in place. It costs no copy;
    /// [`write_slice`](Self::write_slice) and [`bytes`](Self::bytes) need no promise.
    ///
    /// ```no_run
    /// # fn f(region: &mut verbless_queue::Region) -> Result<(), verbless_queue::Error> {
    /// // SAFETY: the region is new and has no remote key: no request is outstanding there.
    /// let values: &mut [u32] = unsafe { region.slice_mut(0, 16) }?;
    /// values.fill(7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A key, an address and a length are numbers: a request holds no borrow of the region. So the
    /// compiler cannot see whether a device uses the bytes, and safe code gets no slice:
    ///
    /// ```compile_fail,E0133
    /// # fn f(region: &mut verbless_queue::Region) -> Result<(), verbless_queue::Error> {
    /// let values: &mut [u32] = region.slice_mut(0, 16)?;
    /// values.fill(7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`]: the range is outside of the region, or misaligned for `T`.
    ///
    /// # Safety
    /// While the slice is used, nothing else accesses these bytes:
    /// - No request of ours on them is outstanding, even if the device only reads them for it. A
    ///   request is outstanding from its post until a poll has returned its completion, or that of
    ///   a later request of the same send queue.
    /// - No peer that knows a key uses it there.
    /// - No code uses another handle to them: another region, a [`Memory`](super::Memory), or a
    ///   pointer of [`Region::as_ptr`].
    pub unsafe fn slice_mut<T: NoUninit + AnyBitPattern>(
        &mut self,
        offset: usize,
        count: usize,
    ) -> Result<&mut [T], Error> {
        let base = self.pointer::<T>(offset, count)?;
        // SAFETY: `count` aligned values in the region, which lives as long as the borrow and is
        // borrowed exclusively; the caller keeps all others away, and any bytes are a `T`.
        Ok(unsafe { slice::from_raw_parts_mut(base, count) })
    }

    /// `count` values of `T` from byte `offset` on, in place. It costs no copy;
    /// [`read_slice`](Self::read_slice) and [`bytes`](Self::bytes) need no promise.
    ///
    /// ```compile_fail,E0133
    /// # fn f(region: &verbless_queue::Region) -> Result<u32, verbless_queue::Error> {
    /// let values: &[u32] = region.slice(0, 16)?;
    /// # Ok(values[0])
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`slice_mut`](Self::slice_mut).
    ///
    /// # Safety
    /// While the slice is used, nothing writes these bytes: no receive, READ or atomic of ours is
    /// outstanding there, no peer that knows a key uses it to write there, and no code writes them
    /// through this region ([`Region::write_at`], [`Region::words`] and the like) or another
    /// handle. Requests that only read them may be outstanding.
    pub unsafe fn slice<T: AnyBitPattern>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&[T], Error> {
        let base = self.pointer::<T>(offset, count)?;
        // SAFETY: `count` aligned values in the region, which lives as long as the borrow; the
        // caller keeps all writers away, and any bytes are a `T`.
        Ok(unsafe { slice::from_raw_parts(base, count) })
    }

    /// The region as 64-bit words in the machine's byte order, word `n` at byte `8 * n`, without a
    /// remainder of less than 8 bytes. A region that does not begin at a multiple of 8 has no words
    /// (only [`Domain::region_from_raw`](crate::Domain::region_from_raw) creates such). The device
    /// and a peer may change them at any time. [`Domain::words`](crate::Domain::words) needs no
    /// promise.
    ///
    /// ```compile_fail,E0133
    /// # fn f(region: &verbless_queue::Region) {
    /// use std::sync::atomic::Ordering::Relaxed;
    ///
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| region.bytes()[0].store(1, Relaxed));
    ///     // An atomic of another size at the same time: the language does not define it.
    ///     region.words()[0].store(2, Relaxed);
    /// });
    /// # }
    /// ```
    ///
    /// # Safety
    /// While the words are used, no access of another size reaches the same bytes at the same time:
    /// no copy ([`write_at`](Self::write_at), [`read_at`](Self::read_at), [`fill`](Self::fill) and
    /// the like) and no [`bytes`](Self::bytes), through this region or another handle.
    pub unsafe fn words(&self) -> &[AtomicU64] {
        // SAFETY: the caller promises the same.
        unsafe { self.memory.words() }
    }

    /// A pointer to the first of `count` values, if all of them are within the region and aligned.
    fn pointer<T>(&self, offset: usize, count: usize) -> Result<*mut T, Error> {
        let refuse = |why: String| {
            Err(Error::new(ErrorKind::InvalidInput, "viewing a region as a slice", why))
        };
        let size = self.len();
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| offset.checked_add(bytes));
        if end.is_none_or(|end| end > size) {
            return refuse(format!(
                "{count} values of {} bytes at offset {offset:#x} exceed its {size:#x} bytes",
                size_of::<T>()
            ));
        }
        let base = self.as_ptr().wrapping_add(offset).cast::<T>();
        if !base.is_aligned() {
            return refuse(format!(
                "address {base:p} is not a multiple of {}, the alignment of the values",
                align_of::<T>()
            ));
        }
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionParts;
    use crate::ring::SharedMemory;
    use crate::types::Lkey;

    fn region() -> Region {
        Region::new(RegionParts {
            registration: Box::new(()),
            memory: SharedMemory::zeroed(4096).slice(0, 64).unwrap(),
            lkey: Lkey(0x100),
            rkey: None,
            address: 0,
            device_writable: false,
        })
    }

    #[test]
    fn slice_mut_stays_within_region_and_alignment() {
        let mut region = region();
        // SAFETY: there is no device, and no other handle.
        let mut take = |offset, count| unsafe {
            region.slice_mut::<u32>(offset, count).map(|values| values.len())
        };
        for (offset, count) in [(4, 15), (64, 0), (0, 16)] {
            assert_eq!(take(offset, count).unwrap(), count, "{count} at {offset}");
        }
        for (offset, count) in [(0, 17), (61, 1), (4, 16), (usize::MAX, 1), (0, usize::MAX)] {
            assert!(take(offset, count).is_err(), "{count} at {offset}");
        }
        assert!(take(2, 1).unwrap_err().to_string().contains("not a multiple of 4"));
    }

    #[test]
    fn user_struct_is_viewed_in_place() {
        #[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        struct Quote {
            id: u64,
            price: f64,
        }
        let mut region = region();
        let quote = Quote { id: 7, price: 1.5 };
        // SAFETY: there is no device, and no other handle.
        unsafe { region.slice_mut::<Quote>(16, 3) }.unwrap()[1] = quote;
        let mut copied = [Quote { id: 0, price: 0.0 }];
        region.read_slice(32, &mut copied).unwrap();
        assert_eq!(copied, [quote]);
        // SAFETY: as above.
        assert_eq!(unsafe { region.slice::<Quote>(32, 1) }.unwrap(), [quote]);
        // SAFETY: as above.
        assert!(unsafe { region.slice::<Quote>(16, 4) }.is_err());
    }
}
