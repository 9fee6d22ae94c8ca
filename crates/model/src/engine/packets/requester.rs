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
use super::super::work::{self, PostedWqe, Work};
use super::super::{completion, failure, gather};
use super::requests::{Attempt, send_next};
use super::retry;
use crate::connection::{Request, Response, Timer, advance};
use crate::hca::objects::{QpObject, QpState};

/// Packets that a QP sends in one turn.
const PACKETS_A_TURN: u32 = 16;
/// Maximum number of requests in the window: as many as packets may be in flight (`requests`), so
/// that a queue of short messages has as many packets in flight as a queue of long ones.
const MAX_REQUESTS: usize = 128;
/// Fence modes of a WQE that wait for earlier responses.
const FENCES: [WqeFence; 2] = [WqeFence::FENCE, WqeFence::FENCE_AND_INITIATOR_SMALL];

/// The result of fetching a WQE.
enum Fetched {
    /// The request is in the window.
    Done,
    /// No WQE is posted, or the next one must wait.
    Waits,
    /// The WQE sends no packet: it is executed from the ring.
    InRing,
}

/// Gives the send side its turn.
pub(in crate::engine) fn turn(
    pair: &mut QueuePair<'_>,
    scratch: &mut Scratch,
) -> Result<Turn, Missing> {
    match pair.qp.state {
        QpState::Rts | QpState::SqDrained => {}
        QpState::SqError | QpState::Error => {
            failure::flush_later(&mut pair.context, pair.qpn);
            return Ok(Turn::Sleep);
        }
        _ => return Ok(Turn::Sleep),
    }
    if let Some(due) = pair.qp.runtime.resume_at {
        let waits = due > pair.context.now;
        match pair.qp.runtime.connection().window.timer {
            Timer::NotReady if waits => return Ok(Turn::Sleep),
            Timer::NotReady => pair.qp.runtime.resume_at = None,
            Timer::Acknowledge if waits => {}
            Timer::Acknowledge => {
                pair.qp.runtime.resume_at = None;
                retry::handle_timeout(pair);
            }
        }
    }
    retire(pair);
    for _ in 0..PACKETS_A_TURN {
        let window = &mut pair.qp.runtime.connection().window;
        window.skip_sent();
        if window.has_failed() {
            return Ok(Turn::Sleep);
        }
        if window.next == window.requests.len() {
            match fetch_next(pair, scratch)? {
                Fetched::Done => {}
                Fetched::Waits => return Ok(Turn::Sleep),
                Fetched::InRing => return next_in_ring(pair, scratch),
            }
        }
        // A failed request sends nothing.
        let attempt = send_next(pair, scratch);
        let connection = pair.qp.runtime.connection();
        let whole = connection.window.is_sent();
        retire(pair);
        match attempt {
            _ if !pair.is_sending() => return Ok(Turn::Sleep),
            Attempt::Waits => return Ok(Turn::Sleep),
            // The next request waits for the turns of other queues.
            Attempt::Done if whole => break,
            Attempt::Done => {}
        }
    }
    Ok(Turn::Again)
}

/// Whether the QP has no request in flight and no answer to send.
pub(in crate::engine) fn is_settled(qp: &QpObject) -> bool {
    qp.runtime
        .started()
        .is_none_or(|connection| connection.window.requests.is_empty() && !connection.answers)
}

/// Takes the next WQE from the ring into the window.
fn fetch_next(pair: &mut QueuePair<'_>, scratch: &mut Scratch) -> Result<Fetched, Missing> {
    if pair.qp.state != QpState::Rts {
        return Ok(Fetched::Waits);
    }
    let longest = pair.context.limits.max_wqe_sz_sq;
    let sq = pair.qp.sq.as_mut().ok_or(Missing::SendQueue(pair.qpn))?;
    if sq.consumer == sq.producer {
        sq.awake = false;
        return Ok(Fetched::Waits);
    }
    let index = sq.consumer;
    let fetched = sq.fetch(pair.context.memory, longest, &mut scratch.wqe);
    let (qp_type, general) = (pair.qp.qp_type, pair.context.caps.general());
    let work = fetched.map_err(WqeRefusal::from).and_then(|wqebbs| {
        let work = Work::parse(&scratch.wqe, pair.qpn, index, qp_type, general)?;
        Ok((work, wqebbs))
    });
    if let Ok((work, _)) = &work
        && !may_follow(pair.qp, work, &scratch.wqe)
    {
        // The WQE is fetched again when there is room for it.
        put_back(pair.qp, pair.qpn, index, scratch);
        return Ok(Fetched::Waits);
    }
    if work.as_ref().is_ok_and(|(work, _)| work.operation.remote().is_none()) {
        put_back(pair.qp, pair.qpn, index, scratch);
        return Ok(Fetched::InRing);
    }
    let sq = pair.qp.sq.as_mut().ok_or(Missing::SendQueue(pair.qpn))?;
    sq.consumer = index.wrapping_add(fetched.unwrap_or(1));
    let connection = pair.qp.runtime.connection();
    let mut wqe = connection.window.buffer();
    wqe.clone_from(&scratch.wqe);
    let mut request = Request {
        index,
        wqebbs: fetched.unwrap_or(1),
        wqe,
        length: 0,
        psn: pair.qp.requester.psn,
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
        Ok((work, _)) => measure(pair, &work, &mut request, scratch).err(),
        Err(why) => {
            let (qpn, opcode) = (pair.qpn, work::opcode(&scratch.wqe));
            tracing::info!(qpn, ?qp_type, opcode, ?why, "a QP refuses a WQE");
            Some(cqe_syndrome::LOCAL_QP_OPERATION)
        }
    };
    if request.failed.is_none() {
        let next = advance(request.psn, request.packets);
        pair.qp.requester.psn = next;
    }
    pair.qp.runtime.connection().window.requests.push_back(request);
    if pair.context.state.faults.fails_queue_pair(pair.qpn) {
        failure::fail_with_event(pair);
    }
    Ok(Fetched::Done)
}

