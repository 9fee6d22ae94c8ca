//! Pages of host memory that a function was given, as it keeps account of them.

use std::collections::BTreeSet;

/// The pages of a function, and its requests to the driver.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Addresses of the pages that it has.
    pub given: BTreeSet<u64>,
    /// The number of objects when they were last counted.
    pub objects: usize,
    /// Pages that were requested from the driver and not given yet; negative: pages that were
    /// offered to it and not taken yet.
    pub pending: i64,
}
