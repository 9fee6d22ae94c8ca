//! The formats of the data path, written by hand because they are built and read at full speed.
//!
//! Each is a struct of big-endian words (zerocopy) with a bitfield type for each packed word, so a value is built in
//! registers and stored as whole words. `prm/` describes the same formats as data.
//!
//! A setter that is given a number wider than its field panics; a mask in front of it lets the compiler see that it
//! cannot. Reading never fails: every bit pattern is a value of every type here.

mod cqe;
mod doorbell;
mod eqe;
mod wqe;

pub use cqe::*;
pub use doorbell::*;
pub use eqe::*;
pub use wqe::*;

/// Gives a hot format its byte views: size, zeroed value, and the four derives that every one of them has.
macro_rules! format {
    ($(#[$attr:meta])* pub struct $name:ident[$bytes:literal] { $($(#[$fattr:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$attr])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$fattr])* pub $field: $ty,)* }

        impl $name {
            /// Size in bytes.
            pub const BYTES: usize = $bytes;

            /// All bytes zero.
            pub const fn zeroed() -> Self {
                zerocopy::transmute!([0u8; $bytes])
            }

            /// The value at the start of `bytes`; `None` if there are too few of them.
            pub fn read(bytes: &[u8]) -> Option<Self> {
                zerocopy::FromBytes::read_from_prefix(bytes).ok().map(|(value, _)| value)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::zeroed()
            }
        }

        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}
pub(crate) use format;
