//! The mlx5 PRM as typed views: commands, contexts, capability pages, registers, WQEs, CQEs, EQEs.
//!
//! The device reads and writes big-endian bit fields. A view such as `CqContext` is exactly those
//! bytes; each accessor reads or writes one field. The views are generated from the tables in
//! `prm/`, which give each field's position, meaning and source. The tables are available at run
//! time: [`reflect`] describes every structure, and [`CommandInfo`] every command.
//!
//! Features (all on by default) select families of commands, so a driver compiles only the families
//! that it sends. `dpa`, `kernel`, `packets`, `queues` and `registers` have what a driver and the
//! model use; the others describe the rest of the device.
//!
//! [`number`] has a type for each kind of number and key, and [`access`] the rights of a key.
//!
//! The data-path formats (`hot`) are structures of big-endian numbers and words: posting and
//! polling access single members, and `offset_of!` gives their offsets.
//!
//! Values of an enumeration are plain numbers (`hot`) or open newtypes (`CqeOpcode`), not Rust
//! enums behind zerocopy's `TryFromBytes`: a device may write a value that this crate does not
//! know, which must not make the rest of a CQE or EQE unreadable, and most of these fields share
//! their byte with others.
//!
//! # Panics
//! A setter panics in debug builds if the value does not fit the field's width; release builds
//! truncate the value. The accessors of an array panic if the index is not less than the array's
//! length. Nothing else panics, whatever the bytes.
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
mod fingerprint;
#[cfg(feature = "structures")]
#[allow(clippy::len_without_is_empty, reason = "fields have the names of the PRM")]
mod generated;
#[cfg(feature = "structures")]
mod klm;
#[cfg(feature = "structures")]
mod lookup;
#[cfg(feature = "structures")]
mod macros;
#[cfg(feature = "structures")]
pub mod mailbox;
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
    fingerprint::fingerprint,
    generated::*,
    structure::{CommandInput, CommandOutput, Layout, Packed, Structure},
};
