//! The requester's handling of answers: ACKs, NAKs, READ responses and atomic responses.
//!
//! Source: InfiniBand specification, volume 1, 9.7.5 (responses).

use verbless_prm::hot::cqe_syndrome;
use verbless_prm::{Aeth, AethNak};

use super::super::counters::Count;
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::transfer;
use super::super::work::Work;
use super::super::{arrivals, gather};
use super::requester::{retire, schedule_send};
use super::retry;
use crate::connection::{PsnPosition, Response, Timer};
use crate::watch::QueueSide;
use verbless_wire::{Message, Opcode, Packet};

/// Handles an acknowledgement or a response of the peer.
pub(in crate::engine) fn handle(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) {
    if !pair.is_sending() || !pair.qp.qp_type.reliable {
        return;
    }
    let transport = &packet.headers.transport;
    let psn = transport.bth.psn();
    let Some(position) = pair.qp.runtime.connection().window.position(psn) else {
        tracing::debug!(qpn = pair.qpn, psn, "an answer to no outstanding packet");
        return;
    };
    let syndrome = transport.extensions.aeth.map_or(0, |aeth: Aeth| aeth.syndrome());
    let (kind, value) = (syndrome >> 5 & 3, syndrome & 0x1f);
    let progress = match opcode.message {
        Message::Acknowledge if kind == 0 => handle_ack(pair, position),
        Message::Acknowledge => handle_nak(pair, position, kind, value),
        // Malformed: data and a NAK at once.
        _ if kind != 0 => false,
        Message::ReadResponse => {
            handle_read_response(pair, position, opcode, packet.payload, scratch)
        }
        Message::AtomicAcknowledge => {
            let value = transport.extensions.atomic_ack_eth.map_or(0, |it| it.original());
            handle_atomic_response(pair, position, value, scratch)
        }
        _ => false,
    };
    if progress {
        let requester = &mut pair.qp.requester;
        requester.retries_left = requester.retry_limit;
        requester.rnr_retries_left = requester.rnr_retry_limit;
        pair.qp.runtime.connection().window.forget_loss();
        if pair.qp.runtime.connection().window.timer == Timer::Acknowledge {
            retry::stop_timer_on_progress(pair);
        }
    }
    retire(pair);
    if pair.is_sending() {
        if pair.qp.runtime.connection().window.oldest().is_some() {
            retry::start_timer(pair);
        }
        schedule_send(pair);
    }
}

/// Handles an ACK: everything up to the packet has arrived.
fn handle_ack(pair: &mut QueuePair<'_>, position: PsnPosition) -> bool {
    let window = &mut pair.qp.runtime.connection().window;
    let through = PsnPosition { packet: position.packet + 1, ..position };
    let before = window.oldest();
    if let Err(missing) = window.acknowledge_before(through) {
        retry::handle_lost_response(pair, missing, position);
    }
    pair.qp.runtime.connection().window.oldest() != before
}

/// Handles a NAK: everything before the packet has arrived, and the packet has not.
fn handle_nak(pair: &mut QueuePair<'_>, position: PsnPosition, kind: u8, value: u8) -> bool {
    let window = &mut pair.qp.runtime.connection().window;
    let before = window.oldest();
    if let Err(missing) = window.acknowledge_before(position) {
        retry::handle_lost_response(pair, missing, position);
        return false;
    }
    let progress = pair.qp.runtime.connection().window.oldest() != before;
    match (kind, AethNak(value)) {
        (1, _) => retry::handle_rnr_nak(pair, position, value),
        // The receiver dropped these packets while it was not ready: they are not lost.
        (3, AethNak::PSN_SEQUENCE) if retry::waits_for_receiver(pair.qp) => {}
        (3, AethNak::PSN_SEQUENCE) => retry::lost(pair, position, Count::SequenceNak),
        (3, why) => {
            let syndrome = match why {
                AethNak::INVALID_REQUEST => cqe_syndrome::REMOTE_INVALID_REQUEST,
                AethNak::REMOTE_ACCESS => cqe_syndrome::REMOTE_ACCESS,
                AethNak::REMOTE_OPERATION => cqe_syndrome::REMOTE_OPERATION,
                _ => cqe_syndrome::BAD_RESPONSE,
            };
            retry::fail_request(pair.qp, pair.qpn, position.request, syndrome);
        }
        _ => {}
    }
    progress
}

