//! The macros of the generated files: one line per field, value and command.

/// Declares a view: its layout, and one line per field for its accessors and reflection.
///
/// A line is `getter setter: kind(arguments) [count] marks;`. Offsets are bits from the start of
/// the structure, `[count]` makes the field an array, and a mark is a method of `FieldInfo`.
macro_rules! structure {
    (
        $(#[$meta:meta])*
        $name:ident, $layout:ident, $bytes:literal bytes = $text:literal {
            sources: $sources:expr;
            reserved: $reserved:expr;
            $(
                $(#[$doc:meta])*
                $get:ident $set:ident: $kind:ident $arguments:tt
                    $([$count:literal])? $($mark:ident)*;
            )*
        }
    ) => {
        #[doc = concat!("The layout of [`", stringify!($name), "`].")]
        pub enum $layout {}

        impl Layout for $layout {
            const INFO: &'static StructInfo = &StructInfo {
                name: $text,
                bytes: $bytes,
                sources: &$sources,
                fields: &[$(info!($get $kind $arguments)$(.times($count))?$(.$mark())*),*],
                reserved: &$reserved,
            };
        }

        $(#[$meta])*
        pub type $name = Packed<$layout, $bytes>;

        impl $name {
            $(accessors! { (const) [$(#[$doc])*] $get $set: $kind $arguments [$(index $count)?] })*
        }
    };
}

/// Gives a structure of `hot` the accessors and reflection that [`structure!`] gives others.
macro_rules! view {
    (
        $name:ident, $bytes:literal bytes = $text:literal {
            sources: $sources:expr;
            reserved: $reserved:expr;
            $(
                $(#[$doc:meta])*
                $get:ident $set:ident: $kind:ident $arguments:tt
                    $([$count:literal])? $($mark:ident)*;
            )*
        }
    ) => {
        impl Structure for $name {
            const INFO: &'static StructInfo = &StructInfo {
                name: $text,
                bytes: $bytes,
                sources: &$sources,
                fields: &[$(info!($get $kind $arguments)$(.times($count))?$(.$mark())*),*],
                reserved: &$reserved,
            };
        }

        impl $name {
            /// Size in bytes, a tail not counted.
            pub const BYTES: usize = $bytes;
            /// The structure's name, fields and sources.
            pub const INFO: &'static StructInfo = <Self as Structure>::INFO;

            /// A value with all bits zero.
            #[inline]
            pub const fn zeroed() -> Self {
                transmute!([0_u8; $bytes])
            }

            /// The structure at the start of `bytes`; `None` if `bytes` is too short.
            #[inline]
            pub fn from_prefix(bytes: &[u8]) -> Option<&Self> {
                Self::ref_from_prefix(bytes).ok().map(|(structure, _)| structure)
            }

            /// The structure at the start of `bytes`, mutable; `None` if `bytes` is too short.
            #[inline]
            pub fn from_prefix_mut(bytes: &mut [u8]) -> Option<&mut Self> {
                Self::mut_from_prefix(bytes).ok().map(|(structure, _)| structure)
            }

            /// The structure's bytes.
            #[inline]
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                transmute_ref!(self)
            }

            /// The structure's bytes, mutable.
            #[inline]
            pub fn as_bytes_mut(&mut self) -> &mut [u8; $bytes] {
                transmute_mut!(self)
            }

            $(accessors! { () [$(#[$doc])*] $get $set: $kind $arguments [$(index $count)?] })*
        }

        impl Default for $name {
            #[inline]
            fn default() -> Self {
                Self::zeroed()
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(&View::new(Self::INFO, self.as_bytes()), f)
            }
        }
    };
}

/// The reflection of one field.
macro_rules! info {
    ($name:ident flag($at:literal)) => {
        FieldInfo::number(plain(stringify!($name)), $at, 1)
    };
    ($name:ident number($repr:ident, $at:literal, $width:literal)) => {
        FieldInfo::number(plain(stringify!($name)), $at, $width)
    };
    ($name:ident named($of:ident($repr:ident), $at:literal, $width:literal)) => {
        FieldInfo::number(plain(stringify!($name)), $at, $width).of($of::INFO)
    };
    ($name:ident bytes($bytes:literal, $at:literal)) => {
        FieldInfo::bytes(plain(stringify!($name)), $at, $bytes)
    };
    ($name:ident nested($of:ident, $at:literal)) => {
        FieldInfo::nested(plain(stringify!($name)), $at, <$of>::INFO)
    };
    ($name:ident tail($kind:ident $arguments:tt)) => {
        info!($name $kind $arguments).tail()
    };
}

/// The accessors of one field, with or without `const` setters; for a tail, its offset.
macro_rules! accessors {
    (
        ($($c:tt)?) [$($meta:tt)*] $get:ident $set:ident: flag($at:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> bool {
            bits::flag(self.as_bytes(), place!($at, 1 $(, $index, $count)?))
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub $($c)? fn $set(&mut self $(, $index: usize)?, value: bool) -> &mut Self {
            bits::set_flag(self.as_bytes_mut(), place!($at, 1 $(, $index, $count)?), value);
            self
        }
    };
    (
        ($($c:tt)?) [$($meta:tt)*] $get:ident $set:ident:
            number($repr:ident, $at:literal, $width:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> $repr {
            bits::get(self.as_bytes(), place!($at, $width $(, $index, $count)?), $width) as $repr
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub $($c)? fn $set(&mut self $(, $index: usize)?, value: $repr) -> &mut Self {
            let at = place!($at, $width $(, $index, $count)?);
            bits::set(self.as_bytes_mut(), at, $width, value as u64);
            self
        }
    };
    (
        ($($c:tt)?) [$($meta:tt)*] $get:ident $set:ident:
            named($of:ident($repr:ident), $at:literal, $width:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> $of {
            let at = place!($at, $width $(, $index, $count)?);
            $of(bits::get(self.as_bytes(), at, $width) as $repr)
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub $($c)? fn $set(&mut self $(, $index: usize)?, value: $of) -> &mut Self {
            let at = place!($at, $width $(, $index, $count)?);
            bits::set(self.as_bytes_mut(), at, $width, value.0 as u64);
            self
        }
    };
    (
        ($($c:tt)?) [$($meta:tt)*] $get:ident $set:ident: bytes($bytes:literal, $at:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> &[u8; $bytes] {
            bits::array(self.as_bytes(), place!($at, $bytes * 8 $(, $index, $count)?) / 8)
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub $($c)? fn $set(&mut self $(, $index: usize)?, value: &[u8; $bytes]) -> &mut Self {
            let at = place!($at, $bytes * 8 $(, $index, $count)?) / 8;
            *bits::array_mut(self.as_bytes_mut(), at) = *value;
            self
        }
    };
    (
        ($($c:tt)?) [$($meta:tt)*] $get:ident $set:ident: nested($of:ident, $at:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub fn $get(&self $(, $index: usize)?) -> &$of {
            nested(self.as_bytes(), place!($at, <$of>::BYTES * 8 $(, $index, $count)?) / 8)
        }

        #[doc = concat!("`", stringify!($get), "`, mutable.")]
        #[inline]
        pub fn $set(&mut self $(, $index: usize)?) -> &mut $of {
            nested_mut(self.as_bytes_mut(), place!($at, <$of>::BYTES * 8 $(, $index, $count)?) / 8)
        }
    };
    (
        ($($c:tt)?) [$($meta:tt)*] $get:ident $offset:ident:
            tail($kind:ident($what:tt, $at:literal $($more:tt)*)) []
    ) => {
        $($meta)*
        pub const $offset: usize = $at / 8;
    };
}

/// The first bit of a field, or of an element of an array.
macro_rules! place {
    ($at:literal, $width:expr) => {
        $at
    };
    ($at:literal, $width:expr, $index:ident, $count:literal) => {
        bits::element($at, $width, $count, $index)
    };
}

/// Declares named values of a number; other values are legal and have no name.
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
            /// The name and the named values.
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

            /// The meaning of the value in a sentence, if the value is named.
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

/// Declares two structures as the input and output of a command.
macro_rules! command {
    ($input:ident -> $output:ident, $info:ident) => {
        impl CommandInput for $input {
            type Output = $output;
            const INFO: &'static CommandInfo = &$info;
        }

        impl $input {
            /// An input with the opcode, and all other bits zero.
            #[inline]
            pub const fn new() -> Self {
                let mut this = Self::zeroed();
                bits::set(this.as_bytes_mut(), 0, 16, $info.opcode as u64);
                this
            }
        }
    };
}

/// Converts a word to and from numbers in memory order and in host order.
macro_rules! raw {
    ($name:ident: $number:ident) => {
        impl $name {
            /// A word with all bits zero.
            #[inline(always)]
            pub const fn new() -> Self {
                Self::from_raw(0)
            }

            /// The word of a loaded number, whose bytes are in memory order.
            #[inline(always)]
            pub const fn from_raw(raw: $number) -> Self {
                transmute!(raw)
            }

            /// The number to store; its bytes are in memory order.
            #[inline(always)]
            pub const fn to_raw(self) -> $number {
                transmute!(self)
            }

            /// The word with these bits, a number in host order.
            #[inline(always)]
            pub const fn from_bits(bits: $number) -> Self {
                Self::from_raw(bits.to_be())
            }

            /// The word's bits, a number in host order.
            #[inline(always)]
            pub const fn into_bits(self) -> $number {
                $number::from_be(self.to_raw())
            }
        }
    };
}

/// Names that the generated files use.
pub(crate) mod prelude {
    pub(crate) use crate::bits;
    pub(crate) use crate::command::{CommandInfo, Devx, StatusRule, Variant};
    pub(crate) use crate::macros::{accessors, command, enumeration, info, place, structure, view};
    pub(crate) use crate::reflect::{EnumInfo, FieldInfo, StructInfo, View, enum_value, plain};
    pub(crate) use crate::structure::{
        CommandInput, CommandOutput, Layout, Packed, Structure, nested, nested_mut,
    };
    pub(crate) use zerocopy::{FromBytes, transmute, transmute_mut, transmute_ref};
}

pub(crate) use {accessors, command, enumeration, info, place, raw, structure, view};

#[cfg(test)]
mod tests {
    #![allow(unreachable_pub, reason = "the macro makes its type public")]

    use super::prelude::*;

    enumeration! {
        /// Kinds.
        pub struct Mixed(pub u8) = "mixed", 8 bits {
            /// A value that is published.
            PUBLIC = 1,
            /// A value that only the model knows.
            OURS = 2,
        } model [2]
    }

    #[test]
    fn model_only_values_are_listed_in_enum_info() {
        assert_eq!(Mixed::INFO.model_only, [2]);
        assert_eq!((Mixed::PUBLIC.name(), Mixed::OURS.name()), (Some("PUBLIC"), Some("OURS")));
        assert_eq!(Mixed::OURS.doc(), Some("A value that only the model knows."));
    }
}
