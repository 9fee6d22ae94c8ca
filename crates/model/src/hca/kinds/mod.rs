//! The registry of object kinds: an entry each, and the table of them.
//!
//! [`ObjectKind`] lists the kinds, with the map, number and structure of each. An entry, in the
//! file of the kind's family, has two parts: a [`KindEntry`] is what an object is and uses; an
//! [`ObjectCommands`] is the commands on objects of the kind, with their handlers, and the further
//! effects of their removal. Both traits explain their items. [`KINDS`] holds what code that serves
//! all kinds needs of each.
//!
//! Besides its rows in `ObjectKind` and [`KINDS`] and its entry, a new kind needs
//! - its structure, in a module of `objects`;
//! - the functions that its entry names, in a module of `commands`;
//! - its refusals, in `refusal/table.rs`;
//! - the range of its numbers, in `allocators.rs`;
//! - an object of it in `one_of_each` of `tests/registry.rs`.
//!
//! [`KindEntry`]: crate::hca::registry::KindEntry
//! [`ObjectKind`]: crate::hca::registry::ObjectKind

mod base;
mod cq;
mod dpa;
mod memory;
mod queues;

use super::commands::command::{Command, ObjectCommands};
use super::objects::Uid;
use super::registry::{ObjectKind, kind};
use super::state::Hca;

/// Every kind, in the order of [`ObjectKind`].
pub(super) static KINDS: &[Kind] = &[
    Kind::of(kind::Qp),
    Kind::of(kind::Sq),
    Kind::of(kind::FlowTable),
    Kind::of(kind::Tir),
    Kind::of(kind::Rq),
    Kind::of(kind::Tis),
    Kind::of(kind::Srq),
    Kind::of(kind::Xrcd),
    Kind::of(kind::EmulatedDoorbell),
    Kind::of(kind::Cq),
    Kind::of(kind::DpaEq),
    Kind::of(kind::EmulatedDevice),
    Kind::of(kind::DpaCall),
    Kind::of(kind::DpaThread),
    Kind::of(kind::DpaOutbox),
    Kind::of(kind::UarExtension),
    Kind::of(kind::DpaWindow),
    Kind::of(kind::DpaCoreDump),
    Kind::of(kind::DpaProcess),
    Kind::of(kind::Mkey),
    Kind::of(kind::Alias),
    Kind::of(kind::Umem),
    Kind::of(kind::Eq),
    Kind::of(kind::Uar),
    Kind::of(kind::Td),
    Kind::of(kind::Pd),
    Kind::of(kind::Counter),
    Kind::of(kind::Uctx),
];

const _: () = {
    assert!(KINDS.len() == ObjectKind::ALL.len(), "a kind has no row in KINDS");
    let mut at = 0;
    while at < KINDS.len() {
        assert!(KINDS[at].kind as usize == at, "KINDS has another order than ObjectKind");
        at += 1;
    }
};

/// What code that serves all kinds needs of one.
pub(super) struct Kind {
    kind: ObjectKind,
    /// The commands on objects of the kind.
    pub(super) commands: &'static [Command],
    /// Destroys the objects of the kind whose owner the predicate selects.
    pub(super) remove_of: fn(&mut Hca, &dyn Fn(Uid) -> bool),
    /// The refusal for a number that is not an object of the sender.
    #[cfg(test)]
    pub(super) absent: super::Refusal,
    /// The refusal to destroy a referenced object.
    #[cfg(test)]
    pub(super) in_use: Option<super::Refusal>,
}

impl Kind {
    /// The row of a kind.
    const fn of<K: ObjectCommands>(_: K) -> Self {
        Self {
            kind: K::KIND,
            commands: K::COMMANDS,
            remove_of: remove_of::<K>,
            #[cfg(test)]
            absent: K::ABSENT,
            #[cfg(test)]
            in_use: K::IN_USE,
        }
    }
}

fn remove_of<K: ObjectCommands>(hca: &mut Hca, of: &dyn Fn(Uid) -> bool) {
    for number in K::map(&hca.objects).numbers_of(&|object| of(K::owner(object))) {
        hca.remove(K::MARKER, number);
    }
}
