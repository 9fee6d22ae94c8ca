//! The error state: what moves a QP there, and the events that report it. A later turn flushes the
//! QP's WQEs (`flush`).

use verbless_prm::hot::event_type;

use super::context::Context;
use super::counters::Count;
use super::queue_pair::QueuePair;
use crate::hca::objects::QpState;

/// Moves the QP to the error state; a later turn flushes it.
pub(super) fn enter_error(pair: &mut QueuePair<'_>) {
    if pair.qp.state == QpState::Error {
        return;
    }
    pair.qp.state = QpState::Error;
    let waits = pair.qp.runtime.resume_at.take();
    pair.context.state.stop_timer(waits, pair.qpn);
    pair.context.state.errored.insert(pair.qpn);
    pair.qp.runtime.last_wqe_due = pair.qp.srq.is_some();
    flush_later(&mut pair.context, pair.qpn);
}

/// Reports by an event, once, that the QP has flushed its WQEs of the shared receive queue and all
/// posted sends.
pub(super) fn last_wqe_reached(pair: &mut QueuePair<'_>) {
    if std::mem::take(&mut pair.qp.runtime.last_wqe_due) {
        pair.context.events.qp(event_type::SRQ_LAST_WQE, pair.qpn);
    }
}

/// Fails a request: with some services only the send queue stops, and SQERR2RTS recovers it.
pub(super) fn request_failed(pair: &mut QueuePair<'_>) {
    if !pair.qp.qp_type.stops_only_sending() || pair.qp.state != QpState::Rts {
        return enter_error(pair);
    }
    pair.qp.state = QpState::SqError;
    flush_later(&mut pair.context, pair.qpn);
}

/// Handles an overrun of the QP's CQ: the QP fails and reports it by an event.
pub(super) fn cq_overran(pair: &mut QueuePair<'_>) {
    pair.counters().count(Count::CqOverrun);
    fail_with_event(pair);
}

/// Reports a catastrophic error event of the QP, and moves it to the error state.
pub(super) fn fail_with_event(pair: &mut QueuePair<'_>) {
    pair.context.events.qp(event_type::WQ_CATASTROPHIC_ERROR, pair.qpn);
    enter_error(pair);
}

/// Schedules the flush of a QP's posted WQEs for a later turn.
pub(super) fn flush_later(context: &mut Context<'_>, qpn: u32) {
    context.state.flushes.add(qpn, context.now);
}
