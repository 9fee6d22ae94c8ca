//! Registered memory as slices of [`bytemuck`] types. Only the holder of the slice can change it.
#![allow(
    unsafe_code,
    reason = "references are made to registered memory; this is the place for it"
)]

use std::slice;

use bytemuck::{AnyBitPattern, NoUninit};
use verbless_command::{Error, ErrorKind};

use super::Region;

impl Region {
    /// `count` values of `T` from byte `offset` on, in place. Devices must not be able to write the
    /// region ([`KeyAccess::LOCAL_READ`], or remote reads without `local_write`): use it for
    /// outgoing data. A request that reads the bytes during a change sends a mix of old and new
    /// ones. No request can write there: for every access through the region's key, by a READ, a
    /// receive, or a [`Umr`](verbless_ring::wr::Umr) whose key lets peers write, the device checks
    /// the region's own key for the right to write.
    ///
    /// # Errors
    /// [`ErrorKind::Input`]: a device may write the region; the range is outside of it, or
    /// misaligned for `T`.
    ///
    /// [`KeyAccess::LOCAL_READ`]: verbless_command::KeyAccess::LOCAL_READ
    pub fn slice_mut<T: NoUninit + AnyBitPattern>(
        &mut self,
        offset: usize,
        count: usize,
    ) -> Result<&mut [T], Error> {
        if self.written {
            let hint = "devices may write the region: use `read_slice`, `write_slice`, `words`, or \
                        `slice_mut_unchecked` while no device writes it";
            return Err(Error::new(ErrorKind::Input, "viewing a region as a slice", hint));
        }
        // SAFETY: no key lets a device write, and this is the only handle to the region.
        unsafe { self.slice_mut_unchecked(offset, count) }
    }

    /// `count` mutable values of `T` from byte `offset` on, in place.
    ///
    /// # Errors
    /// [`ErrorKind::Input`]: the range is outside of the region, or misaligned for `T`.
    ///
    /// # Safety
    /// While the slice is used, no device writes these bytes: no receive, READ or atomic of ours is
    /// outstanding there, and no peer that knows a key uses it to write there.
    pub unsafe fn slice_mut_unchecked<T: NoUninit + AnyBitPattern>(
        &mut self,
        offset: usize,
        count: usize,
    ) -> Result<&mut [T], Error> {
        let base = self.place::<T>(offset, count)?;
        // SAFETY: `count` aligned values in the region, which lives as long as the borrow and is
        // borrowed exclusively; the caller keeps the device away, and any bytes are a `T`.
        Ok(unsafe { slice::from_raw_parts_mut(base, count) })
    }

    /// `count` values of `T` from byte `offset` on, in place.
    ///
    /// # Errors
    /// As [`slice_mut_unchecked`](Self::slice_mut_unchecked).
    ///
    /// # Safety
    /// As for [`slice_mut_unchecked`](Self::slice_mut_unchecked). In addition, no code writes these
    /// bytes through [`Region::write_at`], [`Region::words`] and the like while the slice is used.
    pub unsafe fn slice_unchecked<T: AnyBitPattern>(
        &self,
        offset: usize,
        count: usize,
    ) -> Result<&[T], Error> {
        let base = self.place::<T>(offset, count)?;
        // SAFETY: `count` aligned values in the region, which lives as long as the borrow; the
        // caller keeps all writers away, and any bytes are a `T`.
        Ok(unsafe { slice::from_raw_parts(base, count) })
    }

    /// A pointer to the first of `count` values, if all of them are within the region and aligned.
    fn place<T>(&self, offset: usize, count: usize) -> Result<*mut T, Error> {
        let refuse =
            |why: String| Err(Error::new(ErrorKind::Input, "viewing a region as a slice", why));
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

    fn region(written: bool) -> Region {
        Region::new(RegionParts {
            registration: Box::new(()),
            memory: SharedMemory::zeroed(4096).slice(0, 64).unwrap(),
            lkey: Lkey(0x100),
            rkey: None,
            address: 0,
            written,
        })
    }

    #[test]
    fn slice_mut_stays_within_region_and_alignment() {
        let mut region = region(false);
        region.slice_mut::<u32>(4, 15).unwrap()[14] = 0x0102_0304;
        let mut back = [0u32];
        region.read_slice(60, &mut back).unwrap();
        assert_eq!(back, [0x0102_0304]);
        assert_eq!(region.slice_mut::<u64>(64, 0).unwrap(), []);
        for (offset, count) in [(0, 17), (61, 1), (4, 16), (usize::MAX, 1), (0, usize::MAX)] {
            assert!(region.slice_mut::<u32>(offset, count).is_err(), "{count} at {offset}");
        }
        assert!(
            region.slice_mut::<u32>(2, 1).unwrap_err().to_string().contains("not a multiple of 4")
        );
    }

    #[test]
    fn user_struct_is_viewed_in_place() {
        #[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        struct Quote {
            id: u64,
            price: f64,
        }
        let mut region = region(false);
        let quote = Quote { id: 7, price: 1.5 };
        region.slice_mut::<Quote>(16, 3).unwrap()[1] = quote;
        let mut copied = [Quote { id: 0, price: 0.0 }];
        region.read_slice(32, &mut copied).unwrap();
        assert_eq!(copied, [quote]);
        assert!(region.slice_mut::<Quote>(16, 4).is_err());
    }

    #[test]
    fn device_writable_region_gives_only_unsafe_slices() {
        let mut region = region(true);
        let error = region.slice_mut::<u8>(0, 1).unwrap_err().to_string();
        assert!(error.contains("devices may write the region"), "{error}");
        // SAFETY: there is no device, and no other handle.
        unsafe { region.slice_mut_unchecked::<u8>(0, 2) }.unwrap()[1] = 7;
        // SAFETY: as above.
        assert_eq!(unsafe { region.slice_unchecked::<u8>(0, 2) }.unwrap(), [0, 7]);
    }
}
