//! Collapsed completion queues.
//!
//! The device writes every CQE to one entry, over the previous CQE: the WQE counter is the progress
//! of the send queue. The owner bit keeps its value of the first pass through the ring (DPDK
//! 9c0e15a117), so it only shows whether the entry was ever written.

use alloc::sync::Arc;
use core::mem::offset_of;

use verbless_prm::hot::{self, Cqe};

use super::{CqCleaner, check_number};
use crate::ring::{CqRing, LayoutError, Record, RecordMemory, RingMemory};
use crate::trace::{Event, event};
use crate::types::{Be32, Cqn};
use crate::uar::barrier;

/// A collapsed completion queue for the send queue of one queue pair:
/// [`QueuePair::poll_collapsed`](crate::QueuePair::poll_collapsed) reads it.
///
/// A completion may cover many requests, and nothing counts CQEs. So the device must ignore
/// overruns of this queue, and the queue is polled, never armed. Polling reads the last dword of
/// the CQE, which the device writes at once, the queue number, and the syndromes of an error. When
/// a queue pair fails, CQEs of flushed requests overwrite the CQE of the failed request: its reason
/// may be lost.
pub struct CollapsedCompletionQueue {
    ring: CqRing,
    record: RecordMemory,
    cqn: Cqn,
}

/// The fields that are read from the entry of a collapsed queue.
#[derive(Clone, Copy)]
pub(crate) struct CollapsedCqe {
    /// An [`OpcodeQpn`](hot::OpcodeQpn). Every CQE here has the same queue, but not the same
    /// opcode, so the opcode may be that of a later CQE than `tail`.
    pub(crate) opcode_qpn: Be32,
    /// A [`CqeTail`](hot::CqeTail).
    pub(crate) tail: u32,
    /// [`CqeSyndromes`](hot::CqeSyndromes), if it is an error.
    pub(crate) syndromes: u32,
}

impl CollapsedCompletionQueue {
    /// A queue over one entry of 64 bytes; marks it empty. The device must not have written there
    /// yet.
    ///
    /// # Errors
    /// The ring has another size, or is not aligned to 64 bytes.
    pub fn new(ring: RingMemory, record: RecordMemory) -> Result<Self, LayoutError> {
        if ring.len() != Cqe::BYTES {
            let length = ring.len() as u64;
            return Err(LayoutError::new("ring of a collapsed CQ", "is not one CQE", length));
        }
        Ok(Self { ring: CqRing::new(ring, Cqe::BYTES)?, record, cqn: Cqn(0) })
    }

    /// Sets the number that the device assigned.
    ///
    /// # Errors
    /// A number of more than 24 bits.
    pub fn with_cqn(self, cqn: Cqn) -> Result<Self, LayoutError> {
        check_number(cqn)?;
        Ok(Self { cqn, ..self })
    }

    /// The number of the completion queue.
    pub fn cqn(&self) -> Cqn {
        self.cqn
    }

    /// A handle that empties the queue when its queue pair is reset or destroyed.
    pub fn cleaner(&self) -> CqCleaner {
        CqCleaner {
            ring: self.ring.handle(),
            consumer: Record::new(
                &self.record,
                offset_of!(hot::CqDoorbellRecord, cq_record_consumer),
            ),
            overwrites: true,
            collapsed: true,
            claims: Arc::default(),
        }
    }

    /// The newest CQE, which may have been read before; `None` if there is none yet.
    #[inline]
    pub(crate) fn newest(&self) -> Option<CollapsedCqe> {
        let view = self.ring.view(0);
        if view.is_device_owned() {
            return None;
        }
        // One load has the WQE counter and the opcode of one CQE.
        let tail = u32::from_be(view.dword::<{ offset_of!(hot::Cqe, cqe_tail) }>());
        event(Event::Barrier("after_owner_bit"));
        barrier::after_owner_bit();
        let syndromes = u32::from_be(view.dword::<{ offset_of!(hot::CqeError, cqe_syndromes) }>());
        let opcode_qpn = Be32::from_raw(view.dword::<{ offset_of!(hot::Cqe, opcode_qpn) }>());
        Some(CollapsedCqe { opcode_qpn, tail, syndromes })
    }
}

impl core::fmt::Debug for CollapsedCompletionQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CollapsedCompletionQueue").field("cqn", &self.cqn).finish_non_exhaustive()
    }
}
