//! Reliable connection: every request is answered, or sent again until it is answered or the
//! retries are used up.
//!
//! This is the way of messages that are carried whole; `packets` is the other one. The PSN counts
//! the packets of what is carried, but none is sent. A QP has one request in flight at a time, so
//! that requests complete in order and a fence has nothing to wait for.

use verbless_prm::hot::{cqe_syndrome, event_type};
use verbless_prm::{HcaCap, OptParamMask as Opt, ServiceType};

use super::super::access::{self, Nak};
use super::super::context::Missing;
use super::super::counters::Count;
use super::super::invalid::InvalidReason;
use super::super::queue_pair::QueuePair;
use super::super::responder::{self, MessagePart, WholeRequest};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::transfer::{self, TransferEnd};
use super::super::work::Placed;
use super::super::{arrivals, completion, failure};
use super::connected::{Carrier, Exchange, PSN, QpId, Reply};
use super::service::Transport;
use crate::clock::rnr_timer;
use crate::hca::objects::QpState;
use crate::hca::qp_type::{QpType, Users};
use crate::watch::QueueSide;
use verbless_wire::{Message, Opcode, Packet, Service};

/// A PSN less than this far ahead is ahead; any other lies behind.
const PSN_HALF: u32 = 1 << 23;
/// The RNR retry limit without end.
const FOR_EVER: u8 = 7;
/// Unit of the ACK timeout: 4.096 µs.
const TIMEOUT_UNIT: u64 = 4096;

pub(super) static RC: Transport = Transport {
    qp_type: QpType {
        st: ServiceType::RC,
        users: Users::Capability(HcaCap::rc),
        rights: Opt::RRE.0 | Opt::RWE.0 | Opt::RAE.0,
        service: Some(Service::Rc),
        connected: true,
        reliable: true,
        datagrams: None,
        any_domain: false,
        copies: true,
    },
    carry: Some(|carrier, placed, part, scratch| carrier.send_reliable(placed, part, scratch)),
    turn: |pair, scratch| pair.send_packets(scratch),
    take,
};

/// Takes a packet of the requester or of the responder.
fn take(pair: &mut QueuePair<'_>, packet: &Packet<'_>, opcode: Opcode, scratch: &mut Scratch) {
    match opcode.message {
        Message::Acknowledge | Message::AtomicAcknowledge | Message::ReadResponse => {
            pair.take_answer(packet, opcode, scratch);
        }
        // The model has no congestion control: the rate stays.
        Message::Congestion | Message::RoceCongestion => {}
        _ => pair.take_reliable(packet, opcode, scratch),
    }
}

impl Carrier<'_> {
    /// Sends a request that is ready, and handles the answer.
    pub(super) fn send_reliable(
        &mut self,
        placed: &Placed,
        part: MessagePart,
        scratch: &mut Scratch,
    ) -> Result<Turn, Missing> {
        let Exchange { answer, peer, packets } = self.exchange(placed, part, scratch, receive)?;
        let pair = &mut self.pair()?;
        if pair.failed_meanwhile() {
            return Ok(Turn::Sleep);
        }
        let original = match answer {
            Reply::Done { original } => original,
            Reply::Failed(syndrome) => return Ok(completion::finish(pair, placed, Err(syndrome))),
            Reply::NotReady { timer } => return Ok(pair.receiver_not_ready(placed, timer)),
            Reply::Silence => return Ok(pair.unanswered()),
        };
        if !placed.work.operation.scatters() {
            return Ok(match pair.carried(part, packets) {
                true => completion::succeed(pair, placed, 0, None),
                false => Turn::Again,
            });
        }
        match pair.take_response(placed, part, original, scratch) {
            Ok(inline) if pair.carried(part, packets) => {
                let inline = inline.as_ref().map(|inline| &inline[..placed.length as usize]);
                Ok(completion::succeed(pair, placed, placed.length as u32, inline))
            }
            Ok(_) => Ok(Turn::Again),
            Err(TransferEnd::Target) => {
                Ok(completion::finish(pair, placed, Err(cqe_syndrome::LOCAL_PROTECTION)))
            }
            Err(TransferEnd::Source) => self.peer_failed(peer, placed, scratch),
        }
    }

    /// Handles a response whose memory at the peer could not be read; a peer whose program has
    /// ended is silent.
    fn peer_failed(
        &mut self,
        peer: Option<QpId>,
        placed: &Placed,
        scratch: &Scratch,
    ) -> Result<Turn, Missing> {
        let now = self.locked.clock.now;
        let locked = &mut *self.locked;
        if let Some((peer, number)) = peer {
            let pair = &mut locked.functions.pair(peer, number, now)?;
            if access::is_gone(pair.qp, pair.context.memory) {
                failure::enter_error(pair);
                return Ok(self.pair()?.unanswered());
            }
        }
        let pair = &mut self.pair()?;
        let syndrome = match access::of_remote(pair.context.spaces, Nak::Operation, &scratch.remote)
        {
            Nak::Access => cqe_syndrome::REMOTE_ACCESS,
            _ => cqe_syndrome::REMOTE_OPERATION,
        };
        Ok(completion::finish(pair, placed, Err(syndrome)))
    }
}

