//! Code generated from the registry's entries: the maps of a function's objects, the references
//! between them, and the functions that insert, change and remove an object of any kind.

use std::collections::BTreeMap;

use crate::hca::doorbell::PageDoorbell;
use crate::hca::index::DoorbellIndex;
use crate::hca::kinds::kinds;
use crate::hca::numbers::{NumberAllocator, NumberAllocators};
use crate::hca::objects::{self, Limits, Uid};
use crate::hca::refusal::Refusal;
use crate::numbered::{Number, Numbered};

/// The entry of a kind of object.
pub(crate) trait KindEntry: Copy {
    type Number: Number + Into<u32> + TryFrom<u32> + 'static;
    type Object: 'static;
    const KIND: ObjectKind;
    /// The refusal for a number that is not an object of the sender.
    const ABSENT: Refusal;
    /// The refusal to destroy a referenced object; `None` for a kind without references to it.
    const IN_USE: Option<Refusal>;

    fn map(objects: &Objects) -> &Numbered<Self::Number, Self::Object>;
    fn map_mut(objects: &mut Objects) -> &mut Numbered<Self::Number, Self::Object>;
    /// The allocator of its number.
    fn numbers<'a>(all: &'a mut NumberAllocators, object: &Self::Object)
    -> &'a mut NumberAllocator;
    fn owner(object: &Self::Object) -> Uid;
    /// Whether a command created the object; otherwise every function has it.
    fn is_made(object: &Self::Object) -> bool;
    /// Calls `to` with each object that it uses.
    fn refers(object: &Self::Object, to: &mut dyn FnMut(ObjectKind, u32));
    /// The object's doorbell, and the doorbell's UAR page.
    fn doorbell(object: &Self::Object) -> Option<(PageDoorbell, u32)>;
}

/// Reference count of each referenced object.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Uses(BTreeMap<(ObjectKind, u32), u32>);

impl Uses {
    fn add(&mut self, kind: ObjectKind, number: u32) {
        *self.0.entry((kind, number)).or_default() += 1;
    }

    fn remove(&mut self, kind: ObjectKind, number: u32) {
        let Some(count) = self.0.get_mut(&(kind, number)) else {
            tracing::error!(?kind, number, "an object loses a user that it did not have");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&(kind, number));
        }
    }

    /// Number of objects that refer to this one.
    pub(crate) fn count(&self, kind: ObjectKind, number: u32) -> u32 {
        self.0.get(&(kind, number)).copied().unwrap_or_default()
    }

    /// Whether any object refers to this one.
    fn any(&self, kind: ObjectKind, number: u32) -> bool {
        self.0.contains_key(&(kind, number))
    }
}

const fn first(listed: &[Refusal]) -> Option<Refusal> {
    match listed {
        [first, ..] => Some(*first),
        [] => None,
    }
}

