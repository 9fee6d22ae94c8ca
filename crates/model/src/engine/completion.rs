//! The completion of send WQEs: the consumer index advances, a CQE reports success or the syndrome,
//! and a failed request stops the queue.

use std::time::Duration;

use verbless_prm::hot::cqe_opcode;

use super::context::{Context, Missing};
use super::cq::Overrun;
use super::cqe::{Completion, Requested};
use super::failure;
use super::operation::Operation;
use super::queue_pair::QueuePair;
use super::sender::Turn;
use super::work::{PostedWqe, Work};
use crate::hca::objects::QpObject;
use crate::watch::Request;

/// Completes the WQE, or fails it with this syndrome.
pub(super) fn finish(pair: &mut QueuePair<'_>, posted: &PostedWqe, done: Result<(), u8>) -> Turn {
    match done {
        Ok(()) => succeed(pair, posted, 0, None),
        Err(syndrome) => {
            let operation = posted.work.operation.name;
            tracing::info!(qpn = pair.qpn, operation, syndrome, "a send request failed");
            skip_to(pair.qp, pair.qpn, posted.index, posted.wqebbs);
            fail(pair, posted.index, posted.work.operation.opcode, syndrome)
        }
    }
}

/// Completes the WQE: advances, and writes a CQE if one is requested. `bytes`: the bytes that
/// arrived; `inline`: those that the CQE carries.
pub(super) fn succeed(
    pair: &mut QueuePair<'_>,
    posted: &PostedWqe,
    bytes: u32,
    inline: Option<&[u8]>,
) -> Turn {
    pair.qp.requester.retries_left = pair.qp.requester.retry_limit;
    pair.qp.requester.rnr_retries_left = pair.qp.requester.rnr_retry_limit;
    skip_to(pair.qp, pair.qpn, posted.index, posted.wqebbs);
    report(pair, posted, bytes, inline)
}

/// Writes the CQE of a completed WQE, if one is requested.
pub(super) fn report(
    pair: &mut QueuePair<'_>,
    posted: &PostedWqe,
    bytes: u32,
    inline: Option<&[u8]>,
) -> Turn {
    let Work { operation, signaled, event, .. } = posted.work;
    observe(&pair.context, pair.qpn, posted.index, operation.name, posted.length, None);
    if !signaled {
        return Turn::Again;
    }
    let now = pair.context.ticks();
    let of = Requested { opcode: operation.opcode, index: posted.index, bytes, event, now };
    let completion = Completion::requester(pair.qp, pair.qpn, &of, inline);
    let cqn = pair.send_cq();
    if write(&mut pair.context, pair.qpn, cqn, completion).is_err() {
        failure::cq_overran(pair);
        return Turn::Sleep;
    }
    Turn::Again
}

/// Fails the WQE at `index`: writes an error CQE whether or not it was signaled, and puts the QP or
/// its send queue in error.
pub(super) fn fail(pair: &mut QueuePair<'_>, index: u16, opcode: u8, syndrome: u8) -> Turn {
    pair.counters().request_error(syndrome);
    observe(&pair.context, pair.qpn, index, Operation::name_of(opcode), 0, Some(syndrome));
    let kind = cqe_opcode::REQUESTER_ERROR;
    let completion = Completion::error(pair.qp, pair.qpn, kind, opcode, index, syndrome);
    // An event of the CQ reports an overrun, and the queue enters the error state anyway.
    let cqn = pair.send_cq();
    let _ = write(&mut pair.context, pair.qpn, cqn, completion);
    failure::request_failed(pair);
    Turn::Sleep
}

/// Advances the consumer index of a send queue past the WQE at `index`.
pub(super) fn skip_to(qp: &mut QpObject, qpn: u32, index: u16, wqebbs: u16) {
    qp.runtime.begun = false;
    qp.runtime.carried = 0;
    match qp.sq.as_mut() {
        Some(sq) => sq.consumer = index.wrapping_add(wqebbs),
        None => no_send_queue(qpn),
    }
}

/// Reports a completed request of a QP to the observers of requests.
pub(super) fn observe(
    context: &Context<'_>,
    qpn: u32,
    index: u16,
    operation: &'static str,
    bytes: u64,
    syndrome: Option<u8>,
) {
    // A function outside a model, as in tests, has no outbox.
    let Some((function, outbox)) = &context.state.outbox else { return };
    if outbox.requests.is_watched() {
        let (function, at) = (*function, Duration::from_nanos(context.now));
        outbox.request(Request { function, at, qpn, index, operation, bytes, syndrome });
    }
}

/// Writes a CQE of a QP to one of its CQs.
pub(super) fn write(
    context: &mut Context<'_>,
    qpn: u32,
    cqn: u32,
    completion: Completion,
) -> Result<(), Overrun> {
    match context.cq(cqn) {
        Ok(cq) => cq.complete(completion),
        Err(missing) => {
            tracing::error!(qpn, %missing, "a QP's completion is lost");
            Err(Overrun)
        }
    }
}

/// Reports a QP whose send queue is missing at the completion of a request. This cannot happen: the
/// QP had a send queue when the turn began.
#[cold]
pub(super) fn no_send_queue(qpn: u32) {
    tracing::error!(missing = %Missing::SendQueue(qpn), "a request has no send queue");
}
