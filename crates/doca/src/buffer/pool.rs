//! The pool: buffers of one size in one map, at addresses that the pool chooses.

use std::fmt;
use std::sync::Arc;

use super::buf::Buf;
use super::element::Store;
use super::inventory::Extensions;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::memory::MemoryMap;

/// A pool of buffers of one size (`struct doca_bufpool`), which do not overlap. The pool chooses a
/// buffer's address in the map. Threads may take buffers of one pool at the same time.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::BufPool;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let map = doc::map(&doc::dev());
/// let pool = BufPool::builder(&map, 16, 64).alignment(64).start()?;
/// let buffer = pool.alloc()?;
/// assert!(buffer.head().is_multiple_of(64));
/// # Ok(())
/// # }
/// ```
pub struct BufPool {
    count: usize,
    size: u64,
    store: Arc<Store>,
}

/// A pool that is being configured.
#[must_use = "a pool exists when it is started"]
pub struct BufPoolBuilder<'m, M: MemoryMap> {
    map: &'m M,
    begin: Option<(u64, u64)>,
    count: usize,
    size: u64,
    alignment: u64,
    extensions: Extensions,
}

impl<'m, M: MemoryMap> BufPoolBuilder<'m, M> {
    /// Sets the alignment of each buffer's first address, a power of two; 1 by default.
    pub fn alignment(self, alignment: u64) -> Self {
        Self { alignment, ..self }
    }

    /// Sets the range of the pool: `length` bytes of the map from `address` on. Required for a map
    /// of several ranges; by default it is the whole range.
    pub fn range(self, address: u64, length: u64) -> Self {
        Self { begin: Some((address, length)), ..self }
    }

    /// Sets the optional features of the buffers.
    pub fn extensions(self, extensions: Extensions) -> Self {
        Self { extensions, ..self }
    }

    /// The configured alignment.
    pub const fn get_alignment(&self) -> u64 {
        self.alignment
    }

    /// The first address and the bytes of the configured range; `None`: the map's one range.
    pub const fn get_range(&self) -> Option<(u64, u64)> {
        self.begin
    }

    /// The configured optional features.
    pub const fn get_extensions(&self) -> Extensions {
        self.extensions
    }

    /// The number of buffers.
    pub const fn num_elements(&self) -> usize {
        self.count
    }

    /// Bytes of a buffer.
    pub const fn element_size(&self) -> u64 {
        self.size
    }

    /// Creates the buffers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if they do not fit, for no buffers or empty ones, for an
    /// alignment that is not a power of two, or for a map of several ranges without
    /// [`BufPoolBuilder::range`].
    pub fn start(self) -> Result<BufPool> {
        let Self { map, begin, count, size, alignment, extensions } = self;
        let refuse = |text: String| Err(Error::new(ErrorKind::InvalidValue, text));
        if count == 0 || size == 0 {
            return refuse(format!("a pool of {count} buffers of {size} bytes has none"));
        }
        if !alignment.is_power_of_two() {
            return refuse(format!("an alignment of {alignment} is not a power of two"));
        }
        let (address, length) = match begin {
            Some(begin) => begin,
            None => map.whole()?,
        };
        let chunk = map.chunk(address, length)?;
        // Saturated numbers lie past the end.
        let first = address.saturating_add(alignment - 1) & !(alignment - 1);
        let stride = size.saturating_add(alignment - 1) & !(alignment - 1);
        let last = (count as u64 - 1).saturating_mul(stride).saturating_add(size);
        let room = address.saturating_add(length).saturating_sub(first);
        if last > room {
            return refuse(format!(
                "{count} buffers of {size} bytes, each at a multiple of {alignment}, need {last} \
                 bytes; the map has {room}"
            ));
        }
        let addresses = (0..count).map(|index| first + index as u64 * stride);
        let chains = extensions.contains(Extensions::LINKED_LIST);
        let store = Store::pointing(chunk, addresses, size, chains);
        Ok(BufPool { count, size, store })
    }
}

impl BufPool {
    /// A pool of `count` buffers of `size` bytes in a map, to be configured.
    pub fn builder<M: MemoryMap>(map: &M, count: usize, size: u64) -> BufPoolBuilder<'_, M> {
        let extensions = Extensions::NONE;
        BufPoolBuilder { map, begin: None, count, size, alignment: 1, extensions }
    }

    /// Takes a buffer with an empty dataroom.
    ///
    /// # Errors
    /// [`ErrorKind::Empty`] if all are out; [`ErrorKind::BadState`] while the map is stopped.
    pub fn alloc(&self) -> Result<Buf> {
        let Some(mut element) = self.store.take() else {
            let text = "all buffers of the pool are out: drop some, or make it larger";
            return Err(Error::plain(ErrorKind::Empty, text));
        };
        if let Some(chunk) = &element.chunk
            && let Err(error) = chunk.gives_buffers()
        {
            self.store.give_back(element);
            return Err(error);
        }
        (element.data, element.data_end) = (element.head, element.head);
        Ok(Buf::of(element))
    }

    /// The number of buffers of the pool, free or out.
    pub fn num_elements(&self) -> usize {
        self.count
    }

    /// The number of free buffers.
    pub fn num_free_elements(&self) -> usize {
        self.store.available()
    }

    /// Bytes of a buffer.
    pub fn element_size(&self) -> u64 {
        self.size
    }

    /// Destroys the pool. A plain drop leaves buffers that are out as they are.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while buffers are out.
    pub fn destroy(self) -> std::result::Result<(), Refused<Self>> {
        match self.count - self.store.available() {
            0 => Ok(()),
            out => {
                let text = format!("{out} buffers of the pool are out: drop them first");
                Err(Refused::new(Error::new(ErrorKind::InUse, text), self))
            }
        }
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufPool")
            .field("num_elements", &self.count)
            .field("num_free_elements", &self.num_free_elements())
            .field("element_size", &self.size)
            .finish_non_exhaustive()
    }
}
