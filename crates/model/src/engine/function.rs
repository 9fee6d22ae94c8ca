//! A function as the data path has it: its objects, and what the engine keeps beside them.

use super::state::State;
use crate::hca::Hca;
use crate::memory::HostMemory;

/// One function of a device.
pub(crate) struct Function {
    pub hca: Hca,
    pub engine: State,
}

/// Function `id`, to work with, and the memory of function `other`, unless that is the same one.
///
/// Nothing is counted for it: an atomic here would wait for every store to memory that a program
/// polls.
pub(super) fn beside(
    functions: &mut [Function],
    id: usize,
    other: usize,
) -> (&mut Function, Option<&dyn HostMemory>) {
    if id == other {
        return (&mut functions[id], None);
    }
    let both = functions.get_disjoint_mut([id, other]);
    let [function, other] = both.expect("two functions of the model");
    (function, Some(&*other.hca.memory))
}

impl Function {
    pub(crate) fn new(hca: Hca) -> Self {
        Self { hca, engine: State::default() }
    }
}
