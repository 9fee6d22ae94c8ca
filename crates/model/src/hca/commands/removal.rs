//! Code generated from the registry that removes objects, of one kind and of all kinds.

// The modules that the entries name.
use super::*;
use crate::hca::kinds::kinds;
use crate::hca::objects::{self, Uid};
use crate::hca::registry::{KindEntry, kind};
use crate::hca::removal::Removal;
use crate::hca::state::Hca;

macro_rules! removal {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
        numbers: [$($numbers:tt)*],
        object: { $($entry:tt)* },
        refusals: { $($refusals:tt)* },
        removed: [$($removed:path)?],
        commands: { $($commands:tt)* }
    })*) => {
        $(impl Removal for kind::$kind {
            #[allow(unused_variables, reason = "of most kinds nothing else is left")]
            fn removed(hca: &mut Hca, number: u32, object: $object) {
                $($removed(hca, number, object);)?
            }
        })*

        impl Hca {
            /// Destroys the objects of the owners that `of` selects, users before the objects that
            /// they use.
            pub(super) fn remove_held(&mut self, of: &dyn Fn(Uid) -> bool) {
                $(for number in
                    self.objects.$map.numbers_of(&|object| of(kind::$kind::owner(object)))
                {
                    self.remove(kind::$kind, number);
                })*
            }
        }
    };
}

kinds!(removal);
