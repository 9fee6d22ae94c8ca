//! The registry of object kinds: one entry for each, from which come the maps of [`Objects`] and
//! their counts, the ranges of numbers, who uses what, the refusals, the end of a user context, and
//! which command leads where.
//!
//! Entries stand in the order in which the end of a user context destroys them: users before what
//! they use. In an entry
//! - `numbers` are the ranges that its numbers come from, as the profile has them: SQs take theirs
//!   from the range of QPs;
//! - `context` says that an object takes a context, and so a part of a page that the driver gives;
//! - `number` is where an object's number came from, and goes back to;
//! - `owner` is whose it is;
//! - `made` tells an object that a command made from one that comes with the function;
//! - `refers` names all that an object uses: none of it is destroyed before the object is. Who
//!   changes what an object refers to does so by [`Objects::change`];
//! - `moving` names what the data path may make it use instead, without [`Objects::change`];
//! - `doorbell` is the UAR page on which it is rung for, and by which [`PageDoorbell`];
//! - `beside` is what a function keeps for this kind beside the objects, a field of [`Objects`],
//!   and about how many bytes it takes;
//! - `absent` refuses a number that is no object of the sender's, `in_use` the destruction of one
//!   that another object refers to; `others` are what else commands on this kind are refused for;
//! - `gone` runs when an object is destroyed, for what the entry does not describe;
//! - `commands` lead to their handlers, sent by users or by the kernel alone:
//!   - `user CreateGeneralObjectIn of SAMPLER => sampler::create;` is about a general object type.
//!     A type with such an entry also needs its bit in `hca_cap.general_obj_types` of the profiles,
//!     and no other type has one, but for the types from 0xff00 on: those are aliases of objects
//!     that have commands of their own;
//!   - `for all` says that a driver may stamp the command with `SHARED_UID`;
//!   - `from 0x110` says that drivers may send so few bytes of the inbox; the rest is 0 then.
//!
//! Beside its entry, in the file of its family, a new kind needs
//! - its structure, in a module of `objects`;
//! - its functions that the entry names, in a module of `commands`;
//! - an object of it in `one_of_each` of `tests/registry.rs`.
//!
//! [`Objects`]: crate::hca::registry::Objects
//! [`Objects::change`]: crate::hca::registry::Objects::change
//! [`PageDoorbell`]: crate::hca::doorbell::PageDoorbell

pub(super) mod base;
pub(super) mod completions;
pub(super) mod dpa;
pub(super) mod memory;
pub(super) mod queues;

/// Gives all entries to the macro `$then`, behind what `$before` is. A device without a DPA has no
/// kinds of object of it.
#[cfg(feature = "dpa")]
macro_rules! kinds {
    ($then:ident $($before:tt)*) => { $crate::hca::kinds::all_kinds! { $then $($before)* } };
}
#[cfg(not(feature = "dpa"))]
macro_rules! kinds {
    ($then:ident $($before:tt)*) => {
        $crate::hca::kinds::family! { $then [queues completions memory base] { $($before)* } }
    };
}

/// As `kinds`, also of kinds that this build does not have.
macro_rules! all_kinds {
    ($then:ident $($before:tt)*) => {
        $crate::hca::kinds::family! {
            $then [queues doorbells completions dpa memory base] { $($before)* }
        }
    };
}

/// As `kinds`, of the DPA alone.
#[cfg(not(feature = "dpa"))]
macro_rules! dpa_kinds {
    ($then:ident $($before:tt)*) => {
        $crate::hca::kinds::family! { $then [doorbells dpa] { $($before)* } }
    };
}

/// Leads to the next family, which adds its own entries, or to `$then` behind the last.
macro_rules! family {
    ($then:ident [] { $($all:tt)* }) => { $then! { $($all)* } };
    ($then:ident [queues $($next:ident)*] $before:tt) => {
        $crate::hca::kinds::queues::queues! {
            ($crate::hca::kinds::family) $then [$($next)*] $before
        }
    };
    ($then:ident [doorbells $($next:ident)*] $before:tt) => {
        $crate::hca::kinds::dpa::doorbells! {
            ($crate::hca::kinds::family) $then [$($next)*] $before
        }
    };
    ($then:ident [completions $($next:ident)*] $before:tt) => {
        $crate::hca::kinds::completions::completions! {
            ($crate::hca::kinds::family) $then [$($next)*] $before
        }
    };
    ($then:ident [dpa $($next:ident)*] $before:tt) => {
        $crate::hca::kinds::dpa::dpa! {
            ($crate::hca::kinds::family) $then [$($next)*] $before
        }
    };
    ($then:ident [memory $($next:ident)*] $before:tt) => {
        $crate::hca::kinds::memory::memory! {
            ($crate::hca::kinds::family) $then [$($next)*] $before
        }
    };
    ($then:ident [base $($next:ident)*] $before:tt) => {
        $crate::hca::kinds::base::base! {
            ($crate::hca::kinds::family) $then [$($next)*] $before
        }
    };
}

#[cfg(not(feature = "dpa"))]
pub(super) use dpa_kinds;
pub(super) use {all_kinds, family, kinds};
