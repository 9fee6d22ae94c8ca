//! The send side of a QP: one WQE a turn, from the ring to its completion.

use verbless_prm::hot::cqe_syndrome;

use super::context::Missing;
use super::counters::Count;
use super::operation::{Execution, Local, WqeRefusal};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::sender::Turn;
use super::work::{self, PostedWqe, Work};
use super::{completion, copy, failure, gather, umr, wait};
use crate::hca::objects::QpState;

/// The result of beginning a QP's turn.
pub(super) enum TurnStart {
    /// The turn is over.
    Over(Turn),
    /// The next request goes out.
    Request(PostedWqe),
}

/// Begins a turn: executes the next WQE if the QP's state allows it, up to the point where it needs
/// another QP.
pub(super) fn begin(pair: &mut QueuePair<'_>, scratch: &mut Scratch) -> Result<TurnStart, Missing> {
    match pair.qp.state {
        QpState::Rts => {}
        QpState::SqError | QpState::Error => {
            failure::flush_later(&mut pair.context, pair.qpn);
            return Ok(TurnStart::Over(Turn::Sleep));
        }
        _ => return Ok(TurnStart::Over(Turn::Sleep)),
    }
    if pair.qp.runtime.resume_at.is_some_and(|at| at > pair.context.now) {
        return Ok(TurnStart::Over(Turn::Sleep));
    }
    pair.qp.runtime.resume_at = None;
    let sq = pair.qp.sq.as_mut().ok_or(Missing::SendQueue(pair.qpn))?;
    if sq.consumer == sq.producer {
        sq.awake = false;
        return Ok(TurnStart::Over(Turn::Sleep));
    }
    let index = sq.consumer;
    let longest = pair.context.limits.max_wqe_sz_sq;
    let fetched = sq.fetch(pair.context.memory, longest, &mut scratch.wqe);
    let qp_type = pair.qp.qp_type;
    let general = pair.context.caps.general();
    let work = fetched.map_err(WqeRefusal::from).and_then(|wqebbs| {
        let work = Work::parse(&scratch.wqe, pair.qpn, index, qp_type, general)?;
        Ok((work, wqebbs))
    });
    let (work, wqebbs) = match work {
        Ok(work) => work,
        Err(why) => {
            let (qpn, opcode) = (pair.qpn, work::opcode(&scratch.wqe));
            tracing::info!(qpn, ?qp_type, opcode, ?why, "a QP refuses a WQE");
            completion::skip_to(pair.qp, pair.qpn, index, fetched.unwrap_or(1));
            let syndrome = cqe_syndrome::LOCAL_QP_OPERATION;
            return Ok(TurnStart::Over(completion::fail(pair, index, opcode, syndrome)));
        }
    };
    if !std::mem::replace(&mut pair.qp.runtime.begun, true) {
        let faults = &mut pair.context.state.faults;
        if faults.fails_queue_pair(pair.qpn) {
            failure::fail_with_event(pair);
            return Ok(TurnStart::Over(Turn::Sleep));
        }
        if let Some(syndrome) = faults.fails_request(pair.qpn) {
            completion::skip_to(pair.qp, pair.qpn, index, wqebbs);
            return Ok(TurnStart::Over(completion::fail(
                pair,
                index,
                work.operation.opcode,
                syndrome,
            )));
        }
    }
    let length = match gather::whole(pair, &work, index, scratch) {
        Ok(length) => length,
        Err(syndrome) => {
            let operation = work.operation.name;
            tracing::info!(qpn = pair.qpn, operation, syndrome, "the data segments are invalid");
            completion::skip_to(pair.qp, pair.qpn, index, wqebbs);
            return Ok(TurnStart::Over(completion::fail(
                pair,
                index,
                work.operation.opcode,
                syndrome,
            )));
        }
    };
    let posted = PostedWqe { work, index, wqebbs, length };
    Ok(match work.operation.execution {
        Execution::Local(local) => TurnStart::Over(execute_local(pair, local, &posted, scratch)),
        Execution::Remote(_) if may_send(pair, &posted) => TurnStart::Request(posted),
        Execution::Remote(_) => TurnStart::Over(Turn::Sleep),
    })
}

/// Executes a WQE that passed the check, or a part of it, and completes it.
#[inline(never)]
fn execute_local(
    pair: &mut QueuePair<'_>,
    local: Local,
    posted: &PostedWqe,
    scratch: &mut Scratch,
) -> Turn {
    match local {
        Local::Nop => completion::finish(pair, posted, Ok(())),
        Local::Umr => umr::execute(pair, posted, scratch),
        Local::Copy => copy::execute(pair, posted, scratch),
        Local::Wait => wait::execute(pair, posted, scratch),
    }
}

/// Whether a request may be sent. A request whose ACK timed out uses a retry, or fails without one.
fn may_send(pair: &mut QueuePair<'_>, posted: &PostedWqe) -> bool {
    if !std::mem::take(&mut pair.qp.runtime.overdue) {
        return true;
    }
    pair.counters().count(Count::Timeout);
    try_again(pair, posted) == Turn::Again
}

/// Uses one of the remaining retries, or fails the request.
pub(super) fn try_again(pair: &mut QueuePair<'_>, posted: &PostedWqe) -> Turn {
    if pair.qp.requester.retries_left == 0 {
        return completion::finish(pair, posted, Err(cqe_syndrome::TRANSPORT_RETRY_EXCEEDED));
    }
    pair.qp.requester.retries_left -= 1;
    Turn::Again
}
