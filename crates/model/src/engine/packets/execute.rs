//! Executes request packets: writes each payload to its memory, and completes a message with its
//! last packet.
//!
//! Source: InfiniBand specification, volume 1, 9.7.4 (request packets at the responder).

use verbless_prm::hot::cqe_opcode;

use super::super::access::{self, Nak};
use super::super::cqe::Received;
use super::super::invalid::InvalidReason;
use super::super::keys::AccessRight;
use super::super::operation::{Atomic, Operands};
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::transfer;
use super::super::{arrivals, receive};
use super::answers;
use super::path::slid;
use crate::connection::{Answer, Incoming, Replay, Target, advance};
use crate::hca::objects::QpObject;
use crate::watch::QueueSide;
use verbless_wire::{Opcode, Packet, Position};

/// Executes a packet of a SEND.
pub(super) fn send(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let payload = packet.payload;
    let message = match opcode.position.begins() {
        true => None,
        false => pair.qp.runtime.connection().arriving.message.take(),
    };
    let (index, mut bytes) = match message {
        Some(Incoming { into: Target::Receive { index, wqe }, bytes }) => {
            scratch.receive = wqe;
            (index, bytes)
        }
        _ => (receive::take(pair, scratch)?, 0),
    };
    let (at, length) = (bytes, payload.len() as u64);
    bytes += length;
    let longest = pair.context.limits.longest_message(pair.qp);
    if bytes > longest {
        receive::keep(pair.qp, index, bytes, scratch);
        return Err(access::invalid(pair.qpn, InvalidReason::TooLong { length: bytes, longest }));
    }
    // A message of one packet may fit into its CQE.
    let room = u64::from(pair.qp.responder_inline);
    let in_cqe = opcode.position == Position::Only && length > 0 && length <= room;
    if let Err(syndrome) = receive::scatter(pair, at, length, scratch) {
        return Err(receive::refuse_part(pair, index, syndrome));
    }
    if !in_cqe && transfer::scatter(pair.context.spaces, &scratch.remote, payload).is_err() {
        receive::keep(pair.qp, index, bytes, scratch);
        return Err(Nak::Operation);
    }
    if !in_cqe {
        arrivals::data(
            pair.context.state,
            pair.context.spaces,
            pair.qpn,
            QueueSide::Responder,
            &scratch.remote,
        );
    }
    if !opcode.position.ends() {
        receive::keep(pair.qp, index, bytes, scratch);
        arrived(pair.qp, 1, false);
        return Ok(());
    }
    let extensions = &packet.headers.transport.extensions;
    let invalidated = extensions.ieth.map(|ieth| ieth.rkey());
    if let Some(key) = invalidated
        && let Err(nak) = access::invalidate(pair.context.mkeys, pair.qp.pd, key)
    {
        receive::keep(pair.qp, index, bytes, scratch);
        return Err(nak);
    }
    let immediate = extensions.immdt.map(|immdt| immdt.immediate());
    let kind = match (immediate, invalidated) {
        (Some(_), _) => cqe_opcode::RESPONDER_SEND_IMM,
        (None, Some(_)) => cqe_opcode::RESPONDER_SEND_INVALIDATE,
        (None, None) => cqe_opcode::RESPONDER_SEND,
    };
    let value = immediate.or(invalidated).unwrap_or(0);
    arrived(pair.qp, 1, true);
    if pair.qp.srq.is_none() {
        receive::consume(pair, index)?;
    }
    let inline = in_cqe.then_some(payload);
    message_complete(pair, packet, index, kind, value, bytes, inline)
}

/// Executes a packet of a WRITE.
pub(super) fn write(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let (payload, extensions) = (packet.payload, &packet.headers.transport.extensions);
    let length = payload.len() as u64;
    let (key, start, whole, at) =
        match (extensions.reth, &pair.qp.runtime.connection().arriving.message) {
            (Some(reth), _) => {
                let whole = u64::from(reth.dma_length());
                check_length(pair, whole)?;
                let (key, start) = (reth.rkey(), reth.virtual_address());
                // Checks the whole range before the first byte moves.
                access::range(pair, key, start, whole, AccessRight::RemoteWrite, scratch)?;
                (key, start, whole, 0)
            }
            (None, Some(Incoming { into: Target::Range { key, address, length }, bytes })) => {
                (*key, *address, *length, *bytes)
            }
            _ => return Err(access::invalid(pair.qpn, InvalidReason::OutOfOrder)),
        };
    let bytes = at + length;
    if bytes > whole || opcode.position.ends() && bytes != whole {
        return Err(access::invalid(pair.qpn, InvalidReason::OutOfOrder));
    }
    let immediate = extensions.immdt.map(|immdt| immdt.immediate());
    let index = match immediate {
        Some(_) => Some(receive::next(pair, None)?),
        None => None,
    };
    if length > 0 {
        let address = start.wrapping_add(at);
        access::range(pair, key, address, length, AccessRight::RemoteWrite, scratch)?;
        transfer::scatter(pair.context.spaces, &scratch.remote, payload)
            .map_err(|_| access::of_remote(pair.context.spaces, Nak::Operation, &scratch.remote))?;
        arrivals::data(
            pair.context.state,
            pair.context.spaces,
            pair.qpn,
            QueueSide::Responder,
            &scratch.remote,
        );
    }
    if !opcode.position.ends() {
        let into = Target::Range { key, address: start, length: whole };
        pair.qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
        arrived(pair.qp, 1, false);
        return Ok(());
    }
    arrived(pair.qp, 1, true);
    match (index, immediate) {
        (Some(index), Some(value)) => {
            let kind = cqe_opcode::RESPONDER_WRITE_IMM;
            receive::consume(pair, index)?;
            message_complete(pair, packet, index, kind, value, whole, None)
        }
        _ => Ok(()),
    }
}