macro_rules! registry {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) => $object:ty {
        numbers: [$($numbers:tt)*],
        object: {
            context: $context:literal,
            number: $from:expr,
            owner: $owner:expr,
            made: [$($made:expr)?],
            refers: $refers:expr,
            moving: [$($target:ident: $moving:expr)?],
            doorbell: [$($doorbell:ident: $page:expr)?],
            beside: [$(
                $(#[$beside_doc:meta])* $beside:ident($beside_type:ty): $beside_bytes:expr
            )?],
        },
        refusals: {
            absent: $absent:ident = $absent_number:literal, $absent_text:literal,
            in_use: [$($in_use:ident = $in_use_number:literal, $in_use_text:literal)?],
            others: { $($others:tt)* },
        },
        removed: [$($removed:tt)*],
        commands: { $($commands:tt)* }
    })*) => {
        /// A kind of object; users come before the objects that they use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum ObjectKind {
            $($(#[$doc])* $kind,)*
        }

        impl ObjectKind {
            /// Every kind.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$kind),*];
        }

        /// A marker type per kind, with the functions of its entry.
        pub(crate) mod kind {
            $($(#[$doc])* #[derive(Clone, Copy)] pub(crate) struct $kind;)*
        }

        $(impl KindEntry for kind::$kind {
            type Number = $number;
            type Object = $object;
            const KIND: ObjectKind = ObjectKind::$kind;
            const ABSENT: Refusal = Refusal::$absent;
            const IN_USE: Option<Refusal> = first(&[$(Refusal::$in_use)?]);

            fn map(objects: &Objects) -> &Numbered<$number, $object> {
                &objects.$map
            }

            fn map_mut(objects: &mut Objects) -> &mut Numbered<$number, $object> {
                &mut objects.$map
            }

            fn numbers<'a>(
                all: &'a mut NumberAllocators,
                object: &$object,
            ) -> &'a mut NumberAllocator {
                type From<'b> = &'b mut NumberAllocator;
                let from: for<'b> fn(&'b mut NumberAllocators, &$object) -> From<'b> = $from;
                from(all, object)
            }

            fn owner(object: &$object) -> Uid {
                let owner: fn(&$object) -> Uid = $owner;
                owner(object)
            }

            #[allow(unused_variables, reason = "most kinds have only objects that are made")]
            fn is_made(object: &$object) -> bool {
                $(let made: fn(&$object) -> bool = $made;
                if !made(object) {
                    return false;
                })?
                true
            }

            fn refers(object: &$object, to: &mut dyn FnMut(ObjectKind, u32)) {
                let refers: fn(&$object, &mut dyn FnMut(ObjectKind, u32)) = $refers;
                refers(object, to)
            }

            #[allow(unused_variables, reason = "most kinds have no doorbell")]
            fn doorbell(object: &$object) -> Option<(PageDoorbell, u32)> {
                $(let page: fn(&$object) -> u32 = $page;
                return Some((PageDoorbell::$doorbell, page(object)));)?
                #[allow(unreachable_code)]
                None
            }
        })*

        /// Every object of one function, by number.
        #[derive(Debug, Default)]
        pub(crate) struct Objects {
            pub limits: Limits,
            $($(#[$doc])* pub $map: Numbered<$number, $object>,)*
            $($($(#[$beside_doc])* pub $beside: $beside_type,)?)*
            /// Queues by UAR page.
            pub by_page: DoorbellIndex,
            /// The references between objects; the methods below maintain them.
            pub uses: Uses,
        }

        /// How many objects of each kind a function holds; all zero when nothing leaked.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct ObjectCounts {
            $($(#[$doc])* pub $map: usize,)*
        }

        impl Objects {
            /// Number of objects that take a context.
            pub(crate) fn len(&self) -> usize {
                0 $(+ if $context { self.$map.len() } else { 0 })*
            }

            /// The approximate size of all objects in bytes, without their lists.
            pub(crate) fn bytes(&self) -> usize {
                fn of<K, V>(map: &Numbered<K, V>) -> usize {
                    map.len() * Numbered::<K, V>::ENTRY_BYTES
                }
                $($(let $beside: fn(&$beside_type) -> usize = $beside_bytes;)?)*
                0 $(+ of(&self.$map) $(+ $beside(&self.$beside))?)*
            }

            pub(crate) fn counts(&self) -> ObjectCounts {
                fn made<K: KindEntry>(_: K, objects: &Objects) -> usize {
                    K::map(objects).count(K::is_made)
                }
                ObjectCounts { $($map: made(kind::$kind, self),)* }
            }

            /// Whether an object with references that the data path may change refers to this one.
            fn is_moved_to(&self, kind: ObjectKind, number: u32) -> bool {
                $($(if kind == ObjectKind::$target {
                    let target: fn(&$object) -> u32 = $moving;
                    return self.$map.values().any(|object| target(object) == number);
                })?)*
                false
            }

            /// Rebuilds the indexes: a test may have created, moved or removed any object directly.
            #[cfg(test)]
            pub(crate) fn index_again(&mut self) {
                let (mut index, mut uses) = (DoorbellIndex::default(), Uses::default());
                $(for (&number, object) in self.$map.iter() {
                    kind::$kind::refers(object, &mut |kind, number| uses.add(kind, number));
                    if let Some((doorbell, page)) = kind::$kind::doorbell(object) {
                        index.by_mut(doorbell).set(number.into(), Some(page));
                    }
                })*
                (self.by_page, self.uses) = (index, uses);
            }

            /// Lists every object that a command created, with the objects that it refers to.
            #[cfg(test)]
            pub(crate) fn references(&self) -> Vec<((ObjectKind, u32), Vec<(ObjectKind, u32)>)> {
                let mut all = Vec::new();
                $(for (&number, object) in self.$map.iter() {
                    let mut to = Vec::new();
                    kind::$kind::refers(object, &mut |kind, number| to.push((kind, number)));
                    $(let target: fn(&$object) -> u32 = $moving;
                    to.push((ObjectKind::$target, target(object)));)?
                    if kind::$kind::is_made(object) {
                        all.push(((ObjectKind::$kind, number.into()), to));
                    }
                })*
                all
            }
        }
    };
}

kinds!(registry);

impl Objects {
    /// Adds an object.
    pub(crate) fn add<K: KindEntry>(&mut self, _: K, number: K::Number, object: K::Object) {
        K::refers(&object, &mut |kind, number| self.uses.add(kind, number));
        if let Some((doorbell, page)) = K::doorbell(&object) {
            self.by_page.by_mut(doorbell).set(number.into(), Some(page));
        }
        K::map_mut(self).insert(number, object);
    }

    /// Removes an object.
    pub(crate) fn remove<K: KindEntry>(&mut self, _: K, number: K::Number) -> Option<K::Object> {
        let object = K::map_mut(self).remove(&number)?;
        K::refers(&object, &mut |kind, number| self.uses.remove(kind, number));
        if let Some((doorbell, _)) = K::doorbell(&object) {
            self.by_page.by_mut(doorbell).set(number.into(), None);
        }
        Some(object)
    }

    /// Changes an object's references; `None` if it does not exist.
    pub(crate) fn change<K: KindEntry, T>(
        &mut self,
        _: K,
        number: K::Number,
        change: impl FnOnce(&mut K::Object) -> T,
    ) -> Option<T> {
        let mut uses = std::mem::take(&mut self.uses);
        let result = K::map_mut(self).get_mut(&number).map(|object| {
            K::refers(object, &mut |kind, number| uses.remove(kind, number));
            let result = change(object);
            K::refers(object, &mut |kind, number| uses.add(kind, number));
            result
        });
        self.uses = uses;
        result
    }

    /// Whether another object refers to this one.
    pub(crate) fn is_used(&self, kind: ObjectKind, number: u32) -> bool {
        self.uses.any(kind, number) || self.is_moved_to(kind, number)
    }
}
