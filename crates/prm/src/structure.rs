//! What every generated view has in common, and the macros that the generated files use.

use core::fmt::Debug;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::reflect::StructInfo;
use crate::{CommandInfo, CommandStatus};

/// A structure of the device, as exactly its bytes.
pub trait Structure:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + Debug + Default + 'static
{
    /// Size in bytes, a tail not counted.
    const BYTES: usize;
    /// Its name, fields and sources.
    const INFO: &'static StructInfo;
}

/// The input of a command.
pub trait CommandInput: Structure {
    /// The output of the same command.
    type Output: CommandOutput;
    /// The command.
    const INFO: &'static CommandInfo;
    /// Whether only the model knows the layout, so that no hardware must ever see it.
    const MODEL_ONLY: bool = <Self as Structure>::INFO.is_model_only()
        || <Self::Output as Structure>::INFO.is_model_only();
}

/// The output of a command: it begins with a status and a syndrome.
pub trait CommandOutput: Structure {
    /// What became of the command.
    fn status(&self) -> CommandStatus {
        CommandStatus(self.as_bytes()[0])
    }

    /// Firmware's reason for a bad status; 0 if there is none.
    fn syndrome(&self) -> u32 {
        crate::bits::get(self.as_bytes(), 32, 32) as u32
    }
}

/// The structure at byte `at`. Panics if it is not within `bytes`.
#[inline(always)]
pub(crate) fn nested<T: Structure>(bytes: &[u8], at: usize) -> &T {
    T::ref_from_bytes(&bytes[at..at + T::BYTES]).expect("bytes of the right length are a structure")
}

/// The structure at byte `at`, to be written. Panics if it is not within `bytes`.
#[inline(always)]
pub(crate) fn nested_mut<T: Structure>(bytes: &mut [u8], at: usize) -> &mut T {
    T::mut_from_bytes(&mut bytes[at..at + T::BYTES])
        .expect("bytes of the right length are a structure")
}

/// A view of a structure, but its accessors.
macro_rules! structure {
    (
        $(#[$meta:meta])*
        pub struct $name:ident([u8; $bytes:literal]) = $text:literal {
            sources: $sources:expr,
            fields: $fields:expr,
            reserved: $reserved:expr,
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(transparent)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Size in bytes, a tail not counted.
            pub const BYTES: usize = $bytes;
            /// Its name, fields and sources.
            pub const INFO: &'static StructInfo = &StructInfo {
                name: $text,
                bytes: $bytes,
                sources: &$sources,
                fields: &$fields,
                reserved: &$reserved,
            };

            /// All bits zero.
            #[inline]
            pub const fn zeroed() -> Self {
                Self([0; $bytes])
            }

            /// The structure at the start of `bytes`; nothing if they are too few.
            #[inline]
            pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
                Self::ref_from_prefix(bytes).ok().map(|(this, _)| this)
            }

            /// The structure at the start of `bytes`, to be written; nothing if they are too few.
            #[inline]
            pub fn from_prefix_mut(bytes: &mut [u8]) -> Option<&mut Self> {
                Self::mut_from_prefix(bytes).ok().map(|(this, _)| this)
            }

            /// Its bytes.
            #[inline]
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }

            /// Its bytes, to be written.
            #[inline]
            pub const fn as_bytes_mut(&mut self) -> &mut [u8; $bytes] {
                &mut self.0
            }
        }

        impl Structure for $name {
            const BYTES: usize = $bytes;
            const INFO: &'static StructInfo = Self::INFO;
        }

        impl Default for $name {
            #[inline]
            fn default() -> Self {
                Self::zeroed()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(&View::new(Self::INFO, &self.0), f)
            }
        }
    };
}

/// Named values of a number; other values are legal, and have no name.
macro_rules! enumeration {
    (
        $(#[$meta:meta])*
        pub struct $name:ident(pub $repr:ident) = $text:literal, $bits:literal bits {
            $($(#[doc = $value_doc:literal])* $value_name:ident = $value:literal,)*
        } $(model [$($model:literal),*])?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[doc = $value_doc])* pub const $value_name: Self = Self($value);)*
            /// Its name and values.
            pub const INFO: &'static EnumInfo = &EnumInfo {
                name: $text,
                bits: $bits,
                values: &[$((stringify!($value_name), $value)),*],
                model_only: &[$($($model),*)?],
            };

            /// The value's name, if it has one.
            #[inline]
            pub const fn name(self) -> Option<&'static str> {
                Self::INFO.name_of(self.0 as u64)
            }

            /// What the value means in a sentence, if it has a name.
            #[allow(unreachable_patterns, reason = "a value may have two names")]
            pub const fn doc(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!($($value_doc),*).trim_ascii()),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                enum_value(f, Self::INFO, u64::from(self.0))
            }
        }
    };
}

/// What makes two structures the input and output of a command.
macro_rules! command {
    ($input:ident -> $output:ident, $info:ident) => {
        impl CommandInput for $input {
            type Output = $output;
            const INFO: &'static CommandInfo = &$info;
        }

        impl $input {
            /// All bits zero but the opcode.
            #[inline]
            pub const fn new() -> Self {
                let mut this = Self::zeroed();
                bits::set(&mut this.0, 0, 16, $info.opcode as u64);
                this
            }
        }
    };
}

/// What the generated files use.
pub(crate) mod prelude {
    pub(crate) use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

    pub(crate) use super::{
        CommandInput, CommandOutput, Structure, command, enumeration, nested, nested_mut, structure,
    };
    pub(crate) use crate::bits;
    pub(crate) use crate::command::{CommandInfo, Devx, StatusRule, Variant};
    pub(crate) use crate::reflect::{EnumInfo, FieldInfo, StructInfo, View, enum_value};
}

pub(crate) use {command, enumeration, structure};

#[cfg(test)]
mod tests {
    #![allow(unreachable_pub, reason = "the macro makes public what is used in here only")]

    use super::prelude::*;

    enumeration! {
        /// Kinds.
        pub struct Mixed(pub u8) = "mixed", 8 bits {
            /// One that everybody knows.
            PUBLIC = 1,
            /// One that only the model knows.
            OURS = 2,
        } model [2]
    }

    #[test]
    fn a_value_that_only_the_model_knows_is_marked_in_what_is_known_of_the_enum() {
        assert_eq!(Mixed::INFO.model_only, [2]);
        assert_eq!((Mixed::PUBLIC.name(), Mixed::OURS.name()), (Some("PUBLIC"), Some("OURS")));
        assert_eq!(Mixed::OURS.doc(), Some("One that only the model knows."));
    }
}
