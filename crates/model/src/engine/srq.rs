//! Shared receive queues: a list of WQEs, each of which names the next one in its first 16 bytes;
//! or a ring of them.
//!
//! Software links WQEs as they become free, so the order in which a list is used is not that of its
//! places. In a ring it is, and the 16 bytes say nothing; a pool may do without them.

use super::events::Events;
use super::ring::record;
use crate::hca::objects::{Srq, SrqContext};
use crate::memory::{Fault, HostMemory};
use verbless_prm::hot::event_type;

/// Bytes in front of the data segments, and where in them the index of the next WQE stands.
const NEXT_SEGMENT: usize = 16;
const NEXT_INDEX: u64 = 2;
/// log2 of the longest receive WQE.
const LOG_LONGEST_STRIDE: u32 = 12;

/// The index of the next WQE, if one is posted, and with `wqe` a copy of its data segments.
pub(super) fn next(
    memory: &dyn HostMemory,
    queue: &Srq,
    wqe: Option<&mut Vec<u8>>,
) -> Result<Option<u16>, Fault> {
    let posted = record(memory, queue.record)? as u16;
    if posted == queue.consumed {
        return Ok(None);
    }
    if let Some(wqe) = wqe {
        wqe.resize(1 << queue.log_stride.min(LOG_LONGEST_STRIDE), 0);
        queue.memory.read_wrapping(memory, place(queue), wqe)?;
        if has_next_segment(queue) {
            wqe.drain(..NEXT_SEGMENT);
        }
    }
    Ok(Some(queue.head))
}

/// The next WQE is used up: goes on to the one that it names, and reports that few are left if that
/// was asked for.
pub(super) fn used(events: &mut Events<'_>, number: u32, queue: &mut Srq) {
    let mut next = queue.head.wrapping_add(1).to_be_bytes();
    let link = place(queue) + NEXT_INDEX;
    if !queue.cyclic
        && let Err(fault) = queue.memory.read_wrapping(events.memory, link, &mut next)
    {
        tracing::warn!(number, %fault, "the links of a shared receive queue cannot be read");
        return;
    }
    queue.head = u16::from_be_bytes(next);
    queue.consumed = queue.consumed.wrapping_add(1);
    let posted = record(events.memory, queue.record).map_or(queue.consumed, |word| word as u16);
    if posted.wrapping_sub(queue.consumed) < queue.limit {
        queue.limit = 0;
        let is_pool = matches!(queue.context, SrqContext::Rmp(_));
        events.srq(event_type::SRQ_LIMIT, number, is_pool);
    }
}

fn has_next_segment(queue: &Srq) -> bool {
    match &queue.context {
        SrqContext::Rmp(context) => !context.basic_cyclic_rcv_wqe(),
        SrqContext::XrcSrq(_) => true,
    }
}

/// Where in the queue the next WQE lies; an index that is too large wraps.
fn place(queue: &Srq) -> u64 {
    (u64::from(queue.head) & ((1 << queue.log_size) - 1)) << queue.log_stride
}
