//! The error state: a failed QP flushes its posted WQEs, in order, once (`flush` says when).

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::context::QueuePair;
use super::counters::Count;
use super::cq::Overrun;
use super::cqe::Completion;
use super::operation::Operation;
use super::ring::record;
use super::sender::producer_word;
use super::work::opcode;
use crate::hca::objects::QpState;

impl QueuePair<'_> {
    /// Moves the QP to the error state; a later turn flushes it.
    pub(super) fn enter_error(&mut self) {
        if self.qp.state == QpState::Error {
            return;
        }
        self.qp.state = QpState::Error;
        let waits = self.qp.runtime.resume_at.take();
        self.context.state.stop_timer(waits, self.qpn);
        self.context.state.errored.insert(self.qpn);
        self.qp.runtime.last_wqe_due = self.qp.srq.is_some();
        self.flush_later();
    }

    /// Reports by an event, once, that the QP has flushed its WQEs of the shared receive queue and
    /// all posted sends.
    pub(super) fn last_wqe_reached(&mut self) {
        if std::mem::take(&mut self.qp.runtime.last_wqe_due) {
            self.context.events.qp(event_type::SRQ_LAST_WQE, self.qpn);
        }
    }

    /// Fails a request: with some services only the send queue stops, and SQERR2RTS recovers it.
    pub(super) fn request_failed(&mut self) {
        if !self.qp.qp_type.goes_on_receiving() || self.qp.state != QpState::Rts {
            return self.enter_error();
        }
        self.qp.state = QpState::SqError;
        self.flush_later();
    }

    /// Writes a CQE to one of the QP's CQs.
    pub(super) fn complete(&mut self, cqn: u32, completion: Completion) -> Result<(), Overrun> {
        match self.context.cq(cqn) {
            Ok(cq) => cq.complete(completion),
            Err(missing) => {
                tracing::error!(qpn = self.qpn, %missing, "a QP's completion is lost");
                Err(Overrun)
            }
        }
    }

    /// Handles an overrun of the QP's CQ: the QP fails and reports it by an event.
    pub(super) fn cq_overran(&mut self) {
        self.count(Count::CqOverrun);
        self.catastrophe();
    }

    /// Reports a catastrophic error event of the QP, and moves it to the error state.
    pub(super) fn catastrophe(&mut self) {
        self.context.events.qp(event_type::WQ_CATASTROPHIC_ERROR, self.qpn);
        self.enter_error();
    }

    /// Completes the next request as flushed; `None` if none is posted.
    pub(super) fn flush_send(&mut self) -> Option<()> {
        let record = producer_word(self.qp.record);
        let sq = self.qp.sq.as_mut()?;
        let cqn = sq.cqn;
        // A request that was sent comes first.
        let begun = match self.qp.runtime.started() {
            Some(_) => self.qp.runtime.connection().window.flush(),
            None => None,
        };
        let (index, wqe_opcode) = match begun {
            Some(request) => (request.index, opcode(&request.wqe)),
            None => sq.skip(self.context.memory, record)?,
        };
        self.count_request_error(cqe_syndrome::FLUSHED);
        self.seen(index, Operation::name_of(wqe_opcode), 0, Some(cqe_syndrome::FLUSHED));
        let kind = cqe_opcode::REQUESTER_ERROR;
        let flushed = cqe_syndrome::FLUSHED;
        let completion = Completion::error(self.qp, self.qpn, kind, wqe_opcode, index, flushed);
        // The QP is in error already; an event of the CQ reports an overrun.
        let _ = self.complete(cqn, completion);
        Some(())
    }

    /// Completes the next receive as flushed; `None` if none is posted.
    pub(super) fn flush_receive(&mut self) -> Option<()> {
        if let Some((index, _)) = self.taken_receive() {
            self.receive_flushed(index);
            return Some(());
        }
        let rq = self.qp.rq.as_mut()?;
        let posted = match record(self.context.memory, self.qp.record) {
            Ok(posted) => posted as u16,
            Err(fault) => {
                tracing::debug!(qpn = self.qpn, %fault, "receives that cannot be counted stay");
                return None;
            }
        };
        let index = rq.consumer;
        if posted == index {
            return None;
        }
        rq.consumer = index.wrapping_add(1);
        self.receive_flushed(index);
        Some(())
    }

    /// Writes the flushed CQE of a receive that no message uses.
    fn receive_flushed(&mut self, index: u16) {
        let cqn = self.receive_cq();
        let (opcode, flushed) = (cqe_opcode::RESPONDER_ERROR, cqe_syndrome::FLUSHED);
        let completion = Completion::error(self.qp, self.qpn, opcode, 0, index, flushed);
        self.count_receive_error(flushed);
        // The QP is in error already; an event of the CQ reports an overrun.
        let _ = self.complete(cqn, completion);
    }
}
