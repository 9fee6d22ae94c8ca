//! Holders of objects, by name, so that a refused `destroy` names the objects to destroy first.
//!
//! An object registers itself as a holder of the objects that it keeps alive; its drop unregisters
//! it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;

/// Maximum number of holders in an error text.
const MAX_NAMED: usize = 4;

/// The identity of a held object: the address of its handles' shared part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(usize);

/// The key of these handles' shared part.
pub(crate) fn key<T: ?Sized>(of: &Arc<T>) -> Key {
    Key(Arc::as_ptr(of).cast::<()>().addr())
}

struct Holder {
    name: String,
    /// Whether it is mostly a part of another object: such holders are named last.
    minor: bool,
    holds: Vec<Key>,
}

/// The holders in the order of their creation.
struct Holders {
    next: u64,
    there: BTreeMap<u64, Holder>,
}

static HOLDERS: Mutex<Holders> = Mutex::new(Holders { next: 0, there: BTreeMap::new() });

fn holders() -> MutexGuard<'static, Holders> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registration of an object as a holder of others, until the drop.
pub(crate) struct Holding(u64);

impl Holding {
    /// Registers the object `name`, which holds `holds`.
    pub(crate) fn new(name: String, holds: Vec<Key>) -> Self {
        Self::of(Holder { name, minor: false, holds })
    }

    /// Registers a buffer or UAR, which is mostly a part of another object.
    pub(crate) fn minor(name: String, holds: Vec<Key>) -> Self {
        Self::of(Holder { name, minor: true, holds })
    }

    fn of(holder: Holder) -> Self {
        let mut all = holders();
        all.next += 1;
        let number = all.next;
        all.there.insert(number, holder);
        Self(number)
    }

    /// Sets the name of an object that gets one only at its creation.
    pub(crate) fn rename(&self, name: String) {
        if let Some(holder) = holders().there.get_mut(&self.0) {
            holder.name = name;
        }
    }

    /// Adds a held object.
    pub(crate) fn add(&self, held: Key) {
        if let Some(holder) = holders().there.get_mut(&self.0) {
            holder.holds.push(held);
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        holders().there.remove(&self.0);
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holding")
    }
}

/// The names of an object's holders, for a text: the first few, and the count of the others.
fn names(held: Key) -> Option<String> {
    let all = holders();
    let mut names: Vec<_> = all.there.values().filter(|it| it.holds.contains(&held)).collect();
    names.sort_by_key(|it| it.minor);
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let names: Vec<_> = names.iter().map(|it| it.name.as_str()).collect();
    match more {
        _ if names.is_empty() => None,
        0 => Some(names.join(", ")),
        more => Some(format!("{} and {more} more", names.join(", "))),
    }
}

/// The refusal to destroy `what`, with its holders.
pub(crate) fn in_use(what: &str, held: Key) -> Error {
    Error::Failed(match names(held) {
        Some(names) => format!("{what} is in use by {names}: destroy that first"),
        None => format!("{what} is in use by a clone of its handle: drop that first"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_use_error_names_first_four_holders() {
        let (cq, other) = (Arc::new(1), Arc::new(2));
        let text = |of: &Arc<i32>| in_use("the CQ", key(of)).to_string();
        let alone = "the CQ is in use by a clone of its handle: drop that first";
        assert_eq!(text(&cq), alone);
        let first = Holding::new("QP 7".into(), vec![key(&other), key(&cq)]);
        assert_eq!(text(&cq), "the CQ is in use by QP 7: destroy that first");
        let more: Vec<_> =
            (0..5).map(|sq| Holding::new(format!("SQ {sq}"), vec![key(&cq)])).collect();
        let all = "the CQ is in use by QP 7, SQ 0, SQ 1, SQ 2 and 2 more: destroy that first";
        assert_eq!(text(&cq), all);
        drop(first);
        assert_eq!(text(&other), alone);
        drop(more);
        assert_eq!(text(&cq), alone);
        let buffer = Holding::minor("buffer".into(), vec![key(&cq)]);
        let late = Holding::new("late".into(), Vec::new());
        late.add(key(&cq));
        late.rename("MSI-X 3".into());
        assert_eq!(text(&cq), "the CQ is in use by MSI-X 3, buffer: destroy that first");
        drop(buffer);
    }
}
