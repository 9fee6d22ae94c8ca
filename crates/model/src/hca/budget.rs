//! The memory budget of a function: how much host memory its objects and their translation tables
//! may take.
//!
//! A device keeps these in memory that its driver gave. The model keeps them in the host's memory,
//! which a guest must not be able to exhaust. The model refuses a guest that wants more than
//! [`MAX_FUNCTION_BYTES`], like a device out of resources.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum bytes that a function keeps; the last command or work request may exceed it.
const MAX_FUNCTION_BYTES: usize = 1 << 30;

/// The budget of a function, and its use.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
    /// Bytes of the objects themselves.
    objects: usize,
    max: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { used: Arc::default(), objects: 0, max: MAX_FUNCTION_BYTES }
    }
}

impl Budget {
    /// Sets the size of the objects in bytes, without their lists.
    pub(crate) fn set_objects(&mut self, bytes: usize) {
        self.objects = bytes;
    }

    /// Whether objects and lists have used up the budget.
    pub(crate) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(self.objects) > self.max
    }

    /// Whether a list of `bytes` more fits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed).saturating_add(self.objects);
        used.saturating_add(bytes) <= self.max
    }

    /// A list that counts against the budget while any holder keeps it.
    pub(crate) fn list<T>(&self, items: impl Into<Arc<[T]>>) -> ChargedList<T> {
        let items = items.into();
        let bytes = size_of_val(&*items);
        self.used.fetch_add(bytes, Ordering::Relaxed);
        ChargedList { items, _charge: Some(Arc::new(Charge { used: self.used.clone(), bytes })) }
    }

    /// A budget of `max` bytes.
    #[cfg(test)]
    pub(crate) fn of(max: usize) -> Self {
        Self { max, ..Self::default() }
    }
}

/// A shared list that counts against a budget until its last holder drops it.
#[derive(Debug, Clone)]
pub(crate) struct ChargedList<T> {
    items: Arc<[T]>,
    /// Returns its bytes to the budget when the last holder drops it.
    _charge: Option<Arc<Charge>>,
}

/// The bytes of a list that count against a budget.
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

impl<T> Deref for ChargedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

/// A list too short to count.
impl<T, const N: usize> From<[T; N]> for ChargedList<T> {
    fn from(items: [T; N]) -> Self {
        Self { items: items.into(), _charge: None }
    }
}

#[cfg(test)]
impl<T> From<Vec<T>> for ChargedList<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items: items.into(), _charge: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_counts_until_last_holder_drops() {
        let mut budget = Budget::of(100);
        let list: ChargedList<u64> = budget.list(vec![1, 2, 3]);
        let shared = list.clone();
        assert_eq!(&shared[..], [1, 2, 3]);
        let is_full = |budget: &mut Budget, objects| {
            budget.set_objects(objects);
            budget.is_full()
        };
        assert!(!is_full(&mut budget, 76) && is_full(&mut budget, 77));
        drop(list);
        assert!(is_full(&mut budget, 77));
        drop(shared);
        assert!(!is_full(&mut budget, 100) && is_full(&mut budget, 101));
    }
}
