//! The responder's answers to a requester: ACKs, NAKs, READ responses and atomic responses, in the
//! order of the requests. A repeated request is answered again.
//!
//! Source: InfiniBand specification, volume 1, 9.7.5 (responses).

use verbless_prm::hot::event_type;
use verbless_prm::{Aeth, AethNak, AtomicAckEth, Bth};

use super::super::access::{self, Nak};
use super::super::failure;
use super::super::keys::AccessRight;
use super::super::operation::Remote;
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::transfer;
use super::egress::{self, Outgoing};
use crate::connection::{Answer, Distance, Replay, Response, advance, distance};
use crate::hca::objects::{QpObject, QpState};
use verbless_wire::{Extensions, Message, Opcode, Packet, Position, Service};

/// Maximum number of response packets that a QP sends in one turn.
const PACKETS_A_TURN: u32 = 16;
/// Types of AETH syndromes: bits 6:5.
pub(super) const RNR_NAK: u8 = 0x20;
pub(super) const NAK: u8 = 0x60;
/// The credit count of an ACK without credit information.
const NO_CREDITS: u8 = 0x1f;

/// Handles a duplicate of an executed request, whose answer was lost.
pub(super) fn take_duplicate(pair: &mut QueuePair<'_>, packet: &Packet<'_>, opcode: Opcode) {
    let transport = &packet.headers.transport;
    let psn = transport.bth.psn();
    let msn = pair.qp.runtime.msn;
    let arriving = &pair.qp.runtime.connection().arriving;
    let Some(remote) = Remote::of(opcode.message) else { return };
    match remote.response() {
        Response::Acknowledgement => {
            // The ACK must not carry the PSN of a READ or atomic that was executed since: only
            // their own responses acknowledge those.
            let Some(psn) = arriving.executed else {
                tracing::debug!(
                    qpn = pair.qpn,
                    psn,
                    "a duplicate of a request that was never executed"
                );
                return;
            };
            queue(pair, Answer::Acknowledge { psn, msn });
        }
        Response::Read => {
            // The parser requires one of every READ request.
            let Some(reth) = transport.extensions.reth else {
                tracing::error!(qpn = pair.qpn, psn, "a READ request without a RETH");
                return;
            };
            let length = u64::from(reth.dma_length());
            let packets = pair.packets(length);
            let known = pair.qp.runtime.connection().arriving.replay.iter().any(|it| match *it {
                Replay::Read { psn: first, packets: all } => match distance(first, psn) {
                    Distance::Same => packets <= all,
                    Distance::Ahead(by) => by.saturating_add(packets) <= all,
                    Distance::Behind(_) => false,
                },
                Replay::Atomic { .. } => false,
            });
            if known {
                let (key, address) = (reth.rkey(), reth.virtual_address());
                let (sent, again) = (0, true);
                queue(pair, Answer::Read { psn, msn, packets, sent, key, address, length, again });
            }
        }
        Response::Atomic => {
            let found = arriving.replay.iter().find_map(|it| match *it {
                Replay::Atomic { psn: of, msn, value } if of == psn => {
                    Some(Answer::Atomic { psn, msn, value, again: true })
                }
                _ => None,
            });
            match found {
                Some(answer) => queue(pair, answer),
                // The requester sends the request again until it has no retries left.
                None => {
                    tracing::debug!(qpn = pair.qpn, psn, "an atomic that is not remembered")
                }
            }
        }
    }
}

pub(super) fn refuse(pair: &mut QueuePair<'_>, psn: u32, syndrome: u8) {
    let msn = pair.qp.runtime.msn;
    queue(pair, Answer::Nak { psn, msn, syndrome });
}

/// Queues an answer after those that wait; a repeated one at its place in the PSN order.
pub(super) fn queue(pair: &mut QueuePair<'_>, answer: Answer) {
    let connection = pair.qp.runtime.connection();
    match answer {
        Answer::Read { again: true, .. } | Answer::Atomic { .. } => {
            connection.arriving.answer_again(answer);
        }
        _ => connection.arriving.answer(answer),
    }
    if !std::mem::replace(&mut connection.answers, true) {
        pair.context.state.answering.push_back(pair.qpn);
    }
}

/// Sends waiting answers, at most [`PACKETS_A_TURN`] packets; true if some are left.
pub(in crate::engine) fn send(pair: &mut QueuePair<'_>, scratch: &mut Scratch) -> bool {
    for _ in 0..PACKETS_A_TURN {
        let Some(&answer) = pair.qp.runtime.connection().arriving.answers.front() else {
            break;
        };
        let over = match answer {
            Answer::Acknowledge { psn, msn } => emit_aeth(pair, psn, msn, NO_CREDITS),
            Answer::Nak { psn, msn, syndrome } => emit_aeth(pair, psn, msn, syndrome),
            Answer::Atomic { psn, msn, value, .. } => emit_atomic(pair, psn, msn, value),
            Answer::Read { .. } => emit_read(pair, answer, scratch),
        };
        if over {
            pair.qp.runtime.connection().arriving.answers.pop_front();
        }
    }
    let connection = pair.qp.runtime.connection();
    connection.answers = !connection.arriving.answers.is_empty();
    connection.answers
}

