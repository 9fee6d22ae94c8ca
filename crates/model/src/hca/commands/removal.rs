//! Removes the objects of one or more owners, whatever the kinds of the objects.

use crate::hca::kinds::KINDS;
use crate::hca::objects::Uid;
use crate::hca::state::Hca;

impl Hca {
    /// Destroys the objects of the owners that `of` selects, users before the objects that they
    /// use.
    pub(super) fn remove_held(&mut self, of: &dyn Fn(Uid) -> bool) {
        for kind in KINDS {
            (kind.remove_of)(self, of);
        }
    }
}
