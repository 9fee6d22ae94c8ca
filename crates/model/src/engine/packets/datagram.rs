//! Datagrams in packets: sends and receives of UD QPs and the management QPs.
//!
//! The receiver gets 40 bytes in front of the message: the GRH, if the packet had one. Sources:
//! InfiniBand specification, volume 1, 8.3 (GRH), 9.8.3 (UD), 10.2.5 (Q_Keys); Linux
//! `drivers/infiniband/hw/mlx5/{wr,cq}.c`.

use verbless_prm::hot::{CqeRoceSourceQp, CqeSourceQp, cqe_opcode, cqe_syndrome};
use verbless_prm::{Bth, CqeRoceL3Type, DatagramSegment, Deth, Grh, Immdt, Ipv4Header};

use super::super::counters::Count;
use super::super::cqe::Received;
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::transfer;
use super::super::work::{PostedWqe, address_vector};
use super::super::{arrivals, completion, receive};
use super::egress;
use super::path::{Hop, slid};
use crate::connection::{PSN_MASK, advance};
use crate::hca::DEFAULT_PKEY;
use crate::hca::objects::QpObject;
use crate::hca::qp_type::QKey;
use crate::watch::QueueSide;
use verbless_wire::{Extensions, Message, Opcode, Packet, Position, Route, Service, Transport};

/// Bytes of a GRH, and of the room for it in front of every message.
const GRH: usize = Grh::BYTES;
/// A Q_Key in a request with this bit selects the QP's own.
const OWN_KEY: u32 = 1 << 31;

/// Sends a request that is ready. It completes once it is sent, whether or not a receiver takes it.
pub(in crate::engine) fn send(
    pair: &mut QueuePair<'_>,
    posted: &PostedWqe,
    scratch: &mut Scratch,
) -> Turn {
    let sent = emit(pair, posted, scratch);
    completion::finish(pair, posted, sent)
}

fn emit(pair: &mut QueuePair<'_>, posted: &PostedWqe, scratch: &mut Scratch) -> Result<(), u8> {
    const MALFORMED: u8 = cqe_syndrome::LOCAL_QP_OPERATION;
    let (vector, bytes) = address_vector(&scratch.wqe).ok_or(MALFORMED)?;
    if bytes < DatagramSegment::BYTES && !pair.context.caps.general().compact_address_vector() {
        tracing::info!(qpn = pair.qpn, "the device has no address vectors of {bytes} bytes");
        return Err(MALFORMED);
    }
    if posted.length > 1 << pair.qp.log_mtu {
        return Err(cqe_syndrome::LOCAL_LENGTH);
    }
    let route = pair.context.addresses.route(pair.qp.port, &Hop::from(&vector));
    let Some(route) = route else {
        tracing::info!(qpn = pair.qpn, ?vector, "there is no route for an address vector");
        return Err(MALFORMED);
    };
    let number = pair.qp.qp_type.datagrams.and_then(|datagrams| datagrams.number);
    let source = match (number, pair.qp.context.deth_sqpn()) {
        (Some(number), _) => number,
        (None, 0) => pair.qpn,
        (None, other) => other,
    };
    let own = vector.q_key() & OWN_KEY != 0;
    let mut deth = Deth::zeroed();
    deth.set_queue_key(if own { pair.qp.context.q_key() } else { vector.q_key() })
        .set_source_qp(source);
    let immediate = posted.work.operation.immediate;
    let opcode = Opcode {
        service: Service::Ud,
        message: Message::Send,
        position: Position::Only,
        immediate,
        invalidate: false,
    };
    let psn = pair.qp.requester.psn;
    pair.qp.requester.psn = advance(psn, 1);
    let mut bth = Bth::zeroed();
    bth.set_opcode(opcode.bits().ok_or(MALFORMED)?)
        .set_solicited(posted.work.solicited)
        .set_migrated(true)
        .set_partition_key(DEFAULT_PKEY)
        .set_destination_qp(vector.dqp_dct())
        .set_psn(psn & PSN_MASK);
    let immdt = immediate.then(|| {
        let mut immdt = Immdt::zeroed();
        immdt.set_immediate(posted.work.immediate);
        immdt
    });
    let extensions = Extensions { deth: Some(deth), immdt, ..Extensions::default() };
    let lost = pair.context.state.faults.loses_message(pair.qpn);
    let spaces = pair.context.spaces;
    let Scratch { local, wqe, .. } = scratch;
    let transport = Transport { bth, extensions };
    egress::send_to(pair, Some(route), transport, posted.length as usize, lost, |into| {
        transfer::gather(spaces, local, wqe, into)
    })
    .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)
}

