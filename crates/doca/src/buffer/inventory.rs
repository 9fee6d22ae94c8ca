//! The inventory: buffers of any map, at any address, of any length.

use std::fmt;
use std::sync::Arc;

use super::buf::Buf;
use super::element::{Element, Store};
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::memory::{Chunk, MemoryMap};

/// Optional features of an inventory's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extensions(u32);

impl Extensions {
    /// No optional features.
    pub const NONE: Self = Self(0);
    /// Buffers can be chained.
    pub const LINKED_LIST: Self = Self(1);

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A store of buffer descriptors (`struct doca_buf_inventory`), started.
///
/// Its start creates the descriptors; after that, neither creating nor dropping a buffer allocates.
/// At most [`num_elements`](Self::num_elements) buffers exist at a time; a dropped buffer frees its
/// descriptor.
///
/// It is `Sync`: threads may create buffers of one inventory at the same time, without a lock. The
/// guide does not require that.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::Inventory;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let map = doc::map(&doc::dev());
/// let inventory = Inventory::builder(64).start()?;
/// let mut buffer = inventory.buf_by_addr(&map, map.address(), 256)?;
/// buffer.append(b"a request")?;
/// assert_eq!((inventory.num_free_elements(), buffer.data_len()), (63, 9));
/// # Ok(())
/// # }
/// ```
pub struct Inventory {
    name: String,
    capacity: usize,
    extensions: Extensions,
    stopped: bool,
    store: Arc<Store>,
}

/// An inventory that is being configured.
#[derive(Clone, Debug)]
#[must_use = "an inventory exists when it is started"]
pub struct InventoryBuilder {
    name: String,
    capacity: usize,
    extensions: Extensions,
}

impl InventoryBuilder {
    /// Sets the inventory's name, which `Debug` prints.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets the optional features of the buffers.
    pub fn extensions(self, extensions: Extensions) -> Self {
        Self { extensions, ..self }
    }

    /// The configured name.
    pub fn get_name(&self) -> &str {
        &self.name
    }

    /// The configured optional features.
    pub const fn get_extensions(&self) -> Extensions {
        self.extensions
    }

    /// The maximum number of buffers at a time.
    pub const fn num_elements(&self) -> usize {
        self.capacity
    }

    /// Creates the descriptors (`doca_buf_inventory_start`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for an inventory without buffers.
    pub fn start(self) -> Result<Inventory> {
        let Self { name, capacity, extensions } = self;
        if capacity == 0 {
            return Err(Error::plain(
                ErrorKind::InvalidValue,
                "an inventory has at least 1 buffer",
            ));
        }
        let store = Store::of(capacity, extensions.contains(Extensions::LINKED_LIST));
        let stopped = false;
        Ok(Inventory { name, capacity, extensions, stopped, store })
    }
}

impl Inventory {
    /// An inventory of `capacity` buffers (`doca_buf_inventory_create`), to be configured.
    pub fn builder(capacity: usize) -> InventoryBuilder {
        InventoryBuilder { name: String::new(), capacity, extensions: Extensions::NONE }
    }

    /// The inventory's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The maximum number of buffers at a time.
    pub fn num_elements(&self) -> usize {
        self.capacity
    }

    /// The number of free descriptors.
    pub fn num_free_elements(&self) -> usize {
        self.store.available()
    }

    /// The optional features of the buffers.
    pub fn extensions(&self) -> Extensions {
        self.extensions
    }

    /// A buffer of the map's bytes `address..address + length`. Its dataroom is empty and begins at
    /// `address` (`doca_buf_inventory_buf_by_addr`).
    ///
    /// # Errors
    /// [`ErrorKind::Empty`] if all are out; [`ErrorKind::InvalidValue`] if no range of the map
    /// contains all of it; [`ErrorKind::BadState`] if the inventory or the map is stopped.
    pub fn buf_by_addr(&self, map: &impl MemoryMap, address: u64, length: u64) -> Result<Buf> {
        self.make(map, (address, length), (address, 0))
    }

