//! The receive side of a connected QP that receives its messages in packets: which packets it
//! takes, and whether it answers an unexpected packet (RC) or drops it (UC).
//!
//! It executes a packet with the expected PSN, reports a PSN ahead once, and answers a PSN behind
//! again: READs from memory, atomics from their remembered results, so that each is executed
//! exactly once.
//!
//! Sources: InfiniBand specification, volume 1, 9.7.4 (request packets at the responder), 9.8.2
//! (unreliable connection).

use verbless_prm::AethNak;
use verbless_prm::hot::event_type;

use super::super::access::{self, Nak, counted};
use super::super::counters::Count;
use super::super::invalid::InvalidReason;
use super::super::operation::Remote;
use super::super::queue_pair::QueuePair;
use super::super::receive;
use super::super::scratch::Scratch;
use super::answers::{self, NAK, RNR_NAK};
use super::execute;
use crate::connection::{Answer, Distance, Incoming, Response, advance, distance};
use crate::hca::objects::QpState;
use verbless_wire::{Opcode, Packet, Position};

/// Whether the QP takes messages; the first one that arrives in RTR raises an event.
fn receives(pair: &mut QueuePair<'_>) -> bool {
    if pair.qp.state == QpState::Rtr && !std::mem::replace(&mut pair.qp.runtime.established, true) {
        pair.context.events.qp(event_type::COMMUNICATION_ESTABLISHED, pair.qpn);
    }
    pair.qp.state.receives()
}

/// RC: takes a request packet, and answers it.
pub(in crate::engine) fn take_reliable(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) {
    // A QP that is not ready for messages drops them without an answer.
    if !receives(pair) {
        return;
    }
    let bth = &packet.headers.transport.bth;
    let (psn, expected) = (bth.psn(), pair.qp.responder.psn);
    match distance(expected, psn) {
        Distance::Ahead(_) => {
            if !std::mem::replace(&mut pair.qp.runtime.connection().arriving.reported, true) {
                pair.counters().count(Count::OutOfSequence);
                answers::refuse(pair, expected, NAK | AethNak::PSN_SEQUENCE.0);
            }
            return;
        }
        Distance::Behind(_) => {
            pair.counters().count(Count::Duplicate);
            answers::take_duplicate(pair, packet, opcode);
            return;
        }
        Distance::Same => pair.qp.runtime.connection().arriving.reported = false,
    }
    let done = match fits(pair, packet, opcode) {
        true => execute(pair, packet, opcode, scratch),
        false => {
            pair.counters().count(Count::ResponderInvalid);
            Err(access::invalid(pair.qpn, InvalidReason::OutOfOrder))
        }
    };
    match done {
        Ok(Response::Acknowledgement) => {
            pair.qp.runtime.connection().arriving.executed = Some(psn);
            if bth.acknowledge() {
                let msn = pair.qp.runtime.msn;
                answers::queue(pair, Answer::Acknowledge { psn, msn });
            }
        }
        Ok(_) => {}
        Err(Nak::NotReady) => {
            // Until that packet comes again, the packets after it are dropped without an answer.
            pair.qp.runtime.connection().arriving.reported = true;
            let timer = pair.qp.responder.min_rnr_timer;
            answers::refuse(pair, psn, RNR_NAK | timer & 0x1f);
        }
        Err(nak) => answers::fail_responder(pair, psn, nak),
    }
}

/// UC: takes a request packet; a lost packet loses its message.
pub(in crate::engine) fn take_unreliable(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) {
    if !receives(pair) {
        return;
    }
    let psn = packet.headers.transport.bth.psn();
    let gap = distance(pair.qp.responder.psn, psn) != Distance::Same;
    pair.qp.responder.psn = psn;
    if gap || opcode.position.begins() {
        receive::cut_message(pair.qp);
    }
    if !fits(pair, packet, opcode) || execute(pair, packet, opcode, scratch).is_err() {
        receive::cut_message(pair.qp);
        pair.qp.responder.psn = advance(psn, 1);
    }
}

/// Whether a packet can follow those before it, by its own headers.
fn fits(pair: &mut QueuePair<'_>, packet: &Packet<'_>, opcode: Opcode) -> bool {
    let mtu = 1_usize << pair.log_mtu();
    let arriving = &pair.qp.runtime.connection().arriving;
    let follows = match &arriving.message {
        Some(Incoming { into, .. }) => into.is_of(opcode.message) && !opcode.position.begins(),
        None => opcode.position.begins(),
    };
    let length = packet.payload.len();
    let has_length = match opcode.position {
        Position::First | Position::Middle => length == mtu,
        Position::Last => (1..=mtu).contains(&length),
        Position::Only => length <= mtu,
    };
    follows && has_length
}

/// Executes a packet, counts its message when it is complete or refused, and returns the response
/// that the message requires.
fn execute(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) -> Result<Response, Nak> {
    let remote = Remote::of(opcode.message).ok_or(Nak::InvalidRequest)?;
    let done = match remote {
        Remote::Send => execute::send(pair, packet, opcode, scratch),
        Remote::Write => execute::write(pair, packet, opcode, scratch),
        Remote::Read => execute::read(pair, packet, scratch),
        Remote::Atomic(atomic) => execute::atomic(pair, packet, atomic, scratch),
    };
    if (done.is_err() || opcode.position.ends())
        && let Some(what) = counted(remote, done.err())
    {
        pair.counters().count(what);
    }
    done.map(|()| remote.response())
}
