//! The cases.

mod dpu;
mod exchange;
mod faults;
mod fork;
mod kills;
mod link;
mod rdma;
mod restart;

use crate::case::Case;

/// All cases, in the order in which they run.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = exchange::cases();
    cases.extend(kills::cases());
    cases.extend(faults::cases());
    cases.extend(restart::cases());
    cases.extend(fork::cases());
    cases.extend(rdma::cases());
    cases.extend(dpu::cases());
    cases
}
