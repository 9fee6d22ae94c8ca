//! The cases, room by room.

mod cq;
mod doorbells;
mod errors;
mod events;
mod failure;
mod faults;
mod hostile;
mod life;
mod memory;
mod open;
mod path;
mod qp;
mod queue;
mod rc;
mod refusal;
mod retired;
mod shape;
mod srq;
mod uc;
mod ud;
mod umr;

use crate::Case;

/// All cases, in the order in which they run.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [
        open::CASES,
        refusal::CASES,
        memory::CASES,
        cq::CASES,
        qp::CASES,
        path::CASES,
        rc::CASES,
        uc::CASES,
        ud::CASES,
        srq::CASES,
        umr::CASES,
        shape::CASES,
        queue::CASES,
        life::CASES,
        retired::CASES,
        errors::CASES,
        failure::CASES,
        events::CASES,
        doorbells::CASES,
        hostile::CASES,
        faults::CASES,
    ]
    .into_iter()
    .flatten()
}
