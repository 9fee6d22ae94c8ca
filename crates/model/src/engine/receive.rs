//! Receive WQEs of QPs: the next one of a ring or of a shared queue, the memory that it gives to a
//! message, and its CQE. A message that arrives in parts keeps its WQE between them.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome};

use super::access::Nak;
use super::context::Missing;
use super::cqe::{Completion, Received};
use super::keys::{self, AccessRight, KeyUser, Keys, Range, Sge};
use super::queue_pair::QueuePair;
use super::ring::record;
use super::scratch::Scratch;
use super::work::{Segment, receive_segments};
use super::{completion, failure, srq};
use crate::connection::{Incoming, Target};
use crate::hca::objects::QpObject;

/// The index of the next receive WQE; `wqe` receives a copy of it. Only this function reads the
/// record.
pub(super) fn next(pair: &QueuePair<'_>, wqe: Option<&mut Vec<u8>>) -> Result<u16, Nak> {
    let memory = pair.context.memory;
    if let Some(number) = pair.qp.srq {
        let queue = pair.context.srqs.get(&number).ok_or(Missing::Srq(number))?;
        let next = srq::next(memory, queue, wqe).map_err(|_| Nak::Operation)?;
        return next.ok_or(Nak::NotReady);
    }
    let rq = pair.qp.rq.as_ref().ok_or(Nak::NotReady)?;
    let posted = record(memory, pair.qp.record).map_err(|_| Nak::Operation)? as u16;
    if posted == rq.consumer {
        return Err(Nak::NotReady);
    }
    if let Some(wqe) = wqe {
        if rq.log_stride > srq::MAX_LOG_STRIDE || rq.log_size >= 32 {
            return Err(Nak::Operation);
        }
        let slot = u64::from(rq.consumer) & ((1 << rq.log_size) - 1);
        wqe.resize(1 << rq.log_stride, 0);
        rq.memory.read_wrapping(memory, slot << rq.log_stride, wqe).map_err(|_| Nak::Operation)?;
    }
    Ok(rq.consumer)
}

/// Takes the receive WQE of a message into the scratch buffer, and returns its index. A WQE of a
/// shared queue is consumed here: another QP may take the next one before the message is complete.
pub(super) fn take(pair: &mut QueuePair<'_>, scratch: &mut Scratch) -> Result<u16, Nak> {
    if let Some((index, wqe)) = pair.qp.runtime.connection().arriving.held.take() {
        scratch.receive = wqe;
        return Ok(index);
    }
    let index = next(pair, Some(&mut scratch.receive))?;
    if pair.qp.srq.is_some() {
        consume(pair, index)?;
    }
    Ok(index)
}

/// Keeps the receive WQE of the scratch buffer for the rest of a message of which `bytes` bytes
/// have arrived; or, if the QP fails and the WQE is of a shared queue, for its flush.
pub(super) fn keep(qp: &mut QpObject, index: u16, bytes: u64, scratch: &mut Scratch) {
    let wqe = std::mem::take(&mut scratch.receive);
    let into = Target::Receive { index, wqe };
    qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
}

/// Takes back the WQE of a shared queue from a message that is incomplete or was cut off.
pub(super) fn take_back(qp: &mut QpObject) -> Option<(u16, Vec<u8>)> {
    qp.srq?;
    qp.runtime.started()?;
    let arriving = &mut qp.runtime.connection().arriving;
    if let Some(held) = arriving.held.take() {
        return Some(held);
    }
    match arriving.message.take()?.into {
        Target::Receive { index, wqe } => Some((index, wqe)),
        Target::Range { .. } => None,
    }
}

/// Cuts off the message that is arriving: its receive WQE serves the next one.
pub(super) fn cut_message(qp: &mut QpObject) {
    if qp.runtime.started().is_none() {
        return;
    }
    let held = take_back(qp);
    let arriving = &mut qp.runtime.connection().arriving;
    arriving.message = None;
    arriving.held = held;
}

/// Consumes the receive WQE at `index`.
pub(super) fn consume(pair: &mut QueuePair<'_>, index: u16) -> Result<(), Nak> {
    if let Some(number) = pair.qp.srq {
        let queue = pair.context.srqs.get_mut(&number).ok_or(Missing::Srq(number))?;
        srq::consume(&mut pair.context.events, number, queue);
        return Ok(());
    }
    pair.qp.rq.as_mut().ok_or(Nak::NotReady)?.consumer = index.wrapping_add(1);
    Ok(())
}

