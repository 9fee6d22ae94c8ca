//! The address spaces of a model: one for each function. A stretch of memory of a key names its
//! space, so that a thread can move bytes between stretches of several functions.

use std::sync::Arc;

use super::HostMemory;

/// The address space of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space(u16);

/// All address spaces. Any thread can access every function's memory through this, whichever thread
/// holds the function. Only a thread that holds all functions removes memory.
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
