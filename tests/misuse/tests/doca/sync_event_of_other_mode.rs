//! The mode of a sync event is its type: a synchronous one has no jobs, a context has no wait.

use verbless_doca::WorkQ;
use verbless_doca::sync_event::{SyncEvent, SyncEventCtx};

fn main() {}

pub fn adds_a_synchronous_one(event: SyncEvent, workq: &mut WorkQ) {
    workq.add(&event).unwrap();
}

pub fn waits_for_a_context(context: SyncEventCtx) {
    context.wait_gt_yield(1).unwrap();
}
