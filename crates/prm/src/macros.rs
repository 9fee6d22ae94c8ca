//! The macros that the generated files are written with: a line for each field, value and command.

/// A view of a structure: its layout, and for each field a line that makes its accessors and its
/// reflection.
///
/// A line is `getter setter: kind(arguments) [count] marks;`. Places are bits from the start of the
/// structure, `[count]` makes the field an array, and a mark is a method of `FieldInfo`.
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
            $(accessors! { [$(#[$doc])*] $get $set: $kind $arguments [$(index $count)?] })*
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

/// The accessors of one field; of a tail, where it begins.
macro_rules! accessors {
    ([$($meta:tt)*] $get:ident $set:ident: flag($at:literal) [$($index:ident $count:literal)?]) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> bool {
            bits::flag(&self.0, place!($at, 1 $(, $index, $count)?))
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self $(, $index: usize)?, value: bool) -> &mut Self {
            bits::set_flag(&mut self.0, place!($at, 1 $(, $index, $count)?), value);
            self
        }
    };
    (
        [$($meta:tt)*] $get:ident $set:ident: number($repr:ident, $at:literal, $width:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> $repr {
            bits::get(&self.0, place!($at, $width $(, $index, $count)?), $width) as $repr
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self $(, $index: usize)?, value: $repr) -> &mut Self {
            bits::set(&mut self.0, place!($at, $width $(, $index, $count)?), $width, value as u64);
            self
        }
    };
    (
        [$($meta:tt)*] $get:ident $set:ident:
            named($of:ident($repr:ident), $at:literal, $width:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> $of {
            $of(bits::get(&self.0, place!($at, $width $(, $index, $count)?), $width) as $repr)
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self $(, $index: usize)?, value: $of) -> &mut Self {
            let at = place!($at, $width $(, $index, $count)?);
            bits::set(&mut self.0, at, $width, value.0 as u64);
            self
        }
    };
    (
        [$($meta:tt)*] $get:ident $set:ident: bytes($bytes:literal, $at:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub const fn $get(&self $(, $index: usize)?) -> &[u8; $bytes] {
            bits::array(&self.0, place!($at, $bytes * 8 $(, $index, $count)?) / 8)
        }

        #[doc = concat!("Sets `", stringify!($get), "`.")]
        #[inline]
        pub const fn $set(&mut self $(, $index: usize)?, value: &[u8; $bytes]) -> &mut Self {
            let at = place!($at, $bytes * 8 $(, $index, $count)?) / 8;
            *bits::array_mut(&mut self.0, at) = *value;
            self
        }
    };
    (
        [$($meta:tt)*] $get:ident $set:ident: nested($of:ident, $at:literal)
            [$($index:ident $count:literal)?]
    ) => {
        $($meta)*
        #[inline]
        pub fn $get(&self $(, $index: usize)?) -> &$of {
            nested(&self.0, place!($at, <$of>::BYTES * 8 $(, $index, $count)?) / 8)
        }

        #[doc = concat!("`", stringify!($get), "`, to be written.")]
        #[inline]
        pub fn $set(&mut self $(, $index: usize)?) -> &mut $of {
            nested_mut(&mut self.0, place!($at, <$of>::BYTES * 8 $(, $index, $count)?) / 8)
        }
    };
    (
        [$($meta:tt)*] $get:ident $offset:ident:
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
                bits::set(&mut this.0, 0, 16, $info.opcode as u64);
                this
            }
        }
    };
}

/// A word of several fields, as a number in the host's order.
///
/// A line is `getter setter: flag(bit);` or `getter setter: bits(type, lowest bit, width);`.
macro_rules! word {
    (
        $(#[$meta:meta])*
        $name:ident($repr:ident) at $at:literal $($packs:ident)? {
            $($(#[$doc:meta])* $get:ident $with:ident: $kind:ident $arguments:tt;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            /// Offset of the word in its structure, in bytes.
            pub const AT: usize = $at;

            /// A word with all bits zero.
            #[inline(always)]
            pub const fn new() -> Self {
                Self(0)
            }

            /// The word with these bits.
            #[inline(always)]
            pub const fn from_bits(bits: $repr) -> Self {
                Self(bits)
            }

            /// The word that has these bits in memory, where it is big-endian.
            #[inline(always)]
            pub const fn from_be(bits: $repr) -> Self {
                Self($repr::from_be(bits))
            }

            /// The word that has these bytes in memory.
            #[inline(always)]
            pub const fn from_be_bytes(bytes: [u8; $repr::BITS as usize / 8]) -> Self {
                Self($repr::from_be_bytes(bytes))
            }

            /// The word's bits.
            #[inline(always)]
            pub const fn into_bits(self) -> $repr {
                self.0
            }

            /// The word's bits in big-endian order, as in memory.
            #[inline(always)]
            pub const fn to_be(self) -> $repr {
                self.0.to_be()
            }

            word_pack! { $name($repr) $($packs)? { $($get: $kind $arguments;)* } }

            $(word_field! { [$(#[$doc])*] $repr $get $with $kind $arguments })*
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut out = f.debug_struct(stringify!($name));
                $(out.field(plain(stringify!($get)), &self.$get());)*
                out.finish()
            }
        }
    };
}

/// A function that packs all fields of a word, unless some overlap.
macro_rules! word_pack {
    ($name:ident($repr:ident) { $($any:tt)* }) => {};
    ($name:ident($repr:ident) packs { $($get:ident: $kind:ident $arguments:tt;)* }) => {
        /// The word of these fields; bits that are too many are cut off.
        #[inline(always)]
        pub const fn pack($($get: word_type!($kind $arguments)),*) -> Self {
            Self(0 $(| word_bits!($repr, $get, $kind $arguments))*)
        }
    };
}

/// The type of a field of a word as an argument.
macro_rules! word_type {
    (flag($shift:literal)) => {
        bool
    };
    (bits($of:ident, $shift:literal, $width:literal)) => {
        $of
    };
}

/// A field's value at its place in the word.
macro_rules! word_bits {
    ($repr:ident, $value:ident, flag($shift:literal)) => {
        ($value as $repr) << $shift
    };
    ($repr:ident, $value:ident, bits($of:ident, $shift:literal, $width:literal)) => {
        ($value as $repr & ($repr::MAX >> ($repr::BITS - $width))) << $shift
    };
}

/// Reading and setting one field of a word.
macro_rules! word_field {
    ([$($meta:tt)*] $repr:ident $get:ident $with:ident flag($shift:literal)) => {
        $($meta)*
        #[inline(always)]
        pub const fn $get(self) -> bool {
            self.0 >> $shift & 1 != 0
        }

        #[doc = concat!("The same with another `", stringify!($get), "`.")]
        #[inline(always)]
        #[must_use]
        pub const fn $with(self, value: bool) -> Self {
            Self(self.0 & !(1 << $shift) | (value as $repr) << $shift)
        }
    };
    (
        [$($meta:tt)*] $repr:ident $get:ident $with:ident
            bits($of:ident, $shift:literal, $width:literal)
    ) => {
        $($meta)*
        #[inline(always)]
        pub const fn $get(self) -> $of {
            (self.0 >> $shift & ($repr::MAX >> ($repr::BITS - $width))) as $of
        }

        #[doc = concat!(
            "The same with another `", stringify!($get), "`; bits that are too many are cut off."
        )]
        #[inline(always)]
        #[must_use]
        pub const fn $with(self, value: $of) -> Self {
            let mask = $repr::MAX >> ($repr::BITS - $width);
            Self(self.0 & !(mask << $shift) | (value as $repr & mask) << $shift)
        }
    };
}

/// A structure made of its words.
macro_rules! new {
    ($name:ident { $($word:ident: $kind:ident($of:ident, $at:literal);)* }) => {
        impl $name {
            /// The structure of these words; a plain number must fit its field.
            #[inline(always)]
            pub const fn new($($word: $of),*) -> Self {
                let mut this = Self::zeroed();
                $(*bits::array_mut(&mut this.0, $at) = new!(@ $kind $word).to_be_bytes();)*
                this
            }
            $(new! { @get $kind $word $of })*
        }
    };
    (@ packed $word:ident) => { $word.into_bits() };
    (@ plain $word:ident) => { $word };
    (@get plain $word:ident $of:ident) => {};
    (@get packed $word:ident $of:ident) => {
        #[doc = concat!("The word [`", stringify!($of), "`].")]
        #[inline(always)]
        pub const fn $word(&self) -> $of {
            $of::from_be_bytes(*bits::array(&self.0, $of::AT))
        }
    };
}

/// Names that the generated files use.
pub(crate) mod prelude {
    pub(crate) use crate::bits;
    pub(crate) use crate::command::{CommandInfo, Devx, StatusRule, Variant};
    pub(crate) use crate::macros::{
        accessors, command, enumeration, info, new, place, structure, word, word_bits, word_field,
        word_pack, word_type,
    };
    pub(crate) use crate::reflect::{EnumInfo, FieldInfo, StructInfo, enum_value, plain};
    pub(crate) use crate::structure::{
        CommandInput, CommandOutput, Layout, Packed, nested, nested_mut,
    };
}

pub(crate) use {
    accessors, command, enumeration, info, new, place, structure, word, word_bits, word_field,
    word_pack, word_type,
};

#[cfg(test)]
mod tests {
    #![allow(unreachable_pub, reason = "the macro makes public what is used in here only")]

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
    fn a_value_that_only_the_model_knows_is_marked_in_what_is_known_of_the_enum() {
        assert_eq!(Mixed::INFO.model_only, [2]);
        assert_eq!((Mixed::PUBLIC.name(), Mixed::OURS.name()), (Some("PUBLIC"), Some("OURS")));
        assert_eq!(Mixed::OURS.doc(), Some("A value that only the model knows."));
    }
}
