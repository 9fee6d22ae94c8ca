//! Functions of a program, with their argument and result types.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{EventHandler, EventHandlerConfig, Function, Handler};
//!
//! let add = Function::<(u64, u32), u64>::named("add");
//! assert_eq!(add.signature(), "add(u64,u32)->u64");
//! assert_eq!(process.call(add, (40, 2))?, 42);
//! // Another type than the program's is refused when it is called.
//! let wrong = Function::<(u64, u64), u64>::named("add");
//! assert!(process.call(wrong, (40, 2)).is_err());
//! // An event handler.
//! let config = EventHandlerConfig::new(Handler::named("handler"));
//! EventHandler::create(&process, &config)?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::marker::PhantomData;

/// A type that fits a register, with its name in a program's symbols.
pub trait Word: verbless_flexio_dev::Word {
    /// The type's name; empty for `()`.
    const NAME: &'static str;
}

macro_rules! words {
    ($($word:ty)*) => {$(
        impl Word for $word {
            const NAME: &'static str = stringify!($word);
        }
    )*};
}

words!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize bool);

impl Word for () {
    const NAME: &'static str = "";
}

/// Maximum number of arguments of a call.
pub const MAX_ARGUMENTS: usize = 16;

/// Maximum number of arguments in registers. A call with more packs all of them into a buffer of
/// the heap, and the function's stub unpacks them.
pub const REGISTERS: usize = 8;

/// Arguments of a call: a tuple of up to 16 words ([`MAX_ARGUMENTS`]).
pub trait Arguments {
    /// The number of arguments.
    const COUNT: usize;
    /// The arguments as words; 0 after the last one.
    fn to_words(self) -> [u64; MAX_ARGUMENTS];
    /// The names of the types, separated by commas.
    fn names() -> String;
}

/// Packs the words of a call with more than [`REGISTERS`] arguments: 8 bytes each, least
/// significant byte first (`flexio_func_arg_pack_fn_t`).
pub fn pack(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Bytes of the buffer for `count` packed arguments; 0 if registers hold them (`argbuf_size` of
/// `flexio_func_get_register_info`).
pub const fn packed_bytes(count: usize) -> usize {
    if count > REGISTERS { 8 * count } else { 0 }
}

macro_rules! arguments {
    ($($word:ident $at:tt),*) => {
        impl<$($word: Word),*> Arguments for ($($word,)*) {
            const COUNT: usize = <[usize]>::len(&[$($at),*]);

            fn to_words(self) -> [u64; MAX_ARGUMENTS] {
                #[allow(unused_mut, reason = "the zero-argument impl stores nothing")]
                let mut words = [0; MAX_ARGUMENTS];
                $(words[$at] = self.$at.to_word();)*
                words
            }

            fn names() -> String {
                let names: &[&str] = &[$($word::NAME),*];
                names.join(",")
            }
        }
    };
}

arguments!();
arguments!(A 0);
arguments!(A 0, B 1);
arguments!(A 0, B 1, C 2);
arguments!(A 0, B 1, C 2, D 3);
arguments!(A 0, B 1, C 2, D 3, E 4);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14);
arguments!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11, M 12, N 13, O 14, P 15);

/// A program's function with `#[rpc]`, with its argument and result types. [`embed!`](crate::embed)
/// creates one for each; [`App::function`](crate::App::function) finds one in a file that is read
/// at run time.
pub struct Function<A, R> {
    /// `add(u64,u32)->u64`.
    signature: std::borrow::Cow<'static, str>,
    types: PhantomData<fn(A) -> R>,
}

impl<A: Arguments, R: Word> Function<A, R> {
    /// The function of this name with these types.
    pub fn named(name: &str) -> Self {
        let result = if R::NAME.is_empty() { String::new() } else { format!("->{}", R::NAME) };
        let signature = format!("{name}({}){result}", A::names()).into();
        Self { signature, types: PhantomData }
    }
}

impl<A, R> Function<A, R> {
    /// A function that [`embed!`](crate::embed) has read from a program: types and signature come
    /// from one symbol.
    #[doc(hidden)]
    pub const fn embedded(signature: &'static str) -> Self {
        Self { signature: std::borrow::Cow::Borrowed(signature), types: PhantomData }
    }

    /// The signature in the program's symbols: `add(u64,u32)->u64`.
    pub fn signature(&self) -> &str {
        &self.signature
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        self.signature.split('(').next().unwrap_or_default()
    }
}

impl<A, R> fmt::Debug for Function<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.signature)
    }
}

/// A program's function with `#[event_handler]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    name: std::borrow::Cow<'static, str>,
}

impl Handler {
    /// An event handler that [`embed!`](crate::embed) has read from a program.
    #[doc(hidden)]
    pub const fn embedded(name: &'static str) -> Self {
        Self { name: std::borrow::Cow::Borrowed(name) }
    }

    /// The event handler of this name; its use checks that the program has it.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned().into() }
    }

    /// The event handler's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_matches_program_symbol() {
        let add = Function::<(u64, i8), bool>::named("add");
        assert_eq!((add.signature(), add.name()), ("add(u64,i8)->bool", "add"));
        assert_eq!(Function::<(), ()>::named("reset").signature(), "reset()");
        assert_eq!(Function::<(usize,), u64>::named("f").signature(), "f(usize)->u64");
    }

    #[test]
    fn arguments_convert_to_words_in_order() {
        assert_eq!((1_u8, -1_i8, true).to_words()[..4], [1, u64::MAX, 1, 0]);
        assert_eq!(().to_words(), [0; MAX_ARGUMENTS]);
    }

    #[test]
    fn sixteen_arguments_are_packed_in_order() {
        type Sixteen = (u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, i16, bool);
        let given: Sixteen = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, -1, true);
        let words = given.to_words();
        assert_eq!((Sixteen::COUNT, <()>::COUNT, <(u8,)>::COUNT), (16, 0, 1));
        let packed = pack(&words[..Sixteen::COUNT]);
        assert_eq!(packed.len(), packed_bytes(Sixteen::COUNT));
        assert_eq!(
            (&packed[104..112], &packed[112..120]),
            (&[13, 0, 0, 0, 0, 0, 0, 0][..], &[255; 8][..])
        );
        assert_eq!((packed_bytes(8), packed_bytes(9)), (0, 72));
    }
}