/// Finds the memory that the receive WQE in `Scratch::receive` gives to `length` bytes of a message
/// from byte `at` on; the error is the syndrome.
pub(super) fn scatter(
    pair: &QueuePair<'_>,
    at: u64,
    length: u64,
    scratch: &mut Scratch,
) -> Result<(), u8> {
    // The keys of a shared queue's WQEs belong to its domain.
    let shared = pair.qp.srq.and_then(|number| pair.context.srqs.get(&number));
    let pd = shared.map_or(pair.qp.pd, |queue| queue.pd);
    let user = KeyUser { pd, qpn: pair.qpn, reserved_lkey: pair.qp.context.rlky() };
    let Scratch { receive, remote, .. } = scratch;
    scatter_list(&pair.context.keys(), user, (at, length), (receive, remote))
}

/// Consumes the receive WQE of a message and writes its CQE; an overrun of the CQ fails the QP.
pub(super) fn complete(
    pair: &mut QueuePair<'_>,
    of: &Received,
    inline: Option<&[u8]>,
) -> Result<(), Nak> {
    consume(pair, of.index)?;
    report(pair, of, inline)
}

/// Writes the CQE of a message whose receive WQE was consumed.
pub(super) fn report(
    pair: &mut QueuePair<'_>,
    of: &Received,
    inline: Option<&[u8]>,
) -> Result<(), Nak> {
    let completion = Completion::responder(pair.qp, pair.qpn, of, inline);
    let cqn = pair.receive_cq();
    if completion::write(&mut pair.context, pair.qpn, cqn, completion).is_err() {
        failure::cq_overran(pair);
        return Err(Nak::Operation);
    }
    Ok(())
}

/// Fails the QP, and the receive WQE that has no room for a part of its message, by an error CQE.
pub(super) fn refuse_part(pair: &mut QueuePair<'_>, index: u16, syndrome: u8) -> Nak {
    // A WQE of a shared queue was consumed when it was taken.
    if pair.qp.srq.is_none()
        && let Err(nak) = consume(pair, index)
    {
        return nak;
    }
    report_error(pair, index, syndrome);
    failure::enter_error(pair);
    match syndrome {
        cqe_syndrome::LOCAL_LENGTH => Nak::InvalidRequest,
        _ => Nak::Operation,
    }
}

/// Fails a receive WQE: writes its error CQE, and moves the QP to the error state.
pub(super) fn fail(pair: &mut QueuePair<'_>, index: u16, syndrome: u8) {
    if consume(pair, index).is_ok() {
        report_error(pair, index, syndrome);
    }
    failure::enter_error(pair);
}

/// Writes the error CQE of a receive WQE that was consumed.
fn report_error(pair: &mut QueuePair<'_>, index: u16, syndrome: u8) {
    pair.counters().receive_error(syndrome);
    let kind = cqe_opcode::RESPONDER_ERROR;
    let completion = Completion::error(pair.qp, pair.qpn, kind, 0, index, syndrome);
    // An event of the CQ reports an overrun, and the QP enters the error state anyway.
    let cqn = pair.receive_cq();
    let _ = completion::write(&mut pair.context, pair.qpn, cqn, completion);
}

/// Writes to `memory` the ranges of a receive WQE that `length` bytes of a message from byte `at`
/// on go to; the error is the syndrome.
pub(super) fn scatter_list(
    keys: &Keys<'_>,
    user: KeyUser,
    (at, length): (u64, u64),
    (wqe, memory): (&[u8], &mut Vec<Sge>),
) -> Result<(), u8> {
    memory.clear();
    let (mut skip, mut rest, mut visits) = (at, length, keys::VISITS);
    for segment in receive_segments(wqe, keys.limits.list_end) {
        if rest == 0 {
            break;
        }
        let Ok(Segment::Pointer { lkey, address, length }) = segment else {
            return Err(cqe_syndrome::LOCAL_QP_OPERATION);
        };
        if skip >= length {
            skip -= length;
            continue;
        }
        let here = (length - skip).min(rest);
        let range = Range { key: lkey, address: address.wrapping_add(skip), length: here };
        keys.resolve(user, range, AccessRight::LocalWrite, &mut visits, memory).map_err(
            |refusal| {
                tracing::info!(user.qpn, ?range, ?refusal, "an mkey refuses a local access");
                cqe_syndrome::LOCAL_PROTECTION
            },
        )?;
        rest -= here;
        skip = 0;
    }
    if rest > 0 { Err(cqe_syndrome::LOCAL_LENGTH) } else { Ok(()) }
}