    /// A buffer of the map's bytes `data..data + length`. Its dataroom is the whole buffer
    /// (`doca_buf_inventory_buf_by_data`).
    ///
    /// # Errors
    /// As [`Inventory::buf_by_addr`].
    pub fn buf_by_data(&self, map: &impl MemoryMap, data: u64, length: u64) -> Result<Buf> {
        self.make(map, (data, length), (data, length))
    }

    /// A buffer of the map's bytes `address..address + length`. Its dataroom is
    /// `data..data + data_length` (`doca_buf_inventory_buf_by_args`).
    ///
    /// # Errors
    /// As [`Inventory::buf_by_addr`]; [`ErrorKind::InvalidValue`] if the dataroom is not inside.
    pub fn buf_by_args(
        &self,
        map: &impl MemoryMap,
        address: u64,
        length: u64,
        data: u64,
        data_length: u64,
    ) -> Result<Buf> {
        let mut buffer = self.make(map, (address, length), (address, 0))?;
        buffer.set_data(data, data_length)?;
        Ok(buffer)
    }

    /// Creates another buffer of the same bytes, with the same dataroom
    /// (`doca_buf_inventory_buf_dup`). For a chain it duplicates the whole chain. It does not copy
    /// the bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Empty`] if too few are free; then none is taken. [`ErrorKind::BadState`] if the
    /// inventory or the map is stopped; [`ErrorKind::InvalidValue`] for a chain, if this inventory
    /// lacks [`Extensions::LINKED_LIST`].
    pub fn buf_dup(&self, source: &Buf) -> Result<Buf> {
        let mut copy = self.copy_of(source.element())?;
        let mut rest = source.element().next.as_deref();
        while let Some(element) = rest {
            copy.link(self.copy_of(element)?)?;
            rest = element.next.as_deref();
        }
        Ok(copy)
    }

    fn copy_of(&self, source: &Element) -> Result<Buf> {
        let chunk = source.chunk.as_ref().expect("the descriptor of a buffer points to a chunk");
        let data = (source.data, source.data_end - source.data);
        self.point(chunk, (source.head, source.length()), data)
    }

    fn make(&self, map: &impl MemoryMap, whole: (u64, u64), data: (u64, u64)) -> Result<Buf> {
        self.point(map.chunk(whole.0, whole.1)?, whole, data)
    }

    fn point(&self, chunk: &Arc<Chunk>, whole: (u64, u64), data: (u64, u64)) -> Result<Buf> {
        if self.stopped {
            let text = "the inventory is stopped: call `start` first";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        chunk.gives_buffers()?;
        let Some(mut element) = self.store.take() else {
            let text = "all buffers of the inventory are out: drop some, or make it larger";
            return Err(Error::plain(ErrorKind::Empty, text));
        };
        element.chunk = Some(chunk.clone());
        (element.head, element.end) = (whole.0, whole.0 + whole.1);
        (element.data, element.data_end) = (data.0, data.0 + data.1);
        element.cache_key(chunk.first_cached_key());
        Ok(Buf::of(element))
    }

    /// Stops the inventory (`doca_buf_inventory_stop`): it creates no buffers until the next start.
    /// Existing buffers are not affected.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if it is stopped.
    pub fn stop(&mut self) -> Result<()> {
        if self.stopped {
            return Err(Error::plain(ErrorKind::BadState, "the inventory is stopped already"));
        }
        self.stopped = true;
        Ok(())
    }

    /// Restarts the inventory after [`Inventory::stop`].
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if it is not stopped.
    pub fn start(&mut self) -> Result<()> {
        if !self.stopped {
            return Err(Error::plain(ErrorKind::BadState, "the inventory is started already"));
        }
        self.stopped = false;
        Ok(())
    }

    /// Destroys the inventory (`doca_buf_inventory_destroy`). A plain drop leaves existing buffers
    /// as they are.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while buffers are out.
    pub fn destroy(self) -> std::result::Result<(), Refused<Self>> {
        match self.capacity - self.store.available() {
            0 => Ok(()),
            out => {
                let text = format!("{out} buffers of the inventory are out: drop them first");
                Err(Refused::new(Error::new(ErrorKind::InUse, text), self))
            }
        }
    }
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory")
            .field("name", &self.name)
            .field("num_elements", &self.capacity)
            .field("num_free_elements", &self.num_free_elements())
            .field("extensions", &self.extensions)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}