/// Executes a READ request: its response is queued.
pub(super) fn read(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let extensions = &packet.headers.transport.extensions;
    let reth = extensions.reth.ok_or(Nak::InvalidRequest)?;
    let (key, address) = (reth.rkey(), reth.virtual_address());
    let length = u64::from(reth.dma_length());
    check_length(pair, length)?;
    check_answers(pair)?;
    access::range(pair, key, address, length, AccessRight::RemoteRead, scratch)?;
    let packets = pair.packets(length);
    let psn = pair.qp.responder.psn;
    let max = pair.qp.responder.max_dest_rd_atomic;
    pair.qp.runtime.connection().arriving.remember(Replay::Read { psn, packets }, max);
    arrived(pair.qp, packets, true);
    let msn = pair.qp.runtime.msn;
    let (sent, again) = (0, false);
    answers::queue(pair, Answer::Read { psn, msn, packets, sent, key, address, length, again });
    Ok(())
}

/// Executes an atomic, and queues its response.
pub(super) fn atomic(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    atomic: Atomic,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let header = packet.headers.transport.extensions.atomic_eth.ok_or(Nak::InvalidRequest)?;
    let (key, address) = (header.rkey(), header.virtual_address());
    access::check_alignment(pair.qpn, address)?;
    check_answers(pair)?;
    access::range(pair, key, address, 8, AccessRight::Atomic, scratch)?;
    let operands = Operands { swap_add: header.swap_or_add(), compare: header.compare() };
    let value = access::exchange_word(&pair.context, pair.qpn, atomic, operands, &scratch.remote)?;
    let psn = pair.qp.responder.psn;
    arrived(pair.qp, 1, true);
    let max = pair.qp.responder.max_dest_rd_atomic;
    let msn = pair.qp.runtime.msn;
    let arriving = &mut pair.qp.runtime.connection().arriving;
    arriving.remember(Replay::Atomic { psn, msn, value }, max);
    answers::queue(pair, Answer::Atomic { psn, msn, value, again: false });
    Ok(())
}

/// Refuses a message that is longer than the QP's longest.
fn check_length(pair: &QueuePair<'_>, length: u64) -> Result<(), Nak> {
    let longest = pair.context.limits.longest_message(pair.qp);
    match length > longest {
        true => Err(access::invalid(pair.qpn, InvalidReason::TooLong { length, longest })),
        false => Ok(()),
    }
}

/// Refuses a READ or atomic if the number of them without a sent response has reached
/// `max_dest_rd_atomic`.
fn check_answers(pair: &mut QueuePair<'_>) -> Result<(), Nak> {
    let max_dest_rd_atomic = pair.qp.responder.max_dest_rd_atomic;
    let unanswered = pair.qp.runtime.connection().arriving.unanswered();
    match unanswered >= usize::from(max_dest_rd_atomic) {
        true => {
            Err(access::invalid(pair.qpn, InvalidReason::TooManyAnswers { max_dest_rd_atomic }))
        }
        false => Ok(()),
    }
}

/// Writes the CQE of a complete message, whose receive WQE was consumed.
fn message_complete(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    index: u16,
    opcode: u8,
    immediate: u32,
    bytes: u64,
    inline: Option<&[u8]>,
) -> Result<(), Nak> {
    let of = Received {
        opcode,
        index,
        bytes: bytes as u32,
        immediate,
        solicited: packet.headers.transport.bth.solicited(),
        slid: slid(&packet.headers.route),
        peer: pair.qp.remote_qpn & 0xff_ffff,
        now: pair.context.ticks(),
    };
    receive::report(pair, &of, inline)
}

/// Advances the expected PSN past an executed packet.
fn arrived(qp: &mut QpObject, packets: u32, ends: bool) {
    qp.responder.psn = advance(qp.responder.psn, packets);
    if ends {
        qp.runtime.msn = advance(qp.runtime.msn, 1);
        qp.runtime.connection().arriving.message = None;
    }
}
