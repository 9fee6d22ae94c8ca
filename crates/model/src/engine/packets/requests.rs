//! Packets of requests: the next packet of a QP's window, its headers, and the part of the message
//! that it carries.
//!
//! Source: InfiniBand specification, volume 1, 9.7.3 (request packets).

use verbless_prm::hot::cqe_syndrome;
use verbless_prm::{AtomicEth, Bth, Ieth, Immdt, Reth};

use super::super::gather;
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::transfer::{self, TransferEnd};
use super::super::work::Work;
use super::egress::{self, Outgoing};
use super::retry;
use crate::connection::{PSN_MASK, advance};
use verbless_wire::{Extensions, Opcode, Position};

/// PSNs that a requester sends before the first one is acknowledged.
const MAX_IN_FLIGHT: u32 = 128;
const _: () = assert!(MAX_IN_FLIGHT < PSN_MASK / 2);
/// Packets of a long response that one repeated READ request requests.
const PACKETS_PER_PART: u32 = 128;
/// A requester requests an acknowledgement at least once in this number of packets.
const PACKETS_PER_ACK_REQUEST: u32 = 16;

/// The result of an attempt to send a packet.
pub(super) enum Attempt {
    Done,
    /// There is nothing to send, or it must wait.
    Waits,
}

/// A packet of a request.
struct RequestPart {
    /// The packet's number in the message, which has `packets` of them.
    packet: u32,
    packets: u32,
    /// Offset of the payload in the message.
    at: u64,
    /// End of the message, or of the part that a READ requests.
    end: u64,
    psn: u32,
}

/// Sends the next packet of the window, if it may go out.
pub(super) fn send_next(pair: &mut QueuePair<'_>, scratch: &mut Scratch) -> Attempt {
    let log_mtu = pair.log_mtu();
    let connection = pair.qp.runtime.connection();
    let window = &mut connection.window;
    let in_flight = window.in_flight();
    let number = window.next;
    // The whole window is sent.
    let Some(request) = window.requests.get_mut(number) else { return Attempt::Waits };
    if request.failed.is_some() {
        return Attempt::Done;
    }
    if in_flight >= MAX_IN_FLIGHT {
        return Attempt::Waits;
    }
    let packet = request.sent;
    // Repeats the request for a long response in parts, so that the next loss costs only one part.
    request.in_parts |= request.responds() && request.reached > 0;
    // The peer may count each part as a new READ, beyond its max_dest_rd_atomic: only one part is
    // outstanding at a time.
    if request.in_parts && packet > request.done {
        return Attempt::Waits;
    }
    let at = u64::from(packet) << log_mtu;
    std::mem::swap(&mut scratch.wqe, &mut request.wqe);
    let (index, length, psn) = (request.index, request.length, advance(request.psn, packet));
    let (packets, responds) = (request.packets, request.responds());
    let now_sent = match (responds, request.in_parts) {
        // Parts end at the same offsets each time, because no peer answers a READ that extends
        // beyond a request that it knows.
        (true, true) => packets.min((packet / PACKETS_PER_PART + 1) * PACKETS_PER_PART),
        (true, false) => packets,
        (false, _) => packet + 1,
    };
    let end = if request.in_parts { length.min(u64::from(now_sent) << log_mtu) } else { length };
    let general = pair.context.caps.general();
    let work = Work::parse(&scratch.wqe, pair.qpn, index, pair.qp.qp_type, general);
    let sent = match &work {
        Ok(work) => {
            let part = RequestPart { packet, packets, at, end, psn };
            send_packet(pair, work, &part, scratch)
        }
        Err(_) => Err(cqe_syndrome::LOCAL_QP_OPERATION),
    };
    let reliable = pair.qp.qp_type.reliable;
    let window = &mut pair.qp.runtime.connection().window;
    let request = &mut window.requests[number];
    std::mem::swap(&mut scratch.wqe, &mut request.wqe);
    match sent {
        Ok(()) => {
            request.sent = now_sent;
            request.reached = request.reached.max(now_sent);
            if reliable {
                retry::start_timer(pair);
            } else {
                // Without answers, a sent packet is done.
                request.done = now_sent;
            }
        }
        Err(syndrome) => request.failed = Some(syndrome),
    }
    Attempt::Done
}

/// Builds a packet of a request, whose WQE is in the scratch buffer, and sends it; the error is the
/// syndrome.
fn send_packet(
    pair: &mut QueuePair<'_>,
    work: &Work,
    part: &RequestPart,
    scratch: &mut Scratch,
) -> Result<(), u8> {
    let operation = work.operation;
    let (first, last) = (part.packet == 0, part.packet + 1 == part.packets);
    let scatters = operation.scatters();
    let position = match (first, last) {
        _ if scatters => Position::Only,
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, false) => Position::Middle,
        (false, true) => Position::Last,
    };
    let remote = operation.remote().ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
    let message = remote.message();
    let invalidate = position.ends() && operation.invalidate;
    let immediate = position.ends() && operation.immediate && !invalidate;
    let service = pair.qp.qp_type.service.ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
    let kind = Opcode { service, message, position, immediate, invalidate };
    let opcode = kind.bits().ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
    let rest = part.end.saturating_sub(part.at);
    let mut extensions = Extensions::default();
    if kind.has_reth() {
        let mut reth = Reth::zeroed();
        reth.set_virtual_address(work.remote_address.wrapping_add(part.at))
            .set_rkey(work.rkey)
            .set_dma_length(rest as u32);
        extensions.reth = Some(reth);
    }
    if kind.has_atomic_eth() {
        let mut atomic = AtomicEth::zeroed();
        atomic
            .set_virtual_address(work.remote_address)
            .set_rkey(work.rkey)
            .set_swap_or_add(work.operands.swap_add)
            .set_compare(work.operands.compare);
        extensions.atomic_eth = Some(atomic);
    }
    if immediate {
        let mut immdt = Immdt::zeroed();
        immdt.set_immediate(work.immediate);
        extensions.immdt = Some(immdt);
    }
    if invalidate {
        let mut ieth = Ieth::zeroed();
        ieth.set_rkey(work.immediate);
        extensions.ieth = Some(ieth);
    }
    let requests_ack = position.ends() || (part.packet + 1).is_multiple_of(PACKETS_PER_ACK_REQUEST);
    let mut bth = Bth::zeroed();
    bth.set_opcode(opcode)
        .set_solicited(position.ends() && work.solicited)
        .set_acknowledge(pair.qp.qp_type.reliable && requests_ack)
        .set_psn(part.psn);
    let bytes = if scatters { 0 } else { rest.min(1 << pair.log_mtu()) as usize };
    if !scatters {
        gather::part(pair, work, part.at, bytes as u64, scratch)?;
    }
    let lost = position.begins() && pair.context.state.faults.loses_message(pair.qpn);
    let out = Outgoing { bth, extensions, payload: bytes };
    let spaces = pair.context.spaces;
    let Scratch { local, wqe, .. } = scratch;
    let fill = |into: &mut [u8]| {
        if scatters { Ok(()) } else { transfer::gather(spaces, local, wqe, into) }
    };
    match egress::send(pair, &out, lost, fill) {
        Ok(()) => Ok(()),
        Err(TransferEnd::Source | TransferEnd::Target) => Err(cqe_syndrome::LOCAL_PROTECTION),
    }
}
