//! Reliable connection: the requester sends a request again until it is acknowledged or no retries
//! are left.
//!
//! This module carries messages whole; `packets` sends them in packets. The PSN advances by the
//! packets that a message would take, though none is sent. A QP has one request in flight at a
//! time, so that requests complete in order and a fence has nothing to wait for.

use verbless_prm::hot::{cqe_syndrome, event_type};
use verbless_prm::{HcaCap, OptParamMask as Opt, ServiceType};

use super::super::access::{self, Nak};
use super::super::context::Missing;
use super::super::counters::Count;
use super::super::invalid::InvalidReason;
use super::super::packets::responder::take_reliable;
use super::super::packets::{acknowledge, requester};
use super::super::queue_pair::QueuePair;
use super::super::responder::{self, MessagePart, WholeRequest};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::transfer::{self, TransferEnd};
use super::super::work::PostedWqe;
use super::super::{arrivals, completion, failure};
use super::connected::{Carrier, Exchange, QpId, Reply, carried, failed_as_receiver};
use super::service::Transport;
use crate::clock::{ack_timeout, rnr_timer};
use crate::connection::{Distance, UNLIMITED_RNR_RETRIES, advance, distance};
use crate::hca::objects::QpState;
use crate::hca::qp_type::{QpType, Users};
use crate::watch::QueueSide;
use verbless_wire::{Message, Opcode, Packet, Service};

pub(super) static RC: Transport = Transport {
    qp_type: QpType {
        st: ServiceType::RC,
        users: Users::Capability(HcaCap::rc),
        access_opts: Opt::RRE.0 | Opt::RWE.0 | Opt::RAE.0,
        service: Some(Service::Rc),
        connected: true,
        reliable: true,
        datagrams: None,
        any_domain: false,
        copies: true,
    },
    carry: Some(send),
    turn: requester::turn,
    take,
};

/// Handles a packet for the requester or the responder.
fn take(pair: &mut QueuePair<'_>, packet: &Packet<'_>, opcode: Opcode, scratch: &mut Scratch) {
    match opcode.message {
        Message::Acknowledge | Message::AtomicAcknowledge | Message::ReadResponse => {
            acknowledge::handle(pair, packet, opcode, scratch);
        }
        // The model has no congestion control: the rate stays.
        Message::Congestion | Message::RoceCongestion => {}
        _ => take_reliable(pair, packet, opcode, scratch),
    }
}

/// Sends a request that is ready, and handles the reply.
fn send(
    carrier: &mut Carrier<'_>,
    posted: &PostedWqe,
    part: MessagePart,
    scratch: &mut Scratch,
) -> Result<Turn, Missing> {
    let Exchange { answer, peer, packets } = carrier.exchange(posted, part, scratch, receive)?;
    let pair = &mut carrier.pair()?;
    if failed_as_receiver(pair.qp) {
        return Ok(Turn::Sleep);
    }
    let original = match answer {
        Reply::Done { original } => original,
        Reply::Failed(syndrome) => return Ok(completion::finish(pair, posted, Err(syndrome))),
        Reply::NotReady { timer } => return Ok(receiver_not_ready(pair, posted, timer)),
        Reply::Silence => return Ok(unanswered(pair)),
    };
    if !posted.work.operation.scatters() {
        return Ok(match carried(pair.qp, part, packets) {
            true => completion::succeed(pair, posted, 0, None),
            false => Turn::Again,
        });
    }
    match take_response(pair, posted, part, original, scratch) {
        Ok(inline) if carried(pair.qp, part, packets) => {
            let inline = inline.as_ref().map(|inline| &inline[..posted.length as usize]);
            Ok(completion::succeed(pair, posted, posted.length as u32, inline))
        }
        Ok(_) => Ok(Turn::Again),
        Err(TransferEnd::Target) => {
            Ok(completion::finish(pair, posted, Err(cqe_syndrome::LOCAL_PROTECTION)))
        }
        Err(TransferEnd::Source) => peer_failed(carrier, peer, posted, scratch),
    }
}

/// Handles a response whose memory at the peer could not be read; a peer whose program has ended is
/// silent.
fn peer_failed(
    carrier: &mut Carrier<'_>,
    peer: Option<QpId>,
    posted: &PostedWqe,
    scratch: &Scratch,
) -> Result<Turn, Missing> {
    let now = carrier.locked.clock.now;
    let locked = &mut *carrier.locked;
    if let Some((peer, number)) = peer {
        let pair = &mut locked.functions.pair(peer, number, now)?;
        if access::is_gone(pair.qp, pair.context.memory) {
            failure::enter_error(pair);
            return Ok(unanswered(&mut carrier.pair()?));
        }
    }
    let pair = &mut carrier.pair()?;
    let syndrome = match access::of_remote(pair.context.spaces, Nak::Operation, &scratch.remote) {
        Nak::Access => cqe_syndrome::REMOTE_ACCESS,
        _ => cqe_syndrome::REMOTE_OPERATION,
    };
    Ok(completion::finish(pair, posted, Err(syndrome)))
}

