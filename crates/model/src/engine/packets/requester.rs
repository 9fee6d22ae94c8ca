//! The send side of a connected QP that sends its messages in packets: fetches requests, sends
//! their packets in turns, and completes them, in order, as the peer acknowledges them.
//!
//! Sources: InfiniBand specification, volume 1, 9.7 (reliable connection: 9.7.3 request packets,
//! 9.7.5 responses, 9.7.6 the requester's timers and retries), 9.8.2 (unreliable connection).

use verbless_prm::WqeFence;
use verbless_prm::hot::{CtrlSegment, cqe_syndrome};

use super::super::context::Missing;
use super::super::operation::WqeRefusal;
use super::super::queue_pair::QueuePair;
use super::super::requester::{self, TurnStart};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::work::{self, Placed, Work};
use super::super::{completion, failure, gather};
use crate::connection::{Request, Response, Timer, advance};
use crate::hca::objects::QpState;

/// Packets that a QP sends in one turn.
const PACKETS_A_TURN: u32 = 16;
/// Requests that a QP looks ahead: as many as packets may be in flight (`requests`), so that queues
/// of short messages have as many bytes in flight as queues of long ones.
const MAX_REQUESTS: usize = 128;
/// Fence modes of a WQE that wait for earlier responses.
const FENCES: [WqeFence; 2] = [WqeFence::FENCE, WqeFence::FENCE_AND_INITIATOR_SMALL];

/// The result of an attempt to send or fetch.
pub(super) enum Attempt {
    Done,
    /// There is nothing to send, or it must wait.
    Waits,
    /// The next WQE sends nothing: it is executed from the ring.
    InRing,
}

