//! Shared receive queues: a list of WQEs, each of which names the next one in its first 16 bytes,
//! or a ring of WQEs.
//!
//! Software links WQEs as they become free, so the order of a list is not that of its slots. In a
//! ring it is, and the 16 bytes have no meaning; the ring of an RMP may omit them.

use super::events::Events;
use super::ring::record;
use crate::hca::objects::{Srq, SrqContext};
use crate::memory::{Fault, HostMemory};
use std::mem::offset_of;
use verbless_prm::hot::{self, SrqNextSegment, SrqRecord, event_type};

/// log2 of the longest receive WQE.
pub(super) const MAX_LOG_STRIDE: u32 = 12;

/// The index of the next posted WQE, if any; copies its data segments to `wqe`.
pub(super) fn next(
    memory: &dyn HostMemory,
    queue: &Srq,
    wqe: Option<&mut Vec<u8>>,
) -> Result<Option<u16>, Fault> {
    let posted = posted(memory, queue)?;
    if posted == queue.consumed {
        return Ok(None);
    }
    if let Some(wqe) = wqe {
        wqe.resize(1 << queue.log_stride.min(MAX_LOG_STRIDE), 0);
        queue.memory.read_wrapping(memory, head_offset(queue), wqe)?;
        if has_next_segment(queue) {
            wqe.drain(..SrqNextSegment::BYTES);
        }
    }
    Ok(Some(queue.head))
}

/// Consumes the next WQE: advances to the one that it links to, and reports the limit event if
/// software armed it.
pub(super) fn consume(events: &mut Events<'_>, number: u32, queue: &mut Srq) {
    let mut link = SrqNextSegment::zeroed();
    link.set_next_wqe_index(queue.head.wrapping_add(1));
    if !queue.cyclic
        && let Err(fault) =
            queue.memory.read_wrapping(events.memory, head_offset(queue), link.as_bytes_mut())
    {
        tracing::warn!(number, %fault, "the links of a shared receive queue cannot be read");
        return;
    }
    queue.head = link.next_wqe_index();
    queue.consumed = queue.consumed.wrapping_add(1);
    let posted = posted(events.memory, queue).unwrap_or(queue.consumed);
    if posted.wrapping_sub(queue.consumed) < queue.limit {
        queue.limit = 0;
        let is_rmp = matches!(queue.context, SrqContext::Rmp(_));
        events.srq(event_type::SRQ_LIMIT, number, is_rmp);
    }
}

/// The producer counter of the doorbell record.
fn posted(memory: &dyn HostMemory, queue: &Srq) -> Result<u16, Fault> {
    let word = record(
        memory,
        queue.record.wrapping_add(offset_of!(hot::SrqDoorbellRecord, srq_record) as u64),
    )?;
    Ok(SrqRecord::from_bits(word).counter())
}

fn has_next_segment(queue: &Srq) -> bool {
    match &queue.context {
        SrqContext::Rmp(context) => !context.basic_cyclic_rcv_wqe(),
        SrqContext::XrcSrq(_) => true,
    }
}

/// Byte offset of the next WQE in the queue; an index that is too large wraps.
fn head_offset(queue: &Srq) -> u64 {
    (u64::from(queue.head) & ((1 << queue.log_size) - 1)) << queue.log_stride
}
