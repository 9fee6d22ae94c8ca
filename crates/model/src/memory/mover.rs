//! Who moves memory: the engine's threads by their numbers, and everybody else as one.

use std::cell::Cell;

/// The most threads that an engine has.
pub(crate) const MOST: usize = 8;
/// How many there are to be told apart.
pub(super) const ALL: usize = MOST + 1;

thread_local! {
    static MOVER: Cell<usize> = const { Cell::new(MOST) };
}

/// This thread is thread `number` of an engine.
pub(crate) fn set(number: usize) {
    MOVER.set(number.min(MOST));
}

/// Who this thread is.
pub(super) fn current() -> usize {
    MOVER.get()
}
