//! The registry of object kinds, one entry each. The entries generate the maps of [`Objects`] and
//! their counts, the ranges of numbers, the references between objects, the refusals, the end of a
//! user context, and the dispatch of commands.
//!
//! The end of a user context destroys kinds in the order of their entries: users before the objects
//! that they use. In an entry
//! - `numbers` are the ranges that its numbers come from, as the profile gives them: SQs take
//!   theirs from the range of QPs;
//! - `context` says that an object takes a context, and so a part of a page from the driver;
//! - `number` is the allocator that an object's number comes from and returns to;
//! - `owner` is the object's owner;
//! - `made` distinguishes an object that a command created from one that every function has;
//! - `refers` names all objects that an object uses: none of them is destroyed before it. Code that
//!   changes an object's references calls [`Objects::change`];
//! - `moving` names references that the data path may change, without [`Objects::change`];
//! - `doorbell` is the object's [`PageDoorbell`] and the UAR page of that doorbell;
//! - `beside` is other data that a function keeps for the kind, in a field of [`Objects`], and its
//!   approximate size in bytes;
//! - `absent` refuses a number that is not an object of the sender; `in_use` refuses to destroy an
//!   object with references; `others` are further refusals of commands on the kind;
//! - `removed` runs when an object is destroyed, for effects that the entry does not describe;
//! - `commands` map to their handlers, for users or only for the kernel:
//!   - `user CreateGeneralObjectIn of SAMPLER => sampler::create;` is about a general object type.
//!     A type with such an entry also needs its bit in `hca_cap.general_obj_types` of the profiles,
//!     and no other type has one, but for the types from 0xff00 on: those are aliases of objects
//!     that have commands of their own;
//!   - `for all` lets a driver stamp the command with `SHARED_UID`;
//!   - `from 0x110` allows an inbox of only 0x110 bytes; the rest is taken as 0.
//!
//! Besides its entry, in the file of its family, a new kind needs
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

/// Passes all entries to the macro `$then`, after `$before`.
macro_rules! kinds {
    ($then:ident $($before:tt)*) => {
        $crate::hca::kinds::family! {
            $then [queues doorbells completions dpa memory base] { $($before)* }
        }
    };
}

/// Expands the next family, which adds its own entries, or `$then` after the last.
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

pub(super) use {family, kinds};
