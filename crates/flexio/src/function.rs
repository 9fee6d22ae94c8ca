//! Functions of a program, with the types of their arguments and results.
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
//! // A function that events start.
//! let config = EventHandlerConfig::new(Handler::named("handler"));
//! EventHandler::create(&process, &config)?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::marker::PhantomData;

/// A type that fits a register, with its name in a program's symbols.
pub trait Word: verbless_flexio_dev::Word {
    /// The type's name; empty of `()`.
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

/// Arguments of a call: a tuple of up to 8 words.
pub trait Arguments {
    /// The arguments as register values.
    fn to_words(self) -> [u64; 8];
    /// The names of the types, separated by commas.
    fn names() -> String;
}

macro_rules! arguments {
    ($($word:ident $at:tt),*) => {
        impl<$($word: Word),*> Arguments for ($($word,)*) {
            fn to_words(self) -> [u64; 8] {
                #[allow(unused_mut, reason = "of no arguments none is stored")]
                let mut words = [0; 8];
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

/// A function of a program that has `#[rpc]`, with the types of its arguments and of its result.
/// [`embed!`](crate::embed) makes one for each; [`App::function`](crate::App::function) finds one
/// in a file that is read at run time.
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
    /// A function that [`embed!`](crate::embed) has read in a program: types and signature are of
    /// one symbol.
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

/// A function of a program that has `#[event_handler]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    name: std::borrow::Cow<'static, str>,
}

impl Handler {
    /// An event handler that [`embed!`](crate::embed) has read in a program.
    #[doc(hidden)]
    pub const fn embedded(name: &'static str) -> Self {
        Self { name: std::borrow::Cow::Borrowed(name) }
    }

    /// The event handler of this name; whether the program has it is seen when it is used.
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
    fn signatures_are_those_of_the_program_s_symbols() {
        let add = Function::<(u64, i8), bool>::named("add");
        assert_eq!((add.signature(), add.name()), ("add(u64,i8)->bool", "add"));
        assert_eq!(Function::<(), ()>::named("reset").signature(), "reset()");
        assert_eq!(Function::<(usize,), u64>::named("f").signature(), "f(usize)->u64");
    }

    #[test]
    fn arguments_are_words_in_order() {
        assert_eq!((1_u8, -1_i8, true).to_words(), [1, u64::MAX, 1, 0, 0, 0, 0, 0]);
        assert_eq!(().to_words(), [0; 8]);
    }
}
