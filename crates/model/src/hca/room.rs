//! Room for what software makes a function keep: its objects, and the translation tables that come with them.
//!
//! A device keeps these in memory that its driver gave; the model keeps them in the host's, which a guest must not be able to
//! use up. A guest that wants more than [`MOST`] is refused as by a device that has run out.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that one function keeps at most, but for what the last command or work request brought.
const MOST: usize = 1 << 30;

/// How much of its room a function's lists take.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    used: Arc<AtomicUsize>,
    most: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { used: Arc::default(), most: MOST }
    }
}

impl Room {
    /// Whether lists, with so many bytes of other things, leave room for no more.
    pub(crate) fn is_full(&self, others: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(others) > self.most
    }

    /// A list that takes room for as long as anybody holds it.
    pub(crate) fn list<T>(&self, items: impl Into<Arc<[T]>>) -> List<T> {
        let items = items.into();
        let bytes = size_of_val(&*items);
        self.used.fetch_add(bytes, Ordering::Relaxed);
        List { items, _charge: Some(Arc::new(Charge { used: self.used.clone(), bytes })) }
    }

    /// Room for so many bytes of lists and nothing else.
    #[cfg(test)]
    pub(crate) fn of(most: usize) -> Self {
        Self { most, ..Self::default() }
    }
}

/// Items that many may hold, and that take room until the last of them lets go.
#[derive(Debug, Clone)]
pub(crate) struct List<T> {
    items: Arc<[T]>,
    /// Given back when the last holder drops it.
    _charge: Option<Arc<Charge>>,
}

/// What a list takes of a function's room.
#[derive(Debug)]
struct Charge {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

/// A list that is too short to count.
impl<T, const N: usize> From<[T; N]> for List<T> {
    fn from(items: [T; N]) -> Self {
        Self { items: items.into(), _charge: None }
    }
}

#[cfg(test)]
impl<T> From<Vec<T>> for List<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items: items.into(), _charge: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_room_until_its_last_holder_lets_go() {
        let room = Room::of(100);
        let list: List<u64> = room.list(vec![1, 2, 3]);
        let shared = list.clone();
        assert_eq!(&shared[..], [1, 2, 3]);
        assert!(!room.is_full(76) && room.is_full(77));
        drop(list);
        assert!(room.is_full(77));
        drop(shared);
        assert!(!room.is_full(100) && room.is_full(101));
    }
}
