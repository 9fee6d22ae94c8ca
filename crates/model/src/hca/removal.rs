//! The end of an object of any kind: its number is free, what it used is let go, and the engine and
//! the doorbell pages hear of it.

use crate::hca::registry::KindEntry;
use crate::hca::state::Hca;

/// A kind of which something else is left when an object is gone.
pub(super) trait Removal: KindEntry {
    /// Does what else its end asks for.
    fn gone(hca: &mut Hca, number: u32, object: Self::Object);
}

impl Hca {
    /// Removes an object, gives back its number and lets go of all that it uses.
    pub(super) fn remove<K: Removal>(&mut self, kind: K, number: K::Number) {
        let Some(object) = self.objects.remove(kind, number) else {
            tracing::error!(number = number.into(), "an object is gone before it is destroyed");
            return;
        };
        if K::is_made(&object) {
            K::numbers(&mut self.numbers, &object).give(number.into());
        }
        K::gone(self, number.into(), object);
    }
}
