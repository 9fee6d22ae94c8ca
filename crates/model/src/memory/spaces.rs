//! The address spaces of a model: one for each function. A stretch of memory that a key leads to
//! names its space, so that whoever has stretches of several functions can move bytes between them.

use std::sync::Arc;

use super::HostMemory;

/// The address space of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space(u16);

/// All address spaces: the memory of every function can be accessed through it, whichever thread
/// has the function. Memory is removed only by threads that have all functions.
#[derive(Clone, Default)]
pub(crate) struct Spaces(Arc<[Arc<dyn HostMemory>]>);

impl Space {
    /// The address space of function `id`.
    pub(crate) const fn of(id: usize) -> Self {
        assert!(id <= u16::MAX as usize, "more functions than a fabric has");
        Self(id as u16)
    }
}

impl Spaces {
    pub(crate) fn get(&self, space: Space) -> &dyn HostMemory {
        &*self.0[usize::from(space.0)]
    }
}

impl FromIterator<Arc<dyn HostMemory>> for Spaces {
    fn from_iter<I: IntoIterator<Item = Arc<dyn HostMemory>>>(memories: I) -> Self {
        Self(memories.into_iter().collect())
    }
}
