//! The array: buffers of one size in one map, one after the other, by index.

use std::fmt;
use std::sync::Arc;

use super::buf::Buf;
use super::element::Store;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::memory::MemoryMap;

/// An array of buffers of one size (`struct doca_buf_arr`), element `i` at `i * size` bytes.
///
/// A job takes an element out. The completion returns it to the program, which may [put it
/// back](BufArray::put).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let map = doc::map(&doc::dev());
/// use verbless_doca::BufArray;
///
/// let mut array = BufArray::builder(&map, 4, 1024).start()?;
/// let mut element = array.take(2).ok_or("element 2 is out")?;
/// assert_eq!(element.head(), map.address() + 2 * 1024);
/// element.append(b"for a job")?;
/// array.put(element)?;
/// assert_eq!(array.get_mut(2).ok_or("element 2 is out")?.data_len(), 9);
/// # Ok(())
/// # }
/// ```
pub struct BufArray {
    elements: Box<[Option<Buf>]>,
    /// The store that the descriptors of the elements return to.
    store: Arc<Store>,
    first: u64,
    size: u64,
}

/// An array that is being configured.
#[must_use = "an array exists when it is started"]
pub struct BufArrayBuilder<'m, M: MemoryMap> {
    map: &'m M,
    count: usize,
    size: u64,
    offset: u64,
}

/// The processor whose memory has the descriptors of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The CPU's.
    Cpu,
    /// A GPU's. Not supported.
    Gpu,
    /// A DPA's. Not supported.
    Dpa,
}

impl<M: MemoryMap> BufArrayBuilder<'_, M> {
    /// Bytes of the map in front of element 0.
    pub fn start_offset(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// The bytes of the map in front of element 0.
    pub const fn get_start_offset(&self) -> u64 {
        self.offset
    }

    /// The number of elements.
    pub const fn num_elements(&self) -> usize {
        self.count
    }

    /// Bytes of an element.
    pub const fn element_size(&self) -> u64 {
        self.size
    }

    /// Creates the array for code on the CPU.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if it does not fit into the one range of the map, or has no
    /// bytes.
    pub fn start(self) -> Result<BufArray> {
        self.start_for(Target::Cpu)
    }

    /// Creates the array for code on `target`.
    ///
    /// # Errors
    /// As [`BufArrayBuilder::start`]; [`ErrorKind::NotSupported`] for anything but the CPU.
    pub fn start_for(self, target: Target) -> Result<BufArray> {
        let Self { map, count, size, offset } = self;
        if target != Target::Cpu {
            let text = format!("arrays of buffers for a {target:?} are not supported");
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let (address, length) = map.whole()?;
        let end = (count as u64).checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
        if count == 0 || size == 0 || end.is_none_or(|end| end > length) {
            let text = format!(
                "{count} buffers of {size} bytes from byte {offset} on are not in a map of {length}"
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        let first = address + offset;
        let addresses = (0..count).map(|index| first + index as u64 * size);
        let store: Arc<Store> =
            Store::pointing(map.chunk(address, length)?, addresses, size, false);
        let elements = std::iter::from_fn(|| store.take()).map(|mut element| {
            (element.data, element.data_end) = (element.head, element.head);
            Some(Buf::of(element))
        });
        Ok(BufArray { elements: elements.collect(), store, first, size })
    }
}

impl BufArray {
    /// An array of `count` buffers of `size` bytes in a map of one range, to be configured.
    pub fn builder<M: MemoryMap>(map: &M, count: usize, size: u64) -> BufArrayBuilder<'_, M> {
        BufArrayBuilder { map, count, size, offset: 0 }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Bytes of an element.
    pub fn element_size(&self) -> u64 {
        self.size
    }

    /// Element `index`; `None` if it is out, or does not exist.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Buf> {
        self.elements.get_mut(index)?.as_mut()
    }

    /// Takes element `index` out, for a job; `None` if it is out, or does not exist.
    pub fn take(&mut self, index: usize) -> Option<Buf> {
        self.elements.get_mut(index)?.take()
    }

    /// Puts an element back to its index.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the buffer was not taken from this array, or is a chain; the
    /// error returns it.
    pub fn put(&mut self, buffer: Buf) -> std::result::Result<(), Refused<Buf>> {
        let offset = buffer.head().wrapping_sub(self.first);
        let slot = self.elements.get_mut((offset / self.size) as usize);
        match slot {
            Some(slot) if buffer.belongs_to(&self.store) && buffer.chain_len() == 1 => {
                *slot = Some(buffer);
                Ok(())
            }
            _ => {
                let text = format!(
                    "the buffer at {:#x} was not taken from this array, or has others linked to it",
                    buffer.head()
                );
                Err(Refused::new(Error::new(ErrorKind::InvalidValue, text), buffer))
            }
        }
    }
}

impl BufArray {
    /// Destroys the array. A plain drop leaves elements that are out as they are.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while elements are out, neither put back nor dropped.
    pub fn destroy(self) -> std::result::Result<(), Refused<Self>> {
        let there = self.elements.iter().flatten().count() + self.store.available();
        match self.len() - there {
            0 => Ok(()),
            out => {
                let text =
                    format!("{out} elements of the array are out: put them back, or drop them");
                Err(Refused::new(Error::new(ErrorKind::InUse, text), self))
            }
        }
    }
}

impl fmt::Debug for BufArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufArray")
            .field("len", &self.len())
            .field("element_size", &self.size)
            .finish_non_exhaustive()
    }
}
