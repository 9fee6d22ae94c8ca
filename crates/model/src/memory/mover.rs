//! Identifies the threads that move data: each thread of the engine by its number, all others by
//! one number.

use std::cell::Cell;

/// Maximum number of threads of an engine.
pub(crate) const MAX_MOVERS: usize = 8;
/// Numbers of threads: those of an engine, and one for all others.
pub(super) const ALL: usize = MAX_MOVERS + 1;

thread_local! {
    static MOVER: Cell<usize> = const { Cell::new(MAX_MOVERS) };
}

/// Makes this thread number `number` of an engine.
pub(crate) fn set(number: usize) {
    MOVER.set(number.min(MAX_MOVERS));
}

/// The number of this thread.
pub(super) fn current() -> usize {
    MOVER.get()
}
