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
    /// let data = buffer.bytes()?;
    /// assert_eq!(data[3].load(Ordering::Relaxed), b'p');
    /// data[0].store(b'I', Ordering::Relaxed);
    /// assert_eq!(buffer.to_vec()?, b"In place");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the memory belongs to another process.
    pub fn bytes(&self) -> Result<&[AtomicU8]> {
        let link = self.first();
        let (address, length) = link.data();
        let chunk = link.chunk();
        let memory = crate::memory::bytes_of(chunk)?;
        let begin = (address - chunk.address()) as usize;
        Ok(&memory.bytes()[begin..begin + length as usize])
    }

    /// The dataroom in place, as plain bytes. A peer or an overlapping buffer may write them while
    /// the program holds the buffer, so safe code gets no slice:
    ///
    /// ```compile_fail,E0133
    /// # fn f(buffer: &verbless_doca::Buf) -> verbless_doca::Result<u8> {
    /// let data: &[u8] = buffer.slice()?;
    /// # Ok(data[0])
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Buf::bytes`].
    ///
    /// # Safety
    /// While the slice is used, nothing writes these bytes: no job on a buffer that overlaps, no
    /// peer with a key of the map, and no code through the map, its [`Memory`](crate::Memory) or
    /// [`Buf::bytes`].
    pub unsafe fn slice(&self) -> Result<&[u8]> {
        let bytes = self.bytes()?;
        // SAFETY: the same bytes, for as long; the caller keeps all writers away.
        Ok(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }

    /// The dataroom in place, mutable.
    ///
    /// ```no_run
    /// # fn f(buffer: &mut verbless_doca::Buf) -> verbless_doca::Result<()> {
    /// // SAFETY: the map has no export, and no other buffer is over these bytes.
    /// let data: &mut [u8] = unsafe { buffer.slice_mut() }?;
    /// data.fill(7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0133
    /// # fn f(buffer: &mut verbless_doca::Buf) -> verbless_doca::Result<()> {
    /// let data: &mut [u8] = buffer.slice_mut()?;
    /// data.fill(7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Buf::bytes`].
    ///
    /// # Safety
    /// As for [`Buf::slice`]. In addition, nothing else reads these bytes meanwhile.
    pub unsafe fn slice_mut(&mut self) -> Result<&mut [u8]> {
        let bytes = self.bytes()?;
        let first = bytes.as_ptr().cast::<u8>().cast_mut();
        // SAFETY: the same bytes, which are atomics and so mutable, for as long as the buffer is
        // borrowed; the caller keeps all other accesses away.
        Ok(unsafe { slice::from_raw_parts_mut(first, bytes.len()) })
    }
}
