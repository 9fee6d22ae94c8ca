//! Flushing: a queue in the error state completes its posted WQEs as flushed, after a delay and a
//! few WQEs a turn. A reset or destroyed queue discards the rest.
//!
//! Source: Linux `drivers/infiniband/hw/mlx5/umr.c` (`mlx5r_umr_recover`), which posts a request to
//! its failed queue pair and waits for its flush, since 2RST discards the rest.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome};
use verbless_prm::{RqState, SqState};

use super::completion;
use super::cqe::Completion;
use super::failure;
use super::function::FunctionEngine;
use super::operation::Operation;
use super::queue_pair::QueuePair;
use super::receive;
use super::ring::record;
use super::sender::producer_word;
use super::work::opcode;
use crate::hca::objects::QpState;
use crate::locked::LockedFunctions;

/// WQEs that a queue flushes in one turn.
const BATCH: usize = 16;
/// Failed queues that a thread checks for posted receives in one turn.
const MAX_LATE_CHECKS: usize = 64;

/// Gives a turn to the next queue of a function that flushes; false if there is none.
#[inline]
pub(super) fn turn(function: &mut FunctionEngine, now: u64) -> bool {
    !function.engine.flushes.is_empty() && turn_of_next(function, now)
}

#[cold]
fn turn_of_next(function: &mut FunctionEngine, now: u64) -> bool {
    let Some(number) = function.engine.flushes.next(now) else { return false };
    let more = flush(function, number, now, BATCH);
    function.engine.flushes.end_turn(number, more);
    true
}

/// Flushes up to `max` WQEs of each half of a queue; true if there may be more.
fn flush(function: &mut FunctionEngine, number: u32, now: u64, max: usize) -> bool {
    if let Ok(mut sq) = function.sq(number, now) {
        return sq.sq.state == SqState::ERR && !repeat_until_none(max, || sq.flush_one());
    }
    if let Ok(mut rq) = function.rq(number, now) {
        return rq.rq.state == RqState::ERR && !repeat_until_none(max, || rq.flush_one());
    }
    match function.pair(number, now) {
        Ok(mut pair) => flush_pair(&mut pair, max),
        Err(missing) => {
            tracing::error!(%missing, "a queue was destroyed before its flush");
            false
        }
    }
}

/// Flushes all that was posted to a send queue that is to leave its error state.
pub(super) fn finish(function: &mut FunctionEngine, qpn: u32, now: u64) {
    if function.engine.flushes.remove(qpn)
        && let Ok(mut pair) = function.pair(qpn, now)
    {
        // At most as many as a record can count: software may post meanwhile.
        repeat_until_none(1 << 16, || flush_send(&mut pair));
    }
}

/// Calls `one` until it returns `None`, at most `max` times; true if it returned `None`.
fn repeat_until_none(max: usize, mut one: impl FnMut() -> Option<()>) -> bool {
    (0..max).any(|_| one().is_none())
}

/// Flushes up to `max` requests and receives; true if there may be more. When a QP on a shared
/// receive queue has nothing left to flush, an event says so, once.
fn flush_pair(pair: &mut QueuePair<'_>, max: usize) -> bool {
    match pair.qp.state {
        QpState::SqError => !repeat_until_none(max, || flush_send(pair)),
        QpState::Error => {
            if !repeat_until_none(max, || flush_send(pair))
                || !repeat_until_none(max, || flush_receive(pair))
            {
                return true;
            }
            failure::last_wqe_reached(pair);
            false
        }
        _ => false,
    }
}

/// Completes the next request as flushed; `None` if none is posted.
fn flush_send(pair: &mut QueuePair<'_>) -> Option<()> {
    let record = producer_word(pair.qp.record);
    let sq = pair.qp.sq.as_mut()?;
    let cqn = sq.cqn;
    // A request that was sent comes first.
    let begun = match pair.qp.runtime.started() {
        Some(_) => pair.qp.runtime.connection().window.flush(),
        None => None,
    };
    let (index, wqe_opcode) = match begun {
        Some(request) => (request.index, opcode(&request.wqe)),
        None => sq.skip(pair.context.memory, record)?,
    };
    pair.counters().request_error(cqe_syndrome::FLUSHED);
    completion::observe(
        &pair.context,
        pair.qpn,
        index,
        Operation::name_of(wqe_opcode),
        0,
        Some(cqe_syndrome::FLUSHED),
    );
    let kind = cqe_opcode::REQUESTER_ERROR;
    let flushed = cqe_syndrome::FLUSHED;
    let completion = Completion::error(pair.qp, pair.qpn, kind, wqe_opcode, index, flushed);
    // The CQ reports an overrun by an event; the QP is in the error state already.
    let _ = completion::write(&mut pair.context, pair.qpn, cqn, completion);
    Some(())
}

