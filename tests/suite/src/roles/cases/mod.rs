//! The cases.

mod dpu;
mod errors;
mod exchange;
mod faults;
mod fork;
mod kills;
mod link;
pub(super) mod perf;
mod rdma;
mod restart;
mod services;
mod sizes;

use crate::roles::case::Case;

/// A group: its name, and its cases.
type Group = (&'static str, fn() -> Vec<Case>);

/// The groups, in the order in which they run.
const GROUPS: [Group; 10] = [
    ("exchange", exchange::cases),
    ("services", services::cases),
    ("sizes", sizes::cases),
    ("errors", errors::cases),
    ("kills", kills::cases),
    ("faults", faults::cases),
    ("restart", restart::cases),
    ("fork", fork::cases),
    ("rdma", rdma::cases),
    ("dpu", dpu::cases),
];

/// All cases, in the order in which they run.
pub(super) fn all() -> Vec<Case> {
    let of = |(group, cases): Group| cases().into_iter().map(move |case| Case { group, ..case });
    GROUPS.into_iter().flat_map(of).collect()
}

/// The case with this id, or the responding end of a measurement.
pub(super) fn find(id: &str) -> Option<Case> {
    all().into_iter().chain([perf::case()]).find(|case| case.id() == id)
}
