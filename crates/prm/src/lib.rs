//! The mlx5 PRM as typed views: commands, contexts, capability pages, registers, WQEs, CQEs, EQEs.
//!
//! Everything the device reads or writes is big-endian and packed in bits. A view such as
//! `CqContext` is exactly those bytes; its accessors read and write one field each. The views are
//! generated from the tables in `prm/`, where each field has its place, its meaning and its source.
//! What is in the tables can also be had at run time: [`reflect`] describes every structure, and
//! [`CommandInfo`] every command.
//!
//! Some families of commands are compiled on request (the features `kernel`, `packets`, `queues`
//! and `registers`; all of them by default), so that a driver does not compile what it never sends.
//!
//! [`number`] has a type for each kind of number and key, and [`access`] the rights of a key.
//!
//! The formats of the data path (`hot`) are structures whose members are big-endian numbers and
//! words: posting and polling read and write single members, and `offset_of!` says where they are.
//!
//! # Panics
//! A setter panics if the value does not fit the field's width, and the accessors of an array panic
//! if the index is not less than the array's length. Setters of the words in `hot` panic in debug
//! builds only; in release builds they cut the value off. Nothing else here panics, whatever the
//! bytes.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "dump")]
extern crate std;

pub mod access;
pub mod bits;
pub mod command;
#[cfg(feature = "dump")]
pub mod dump;
#[cfg(feature = "structures")]
#[allow(clippy::len_without_is_empty, reason = "fields are called what the PRM calls them")]
mod generated;
#[cfg(feature = "structures")]
mod lookup;
#[cfg(feature = "structures")]
mod macros;
pub mod number;
#[cfg(feature = "dump")]
pub mod numbers;
pub mod reflect;
#[cfg(feature = "structures")]
mod structure;
#[cfg(feature = "structures")]
mod wqe;

pub use command::{CommandInfo, Devx, ModelOnly};
/// The bytes of any structure, in generic code.
#[doc(no_inline)]
pub use zerocopy::IntoBytes;
#[cfg(feature = "structures")]
pub use {
    generated::*,
    structure::{CommandInput, CommandOutput, Layout, Packed, Structure},
};