/// Writes a response (an atomic's old value, or the memory in `Scratch::remote`) to the memory that
/// the WQE names, or returns it if that is the CQE.
fn take_response(
    pair: &mut QueuePair<'_>,
    posted: &PostedWqe,
    part: MessagePart,
    original: Option<u64>,
    scratch: &Scratch,
) -> Result<Option<[u8; 64]>, TransferEnd> {
    let length = part.whole;
    let room = u64::from(pair.qp.requester_inline);
    let in_cqe = posted.work.signaled && length > 0 && length <= room;
    let mut inline = [0; 64];
    let bytes = &mut inline[..if in_cqe { length as usize } else { 0 }];
    let (spaces, Scratch { local, remote, .. }) = (pair.context.spaces, scratch);
    match (original, in_cqe) {
        (Some(value), true) => bytes.copy_from_slice(&value.to_ne_bytes()),
        (Some(value), false) => transfer::scatter(spaces, local, &value.to_ne_bytes())?,
        (None, true) => transfer::gather(spaces, remote, &[], bytes)?,
        (None, false) => transfer::transfer(spaces, remote, &[], local)?,
    }
    if !in_cqe {
        arrivals::data(
            pair.context.state,
            pair.context.spaces,
            pair.qpn,
            QueueSide::Requester,
            local,
        );
    }
    Ok(in_cqe.then_some(inline))
}

/// RNR NAK: tries again after the receiver's RNR timer.
fn receiver_not_ready(pair: &mut QueuePair<'_>, posted: &PostedWqe, timer: u8) -> Turn {
    let requester = &mut pair.qp.requester;
    let ends = requester.rnr_retry_limit != UNLIMITED_RNR_RETRIES;
    if ends && requester.rnr_retries_left == 0 {
        return completion::finish(pair, posted, Err(cqe_syndrome::RNR_RETRY_EXCEEDED));
    }
    requester.rnr_retries_left -= u8::from(ends);
    pair.counters().count(Count::RnrNak);
    wait(pair, rnr_timer(timer))
}

/// Handles a request without a reply: it counts as lost only when its timeout expires, even without
/// a retry left.
fn unanswered(pair: &mut QueuePair<'_>) -> Turn {
    pair.qp.runtime.overdue = true;
    let time = ack_timeout(pair.qp.requester.ack_timeout).unwrap_or(u64::MAX);
    wait(pair, time)
}

/// Delays the next turn by this time; `u64::MAX`: without end.
fn wait(pair: &mut QueuePair<'_>, time: u64) -> Turn {
    let at = pair.context.now.saturating_add(time);
    pair.qp.runtime.resume_at = Some(at);
    if at != u64::MAX {
        pair.context.state.timers.insert((at, pair.qpn));
    }
    Turn::Sleep
}

/// Puts the receiving QP in error because of an invalid message, and reports that.
fn fail_receiver(pair: &mut QueuePair<'_>, event: Option<u8>, syndrome: u8) -> Reply {
    if let Some(event) = event {
        pair.context.events.qp(event, pair.qpn);
    }
    let gone = access::is_gone(pair.qp, pair.context.memory);
    failure::enter_error(pair);
    if gone { Reply::Silence } else { Reply::Failed(syndrome) }
}

/// Executes a message, if its PSN is the expected one.
fn receive(pair: &mut QueuePair<'_>, message: &WholeRequest<'_>, scratch: &mut Scratch) -> Reply {
    let expected = pair.qp.responder.psn;
    let distance = distance(expected, message.psn);
    if distance != Distance::Same {
        tracing::info!(pair.qpn, psn = message.psn, expected, "out of sequence");
        // A NAK would name a PSN that the requester never sent.
        if matches!(distance, Distance::Behind(_)) {
            pair.counters().count(Count::Duplicate);
        } else if !std::mem::replace(&mut pair.qp.runtime.connection().arriving.reported, true) {
            pair.counters().count(Count::OutOfSequence);
        }
        return Reply::Silence;
    }
    let done = match responder::follows(pair.qp, message) {
        true => responder::perform(pair, message, scratch),
        false => Err(access::invalid(pair.qpn, InvalidReason::OutOfOrder)),
    };
    match done {
        Ok(original) => {
            pair.qp.responder.psn = advance(expected, message.packets);
            let msn = pair.qp.runtime.msn;
            pair.qp.runtime.msn = advance(msn, message.part.ends().into());
            Reply::Done { original }
        }
        Err(Nak::NotReady) => Reply::NotReady { timer: pair.qp.responder.min_rnr_timer },
        Err(Nak::Source) => Reply::Failed(cqe_syndrome::LOCAL_PROTECTION),
        Err(Nak::Access) => {
            fail_receiver(pair, Some(event_type::WQ_ACCESS_ERROR), cqe_syndrome::REMOTE_ACCESS)
        }
        Err(Nak::InvalidRequest) => {
            // The CQE of a receive WQE that was too short has reported it already; else an event
            // does.
            let reported = pair.qp.state == QpState::Error;
            let event = (!reported).then_some(event_type::WQ_INVALID_REQUEST_ERROR);
            fail_receiver(pair, event, cqe_syndrome::REMOTE_INVALID_REQUEST)
        }
        Err(Nak::Operation) => fail_receiver(pair, None, cqe_syndrome::REMOTE_OPERATION),
    }
}
