//! The list of object kinds and the map of each; the references between objects; and the functions
//! that insert, change and remove an object of any kind.

use std::collections::BTreeMap;

use crate::hca::allocators::NumberAllocators;
use crate::hca::doorbell::PageDoorbell;
use crate::hca::index::DoorbellIndex;
use crate::hca::numbers::NumberAllocator;
use crate::hca::objects::{self, Limits, Uid};
use crate::hca::refusal::Refusal;
use crate::numbered::{Number, Numbered};

/// The row of a kind in the list of kinds.
pub(crate) trait Listed: Copy {
    type Number: Number + Into<u32> + TryFrom<u32> + 'static;
    type Object: 'static;
    const KIND: ObjectKind;
    /// The marker's only value.
    const MARKER: Self;

    fn map(objects: &Objects) -> &Numbered<Self::Number, Self::Object>;
    fn map_mut(objects: &mut Objects) -> &mut Numbered<Self::Number, Self::Object>;
}

/// The entry of a kind of object: what its objects are and use.
pub(crate) trait KindEntry: Listed {
    /// The refusal for a number that is not an object of the sender.
    const ABSENT: Refusal;
    /// The refusal to destroy a referenced object; `None` for a kind without references to it.
    const IN_USE: Option<Refusal> = None;
    /// Whether an object takes a context, and so a part of a page from the driver.
    const TAKES_CONTEXT: bool = true;
    /// A reference that the data path may change, without [`Objects::change`].
    const DATA_PATH_REFERENCE: Option<Reference<Self::Object>> = None;

    /// The allocator that the number of this owner's object comes from and returns to.
    fn numbers(all: &mut NumberAllocators, owner: Uid) -> &mut NumberAllocator;

    /// The object's owner.
    fn owner(object: &Self::Object) -> Uid;

    /// Whether a command created the object; otherwise every function has it.
    fn is_made(_: &Self::Object) -> bool {
        true
    }

    /// Calls `to` with each object that it uses: none of them is destroyed before it. Code that
    /// changes an object's references calls [`Objects::change`].
    fn refers(_: &Self::Object, _: &mut dyn FnMut(ObjectKind, u32)) {}

    /// The object's doorbell, and the doorbell's UAR page.
    fn doorbell(_: &Self::Object) -> Option<(PageDoorbell, u32)> {
        None
    }
}

/// A reference of an object of type `O`: the kind that it leads to, and the number there.
pub(crate) type Reference<O> = (ObjectKind, fn(&O) -> u32);

/// Objects that a part of an object refers to.
pub(crate) type References<'a> = &'a [(ObjectKind, u32)];

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