/// Drops all answers of a QP that software stopped.
pub(in crate::engine) fn forget(qp: &mut QpObject) {
    if qp.runtime.started().is_some() {
        qp.runtime.connection().arriving.answers.clear();
    }
}

fn emit_aeth(pair: &mut QueuePair<'_>, psn: u32, msn: u32, syndrome: u8) -> bool {
    let out = response(Message::Acknowledge, Position::Only, psn, Some((msn, syndrome)), 0);
    emit_without_payload(pair, &out)
}

/// Sends an answer without payload, which reads no memory; true, since nothing of it is left.
fn emit_without_payload(pair: &mut QueuePair<'_>, out: &Outgoing) -> bool {
    if let Err(end) = egress::send(pair, out, false, |_| Ok(())) {
        tracing::error!(qpn = pair.qpn, ?end, "an answer without a payload was not sent");
    }
    true
}

fn emit_atomic(pair: &mut QueuePair<'_>, psn: u32, msn: u32, value: u64) -> bool {
    let aeth = Some((msn, NO_CREDITS));
    let mut out = response(Message::AtomicAcknowledge, Position::Only, psn, aeth, 0);
    let mut original = AtomicAckEth::zeroed();
    original.set_original(value);
    out.extensions.atomic_ack_eth = Some(original);
    emit_without_payload(pair, &out)
}

/// Sends the next packet of a READ response; true if it was the last one.
fn emit_read(pair: &mut QueuePair<'_>, answer: Answer, scratch: &mut Scratch) -> bool {
    let Answer::Read { psn, msn, packets, sent, key, address, length, again } = answer else {
        return true;
    };
    let log_mtu = pair.log_mtu();
    let at = u64::from(sent) << log_mtu;
    let here = (length - at.min(length)).min(1 << log_mtu);
    let position = match (sent == 0, sent + 1 == packets) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, false) => Position::Middle,
        (false, true) => Position::Last,
    };
    let from = address.wrapping_add(at);
    let psn = advance(psn, sent);
    if let Err(nak) = access::range(pair, key, from, here, AccessRight::RemoteRead, scratch) {
        if again {
            // A requester that still waits for the response repeats the READ; one that has the
            // response may have destroyed its mkey.
            return true;
        }
        pair.qp.runtime.connection().arriving.answers.clear();
        fail_responder(pair, psn, nak);
        return false;
    }
    let aeth = (position != Position::Middle).then_some((msn, NO_CREDITS));
    let out = response(Message::ReadResponse, position, psn, aeth, here as usize);
    let spaces = pair.context.spaces;
    let remote = &scratch.remote;
    let emitted =
        egress::send(pair, &out, false, |into| transfer::gather(spaces, remote, &[], into));
    if emitted.is_err() {
        pair.qp.runtime.connection().arriving.answers.clear();
        let nak = access::of_remote(pair.context.spaces, Nak::Operation, &scratch.remote);
        fail_responder(pair, psn, nak);
        return false;
    }
    if let Some(Answer::Read { sent, .. }) =
        pair.qp.runtime.connection().arriving.answers.front_mut()
    {
        *sent += 1;
    }
    position.ends()
}

/// Fails the QP because it cannot execute a request, and sends the requester a NAK with the reason.
pub(super) fn fail_responder(pair: &mut QueuePair<'_>, psn: u32, nak: Nak) {
    let (event, why) = match nak {
        Nak::Access => (Some(event_type::WQ_ACCESS_ERROR), AethNak::REMOTE_ACCESS),
        Nak::InvalidRequest => {
            // The CQE of a receive WQE that was too short has reported it already.
            let reported = pair.qp.state == QpState::Error;
            let event = (!reported).then_some(event_type::WQ_INVALID_REQUEST_ERROR);
            (event, AethNak::INVALID_REQUEST)
        }
        _ => (None, AethNak::REMOTE_OPERATION),
    };
    if let Some(event) = event {
        pair.context.events.qp(event, pair.qpn);
    }
    let gone = access::is_gone(pair.qp, pair.context.memory);
    failure::enter_error(pair);
    if !gone {
        refuse(pair, psn, NAK | why.0);
    }
}

/// A response packet; `aeth`: MSN and syndrome.
fn response(
    message: Message,
    position: Position,
    psn: u32,
    aeth: Option<(u32, u8)>,
    payload: usize,
) -> Outgoing {
    let opcode =
        Opcode { service: Service::Rc, message, position, immediate: false, invalidate: false };
    let mut bth = Bth::zeroed();
    bth.set_opcode(opcode.bits().expect("RC has all responses")).set_psn(psn);
    let aeth = aeth.map(|(msn, syndrome)| {
        let mut aeth = Aeth::zeroed();
        aeth.set_msn(msn).set_syndrome(syndrome);
        aeth
    });
    Outgoing { bth, extensions: Extensions { aeth, ..Extensions::default() }, payload }
}