impl QueuePair<'_> {
    /// Gives the send side its turn.
    pub(in crate::engine) fn send_packets(
        &mut self,
        scratch: &mut Scratch,
    ) -> Result<Turn, Missing> {
        match self.qp.state {
            QpState::Rts | QpState::SqDrained => {}
            QpState::SqError | QpState::Error => {
                failure::flush_later(&mut self.context, self.qpn);
                return Ok(Turn::Sleep);
            }
            _ => return Ok(Turn::Sleep),
        }
        if let Some(due) = self.qp.runtime.resume_at {
            let waits = due > self.context.now;
            match self.qp.runtime.connection().window.timer {
                Timer::NotReady if waits => return Ok(Turn::Sleep),
                Timer::NotReady => self.qp.runtime.resume_at = None,
                Timer::Acknowledge if waits => {}
                Timer::Acknowledge => {
                    self.qp.runtime.resume_at = None;
                    self.expired();
                }
            }
        }
        self.retire();
        for _ in 0..PACKETS_A_TURN {
            let window = &mut self.qp.runtime.connection().window;
            window.skip_sent();
            if window.has_failed() {
                return Ok(Turn::Sleep);
            }
            if window.next == window.requests.len() {
                match self.fetch_next(scratch)? {
                    Attempt::Done => {}
                    Attempt::Waits => return Ok(Turn::Sleep),
                    Attempt::InRing => return self.next_in_ring(scratch),
                }
            }
            // A failed request sends nothing.
            let attempt = self.send_next(scratch);
            let connection = self.qp.runtime.connection();
            let whole = connection.window.is_sent();
            self.retire();
            match attempt {
                _ if !self.is_sending() => return Ok(Turn::Sleep),
                Attempt::Waits | Attempt::InRing => return Ok(Turn::Sleep),
                // The next request waits for the turns of other queues.
                Attempt::Done if whole => break,
                Attempt::Done => {}
            }
        }
        Ok(Turn::Again)
    }

    /// Whether the QP has no request in flight and no answer to send.
    pub(in crate::engine) fn is_settled(&self) -> bool {
        self.qp
            .runtime
            .started()
            .is_none_or(|connection| connection.window.requests.is_empty() && !connection.answers)
    }

    /// Takes the next WQE from the ring into the window.
    fn fetch_next(&mut self, scratch: &mut Scratch) -> Result<Attempt, Missing> {
        if self.qp.state != QpState::Rts {
            return Ok(Attempt::Waits);
        }
        let longest = self.context.limits.max_wqe_sz_sq;
        let sq = self.qp.sq.as_mut().ok_or(Missing::SendQueue(self.qpn))?;
        if sq.consumer == sq.producer {
            sq.awake = false;
            return Ok(Attempt::Waits);
        }
        let index = sq.consumer;
        let fetched = sq.fetch(self.context.memory, longest, &mut scratch.wqe);
        let (qp_type, general) = (self.qp.qp_type, self.context.caps.general());
        let work = fetched.map_err(WqeRefusal::from).and_then(|wqebbs| {
            let work = Work::parse(&scratch.wqe, self.qpn, index, qp_type, general)?;
            Ok((work, wqebbs))
        });
        if let Ok((work, _)) = &work
            && !self.may_follow(work, &scratch.wqe)
        {
            // The WQE is fetched again when there is room for it.
            self.unfetch(index, scratch);
            return Ok(Attempt::Waits);
        }
        if work.as_ref().is_ok_and(|(work, _)| work.operation.remote().is_none()) {
            self.unfetch(index, scratch);
            return Ok(Attempt::InRing);
        }
        let sq = self.qp.sq.as_mut().ok_or(Missing::SendQueue(self.qpn))?;
        sq.consumer = index.wrapping_add(fetched.unwrap_or(1));
        let connection = self.qp.runtime.connection();
        let mut wqe = connection.window.buffer();
        wqe.clone_from(&scratch.wqe);
        let mut request = Request {
            index,
            wqebbs: fetched.unwrap_or(1),
            wqe,
            length: 0,
            psn: self.qp.requester.psn,
            packets: 1,
            sent: 0,
            reached: 0,
            done: 0,
            response: Response::Acknowledgement,
            in_parts: false,
            inline: [0; 64],
            failed: None,
        };
        request.failed = match work {
            Ok((work, _)) => self.measure(&work, &mut request, scratch).err(),
            Err(why) => {
                let (qpn, opcode) = (self.qpn, work::opcode(&scratch.wqe));
                tracing::info!(qpn, ?qp_type, opcode, ?why, "a QP does not do what a WQE asks for");
                Some(cqe_syndrome::LOCAL_QP_OPERATION)
            }
        };
        if request.failed.is_none() {
            let next = advance(request.psn, request.packets);
            self.qp.requester.psn = next;
        }
        self.qp.runtime.connection().window.requests.push_back(request);
        if self.context.state.faults.fails_queue_pair(self.qpn) {
            failure::catastrophe(self);
        }
        Ok(Attempt::Done)
    }

    /// Executes the next WQE, or a part of it, which sends nothing.
    fn next_in_ring(&mut self, scratch: &mut Scratch) -> Result<Turn, Missing> {
        match requester::begin(self, scratch)? {
            TurnStart::Over(turn) => Ok(turn),
            // The WQE has changed since: it gets a turn of its own.
            TurnStart::Request(_) => Ok(Turn::Again),
        }
    }

    /// Leaves a WQE for later; puts its BlueFlame copy back, if it came by one.
    fn unfetch(&mut self, index: u16, scratch: &Scratch) {
        match self.qp.sq.as_mut() {
            Some(sq) => sq.runtime.copies.put_back(index, &scratch.wqe),
            None => completion::no_send_queue(self.qpn),
        }
    }

    /// Whether there is room for a request beside the incomplete ones, and it need not wait for any
    /// of them.
    fn may_follow(&self, work: &Work, wqe: &[u8]) -> bool {
        // Nothing is in flight yet.
        let Some(connection) = self.qp.runtime.started() else { return true };
        let window = &connection.window;
        let responses = window.responses();
        let fence = CtrlSegment::from_prefix(wqe).map_or(0, |it| it.ctrl_flags.fm());
        let fence = WqeFence(fence);
        match work.operation.remote() {
            // A request that changes a key or waits for data keeps its place in the order.
            None => window.requests.is_empty(),
            _ if fence == WqeFence::STRONG_ORDERING => window.requests.is_empty(),
            _ if FENCES.contains(&fence) && responses > 0 => false,
            _ if work.operation.scatters() => responses < self.qp.requester.max_rd_atomic.into(),
            _ => window.requests.len() < MAX_REQUESTS,
        }
    }

    /// Measures a request before it is sent: its length and its response; the error is the
    /// syndrome.
    fn measure(
        &mut self,
        work: &Work,
        request: &mut Request,
        scratch: &mut Scratch,
    ) -> Result<(), u8> {
        if let Some(syndrome) = self.context.state.faults.fails_request(self.qpn) {
            return Err(syndrome);
        }
        request.length =
            gather::whole(self, work, request.index, scratch).inspect_err(|syndrome| {
                let operation = work.operation.name;
                tracing::info!(
                    qpn = self.qpn,
                    operation,
                    syndrome,
                    "the data segments are invalid"
                );
            })?;
        request.packets = self.packets(request.length);
        request.response = work.operation.response();
        Ok(())
    }

    /// Completes the requests that are done or failed, oldest first.
    pub(super) fn retire(&mut self) {
        while self.is_sending() {
            let Some(request) = self.qp.runtime.connection().window.retire() else { break };
            let Request { index, wqebbs, length, .. } = request;
            match request.failed {
                None => {
                    let general = self.context.caps.general();
                    let qp_type = self.qp.qp_type;
                    match Work::parse(&request.wqe, self.qpn, index, qp_type, general) {
                        Ok(work) => {
                            self.report(&Placed { work, index, wqebbs, length }, &request);
                        }
                        // The WQE was valid when it was fetched, and capabilities have changed
                        // since.
                        Err(why) => {
                            self.stop_timer();
                            let opcode = work::opcode(&request.wqe);
                            tracing::info!(
                                qpn = self.qpn,
                                index,
                                ?why,
                                "a WQE is no longer carried"
                            );
                            completion::fail(self, index, opcode, cqe_syndrome::LOCAL_QP_OPERATION);
                        }
                    }
                }
                Some(syndrome) => {
                    self.stop_timer();
                    let opcode = work::opcode(&request.wqe);
                    tracing::info!(qpn = self.qpn, opcode, syndrome, "a send request failed");
                    completion::fail(self, index, opcode, syndrome);
                }
            }
            self.qp.runtime.connection().window.reuse(request.wqe);
        }
    }

    /// Writes the CQE of a completed request, if one is requested.
    fn report(&mut self, placed: &Placed, request: &Request) {
        let (length, room) = (request.length, u64::from(self.qp.requester_inline));
        let in_cqe = request.responds() && placed.work.signaled && length > 0 && length <= room;
        let bytes = if request.responds() { length as u32 } else { 0 };
        let inline = in_cqe.then(|| &request.inline[..length as usize]);
        completion::report(self, placed, bytes, inline);
    }

    /// Gives the send side a turn, since it may have work.
    pub(super) fn goes_on(&mut self) {
        let Some(sq) = self.qp.sq.as_mut() else { return completion::no_send_queue(self.qpn) };
        if !std::mem::replace(&mut sq.runtime.queued, true) {
            self.context.state.active.push_back(self.qpn);
        }
    }
}
