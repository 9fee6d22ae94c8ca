//! The data of a buffer in place, without a copy.
//!
//! No job uses a buffer while the program holds it, but others may change the same bytes at any
//! time: a peer with a key, an overlapping buffer, and the map itself. So the safe view has atomic
//! bytes; a plain slice needs the caller's promise.
#![allow(unsafe_code, reason = "references are made to a map's bytes; this module is the place")]

use std::slice;
use std::sync::atomic::AtomicU8;

use super::buf::Buf;
use crate::error::Result;

#[cfg(doc)]
use crate::error::ErrorKind;

impl Buf {
    /// The dataroom in place, byte by byte. While the view is used, the buffer can be in no job;
    /// a peer, an overlapping buffer or the map may still change each byte at any time.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # use verbless_doca::Inventory;
    /// use std::sync::atomic::Ordering;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let map = doc::map(&doc::dev());
    /// # let inventory = Inventory::builder(4).start()?;
    /// let mut buffer = inventory.buf_by_addr(&map, map.address(), 64)?;
    /// buffer.append(b"in place")?;
    /// let data = buffer.slice()?;
    /// assert_eq!(data[3].load(Ordering::Relaxed), b'p');
    /// data[0].store(b'I', Ordering::Relaxed);
    /// assert_eq!(buffer.to_vec()?, b"In place");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the memory belongs to another process.
    pub fn slice(&self) -> Result<&[AtomicU8]> {
        let link = self.first();
        let (address, length) = link.data();
        let chunk = link.chunk();
        let memory = crate::memory::bytes_of(chunk)?;
        let begin = (address - chunk.address()) as usize;
        Ok(&memory.bytes()[begin..begin + length as usize])
    }

    /// The dataroom in place, as plain bytes.
    ///
    /// # Errors
    /// As [`Buf::slice`].
    ///
    /// # Safety
    /// While the slice is used, nothing writes these bytes: no job on a buffer that overlaps, no
    /// peer with a key of the map, and no code through the map, its [`Memory`](crate::Memory) or
    /// [`Buf::slice`].
    pub unsafe fn slice_unchecked(&self) -> Result<&[u8]> {
        let bytes = self.slice()?;
        // SAFETY: the same bytes, for as long; the caller keeps all writers away.
        Ok(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }

    /// The dataroom in place, mutable.
    ///
    /// # Errors
    /// As [`Buf::slice`].
    ///
    /// # Safety
    /// As for [`Buf::slice_unchecked`]. In addition, nothing else reads these bytes meanwhile.
    pub unsafe fn slice_mut_unchecked(&mut self) -> Result<&mut [u8]> {
        let bytes = self.slice()?;
        let first = bytes.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the same bytes, which are atomics and so mutable, for as long as the buffer is
        // borrowed; the caller keeps all other accesses away.
        Ok(unsafe { slice::from_raw_parts_mut(first, bytes.len()) })
    }
}
