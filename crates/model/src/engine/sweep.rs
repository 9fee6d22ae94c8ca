//! Sweeps: a doorbell of another queue may overwrite a doorbell in a mapped page before the engine
//! takes it. So after a doorbell the engine reads the records of the page's other queues, in turns
//! of their own and a few records each: the cost of a sweep depends on the queues of the page and
//! not on how often they ring.
//!
//! A page that rings during its sweep is swept once more.

use super::doorbell;
use super::function::FunctionEngine;
use crate::hca::doorbell::PageDoorbell;

/// Records that a turn reads.
const BATCH: usize = 32;

/// Reads the records of a few queues of a page with a pending sweep; false if there is none.
pub(super) fn turn(function: &mut FunctionEngine, now: u64) -> bool {
    let Some(((page, doorbell), first)) = function.engine.sweeps.begin() else { return false };
    let index = std::mem::take(&mut function.hca.objects.by_page);
    let queues = index.by(doorbell).of(page);
    let mut rest = queues.into_iter().flat_map(|queues| queues.range(first..));
    for &number in rest.by_ref().take(BATCH) {
        match doorbell {
            PageDoorbell::Send => doorbell::read_producer(function, number),
            PageDoorbell::Arm => doorbell::read_arm_request(function, number, now),
        }
    }
    function.engine.sweeps.stop_before(rest.next().copied());
    function.hca.objects.by_page = index;
    true
}
