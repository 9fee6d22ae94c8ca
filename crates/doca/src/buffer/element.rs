//! A buffer's descriptor, and its store.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crossbeam_queue::ArrayQueue;

use crate::memory::{CachedKey, Chunk};

/// A descriptor. The start of its store creates it; it moves between the store and the program.
#[derive(Debug)]
pub(crate) struct Element {
    /// The memory of the buffer; `None` in an inventory's store.
    pub(super) chunk: Option<Arc<Chunk>>,
    /// Bounds of the buffer and of its dataroom: the first address, and the one after the last.
    pub(super) head: u64,
    pub(super) end: u64,
    pub(super) data: u64,
    pub(super) data_end: u64,
    /// The device that may access the memory, and its key: no other check is needed. It is
    /// [`CachedKey::UNKNOWN`] for an element with a next one, with a reference, or longer than
    /// [`Element::MAX_FAST_BYTES`].
    pub(super) cached_key: Cell<CachedKey>,
    /// The next of the chain.
    pub(super) next: Option<Box<Element>>,
    pub(super) shared: Arc<BufState>,
    /// The store of the descriptor; `None` while it is there.
    pub(super) store: Option<Arc<Store>>,
}

/// State that the references to a buffer share with it.
#[derive(Debug, Default)]
pub(crate) struct BufState {
    count: AtomicU16,
    pub(super) head: AtomicU64,
    pub(super) length: AtomicU64,
    /// The descriptor, if the buffer is dropped but references are not.
    orphan: Mutex<Option<Box<Element>>>,
}

impl BufState {
    pub(super) fn count(&self) -> u16 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, head: u64, length: u64) {
        self.head.store(head, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.count.store(1, Ordering::Release);
    }

    /// Adds a reference; false if the count is at its maximum.
    pub(super) fn add(&self) -> bool {
        let more = |count: u16| count.checked_add(1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn orphan(&self) -> std::sync::MutexGuard<'_, Option<Box<Element>>> {
        self.orphan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a reference; the last one returns the descriptor.
    pub(super) fn remove(&self) {
        let mut orphan = self.orphan();
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(element) = orphan.take()
        {
            drop(orphan);
            element.return_to_store();
        }
    }

    /// Called when the buffer is dropped: returns the descriptor, or leaves it to the references.
    fn leave(&self, element: Box<Element>) {
        let mut orphan = self.orphan();
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(orphan);
            element.return_to_store();
        } else {
            *orphan = Some(element);
        }
    }
}

impl Element {
    /// A buffer longer than this takes the full checks.
    pub(super) const MAX_FAST_BYTES: u64 = 1 << 30;

    fn new() -> Self {
        Self {
            chunk: None,
            head: 0,
            end: 0,
            data: 0,
            data_end: 0,
            cached_key: Cell::new(CachedKey::UNKNOWN),
            next: None,
            shared: Arc::default(),
            store: None,
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.end - self.head
    }

    /// Caches the key of the memory, unless the element is chained or too long for the fast path.
    #[inline]
    pub(super) fn cache_key(&self, key: CachedKey) {
        let alone = self.next.is_none() && self.length() <= Self::MAX_FAST_BYTES;
        self.cached_key.set(if alone { key } else { CachedKey::UNKNOWN });
    }

    /// Whether the buffer can be part of a chain.
    pub(super) fn can_chain(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.chains)
    }

    /// Called when a buffer with this descriptor is dropped.
    pub(super) fn release(self: Box<Self>) {
        match self.shared.count() {
            // No other code can make a second reference: that takes the buffer.
            1 => self.return_to_store(),
            _ => self.shared.clone().leave(self),
        }
    }

    /// Returns the element to its store.
    fn return_to_store(mut self: Box<Self>) {
        let Some(store) = self.store.take() else { return };
        if let Some(chunk) = &self.chunk {
            chunk.forget_buffer();
        }
        if store.pool_of.is_none() {
            self.chunk = None;
        }
        // The store has room for all its descriptors, so the push never fails.
        let _refused = store.free.push(self);
    }
}

/// Free descriptors.
#[derive(Debug)]
pub(crate) struct Store {
    free: ArrayQueue<Box<Element>>,
    /// The memory of all its descriptors, for a pool's store.
    pool_of: Option<Arc<Chunk>>,
    /// Whether its buffers can be chained.
    chains: bool,
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(chunk) = &self.pool_of {
            chunk.forget_pool();
        }
    }
}

impl Store {
    /// Creates descriptors without memory, at least one.
    pub(super) fn of(count: usize, chains: bool) -> Arc<Self> {
        let free = ArrayQueue::new(count.max(1));
        for _ in 0..count {
            let _refused = free.push(Box::new(Element::new()));
        }
        Arc::new(Self { free, pool_of: None, chains })
    }

    /// Creates descriptors of ranges of `length` bytes of a chunk, at these addresses.
    pub(super) fn pointing(
        chunk: &Arc<Chunk>,
        addresses: impl ExactSizeIterator<Item = u64>,
        length: u64,
        chains: bool,
    ) -> Arc<Self> {
        let (free, key) = (ArrayQueue::new(addresses.len().max(1)), chunk.first_cached_key());
        for address in addresses {
            let (head, end) = (address, address + length);
            let chunk = Some(chunk.clone());
            let element = Element { chunk, head, end, ..Element::new() };
            element.cache_key(key);
            let _refused = free.push(Box::new(element));
        }
        chunk.count_pool();
        Arc::new(Self { free, pool_of: Some(chunk.clone()), chains })
    }

    pub(super) fn take(self: &Arc<Self>) -> Option<Box<Element>> {
        let mut element = self.free.pop()?;
        element.store = Some(self.clone());
        Some(element)
    }

    /// Returns an unused descriptor of [`Store::take`].
    pub(super) fn give_back(&self, mut element: Box<Element>) {
        element.store = None;
        // As in `return_to_store`: there is room.
        let _refused = self.free.push(element);
    }

    /// The number of free descriptors.
    pub(super) fn available(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use verbless_queue::Lkey;

    use super::*;

    #[test]
    fn key_is_cached_for_short_unchained_buf() {
        let key = CachedKey { reader: 1, writer: 1, lkey: Lkey(7) };
        for (length, chained, known) in [
            (0, false, true),
            (Element::MAX_FAST_BYTES, false, true),
            (Element::MAX_FAST_BYTES + 1, false, false),
            (64, true, false),
        ] {
            let next = chained.then(|| Box::new(Element::new()));
            let element = Element { head: 4096, end: 4096 + length, next, ..Element::new() };
            element.cache_key(key);
            assert_eq!(element.cached_key.get().reader != 0, known, "{length} bytes, {chained}");
        }
    }
}
