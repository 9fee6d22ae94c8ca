//! A buffer.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::descriptor::Descriptor;
use super::element::{Element, Store};
use super::reference::BufRef;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::memory::{CachedKey, Chunk};
use crate::types::AccessFlags;

use verbless_queue::Lkey;

/// A buffer (`struct doca_buf`): it points to a part of a memory map. The first buffer of a chain
/// owns the chain; methods affect the first buffer only, unless their name has `chain`. To change a
/// later one, [`unlink`](Buf::unlink) the buffers after the first, and [`link`](Buf::link) them
/// again.
///
/// It is `Send`, but not `Sync`. A job takes it, and the completion returns it. A drop is
/// `doca_buf_refcount_rm`: its descriptor returns to its store; the bytes stay.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # use verbless_doca::Inventory;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let map = doc::map(&doc::dev());
/// # let inventory = Inventory::builder(4).start()?;
/// let mut buffer = inventory.buf_by_addr(&map, map.address(), 100)?;
/// buffer.append(b"some data")?;
/// assert_eq!((buffer.len(), buffer.data_len(), buffer.tail_len()), (100, 9, 91));
/// buffer.set_data(map.address() + 5, 4)?;
/// assert_eq!(buffer.to_vec()?, b"data");
/// buffer.reset_data_len();
/// assert_eq!((buffer.data(), buffer.data_len()), (map.address() + 5, 0));
/// # Ok(())
/// # }
/// ```
pub struct Buf {
    element: Descriptor,
    _not_sync: PhantomData<Cell<()>>,
}

/// A data or tail room of at most 2^30 bytes, of a buffer that is not chained and has one
/// reference; and the key of the requested device.
#[derive(Clone, Copy)]
pub(crate) struct KeyedRange {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) lkey: Lkey,
}

/// One buffer of a chain, as jobs use it.
#[derive(Clone, Copy)]
pub(crate) struct Link<'b> {
    element: &'b Element,
}

impl<'b> Link<'b> {
    #[inline]
    pub(crate) fn chunk(self) -> &'b Chunk {
        chunk_of(self.element)
    }

    /// Address and bytes of the dataroom.
    #[inline]
    pub(crate) const fn data(self) -> (u64, u64) {
        let Element { data, data_end, .. } = *self.element;
        (data, data_end - data)
    }

    /// Address and bytes of the tailroom.
    #[inline]
    pub(crate) const fn tail(self) -> (u64, u64) {
        let Element { end, data_end, .. } = *self.element;
        (data_end, end - data_end)
    }

    /// Address and bytes from the dataroom's begin to the buffer's end.
    #[inline]
    pub(crate) const fn rest(self) -> (u64, u64) {
        let Element { data, end, .. } = *self.element;
        (data, end - data)
    }

    #[inline]
    pub(crate) fn next(self) -> Option<Self> {
        self.element.next.as_deref().map(|element| Self { element })
    }
}

fn chunk_of(element: &Element) -> &Chunk {
    element.chunk.as_deref().expect("the descriptor of a buffer points to a chunk")
}

impl Buf {
    /// A buffer of this descriptor.
    pub(super) fn of(element: Box<Element>) -> Self {
        element.shared.begin(element.head, element.length());
        chunk_of(&element).count_buffer();
        Self::with(element)
    }

    const fn with(element: Box<Element>) -> Self {
        Self { element: Descriptor::new(element), _not_sync: PhantomData }
    }

    #[inline(always)]
    pub(super) fn element(&self) -> &Element {
        &self.element
    }

    #[inline(always)]
    fn element_mut(&mut self) -> &mut Element {
        &mut self.element
    }

    /// Whether the buffer's descriptor belongs to this store.
    pub(super) fn belongs_to(&self, store: &Arc<Store>) -> bool {
        self.element().store.as_ref().is_some_and(|own| Arc::ptr_eq(own, store))
    }

    /// The dataroom, if the device of this [id](crate::device::Dev::id) is known to have read
    /// access, and the buffer is not chained and has one reference. `None` may only mean unknown:
    /// see [`Buf::cache_key`].
    #[inline(always)]
    pub(crate) fn readable_by(&self, device: u64) -> Option<KeyedRange> {
        let element = self.element();
        let CachedKey { reader, lkey, .. } = element.cached_key.get();
        let (address, length) = Link { element }.data();
        (reader == device).then_some(KeyedRange { address, length, lkey })
    }

    /// The tailroom, if `device` is known to have write access.
    #[inline(always)]
    pub(crate) fn writable_by(&self, device: u64) -> Option<KeyedRange> {
        let element = self.element();
        let CachedKey { writer, lkey, .. } = element.cached_key.get();
        let (address, length) = Link { element }.tail();
        (writer == device).then_some(KeyedRange { address, length, lkey })
    }

    /// The dataroom, if `device` is known to have write access.
    #[inline(always)]
    pub(crate) fn data_writable_by(&self, device: u64) -> Option<KeyedRange> {
        let element = self.element();
        let CachedKey { writer, lkey, .. } = element.cached_key.get();
        let (address, length) = Link { element }.data();
        (writer == device).then_some(KeyedRange { address, length, lkey })
    }