/// Executes the next WQE, or a part of it, from the ring: such a WQE sends nothing.
fn next_in_ring(pair: &mut QueuePair<'_>, scratch: &mut Scratch) -> Result<Turn, Missing> {
    match requester::begin(pair, scratch)? {
        TurnStart::Over(turn) => Ok(turn),
        // The WQE has changed since: it gets a turn of its own.
        TurnStart::Request(_) => Ok(Turn::Again),
    }
}

/// Leaves a fetched WQE for a later turn, and puts its BlueFlame copy back, if it had one.
fn put_back(qp: &mut QpObject, qpn: u32, index: u16, scratch: &Scratch) {
    match qp.sq.as_mut() {
        Some(sq) => sq.runtime.copies.put_back(index, &scratch.wqe),
        None => completion::no_send_queue(qpn),
    }
}

/// Whether there is room for a request beside the incomplete ones, and it need not wait for any of
/// them.
fn may_follow(qp: &QpObject, work: &Work, wqe: &[u8]) -> bool {
    // Nothing is in flight yet.
    let Some(connection) = qp.runtime.started() else { return true };
    let window = &connection.window;
    let responses = window.responses();
    let fence = CtrlSegment::from_prefix(wqe).map_or(0, |it| it.ctrl_flags.fm());
    let fence = WqeFence(fence);
    match work.operation.remote() {
        // A request that changes a key or waits for data keeps its place in the order.
        None => window.requests.is_empty(),
        _ if fence == WqeFence::STRONG_ORDERING => window.requests.is_empty(),
        _ if FENCES.contains(&fence) && responses > 0 => false,
        _ if work.operation.scatters() => responses < qp.requester.max_rd_atomic.into(),
        _ => window.requests.len() < MAX_REQUESTS,
    }
}

/// Measures a request before it is sent: its length and its response; the error is the syndrome.
fn measure(
    pair: &mut QueuePair<'_>,
    work: &Work,
    request: &mut Request,
    scratch: &mut Scratch,
) -> Result<(), u8> {
    if let Some(syndrome) = pair.context.state.faults.fails_request(pair.qpn) {
        return Err(syndrome);
    }
    request.length = gather::whole(pair, work, request.index, scratch).inspect_err(|syndrome| {
        let operation = work.operation.name;
        tracing::info!(qpn = pair.qpn, operation, syndrome, "the data segments are invalid");
    })?;
    request.packets = pair.packets(request.length);
    request.response = work.operation.response();
    Ok(())
}

/// Completes the requests that are done or failed, oldest first.
pub(super) fn retire(pair: &mut QueuePair<'_>) {
    while pair.is_sending() {
        let Some(request) = pair.qp.runtime.connection().window.retire() else { break };
        let Request { index, wqebbs, length, .. } = request;
        match request.failed {
            None => {
                let general = pair.context.caps.general();
                let qp_type = pair.qp.qp_type;
                match Work::parse(&request.wqe, pair.qpn, index, qp_type, general) {
                    Ok(work) => {
                        report(pair, &PostedWqe { work, index, wqebbs, length }, &request);
                    }
                    // The WQE was valid when it was fetched, and capabilities have changed since.
                    Err(why) => {
                        retry::stop_timer(pair);
                        let opcode = work::opcode(&request.wqe);
                        tracing::info!(
                            qpn = pair.qpn,
                            index,
                            ?why,
                            "a capability that a WQE needs was removed"
                        );
                        completion::fail(pair, index, opcode, cqe_syndrome::LOCAL_QP_OPERATION);
                    }
                }
            }
            Some(syndrome) => {
                retry::stop_timer(pair);
                let opcode = work::opcode(&request.wqe);
                tracing::info!(qpn = pair.qpn, opcode, syndrome, "a send request failed");
                completion::fail(pair, index, opcode, syndrome);
            }
        }
        pair.qp.runtime.connection().window.reuse(request.wqe);
    }
}

/// Writes the CQE of a completed request, if one is requested.
fn report(pair: &mut QueuePair<'_>, posted: &PostedWqe, request: &Request) {
    let (length, room) = (request.length, u64::from(pair.qp.requester_inline));
    let in_cqe = request.responds() && posted.work.signaled && length > 0 && length <= room;
    let bytes = if request.responds() { length as u32 } else { 0 };
    let inline = in_cqe.then(|| &request.inline[..length as usize]);
    completion::report(pair, posted, bytes, inline);
}

/// Puts the send queue into the rotation, since it may have work.
pub(super) fn schedule_send(pair: &mut QueuePair<'_>) {
    let Some(sq) = pair.qp.sq.as_mut() else { return completion::no_send_queue(pair.qpn) };
    if !std::mem::replace(&mut sq.runtime.queued, true) {
        pair.context.state.active.push_back(pair.qpn);
    }
}
