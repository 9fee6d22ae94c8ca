//! What a case is, and how it ends.

use std::fmt;

use crate::Lab;

/// One thing that a device, its driver and its kernel must do.
#[derive(Clone, Copy)]
pub struct Case {
    /// The room that it stands in.
    pub group: &'static str,
    /// The sentence that it proves, with underscores.
    pub name: &'static str,
    /// Proves it.
    pub run: fn(&Lab) -> Result<(), Stop>,
}

impl Case {
    /// `group::name`, by which it is filtered and reported.
    pub fn id(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

/// Why a case did not pass.
#[derive(Debug)]
pub enum Stop {
    /// It cannot be tried here; says what is missing.
    Skip(String),
    /// It was tried and something is wrong.
    Fail(String),
}

impl Stop {
    /// Something is wrong.
    pub fn fail(what: impl fmt::Display) -> Self {
        Self::Fail(what.to_string())
    }

    /// Something is missing.
    pub fn skip(what: impl fmt::Display) -> Self {
        Self::Skip(what.to_string())
    }
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.to_string())
    }
}

/// Fails the case unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Stop::Fail(format!($($message)+)));
        }
    };
}

/// Fails the case unless both are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $what:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err($crate::Stop::Fail(format!("{}: {left:?}, not {right:?}", $what)));
        }
    }};
}

/// The cases of one room: the functions named, in order.
macro_rules! cases {
    ($group:literal: $($name:ident),+ $(,)?) => {
        /// The cases of this room.
        pub(crate) const CASES: &[$crate::Case] = &[
            $($crate::Case { group: $group, name: stringify!($name), run: $name }),+
        ];
    };
}
pub(crate) use cases;
