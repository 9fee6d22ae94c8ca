//! The cases, group by group.

mod copy;
mod cq;
mod doca;
mod doorbells;
mod dpa;
mod errors;
mod events;
mod failure;
mod faults;
mod flexio;
mod foreign;
mod frames;
mod halves;
mod handshake;
mod hostile;
mod life;
mod matrix;
mod memory;
mod open;
mod path;
mod qp;
mod queue;
mod rc;
mod refusal;
mod retired;
mod shape;
mod sleep;
mod srq;
mod uc;
mod ud;
mod umr;
mod wait;

use std::sync::LazyLock;

use crate::{Case, Group};

/// The groups about the driver's layers up to the queues.
static OF_QUEUES: &[&Group] = &[
    &open::GROUP,
    &refusal::GROUP,
    &memory::GROUP,
    &cq::GROUP,
    &qp::GROUP,
    &path::GROUP,
    &handshake::GROUP,
    &matrix::GROUP,
    &rc::GROUP,
    &uc::GROUP,
    &ud::GROUP,
    &srq::GROUP,
    &frames::GROUP,
    &frames::RULES,
    &umr::GROUP,
    &copy::GROUP,
    &wait::GROUP,
    &foreign::GROUP,
    &shape::GROUP,
    &queue::GROUP,
    &halves::GROUP,
    &life::GROUP,
    &retired::GROUP,
    &errors::GROUP,
    &failure::GROUP,
    &events::GROUP,
    &sleep::GROUP,
    &doorbells::GROUP,
    &hostile::GROUP,
    &faults::GROUP,
    &dpa::GROUP,
    &dpa::events::GROUP,
    &dpa::partitions::GROUP,
    &dpa::programs::GROUP,
    &dpa::registers::GROUP,
    &flexio::GROUP,
    &flexio::cmdq::GROUP,
    &flexio::cross::GROUP,
    &flexio::emulation::GROUP,
    &flexio::ends::GROUP,
    &flexio::frames::GROUP,
    &flexio::library::GROUP,
    &flexio::objects::GROUP,
    &flexio::peers::GROUP,
    &flexio::queues::GROUP,
    &flexio::streams::GROUP,
    &flexio::tracer::GROUP,
];

/// The groups, in the order in which they run.
pub fn groups() -> &'static [&'static Group] {
    static GROUPS: LazyLock<Vec<&Group>> = LazyLock::new(|| [OF_QUEUES, &doca::GROUPS].concat());
    &GROUPS
}

/// All cases, in the order in which they run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    static CASES: LazyLock<Vec<Case>> =
        LazyLock::new(|| groups().iter().flat_map(|group| group.cases()).collect());
    CASES.iter()
}
