//! A case of the suite: its name, its needs and its function.

use std::borrow::Cow;
use std::fmt;

use crate::{Lab, Need};

/// A case's function: the error says why the claim does not hold.
pub type CaseFunction = dyn Fn(&Lab) -> Result<(), Stop> + Send + Sync;

/// A claim about a device, its driver and its kernel.
pub struct Case {
    /// The group that it belongs to.
    pub group: &'static str,
    /// The claim that it proves, with underscores.
    pub name: Cow<'static, str>,
    /// Features that it needs; if one is missing, the case is skipped.
    pub needs: Vec<Need>,
    /// Its function.
    pub run: Box<CaseFunction>,
}

impl Case {
    /// `group::name`: filters and reports use it.
    pub fn id(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

/// Cases about one thing.
pub struct Group {
    /// The prefix of its cases' ids.
    pub name: &'static str,
    /// The claim of its cases, in one sentence.
    pub holds: &'static str,
    /// Needs of all its cases.
    pub(crate) needs: &'static [Need],
    /// The cases that are written one by one.
    pub(crate) entries: &'static [Entry],
    /// Cases made from a table; none repeats a case of `entries`.
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

/// Why a case did not pass.
#[derive(Debug)]
pub struct Stop(pub String);

impl Stop {
    /// Fails with this reason.
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

/// The group of one module: its name, its claim, the needs of all its cases, and the functions that
/// are its cases, in order, each with its further needs.
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
