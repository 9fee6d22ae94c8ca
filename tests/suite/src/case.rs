//! What a case is, what it needs, and how it ends.

use std::borrow::Cow;
use std::fmt;

use crate::{Lab, Need};

/// Proves something on what the lab offers, or says what is wrong.
pub type Proof = dyn Fn(&Lab) -> Result<(), Stop> + Send + Sync;

/// One thing that a device, its driver and its kernel must do.
pub struct Case {
    /// The group that it belongs to.
    pub group: &'static str,
    /// The sentence that it proves, with underscores.
    pub name: Cow<'static, str>,
    /// What must be there; where anything is missing, the case is skipped.
    pub needs: Vec<Need>,
    /// Proves it.
    pub run: Box<Proof>,
}

impl Case {
    /// `group::name`, by which it is filtered and reported.
    pub fn id(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

/// Cases about one thing.
pub struct Group {
    /// What its cases' ids begin with.
    pub name: &'static str,
    /// What its cases prove, in one sentence.
    pub holds: &'static str,
    /// What all of its cases need.
    pub(crate) needs: &'static [Need],
    /// The cases that are written one by one.
    pub(crate) entries: &'static [Entry],
    /// Cases that are made from a table: what is written by name in `entries` repeats none of them.
    pub(crate) generated: fn() -> Vec<Case>,
}

/// A case that is a function.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(&Lab) -> Result<(), Stop>,
}

impl Group {
    /// The cases, in the order in which they run.
    pub(crate) fn cases(&self) -> Vec<Case> {
        let case = |entry: &'static Entry| Case {
            group: self.name,
            name: entry.name.into(),
            needs: self.needs.iter().chain(entry.needs).copied().collect(),
            run: Box::new(entry.run),
        };
        let mut cases: Vec<_> = self.entries.iter().map(case).collect();
        cases.extend((self.generated)());
        cases
    }
}

/// What is wrong: why a case did not pass.
#[derive(Debug)]
pub struct Stop(pub String);

impl Stop {
    /// Something is wrong.
    pub fn fail(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Fails the case unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Stop(format!($($message)+)));
        }
    };
}

/// Fails the case unless both are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $what:literal) => {
        $crate::ensure_eq!($left, $right, format!($what))
    };
    ($left:expr, $right:expr, $what:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err($crate::Stop(format!("{}: {left:?}, not {right:?}", $what)));
        }
    }};
}

/// The group of one module: its name, what it holds, what all its cases need, and the functions
/// that are its cases, in order, each with what it needs besides.
macro_rules! cases {
    (
        $group:literal, $holds:literal $(, needs [$($shared:expr),+ $(,)?])?:
        $($name:ident $([$($need:expr),+ $(,)?])?),+ $(,)?
    ) => {
        /// The cases of this module.
        pub(crate) static GROUP: $crate::Group = $crate::Group {
            name: $group,
            holds: $holds,
            needs: &[$($($shared),+)?],
            entries: &[
                $($crate::case::Entry {
                    name: stringify!($name),
                    needs: &[$($($need),+)?],
                    run: $name,
                }),+
            ],
            generated: Vec::new,
        };
    };
}
pub(crate) use cases;
