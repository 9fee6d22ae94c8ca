//! SQs: one WQE a turn, as in the send half of a QP, but without peer, service and retries.

use verbless_prm::SqState;
use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::context::StandaloneSq;
use super::cq::Overrun;
use super::cqe::{Completion, Requested};
use super::operation::{OnSq, WqeRefusal};
use super::scratch::Scratch;
use super::sender::{Turn, producer_word};
use super::work::{self, Work};

impl StandaloneSq<'_> {
    /// Gives the SQ its turn: executes one WQE, if its state allows.
    pub(super) fn turn(&mut self, scratch: &mut Scratch) -> Turn {
        match self.sq.state {
            SqState::RDY => {}
            SqState::ERR => {
                self.flush_later();
                return Turn::Sleep;
            }
            _ => return Turn::Sleep,
        }
        let queue = &mut self.sq.queue;
        if queue.consumer == queue.producer {
            queue.awake = false;
            return Turn::Sleep;
        }
        let index = queue.consumer;
        let fetched =
            queue.fetch(self.context.memory, self.context.limits.max_wqe_sz_sq, &mut scratch.wqe);
        let wqe = &scratch.wqe;
        queue.consumer = index.wrapping_add(fetched.unwrap_or(1));
        let work = fetched.map_err(WqeRefusal::from).and_then(|_| self.read(wqe, index));
        let (work, execution) = match work {
            Ok(work) => work,
            Err(why) => {
                tracing::info!(sqn = self.sqn, index, ?why, "an SQ refuses a WQE");
                self.fail(index, work::opcode(wqe), cqe_syndrome::LOCAL_QP_OPERATION);
                return Turn::Sleep;
            }
        };
        let done = match execution {
            OnSq::Frame => self.send_frame(scratch),
            OnSq::Nop => Ok(()),
        };
        if let Err(syndrome) = done {
            tracing::info!(sqn = self.sqn, index, syndrome, "a frame cannot be sent");
            self.fail(index, work.operation.opcode, syndrome);
            return Turn::Sleep;
        }
        if !work.signaled {
            return Turn::Again;
        }
        let Work { operation, event, .. } = work;
        let now = self.context.ticks();
        let done = Requested { opcode: operation.opcode, index, bytes: 0, event, now };
        let completion = Completion::requester(self.sq, self.sqn, &done, None);
        if self.complete(completion).is_err() {
            self.context.events.sq(event_type::WQ_CATASTROPHIC_ERROR, self.sqn);
            self.enter_error();
            return Turn::Sleep;
        }
        Turn::Again
    }

    fn read(&self, wqe: &[u8], index: u16) -> Result<(Work, OnSq), WqeRefusal> {
        let work = Work::control(wqe, self.sqn, index)?;
        Ok((work, work.operation.on_sq.ok_or(WqeRefusal::QpType)?))
    }

    /// Fails a WQE that the SQ cannot execute: writes an error CQE, and stops the SQ.
    fn fail(&mut self, index: u16, opcode: u8, syndrome: u8) {
        let kind = cqe_opcode::REQUESTER_ERROR;
        let completion = Completion::error(self.sq, self.sqn, kind, opcode, index, syndrome);
        // An event of the CQ reports an overrun, and the SQ enters the error state anyway.
        let _ = self.complete(completion);
        self.enter_error();
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Overrun> {
        match self.context.cq(self.sq.queue.cqn) {
            Ok(cq) => cq.complete(completion),
            Err(missing) => {
                tracing::error!(sqn = self.sqn, %missing, "an SQ's completion is lost");
                Err(Overrun)
            }
        }
    }

    /// Moves the SQ to the error state; a later turn flushes it.
    pub(super) fn enter_error(&mut self) {
        self.sq.state = SqState::ERR;
        self.flush_later();
    }

    fn flush_later(&mut self) {
        self.context.state.flushes.add(self.sqn, self.context.now);
    }

    /// Completes the next WQE as flushed, if the owner asked for that; `None` if none is posted.
    pub(super) fn flush_one(&mut self) -> Option<()> {
        if !self.sq.context.flush_in_error_en() {
            return None;
        }
        let record = producer_word(self.sq.record);
        let (index, wqe_opcode) = self.sq.queue.skip(self.context.memory, record)?;
        let (kind, flushed) = (cqe_opcode::REQUESTER_ERROR, cqe_syndrome::FLUSHED);
        let completion = Completion::error(self.sq, self.sqn, kind, wqe_opcode, index, flushed);
        // The CQ reports an overrun by an event; the SQ is in the error state already.
        let _ = self.complete(completion);
        Some(())
    }
}