impl QueuePair<'_> {
    /// Writes a response (an atomic's old value, or the memory in `Scratch::remote`) to the memory
    /// that the WQE names, or returns it if that is the CQE.
    fn take_response(
        &mut self,
        placed: &Placed,
        part: MessagePart,
        original: Option<u64>,
        scratch: &Scratch,
    ) -> Result<Option<[u8; 64]>, TransferEnd> {
        let length = part.whole;
        let room = u64::from(self.qp.requester_inline);
        let in_cqe = placed.work.signaled && length > 0 && length <= room;
        let mut inline = [0; 64];
        let bytes = &mut inline[..if in_cqe { length as usize } else { 0 }];
        let (spaces, Scratch { local, remote, .. }) = (self.context.spaces, scratch);
        match (original, in_cqe) {
            (Some(value), true) => bytes.copy_from_slice(&value.to_ne_bytes()),
            (Some(value), false) => transfer::scatter(spaces, local, &value.to_ne_bytes())?,
            (None, true) => transfer::gather(spaces, remote, &[], bytes)?,
            (None, false) => transfer::transfer(spaces, remote, &[], local)?,
        }
        if !in_cqe {
            arrivals::data(
                self.context.state,
                self.context.spaces,
                self.qpn,
                QueueSide::Requester,
                local,
            );
        }
        Ok(in_cqe.then_some(inline))
    }

    /// RNR NAK: tries again after the receiver's RNR timer.
    fn receiver_not_ready(&mut self, placed: &Placed, timer: u8) -> Turn {
        let requester = &mut self.qp.requester;
        let ends = requester.rnr_retry_limit != FOR_EVER;
        if ends && requester.rnr_retries_left == 0 {
            return completion::finish(self, placed, Err(cqe_syndrome::RNR_RETRY_EXCEEDED));
        }
        requester.rnr_retries_left -= u8::from(ends);
        self.counters().count(Count::RnrNak);
        self.wait(rnr_timer(timer))
    }

    /// Handles a request without an answer: it counts as lost only when its timeout expires, even
    /// without a retry left.
    fn unanswered(&mut self) -> Turn {
        self.qp.runtime.overdue = true;
        self.wait(match self.qp.requester.ack_timeout {
            0 => u64::MAX,
            timeout => TIMEOUT_UNIT << timeout.min(31),
        })
    }

    /// Waits for this time before the next turn; `u64::MAX` means no end.
    fn wait(&mut self, time: u64) -> Turn {
        let at = self.context.now.saturating_add(time);
        self.qp.runtime.resume_at = Some(at);
        if at != u64::MAX {
            self.context.state.timers.insert((at, self.qpn));
        }
        Turn::Sleep
    }

    /// Fails the receiving QP because of an invalid message, and reports it.
    fn broken(&mut self, event: Option<u8>, syndrome: u8) -> Reply {
        if let Some(event) = event {
            self.context.events.qp(event, self.qpn);
        }
        let gone = access::is_gone(self.qp, self.context.memory);
        failure::enter_error(self);
        if gone { Reply::Silence } else { Reply::Failed(syndrome) }
    }
}

/// Takes a message, if it is the one expected.
fn receive(pair: &mut QueuePair<'_>, message: &WholeRequest<'_>, scratch: &mut Scratch) -> Reply {
    let expected = pair.qp.responder.psn;
    let ahead = message.psn.wrapping_sub(expected) & PSN;
    if ahead != 0 {
        tracing::info!(pair.qpn, psn = message.psn, expected, "out of sequence");
        // A NAK would name a PSN that the requester never sent.
        if ahead >= PSN_HALF {
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
            pair.qp.responder.psn = expected.wrapping_add(message.packets) & PSN;
            let msn = pair.qp.runtime.msn;
            pair.qp.runtime.msn = msn.wrapping_add(message.part.ends().into()) & PSN;
            Reply::Done { original }
        }
        Err(Nak::NotReady) => Reply::NotReady { timer: pair.qp.responder.min_rnr_timer },
        Err(Nak::Source) => Reply::Failed(cqe_syndrome::LOCAL_PROTECTION),
        Err(Nak::Access) => {
            pair.broken(Some(event_type::WQ_ACCESS_ERROR), cqe_syndrome::REMOTE_ACCESS)
        }
        Err(Nak::InvalidRequest) => {
            // The CQE of a receive WQE that was too short has reported it already; else an event
            // does.
            let reported = pair.qp.state == QpState::Error;
            let event = (!reported).then_some(event_type::WQ_INVALID_REQUEST_ERROR);
            pair.broken(event, cqe_syndrome::REMOTE_INVALID_REQUEST)
        }
        Err(Nak::Operation) => pair.broken(None, cqe_syndrome::REMOTE_OPERATION),
    }
}
