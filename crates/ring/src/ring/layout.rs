//! The error of a queue with invalid memory or numbers.

use core::fmt;

/// Why a queue cannot be built over the given memory and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// The part that does not fit.
    pub what: &'static str,
    /// The mistake in the number or memory.
    pub why: &'static str,
    /// The offending number.
    pub value: u64,
}

impl LayoutError {
    pub(crate) const fn new(what: &'static str, why: &'static str, value: u64) -> Self {
        Self { what, why, value }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (it is {:#x})", self.what, self.why, self.value)
    }
}

impl core::error::Error for LayoutError {}
