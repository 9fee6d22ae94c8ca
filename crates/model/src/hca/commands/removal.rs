//! The removal of the objects of owners, of all kinds.

use super::command::ObjectCommands;
use crate::hca::kinds::kinds;
use crate::hca::objects::Uid;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

macro_rules! removal {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) = $object:ty,)*) => {
        impl Hca {
            /// Destroys the objects of the owners that `of` selects, users before the objects that
            /// they use.
            pub(super) fn remove_held(&mut self, of: &dyn Fn(Uid) -> bool) {
                $(remove_of(self, kind::$kind, of);)*
            }
        }
    };
}

kinds!(removal);

/// Destroys the objects of a kind whose owner `of` selects.
fn remove_of<K: ObjectCommands>(hca: &mut Hca, kind: K, of: &dyn Fn(Uid) -> bool) {
    for number in K::map(&hca.objects).numbers_of(&|object| of(K::owner(object))) {
        hca.remove(kind, number);
    }
}
