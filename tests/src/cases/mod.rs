//! The cases, room by room.

mod open;
mod rc;

use crate::Case;

/// All cases, in the order in which they run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [open::CASES, rc::CASES].into_iter().flatten()
}
