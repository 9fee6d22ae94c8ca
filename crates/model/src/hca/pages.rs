//! The function's account of the host pages that its driver gave.

use std::collections::BTreeSet;

/// The pages of a function, and its requests to the driver.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Addresses of the function's pages.
    pub given: BTreeSet<u64>,
    /// The number of objects when they were last counted.
    pub objects: usize,
    /// Pages that the function requested and has not got; negative: pages that it offered and the
    /// driver has not taken.
    pub pending: i64,
}