/// Completes the next receive as flushed; `None` if none is posted.
fn flush_receive(pair: &mut QueuePair<'_>) -> Option<()> {
    if let Some((index, _)) = receive::take_back(pair.qp) {
        receive_flushed(pair, index);
        return Some(());
    }
    let rq = pair.qp.rq.as_mut()?;
    let posted = match record(pair.context.memory, pair.qp.record) {
        Ok(posted) => posted as u16,
        Err(fault) => {
            tracing::debug!(qpn = pair.qpn, %fault, "receive WQEs are not flushed");
            return None;
        }
    };
    let index = rq.consumer;
    if posted == index {
        return None;
    }
    rq.consumer = index.wrapping_add(1);
    receive_flushed(pair, index);
    Some(())
}

/// Writes the flushed CQE of a receive that no message uses.
fn receive_flushed(pair: &mut QueuePair<'_>, index: u16) {
    let cqn = pair.receive_cq();
    let (opcode, flushed) = (cqe_opcode::RESPONDER_ERROR, cqe_syndrome::FLUSHED);
    let completion = Completion::error(pair.qp, pair.qpn, opcode, 0, index, flushed);
    pair.counters().receive_error(flushed);
    // The CQ reports an overrun by an event; the QP is in the error state already.
    let _ = completion::write(&mut pair.context, pair.qpn, cqn, completion);
}

/// Looks for receives that software posted to QPs and RQs after they failed, without a doorbell;
/// true if there are some, which are flushed next.
///
/// An engine's thread looks at a few queues at a time, so that thousands of them do not hold up
/// others. A stepped model looks at all, so that it is idle only when nothing is left.
pub(super) fn find_late_receives(locked: &mut LockedFunctions, id: usize) -> bool {
    if locked.functions[id].engine.errored.is_empty() {
        return false;
    }
    let max = if locked.clock.began.is_some() { MAX_LATE_CHECKS } else { usize::MAX };
    let now = locked.clock.now;
    let function = &mut locked.functions[id];
    let errored = std::mem::take(&mut function.engine.errored);
    let last = function.engine.last_checked;
    let mut found = false;
    for &number in errored.range(last.saturating_add(1)..).chain(errored.range(..=last)).take(max) {
        function.engine.last_checked = number;
        if !function.engine.flushes.has(number) && has_late(function, number) {
            function.engine.flushes.add(number, now);
            found = true;
        }
    }
    function.engine.errored = errored;
    found
}

/// Whether receives are posted to a failed QP or RQ that it would flush.
fn has_late(function: &FunctionEngine, number: u32) -> bool {
    let (objects, memory) = (&function.hca.objects, &*function.hca.memory);
    let (queue, at) = match (objects.rqs.get(&number), objects.qps.get(&number)) {
        (Some(rq), _) if !rq.context.flush_in_error_en() => return false,
        (Some(rq), _) => (&rq.queue, rq.record),
        (None, Some(qp)) => (&qp.rq, qp.record),
        (None, None) => {
            tracing::error!(number, "a queue in the error state was destroyed");
            return false;
        }
    };
    let posted = record(memory, at).map(|posted| posted as u16);
    queue.as_ref().is_some_and(|queue| posted.is_ok_and(|posted| posted != queue.consumer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_until_none_stops_at_its_limit() {
        let mut flushed = 0;
        assert!(!repeat_until_none(1 << 16, || {
            flushed += 1;
            Some(())
        }));
        assert_eq!(flushed, 1 << 16);
        assert!(repeat_until_none(1, || None));
    }
}
