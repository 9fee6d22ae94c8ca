//! The send side of a QP: one WQE a turn, from the ring to its completion.

use std::time::Duration;

use verbless_prm::hot::{cqe_opcode, cqe_syndrome};

use super::context::{Missing, QueuePair};
use super::counters::Count;
use super::cqe::{Completion, Requested};
use super::keys::{self, AccessRight, KeyUser, Range};
use super::operation::{Execution, Local, Operation, WqeRefusal};
use super::scratch::Scratch;
use super::sender::Turn;
use super::work::{self, Placed, Segment, Work, segments};
use crate::hca::objects::QpState;
use crate::watch::Request;

/// The result of beginning a QP's turn.
pub(super) enum TurnStart {
    /// The turn is over.
    Over(Turn),
    /// The next request goes out.
    Request(Placed),
}

impl QueuePair<'_> {
    /// Begins a turn: executes the next WQE if the QP's state allows it, up to the point where it
    /// needs another QP.
    pub(super) fn begin(&mut self, scratch: &mut Scratch) -> Result<TurnStart, Missing> {
        match self.qp.state {
            QpState::Rts => {}
            QpState::SqError | QpState::Error => {
                self.flush_later();
                return Ok(TurnStart::Over(Turn::Sleep));
            }
            _ => return Ok(TurnStart::Over(Turn::Sleep)),
        }
        if self.qp.runtime.resume_at.is_some_and(|at| at > self.context.now) {
            return Ok(TurnStart::Over(Turn::Sleep));
        }
        self.qp.runtime.resume_at = None;
        let sq = self.qp.sq.as_mut().ok_or(Missing::SendQueue(self.qpn))?;
        if sq.consumer == sq.producer {
            sq.awake = false;
            return Ok(TurnStart::Over(Turn::Sleep));
        }
        let index = sq.consumer;
        let longest = self.context.limits.max_wqe_sz_sq;
        let fetched = sq.fetch(self.context.memory, longest, &mut scratch.wqe);
        let qp_type = self.qp.qp_type;
        let general = self.context.caps.general();
        let work = fetched.map_err(WqeRefusal::from).and_then(|wqebbs| {
            let work = Work::parse(&scratch.wqe, self.qpn, index, qp_type, general)?;
            Ok((work, wqebbs))
        });
        let (work, wqebbs) = match work {
            Ok(work) => work,
            Err(why) => {
                let (qpn, opcode) = (self.qpn, work::opcode(&scratch.wqe));
                tracing::info!(qpn, ?qp_type, opcode, ?why, "a QP does not do what a WQE asks for");
                self.skip_to(index, fetched.unwrap_or(1));
                let syndrome = cqe_syndrome::LOCAL_QP_OPERATION;
                return Ok(TurnStart::Over(self.fail(index, opcode, syndrome)));
            }
        };
        if !std::mem::replace(&mut self.qp.runtime.begun, true) {
            let faults = &mut self.context.state.faults;
            if faults.fails_queue_pair(self.qpn) {
                self.catastrophe();
                return Ok(TurnStart::Over(Turn::Sleep));
            }
            if let Some(syndrome) = faults.fails_request(self.qpn) {
                self.skip_to(index, wqebbs);
                return Ok(TurnStart::Over(self.fail(index, work.operation.opcode, syndrome)));
            }
        }
        let length = match self.gather(&work, index, scratch) {
            Ok(length) => length,
            Err(syndrome) => {
                let operation = work.operation.name;
                tracing::info!(
                    qpn = self.qpn,
                    operation,
                    syndrome,
                    "the data segments are invalid"
                );
                self.skip_to(index, wqebbs);
                return Ok(TurnStart::Over(self.fail(index, work.operation.opcode, syndrome)));
            }
        };
        let placed = Placed { work, index, wqebbs, length };
        Ok(match work.operation.execution {
            Execution::Local(local) => TurnStart::Over(self.execute_local(local, &placed, scratch)),
            Execution::Remote(_) => self.resume(placed),
        })
    }

    /// Executes a WQE that passed the check, or a part of it, and completes it.
    fn execute_local(&mut self, local: Local, placed: &Placed, scratch: &mut Scratch) -> Turn {
        match local {
            Local::Nop => self.finish(placed, Ok(())),
            Local::Umr => self.change_key(placed, scratch),
            Local::Copy => self.copy(placed, scratch),
            Local::Wait => self.wait_for_data(placed, scratch),
        }
    }

    /// Lets a request go out, unless its ACK timed out and no retry is left.
    fn resume(&mut self, placed: Placed) -> TurnStart {
        if std::mem::take(&mut self.qp.runtime.overdue) {
            self.count(Count::Timeout);
            if self.try_again(&placed) == Turn::Sleep {
                return TurnStart::Over(Turn::Sleep);
            }
        }
        TurnStart::Request(placed)
    }

    /// Resolves the WQE's data segments; the error is the syndrome.
    pub(super) fn gather_list(&self, work: &Work, scratch: &mut Scratch) -> Result<u64, u8> {
        scratch.local.clear();
        let operation = work.operation;
        if let Execution::Local(local) = operation.execution {
            return match local {
                Local::Nop | Local::Umr => Ok(0),
                Local::Copy => self.check_copy(work, scratch),
                Local::Wait => Self::check_wait(&scratch.wqe),
            };
        }
        let user = KeyUser { pd: self.qp.pd, qpn: self.qpn, reserved_lkey: self.qp.context.rlky() };
        let longest = self.context.limits.longest_message(self.qp);
        let need =
            if operation.scatters() { AccessRight::LocalWrite } else { AccessRight::LocalRead };
        let (mut total, mut visits) = (0, keys::VISITS);
        for segment in segments(&scratch.wqe, work.data) {
            match segment {
                Ok(Segment::Pointer { lkey, address, length }) => {
                    total += length;
                    if total > longest {
                        return Err(cqe_syndrome::LOCAL_LENGTH);
                    }
                    let range = Range { key: lkey, address, length };
                    let keys = self.context.keys();
                    keys.resolve(user, range, need, &mut visits, &mut scratch.local).map_err(
                        |refusal| {
                            tracing::info!(qpn = self.qpn, ?range, ?refusal, "a local key refused");
                            cqe_syndrome::LOCAL_PROTECTION
                        },
                    )?;
                }
                Ok(Segment::Inline { at, length }) if !operation.scatters() => {
                    total += length;
                    scratch.local.push(keys::Sge::Inline { at, length });
                }
                _ => return Err(cqe_syndrome::LOCAL_QP_OPERATION),
            }
        }
        if total > longest || (operation.is_atomic() && total != 8) {
            return Err(cqe_syndrome::LOCAL_LENGTH);
        }
        Ok(total)
    }

    /// Whether the QP sends to itself and failed as the receiver, which flushed its WQE with the
    /// others.
    pub(super) fn failed_meanwhile(&self) -> bool {
        self.qp.state != QpState::Rts
    }

    /// Uses one of the remaining retries, or fails the request.
    pub(super) fn try_again(&mut self, placed: &Placed) -> Turn {
        if self.qp.requester.retries_left == 0 {
            return self.finish(placed, Err(cqe_syndrome::TRANSPORT_RETRY_EXCEEDED));
        }
        self.qp.requester.retries_left -= 1;
        Turn::Again
    }

    /// Completes the WQE, or fails it with this syndrome.
    pub(super) fn finish(&mut self, placed: &Placed, done: Result<(), u8>) -> Turn {
        match done {
            Ok(()) => self.succeed(placed, 0, None),
            Err(syndrome) => {
                let operation = placed.work.operation.name;
                tracing::info!(qpn = self.qpn, operation, syndrome, "a send request failed");
                self.skip_to(placed.index, placed.wqebbs);
                self.fail(placed.index, placed.work.operation.opcode, syndrome)
            }
        }
    }

    fn skip_to(&mut self, index: u16, wqebbs: u16) {
        self.qp.runtime.begun = false;
        self.qp.runtime.carried = 0;
        match self.qp.sq.as_mut() {
            Some(sq) => sq.consumer = index.wrapping_add(wqebbs),
            None => self.no_send_queue(),
        }
    }

    /// Reports a request without a send queue. This cannot happen: it had one when its turn began.
    #[cold]
    pub(super) fn no_send_queue(&self) {
        tracing::error!(missing = %Missing::SendQueue(self.qpn), "a request has no send queue");
    }

    /// Completes the WQE: advances, and writes a CQE if one is requested, with the number of
    /// `bytes` that arrived and those of them that it carries inline.
    pub(super) fn succeed(&mut self, placed: &Placed, bytes: u32, inline: Option<&[u8]>) -> Turn {
        self.qp.requester.retries_left = self.qp.requester.retry_limit;
        self.qp.requester.rnr_retries_left = self.qp.requester.rnr_retry_limit;
        self.skip_to(placed.index, placed.wqebbs);
        self.completed(placed, bytes, inline)
    }

    /// Writes the CQE of a completed WQE, if one is requested.
    pub(super) fn completed(&mut self, placed: &Placed, bytes: u32, inline: Option<&[u8]>) -> Turn {
        let Work { operation, signaled, event, .. } = placed.work;
        self.seen(placed.index, operation.name, placed.length, None);
        if !signaled {
            return Turn::Again;
        }
        let now = self.context.ticks();
        let of = Requested { opcode: operation.opcode, index: placed.index, bytes, event, now };
        let completion = Completion::requester(self.qp, self.qpn, &of, inline);
        let cqn = self.send_cq();
        if self.complete(cqn, completion).is_err() {
            self.cq_overran();
            return Turn::Sleep;
        }
        Turn::Again
    }

    /// Fails the WQE at `index`: writes an error CQE whether or not it was signaled, and puts the
    /// QP or its send queue in error.
    pub(super) fn fail(&mut self, index: u16, opcode: u8, syndrome: u8) -> Turn {
        self.count_request_error(syndrome);
        self.seen(index, Operation::name_of(opcode), 0, Some(syndrome));
        let kind = cqe_opcode::REQUESTER_ERROR;
        let completion = Completion::error(self.qp, self.qpn, kind, opcode, index, syndrome);
        // The queue is about to be in error; an event of the CQ reports an overrun.
        let cqn = self.send_cq();
        let _ = self.complete(cqn, completion);
        self.request_failed();
        Turn::Sleep
    }

    /// Reports a completed request to the observers of requests.
    pub(super) fn seen(
        &self,
        index: u16,
        operation: &'static str,
        bytes: u64,
        syndrome: Option<u8>,
    ) {
        // A function outside a model, as in tests, has no outbox.
        let Some((function, outbox)) = &self.context.state.outbox else { return };
        if outbox.requests.is_watched() {
            let (function, at) = (*function, Duration::from_nanos(self.context.now));
            let qpn = self.qpn;
            outbox.request(Request { function, at, qpn, index, operation, bytes, syndrome });
        }
    }

    /// The CQ of the QP's send queue.
    fn send_cq(&self) -> u32 {
        self.qp.sq.as_ref().map_or(self.qp.context.cqn_snd(), |sq| sq.cqn)
    }
}