    /// The memory from the start of the dataroom on, if `device` is known to have write access.
    #[inline(always)]
    pub(crate) fn rest_writable_by(&self, device: u64) -> Option<KeyedRange> {
        let element = self.element();
        let CachedKey { writer, lkey, .. } = element.cached_key.get();
        let (address, length) = Link { element }.rest();
        (writer == device).then_some(KeyedRange { address, length, lkey })
    }

    /// The memory from the start of the dataroom on, if it is known to be the peer's, for these
    /// [readers](CachedKey::reader_of_peer); the key is the remote one.
    #[inline(always)]
    pub(crate) fn rest_of_peer(&self, peers: u64) -> Option<KeyedRange> {
        let element = self.element();
        let CachedKey { reader, lkey, .. } = element.cached_key.get();
        let (address, length) = Link { element }.rest();
        (reader == peers).then_some(KeyedRange { address, length, lkey })
    }

    /// Sets the datarooms of the chain, in order, to the first `length` bytes from their begins on.
    pub(crate) fn fill(&mut self, mut length: u64) {
        let mut element = Some(self.element_mut());
        while let Some(here) = element {
            let filled = (here.end - here.data).min(length);
            here.data_end = here.data + filled;
            length -= filled;
            element = here.next.as_deref_mut();
        }
    }

    /// The cached key.
    #[inline(always)]
    pub(crate) fn lkey(&self) -> Lkey {
        self.element().cached_key.get().lkey
    }

    /// Caches the key of the buffer, unless it is chained or has several references.
    pub(crate) fn cache_key(&self, key: CachedKey) {
        let element = self.element();
        if element.shared.count() == 1 {
            element.cache_key(key);
        }
    }

    /// Grows the dataroom by `length` bytes of the tailroom, which must have as many.
    #[inline(always)]
    pub(crate) fn grow_first(&mut self, length: u64) {
        self.element_mut().data_end += length;
    }

    /// Undoes [`Buf::grow_first`].
    pub(crate) fn shrink_first(&mut self, length: u64) {
        self.element_mut().data_end -= length;
    }

    /// The address of the buffer's first byte (`doca_buf_head_get`).
    pub fn head(&self) -> u64 {
        self.element().head
    }

