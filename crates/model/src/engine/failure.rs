//! The error state: a QP that failed flushes what is posted to it, in order, once.

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
    /// Moves the QP to the error state and flushes it.
    pub(super) fn enter_error(&mut self) {
        if self.qp.state == QpState::Error {
            return;
        }
        self.qp.state = QpState::Error;
        let waits = self.qp.runtime.resume_at.take();
        self.context.state.stop_timer(waits, self.qpn);
        self.context.state.errored.insert(self.qpn);
        if let Some((index, _)) = self.taken_receive() {
            self.receive_flushed(index);
        }
        if self.qp.srq.is_some() {
            // What it had of the shared queue is done with.
            self.context.events.qp(event_type::SRQ_LAST_WQE, self.qpn);
        }
        self.flush();
    }

    /// A request failed: of some services only the send queue cannot go on, and SQERR2RTS puts it
    /// right.
    pub(super) fn request_failed(&mut self) {
        if !self.qp.qp_type.goes_on_receiving() || self.qp.state != QpState::Rts {
            return self.enter_error();
        }
        self.qp.state = QpState::SqError;
        self.flush_send_queue();
    }

    /// Writes a CQE to a CQ of the QP's.
    pub(super) fn complete(&mut self, cqn: u32, completion: Completion) -> Result<(), Overrun> {
        match self.context.cq(cqn) {
            Ok(cq) => cq.complete(completion),
            Err(missing) => {
                tracing::error!(self.qpn, %missing, "a QP's completion is lost");
                Err(Overrun)
            }
        }
    }

    /// The QP's CQ overran: it cannot go on, and says so by an event.
    pub(super) fn cq_overran(&mut self) {
        self.count(Count::CqOverrun);
        self.catastrophe();
    }

    /// Reports a catastrophic error event of the QP, and moves it to the error state.
    pub(super) fn catastrophe(&mut self) {
        self.context.events.qp(event_type::WQ_CATASTROPHIC_ERROR, self.qpn);
        self.enter_error();
    }

    /// Completes everything that is posted to a QP in the error state as flushed; true if there was
    /// anything.
    pub(super) fn flush(&mut self) -> bool {
        let worked = self.flush_send_queue();
        self.flush_receive_queue() || worked
    }

    /// The send half of [`QueuePair::flush`].
    pub(super) fn flush_send_queue(&mut self) -> bool {
        at_most_a_ring(|| self.flush_send())
    }

    /// The receive half of [`QueuePair::flush`].
    pub(super) fn flush_receive_queue(&mut self) -> bool {
        at_most_a_ring(|| self.flush_receive())
    }

    fn flush_send(&mut self) -> Option<()> {
        if !matches!(self.qp.state, QpState::Error | QpState::SqError) {
            return None;
        }
        let record = producer_word(self.qp.record);
        let sq = self.qp.sq.as_mut()?;
        let cqn = sq.cqn;
        // What had gone out comes first.
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
        // The QP is in error already: that its CQ overruns, an event of the CQ tells.
        let _ = self.complete(cqn, completion);
        Some(())
    }

    fn flush_receive(&mut self) -> Option<()> {
        if self.qp.state != QpState::Error {
            return None;
        }
        let rq = self.qp.rq.as_mut()?;
        let posted = match record(self.context.memory, self.qp.record) {
            Ok(posted) => posted as u16,
            Err(fault) => {
                tracing::debug!(self.qpn, %fault, "receives that cannot be counted stay");
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

    /// The CQE of a receive that no message uses.
    fn receive_flushed(&mut self, index: u16) {
        let cqn = self.receive_cq();
        let (opcode, flushed) = (cqe_opcode::RESPONDER_ERROR, cqe_syndrome::FLUSHED);
        let completion = Completion::error(self.qp, self.qpn, opcode, 0, index, flushed);
        self.count_receive_error(flushed);
        // The QP is in error already: that its CQ overruns, an event of the CQ tells.
        let _ = self.complete(cqn, completion);
    }
}

/// Calls `one` until there is nothing more, but not for ever: software may go on posting meanwhile,
/// and what it posts after as many as a record can count is flushed when it rings, or later. True
/// if there was anything.
pub(super) fn at_most_a_ring(mut one: impl FnMut() -> Option<()>) -> bool {
    (0..=u16::MAX).take_while(|_| one().is_some()).count() > 0
}

#[cfg(test)]
mod tests {
    use super::at_most_a_ring;

    #[test]
    fn software_that_posts_as_fast_as_it_is_flushed_does_not_hold_the_device_for_ever() {
        let mut flushed = 0;
        assert!(at_most_a_ring(|| {
            flushed += 1;
            Some(())
        }));
        assert_eq!(flushed, 1 << 16);
        assert!(!at_most_a_ring(|| None));
    }
}
