//! RQs: one frame in each receive WQE, and the flush of a failed RQ.

use verbless_prm::RqState;
use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::context::{Missing, StandaloneRq};
use super::counters::Count;
use super::cq::Overrun;
use super::cqe::Completion;
use super::ethernet::Parsed;
use super::keys::KeyUser;
use super::receive::scatter_list;
use super::ring::record;
use super::scratch::Scratch;
use super::{srq, transfer};
use crate::hca::objects::Rq;
use crate::memory::Fault;

impl StandaloneRq<'_> {
    /// Takes a frame that a flow rule with this tag selects. The frame is lost without a receive
    /// WQE, or if the queue is not ready. A frame that does not fit into its WQE consumes the WQE
    /// and completes it with an error CQE; the queue continues.
    ///
    /// Source: Linux `drivers/net/ethernet/mellanox/mlx5/core/en/health.h`
    /// (`cqe_syndrome_needs_recover`).
    pub(super) fn take(&mut self, frame: &Parsed<'_>, tag: u32, scratch: &mut Scratch) {
        if self.rq.state != RqState::RDY {
            return;
        }
        let index = match self.next(&mut scratch.receive) {
            Ok(Some(index)) => index,
            Ok(None) => {
                tracing::debug!(rqn = self.rqn, "an RQ drops a frame: no receive WQE is posted");
                let counter = self.rq.context.counter_set_id();
                return self.context.counters(counter).count(Count::OutOfBuffer);
            }
            Err(why) => return self.fail(why),
        };
        // The CQE carries a stripped VLAN tag.
        let strip = !self.rq.context.vsd() && frame.vlan.is_some();
        let Scratch { wqe: bytes, receive, remote, .. } = scratch;
        frame.write(strip, bytes);
        let pd = match self.receive_pd() {
            Ok(pd) => pd,
            Err(missing) => return self.fail(missing.into()),
        };
        let user = KeyUser { pd, qpn: self.rqn, reserved_lkey: self.rq.context.rlky() };
        let keys = self.context.keys();
        let listed = scatter_list(&keys, user, (0, bytes.len() as u64), (receive, remote));
        let done = listed.and_then(|()| {
            transfer::scatter(self.context.spaces, remote, bytes)
                .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)
        });
        if let Err(missing) = self.consume(index) {
            return self.fail(missing.into());
        }
        let completion = match done {
            Ok(()) => {
                let now = self.context.ticks();
                let queue = (self.rqn, user_index(self.rq));
                frame.completion(queue, tag, (index, bytes.len() as u32), strip, now)
            }
            Err(syndrome) => {
                tracing::info!(
                    rqn = self.rqn,
                    index,
                    syndrome,
                    "a receive WQE cannot take a frame"
                );
                let kind = cqe_opcode::RESPONDER_ERROR;
                let error = Completion::error(self.rq, self.rqn, kind, 0, index, syndrome);
                // A sender of a frame that is too long must not stop the RQ.
                if syndrome != cqe_syndrome::LOCAL_LENGTH {
                    // An event of the CQ reports an overrun, and the RQ enters the error state
                    // anyway.
                    let _ = self.complete(error);
                    return self.enter_error();
                }
                error
            }
        };
        if self.complete(completion).is_err() {
            self.fail_with_event();
        }
    }

    /// The PD of the keys in the RQ's WQEs: its own, or the pool's.
    fn receive_pd(&self) -> Result<u32, Missing> {
        match (self.rq.pd, self.rq.srq) {
            (Some(pd), _) => Ok(pd),
            (None, Some(number)) => {
                self.context.srqs.get(&number).map(|pool| pool.pd).ok_or(Missing::Srq(number))
            }
            (None, None) => Err(Missing::ReceiveRing(self.rqn)),
        }
    }

    /// The next receive WQE: its index, and a copy of it; `None` if none is posted.
    fn next(&self, wqe: &mut Vec<u8>) -> Result<Option<u16>, RqBlocked> {
        let memory = self.context.memory;
        if let Some(number) = self.rq.srq {
            let pool = self.context.srqs.get(&number).ok_or(Missing::Srq(number))?;
            return Ok(srq::next(memory, pool, Some(wqe))?);
        }
        let queue = self.rq.queue.as_ref().ok_or(Missing::ReceiveRing(self.rqn))?;
        if record(memory, self.rq.record)? as u16 == queue.consumer {
            return Ok(None);
        }
        let slot = u64::from(queue.consumer) & ((1_u64 << queue.log_size.min(16)) - 1);
        wqe.resize(1 << queue.log_stride.min(srq::MAX_LOG_STRIDE), 0);
        queue.memory.read_wrapping(memory, slot << queue.log_stride, wqe)?;
        Ok(Some(queue.consumer))
    }

    /// Consumes the receive WQE at `index`.
    fn consume(&mut self, index: u16) -> Result<(), Missing> {
        match (self.rq.srq, &mut self.rq.queue) {
            (Some(number), _) => {
                let pool = self.context.srqs.get_mut(&number).ok_or(Missing::Srq(number))?;
                srq::consume(&mut self.context.events, number, pool);
            }
            (None, Some(queue)) => queue.consumer = index.wrapping_add(1),
            (None, None) => return Err(Missing::ReceiveRing(self.rqn)),
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Overrun> {
        match self.context.cq(self.rq.context.cqn()) {
            Ok(cq) => cq.complete(completion),
            Err(missing) => {
                tracing::error!(rqn = self.rqn, %missing, "an RQ's completion is lost");
                Err(Overrun)
            }
        }
    }

    /// Handles an RQ that cannot take a frame.
    fn fail(&mut self, why: RqBlocked) {
        match why {
            RqBlocked::Missing(missing) => {
                tracing::error!(rqn = self.rqn, %missing, "an RQ cannot receive");
            }
            RqBlocked::Fault(fault) => {
                tracing::warn!(rqn = self.rqn, %fault, "an RQ cannot read its receive WQE");
            }
        }
        self.fail_with_event();
    }

    /// Moves an RQ that cannot continue to the error state, and reports a catastrophic error event.
    fn fail_with_event(&mut self) {
        self.context.events.rq(event_type::WQ_CATASTROPHIC_ERROR, self.rqn);
        self.enter_error();
    }

    /// Moves the RQ to the error state; a later turn flushes it.
    pub(super) fn enter_error(&mut self) {
        self.rq.state = RqState::ERR;
        self.context.state.errored.insert(self.rqn);
        self.context.state.flushes.add(self.rqn, self.context.now);
    }

    /// Completes the next WQE as flushed, if the owner asked for that; `None` if none is posted.
    pub(super) fn flush_one(&mut self) -> Option<()> {
        if !self.rq.context.flush_in_error_en() {
            return None;
        }
        // An RQ with a pool has no WQEs of its own.
        let queue = self.rq.queue.as_mut()?;
        let posted = match record(self.context.memory, self.rq.record) {
            Ok(posted) => posted as u16,
            Err(fault) => {
                tracing::debug!(
                    rqn = self.rqn,
                    %fault,
                    "receive WQEs are not flushed: their doorbell record cannot be read"
                );
                return None;
            }
        };
        let index = queue.consumer;
        if posted == index {
            return None;
        }
        queue.consumer = index.wrapping_add(1);
        let (kind, flushed) = (cqe_opcode::RESPONDER_ERROR, cqe_syndrome::FLUSHED);
        let completion = Completion::error(self.rq, self.rqn, kind, 0, index, flushed);
        // The CQ reports an overrun by an event; the RQ is in the error state already.
        let _ = self.complete(completion);
        Some(())
    }
}

/// Why a ready RQ cannot take a frame.
enum RqBlocked {
    Missing(Missing),
    Fault(Fault),
}

impl From<Missing> for RqBlocked {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<Fault> for RqBlocked {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The user index in the RQ's CQEs.
fn user_index(rq: &Rq) -> u32 {
    use super::cqe::Reports;
    rq.user_index()
}