/// Takes a packet of a READ response; true if it is the next one.
fn handle_read_response(
    pair: &mut QueuePair<'_>,
    position: PsnPosition,
    opcode: Opcode,
    payload: &[u8],
    scratch: &mut Scratch,
) -> bool {
    let log_mtu = pair.log_mtu();
    let window = &mut pair.qp.runtime.connection().window;
    // Requests before it are complete: the peer answers in order.
    if let Err(missing) = window.acknowledge_before(PsnPosition { packet: 0, ..position }) {
        retry::handle_lost_response(pair, missing, position);
        return false;
    }
    let request = &mut pair.qp.runtime.connection().window.requests[position.request];
    if request.failed.is_some() || position.packet < request.done {
        return false;
    }
    if request.response != Response::Read {
        retry::fail_request(pair.qp, pair.qpn, position.request, cqe_syndrome::BAD_RESPONSE);
        return false;
    }
    if position.packet > request.done {
        let missing = PsnPosition { packet: request.done, ..position };
        retry::handle_lost_response(pair, missing, position);
        return false;
    }
    let at = u64::from(position.packet) << log_mtu;
    let expected = (request.length - at.min(request.length)).min(1 << log_mtu);
    let ends = position.packet + 1 == request.packets;
    let is_in_place = if request.in_parts {
        !ends || opcode.position.ends()
    } else {
        opcode.position.begins() == (position.packet == 0) && opcode.position.ends() == ends
    };
    if payload.len() as u64 != expected || !is_in_place {
        retry::fail_request(pair.qp, pair.qpn, position.request, cqe_syndrome::BAD_RESPONSE);
        return false;
    }
    put_response(pair, position, at, payload, scratch)
}

/// Stores the old value that an atomic returned.
fn handle_atomic_response(
    pair: &mut QueuePair<'_>,
    position: PsnPosition,
    value: u64,
    scratch: &mut Scratch,
) -> bool {
    let window = &mut pair.qp.runtime.connection().window;
    if let Err(missing) = window.acknowledge_before(PsnPosition { packet: 0, ..position }) {
        retry::handle_lost_response(pair, missing, position);
        return false;
    }
    let request = &pair.qp.runtime.connection().window.requests[position.request];
    if request.is_over() {
        return false;
    }
    if request.response != Response::Atomic {
        retry::fail_request(pair.qp, pair.qpn, position.request, cqe_syndrome::BAD_RESPONSE);
        return false;
    }
    put_response(pair, position, 0, &value.to_ne_bytes(), scratch)
}

/// Writes a part of a response to the memory that the WQE names.
fn put_response(
    pair: &mut QueuePair<'_>,
    position: PsnPosition,
    at: u64,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> bool {
    let room = u64::from(pair.qp.requester_inline);
    let request = &mut pair.qp.runtime.connection().window.requests[position.request];
    let (index, length) = (request.index, request.length);
    std::mem::swap(&mut scratch.wqe, &mut request.wqe);
    let general = pair.context.caps.general();
    let work = Work::parse(&scratch.wqe, pair.qpn, index, pair.qp.qp_type, general);
    let put = work.map_err(|_| cqe_syndrome::LOCAL_QP_OPERATION).and_then(|work| {
        if work.signaled && length > 0 && length <= room {
            return Ok(true);
        }
        gather::part(pair, &work, at, bytes.len() as u64, scratch)?;
        transfer::scatter(pair.context.spaces, &scratch.local, bytes)
            .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
        arrivals::data(
            pair.context.state,
            pair.context.spaces,
            pair.qpn,
            QueueSide::Requester,
            &scratch.local,
        );
        Ok(false)
    });
    let request = &mut pair.qp.runtime.connection().window.requests[position.request];
    std::mem::swap(&mut scratch.wqe, &mut request.wqe);
    match put {
        Ok(in_cqe) => {
            if in_cqe {
                request.inline[at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            request.done = position.packet + 1;
            request.sent = request.sent.max(request.done);
            true
        }
        Err(syndrome) => {
            request.failed = Some(syndrome);
            false
        }
    }
}