/// Declares the types that have an item for each kind: [`ObjectKind`], the markers in [`kind`], the
/// maps of [`Objects`], and [`ObjectCounts`].
macro_rules! object_kinds {
    ($($(#[$doc:meta])* $map:ident: $kind:ident($number:ty) = $object:ty,)*) => {
        /// A kind of object. The end of a user context destroys kinds in this order: users before
        /// the objects that they use.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum ObjectKind {
            $($(#[$doc])* $kind,)*
        }

        impl ObjectKind {
            /// Every kind.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// The names of each kind in code: of its objects, and of their map.
            #[cfg(test)]
            pub(crate) const NAMES: &'static [[&'static str; 2]] =
                &[$([stringify!($kind), stringify!($map)]),*];
        }

        /// A marker type per kind.
        pub(crate) mod kind {
            $($(#[$doc])* #[derive(Clone, Copy)] pub(crate) struct $kind;)*
        }

        $(impl Listed for kind::$kind {
            type Number = $number;
            type Object = $object;
            const KIND: ObjectKind = ObjectKind::$kind;
            const MARKER: Self = Self;

            fn map(objects: &Objects) -> &Numbered<$number, $object> {
                &objects.$map
            }

            fn map_mut(objects: &mut Objects) -> &mut Numbered<$number, $object> {
                &mut objects.$map
            }
        })*

        /// Every object of one function, by number.
        #[derive(Debug, Default)]
        pub(crate) struct Objects {
            pub limits: Limits,
            $($(#[$doc])* pub $map: Numbered<$number, $object>,)*
            /// The QPs in each multicast group.
            pub groups: objects::multicast::Groups,
            /// The first flow table for frames.
            pub flow_root: Option<u32>,
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
                0 $(+ if kind::$kind::TAKES_CONTEXT { self.$map.len() } else { 0 })*
            }

            /// The approximate size of all objects in bytes, without their lists.
            pub(crate) fn bytes(&self) -> usize {
                fn of<K, V>(map: &Numbered<K, V>) -> usize {
                    map.len() * Numbered::<K, V>::ENTRY_BYTES
                }
                self.groups.bytes() $(+ of(&self.$map))*
            }

            pub(crate) fn counts(&self) -> ObjectCounts {
                fn made<K: KindEntry>(_: K, objects: &Objects) -> usize {
                    K::map(objects).count(K::is_made)
                }
                ObjectCounts { $($map: made(kind::$kind, self),)* }
            }

            /// Whether an object with references that the data path may change refers to this one.
            fn is_in_data_path_use(&self, kind: ObjectKind, number: u32) -> bool {
                false $(|| data_path_refers_to(kind::$kind, self, (kind, number)))*
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
                    let reference = kind::$kind::DATA_PATH_REFERENCE;
                    to.extend(reference.map(|(target, of)| (target, of(object))));
                    if kind::$kind::is_made(object) {
                        all.push(((ObjectKind::$kind, number.into()), to));
                    }
                })*
                all
            }
        }
    };
}

object_kinds! {
/// Queue pairs.
qps: Qp(u32) = objects::QpObject,
/// Send queues without a QP. Their numbers and those of QPs share one range.
sqs: Sq(u32) = objects::Sq,
/// Flow tables, with their groups and entries.
flow_tables: FlowTable(u32) = objects::flow::FlowTable,
/// Transport interfaces for receiving.
tirs: Tir(u32) = objects::Tir,
/// Receive queues of Ethernet frames. Their numbers and those of QPs share one range.
rqs: Rq(u32) = objects::Rq,
/// Transport interfaces for sending.
tises: Tis(u32) = objects::Tis,
/// Receive queues that QPs share: XRC SRQs and RMPs.
srqs: Srq(u32) = objects::Srq,
/// XRC domains.
xrcds: Xrcd(u32) = objects::Uid,
/// CQE-generating doorbells of emulated devices.
emulated_doorbells: EmulatedDoorbell(u32) = objects::EmulatedDoorbell,
/// Completion queues.
cqs: Cq(u32) = objects::Cq,
/// Event queues of the DPA.
dpa_eqs: DpaEq(u32) = objects::DpaEq,
/// PCI devices that programs of the DPA emulate.
emulated_devices: EmulatedDevice(u32) = objects::EmulatedDevice,
/// Calls of functions on the DPA.
dpa_calls: DpaCall(u32) = objects::DpaCall,
/// Threads of the DPA.
dpa_threads: DpaThread(u32) = objects::DpaThread,
/// Pages of doorbells for the DPA.
dpa_outboxes: DpaOutbox(u32) = objects::DpaOutbox,
/// UAR pages whose queues the DPA of another function may ring for.
uar_extensions: UarExtension(u32) = objects::UarExtension,
/// Windows of the DPA to memory.
dpa_windows: DpaWindow(u32) = objects::DpaWindow,
/// Core dumps of processes of the DPA.
dpa_core_dumps: DpaCoreDump(u32) = objects::DpaCoreDump,
/// Processes of the DPA.
dpa_processes: DpaProcess(u32) = objects::DpaProcess,
/// Memory keys, by their index (key >> 8).
mkeys: Mkey(u32) = objects::Mkey,
/// Aliases of memory keys of other functions. Aliases and keys share one range of
/// indexes.
aliases: Alias(u32) = objects::Alias,
/// Registered user memory.
umems: Umem(u32) = objects::Umem,
/// Event queues, which CQs of every user context may use.
eqs: Eq(u32) = objects::Eq,
/// UAR pages of the kernel and of user contexts; a front end may treat the two
/// differently.
uars: Uar(u32) = objects::Uid,
/// Transport domains.
tds: Td(u32) = objects::Uid,
/// Protection domains.
pds: Pd(u32) = objects::Uid,
/// Q counters.
counters: Counter(u8) = objects::QCounter,
/// User contexts. Each object of a context names it as its owner, and is destroyed with
/// it.
uctxs: Uctx(u16) = objects::Uctx,
}

/// Whether a reference of this kind that the data path may change leads to the object.
fn data_path_refers_to<K: KindEntry>(
    _: K,
    objects: &Objects,
    (kind, number): (ObjectKind, u32),
) -> bool {
    match K::DATA_PATH_REFERENCE {
        Some((target, of)) if target == kind => {
            K::map(objects).values().any(|object| of(object) == number)
        }
        _ => false,
    }
}

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

    /// Changes parts of an object that held the references `before` and then hold `after`; `None`
    /// if it does not exist. Unlike [`change`](Self::change), it does not count the object's other
    /// references, of which there may be many.
    pub(crate) fn change_parts<K: KindEntry, T>(
        &mut self,
        _: K,
        number: K::Number,
        (before, after): (References<'_>, References<'_>),
        change: impl FnOnce(&mut K::Object) -> T,
    ) -> Option<T> {
        let result = change(K::map_mut(self).get_mut(&number)?);
        before.iter().for_each(|&(kind, number)| self.uses.remove(kind, number));
        after.iter().for_each(|&(kind, number)| self.uses.add(kind, number));
        Some(result)
    }

    /// Whether another object refers to this one.
    pub(crate) fn is_used(&self, kind: ObjectKind, number: u32) -> bool {
        self.uses.any(kind, number) || self.is_in_data_path_use(kind, number)
    }
}
