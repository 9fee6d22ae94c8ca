//! Pages of host memory that a function was given, as it keeps account of them.

use std::collections::BTreeSet;

/// The pages of one function, and what it told its driver about them.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Addresses of those that it has.
    pub given: BTreeSet<u64>,
    /// How many objects there were when they were last counted.
    pub objects: usize,
    /// Pages that the driver was asked for and did not give yet; negative: that it was offered and
    /// did not take yet.
    pub pending: i64,
}
