//! The responding end of a measurement (`hwtest perf`). It is no case: the other end is the program
//! that shows the numbers.

use verbless_perf::{End, Plan};

use super::link::meet;
use crate::Stop;
use crate::roles::case::Case;
use crate::roles::channel::LONG_PATIENCE;
use crate::roles::role::Role;

/// Its id for a server.
pub(in crate::roles) const ID: &str = "perf::responds";

pub(super) fn case() -> Case {
    let measures = |_: &mut Role| Err(Stop::fail("`hwtest perf` itself measures"));
    Case { group: "perf", ..Case::new("responds", measures, responds) }
}

fn responds(role: &mut Role) -> Result<(), Stop> {
    role.set_patience(LONG_PATIENCE)?;
    let plan = Plan::from_bytes(&role.message()?).map_err(Stop::fail)?;
    let mut end = End::new(&role.device()?, &plan).map_err(Stop::fail)?;
    connect(role, &mut end)?;
    let arrived = end.respond().map_err(Stop::fail)?;
    role.send(&arrived.to_be_bytes())?;
    // The queue pairs live until the other end needs them no longer.
    meet(role, b"end")
}

/// Connects this role's end to that of the other role, which does the same.
pub(in crate::roles) fn connect(role: &mut Role, end: &mut End) -> Result<(), Stop> {
    role.send(&end.hello().map_err(Stop::fail)?)?;
    end.connect(&role.message()?).map_err(Stop::fail)?;
    meet(role, b"connected")
}

/// Measures; returns the numbers and how many messages the other end has received.
pub(in crate::roles) fn measures(
    role: &mut Role,
    plan: &Plan,
) -> Result<(verbless_perf::Measured, u64), Stop> {
    role.set_patience(LONG_PATIENCE)?;
    role.send(&plan.to_bytes())?;
    let mut end = End::new(&role.device()?, plan).map_err(Stop::fail)?;
    connect(role, &mut end)?;
    let measured = end.measure().map_err(Stop::fail)?;
    let arrived = role.message()?.try_into().map(u64::from_be_bytes);
    let arrived = arrived.map_err(|_| Stop::fail("the other end does not say what arrived"))?;
    meet(role, b"end")?;
    Ok((measured, arrived))
}
