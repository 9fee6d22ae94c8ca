//! Removes the CQEs of a queue that is reset or destroyed.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use verbless_prm::hot::{CqeUserIndex, OpOwn, cqe_opcode};

use super::RequestId;
use crate::returns::SrqReturns;
use crate::ring::{CqRing, CqeView, RETIRED, Record};
use crate::types::{Qpn, WqeIndex};

/// Removes the CQEs of a reset or destroyed queue, while another thread may be polling the
/// [`CompletionQueue`](super::CompletionQueue).
///
/// CQEs that were polled already are not affected: complete them first.
pub struct CqCleaner {
    pub(super) ring: CqRing,
    pub(super) consumer: Record,
    /// New CQEs overwrite unread ones, so entries after the producer count as well.
    pub(super) overwrites: bool,
    /// The queue has one entry, which belongs to one queue pair.
    pub(super) collapsed: bool,
    pub(super) claims: Arc<AtomicBool>,
}

impl CqCleaner {
    /// Removes every CQE of this queue number that has not been polled.
    ///
    /// Call it when the device has taken the queue to RESET, and before the number can be assigned
    /// to another queue: then all CQEs of the queue are in the ring, and no more follow.
    pub fn clean(&self, qpn: Qpn) -> Retired {
        self.each(qpn, true, |_| ())
    }

    /// [`clean`](Self::clean) for a raw Ethernet send queue (SQ). Receive CQEs of frames stay, even
    /// if their flow tag equals the number of the SQ.
    pub fn clean_sends(&self, sqn: Qpn) -> Retired {
        self.each(sqn, false, |_| ())
    }

    /// [`clean`](Self::clean) for a raw Ethernet receive queue (RQ): removes the CQEs of receives
    /// with this user index. Queue pairs on the same completion queue must have other user indexes.
    pub fn clean_raw_rq(&self, user_index: u32) -> Retired {
        self.entries(|view| {
            let request = RequestId::read(view);
            let [word, _] = view.user_index_and_immediate();
            let opcode = OpOwn::from_bits(view.op_own()).opcode();
            let is_of_queue = CqeUserIndex::from_raw(word).srqn_uidx() == user_index;
            let retires = is_of_queue && is_receive(opcode) && request.opcode_qpn.get() != RETIRED;
            if retires {
                view.retire_eth(word);
            }
            retires
        })
    }

    /// [`clean`](Self::clean) for a queue pair on a shared receive queue: the WQEs of removed
    /// receive CQEs go back to that queue.
    pub fn clean_with_srq(&self, qpn: Qpn, returns: &SrqReturns) -> Retired {
        self.each(qpn, true, |index| returns.push(index))
    }

    /// The consumer index in the doorbell record, modulo 2^24: CQEs taken.
    pub fn consumed(&self) -> u32 {
        self.consumer.load() & 0xff_ffff
    }

    /// Declares that SRQ receives complete here.
    pub fn claim_receives(&self) {
        self.claims.store(true, Ordering::Relaxed);
    }

    /// Sets whether the completion queue ignores overruns, so that new CQEs may overwrite unread
    /// ones.
    #[must_use]
    pub fn overwriting(self, overwrites: bool) -> Self {
        Self { overwrites, ..self }
    }

    /// Invalidates the unpolled CQEs of a queue, or only those of receives if `receives`, and calls
    /// `receive` with the WQE index of each receive among them.
    fn each(&self, qpn: Qpn, receives: bool, mut receive: impl FnMut(WqeIndex)) -> Retired {
        if self.collapsed {
            self.ring.empty();
            return Retired { count: 0, end: 0 };
        }
        self.entries(|view| {
            let request = RequestId::read(view);
            let opcode = OpOwn::from_bits(view.op_own()).opcode();
            // In an overwriting CQ this also matches receives that the consumer cannot poll yet, or
            // any more.
            let retires = request.opcode_qpn().qpn() == qpn.0
                && (receives || !is_receive(opcode))
                && view.retire(request.opcode_qpn.to_raw())
                && opcode != cqe_opcode::INVALID;
            if retires && is_receive(opcode) {
                receive(request.index());
            }
            retires
        })
    }

    /// Calls `retire` for each unpolled CQE; counts those that it retired.
    ///
    /// The scan starts at the consumer index in the doorbell record. Some CQEs from there may have
    /// been polled; retiring them does no harm. If the index moves meanwhile, the device may have
    /// overwritten entries, so the first device-owned entry is not the end.
    fn entries(&self, mut retire: impl FnMut(&CqeView<'_>) -> bool) -> Retired {
        let first = self.consumer.load();
        let mut retired = Retired { count: 0, end: first & 0xff_ffff };
        let mut moved = self.overwrites;
        for index in 0..self.ring.entries() {
            let view = self.ring.view(first.wrapping_add(index));
            let software_owned = !view.is_device_owned();
            if !software_owned && !moved {
                moved = self.consumer.load() != first;
                if !moved {
                    break;
                }
            }
            if (software_owned || self.overwrites) && retire(&view) {
                retired.count += 1;
                retired.end = first.wrapping_add(index + 1) & 0xff_ffff;
            }
        }
        retired
    }
}

/// The removed CQEs. They keep their entries until the queue is polled past them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Their number.
    pub count: u32,
    /// The consumer index after the last of them, modulo 2^24.
    pub end: u32,
}

/// Whether a CQE of this opcode completes a receive.
pub(super) const fn is_receive(opcode: u8) -> bool {
    !matches!(opcode, cqe_opcode::REQUESTER | cqe_opcode::REQUESTER_ERROR)
}

impl Clone for CqCleaner {
    fn clone(&self) -> Self {
        Self {
            ring: self.ring.handle(),
            consumer: self.consumer.clone(),
            overwrites: self.overwrites,
            collapsed: self.collapsed,
            claims: self.claims.clone(),
        }
    }
}

impl core::fmt::Debug for CqCleaner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CqCleaner(of {} entries)", self.ring.entries())
    }
}