    /// The length of the buffer in bytes: headroom, dataroom and tailroom (`doca_buf_len_get`).
    pub fn len(&self) -> u64 {
        self.element().length()
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the dataroom.
    pub fn data(&self) -> u64 {
        self.element().data
    }

    /// Bytes of the dataroom.
    pub fn data_len(&self) -> u64 {
        self.first().data().1
    }

    /// Bytes of the tailroom.
    pub fn tail_len(&self) -> u64 {
        self.first().tail().1
    }

    /// The permissions of the buffer's map.
    pub fn permissions(&self) -> AccessFlags {
        self.first().chunk().access()
    }

    /// Sets the dataroom (`doca_buf_set_data`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if it is not inside the buffer.
    pub fn set_data(&mut self, address: u64, length: u64) -> Result<()> {
        let element = self.element_mut();
        let inside = address
            .checked_sub(element.head)
            .and_then(|offset| offset.checked_add(length))
            .is_some_and(|end| end <= element.length());
        if !inside {
            let text = format!(
                "a dataroom of {length} bytes from {address:#x} on is not inside the buffer of {} \
                 bytes from {:#x} on",
                element.length(),
                element.head
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        (element.data, element.data_end) = (address, address + length);
        Ok(())
    }

    /// Empties the dataroom without moving it (`doca_buf_reset_data_len`): the next data is written
    /// to the same address.
    #[inline]
    pub fn reset_data_len(&mut self) {
        let element = self.element_mut();
        element.data_end = element.data;
    }

    /// Empties the datarooms of all buffers of the chain in place, so that the chain can be the
    /// destination of a job again.
    pub fn reset_chain_data_len(&mut self) {
        let mut element = Some(self.element_mut());
        while let Some(here) = element {
            here.data_end = here.data;
            element = here.next.as_deref_mut();
        }
    }

    /// Copies `bytes` after the dataroom, which grows by their length.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the tailroom is too short; [`ErrorKind::NotPermitted`] if the
    /// memory belongs to another process.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let (address, room) = self.first().tail();
        if bytes.len() as u64 > room {
            let text = format!("{} bytes do not fit a tailroom of {room}", bytes.len());
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        self.first().write(address, bytes)?;
        self.element_mut().data_end += bytes.len() as u64;
        Ok(())
    }

    /// Copies the dataroom out from byte `offset` of it on, as many bytes as `into` takes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the dataroom is too short; [`ErrorKind::NotPermitted`] if the
    /// memory belongs to another process.
    pub fn read_data(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (address, length) = self.first().data();
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > length) {
            let text = format!(
                "{} bytes from byte {offset} on are not in a dataroom of {length}",
                into.len()
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        self.first().read(address + offset, into)
    }

    /// The dataroom's bytes.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if the memory belongs to another process.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        // Checked before the allocation: the length of an import is only its owner's claim.
        crate::memory::bytes_of(self.first().chunk())?;
        let mut bytes = vec![0; self.data_len() as usize];
        self.read_data(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes of all datarooms of the chain, in order.
    ///
    /// # Errors
    /// As [`Buf::to_vec`].
    pub fn chain_to_vec(&self) -> Result<Vec<u8>> {
        self.chain().try_for_each(|link| crate::memory::bytes_of(link.chunk()).map(drop))?;
        let mut bytes = vec![0; self.chain_data_len() as usize];
        let mut into = &mut bytes[..];
        for link in self.chain() {
            let (address, length) = link.data();
            let (here, rest) = into.split_at_mut(length as usize);
            link.read(address, here)?;
            into = rest;
        }
        Ok(bytes)
    }

    /// The number of references to the buffer, including its own (`doca_buf_refcount_get`). Jobs
    /// refuse a buffer with more than 1.
    pub fn refcount(&self) -> u16 {
        self.element().shared.count()
    }

    /// Makes another reference (`doca_buf_refcount_add`). While it lives, the descriptor stays out
    /// of its inventory and the map stays in use, even if the buffer is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] with 65,535 references.
    pub fn add_ref(&self) -> Result<BufRef> {
        let element = self.element();
        element.cached_key.set(CachedKey::UNKNOWN);
        BufRef::to(&element.shared)
    }

    /// Links `tail`, a buffer or chain, after the last buffer of this chain.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the inventory of either lacks
    /// [`Extensions::LINKED_LIST`](super::Extensions::LINKED_LIST); the error returns `tail`.
    pub fn link(&mut self, tail: Self) -> std::result::Result<(), Refused<Self>> {
        if !self.element().can_chain() || !tail.element().can_chain() {
            let text = "buffers of this inventory cannot be chained: make it with LINKED_LIST";
            return Err(Refused::new(Error::plain(ErrorKind::InvalidValue, text), tail));
        }
        let mut last = self.element_mut();
        while last.next.is_some() {
            last = last.next.as_deref_mut().expect("the chain has a next buffer");
        }
        last.cached_key.set(CachedKey::UNKNOWN);
        last.next = Some(tail.element.into_box());
        Ok(())
    }

    /// Removes the buffers after this one, as a chain of their own.
    pub fn unlink(&mut self) -> Option<Self> {
        let next = self.element_mut().next.take();
        next.map(Self::with)
    }

    /// The number of buffers of the chain, including this one.
    pub fn chain_len(&self) -> usize {
        self.chain().count()
    }

    /// Bytes of all datarooms of the chain.
    pub fn chain_data_len(&self) -> u64 {
        // The length of an import is only its owner's claim.
        self.chain().fold(0, |sum: u64, link| sum.saturating_add(link.data().1))
    }

    /// Datarooms of the chain in order, as address and bytes.
    pub fn datarooms(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chain().map(Link::data)
    }

    /// The buffers of the chain.
    #[inline]
    pub(crate) fn chain(&self) -> impl Iterator<Item = Link<'_>> {
        std::iter::successors(Some(self.first()), |link| link.next())
    }

    #[inline]
    pub(crate) fn first(&self) -> Link<'_> {
        Link { element: self.element() }
    }

    /// Whether a job may use it: each buffer of the chain has one reference.
    pub(crate) fn is_sole(&self) -> bool {
        self.chain().all(|link| link.element.shared.count() == 1)
    }

    /// Grows the datarooms by `length` bytes that were written into the tailrooms, in order.
    pub(crate) fn grow(&mut self, mut length: u64) {
        let mut element = Some(self.element_mut());
        while let Some(here) = element {
            let grown = (here.end - here.data_end).min(length);
            here.data_end += grown;
            length -= grown;
            if length == 0 {
                break;
            }
            element = here.next.as_deref_mut();
        }
    }
}

impl Link<'_> {
    /// Copies to an address inside the buffer.
    pub(crate) fn write(self, address: u64, bytes: &[u8]) -> Result<()> {
        let chunk = self.chunk();
        let memory = crate::memory::bytes_of(chunk)?;
        let offset = (address - chunk.address()) as usize;
        memory.write_at(offset, bytes)
    }

    /// Copies from an address inside the buffer.
    pub(crate) fn read(self, address: u64, into: &mut [u8]) -> Result<()> {
        let chunk = self.chunk();
        let memory = crate::memory::bytes_of(chunk)?;
        let offset = (address - chunk.address()) as usize;
        memory.read_at(offset, into)
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("head", &format_args!("{:#x}", self.head()))
            .field("len", &self.len())
            .field("data", &format_args!("{:#x}", self.data()))
            .field("data_len", &self.data_len())
            .field("chain", &self.chain_len())
            .field("refcount", &self.refcount())
            .finish()
    }
}