/// Receives a datagram.
pub(in crate::engine) fn take(
    pair: &mut QueuePair<'_>,
    packet: &Packet<'_>,
    opcode: Opcode,
    scratch: &mut Scratch,
) {
    let extensions = &packet.headers.transport.extensions;
    let (Some(deth), Some(datagrams)) = (extensions.deth, pair.qp.qp_type.datagrams) else {
        tracing::error!(qpn = pair.qpn, ?opcode, "a packet for a UD QP is not a datagram");
        return;
    };
    if !pair.qp.state.receives() {
        let state = pair.qp.state;
        tracing::info!(qpn = pair.qpn, ?state, "a datagram for a QP that is not ready");
        return;
    }
    let Ok(index) = receive::next(pair, Some(&mut scratch.receive)) else {
        pair.counters().count(Count::OutOfBuffer);
        return;
    };
    let bytes = (packet.payload.len() + GRH) as u64;
    if let Err(syndrome) = receive::scatter(pair, 0, bytes, scratch) {
        receive::fail(pair, index, syndrome);
        return;
    }
    let route = &packet.headers.route;
    let whole = &mut scratch.wqe;
    whole.clear();
    whole.extend_from_slice(&grh_bytes(route));
    whole.extend_from_slice(packet.payload);
    if transfer::scatter(pair.context.spaces, &scratch.remote, whole).is_err() {
        receive::fail(pair, index, cqe_syndrome::LOCAL_PROTECTION);
        return;
    }
    arrivals::data(
        pair.context.state,
        pair.context.spaces,
        pair.qpn,
        QueueSide::Responder,
        &scratch.remote,
    );
    let of = Received {
        opcode: match opcode.immediate {
            true => cqe_opcode::RESPONDER_SEND_IMM,
            false => cqe_opcode::RESPONDER_SEND,
        },
        index,
        bytes: bytes as u32,
        immediate: match (extensions.immdt, datagrams.pkey_in_cqe) {
            (Some(immdt), _) => immdt.immediate(),
            (None, true) => packet.headers.transport.bth.partition_key().into(),
            (None, false) => 0,
        },
        solicited: packet.headers.transport.bth.solicited(),
        slid: slid(route),
        peer: flags(route) | deth.source_qp(),
        now: pair.context.ticks(),
    };
    // A datagram has no answer: the sender gets no error.
    let _ = receive::complete(pair, &of, None);
}

/// Whether a QP accepts a packet with this Q_Key; true for a QP that takes no datagrams, since it
/// has no Q_Key.
pub(super) fn has_q_key(qp: &QpObject, sent: u32) -> bool {
    match qp.qp_type.datagrams.map(|datagrams| datagrams.q_key) {
        Some(QKey::Context) => qp.context.q_key() == sent,
        Some(QKey::Fixed(key)) => key == sent,
        Some(QKey::Any) | None => true,
    }
}

/// The 40 bytes in front of the message at the receiver.
fn grh_bytes(route: &Route) -> [u8; GRH] {
    const START: usize = GRH - Ipv4Header::BYTES;
    match route {
        Route::Local(_) => [0; GRH],
        Route::Global(_, grh) | Route::RoceV1(_, grh) | Route::Ipv6(_, grh, _) => *grh.as_bytes(),
        Route::Ipv4(_, ip, _) => {
            let mut bytes = [0; GRH];
            bytes[START..].copy_from_slice(ip.as_bytes());
            bytes
        }
    }
}

/// Bits of `flags_rqpn` that describe the headers.
fn flags(route: &Route) -> u32 {
    let source = CqeSourceQp::new();
    let roce = |header: CqeRoceL3Type, udp: bool| {
        let source = CqeRoceSourceQp::new().with_g(1).with_roce_l3_type(header.0);
        let source = source.with_roce_udp(udp);
        CqeSourceQp::from_bits(source.into_bits())
    };
    match route {
        Route::Local(lrh) => source.with_sl(lrh.service_level()),
        Route::Global(lrh, grh) => {
            let g = if grh.destination_gid()[0] == 0xff { 2 } else { 1 };
            source.with_g(g).with_sl(lrh.service_level())
        }
        Route::RoceV1(..) => roce(CqeRoceL3Type::GRH, false),
        Route::Ipv4(..) => roce(CqeRoceL3Type::IPV4, true),
        Route::Ipv6(..) => roce(CqeRoceL3Type::IPV6, true),
    }
    .into_bits()
}
