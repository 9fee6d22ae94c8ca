//! Datagrams: what UD QPs and the management QPs 0 and 1 send. Each request says where it goes, and nothing comes back.
//!
//! The receiver finds 40 bytes in front of the message: the global route header, where the packet had one. Sources:
//! InfiniBand specification, volume 1, 8.3 (GRH), 9.8.3 (UD), 10.2.5 (Q_Keys); Linux `drivers/infiniband/hw/mlx5/{wr,cq}.c`.

use verbless_prm::hot::{CtrlSegment, cqe_opcode, cqe_syndrome};
use verbless_prm::{CqeRoceL3Type, RoceL3Type, RoceVersion, WqeDatagramSegment};

use super::completion::{self, Received};
use super::counters::{self, Count};
use super::failure;
use super::keys::Piece;
use super::responder::{self, Place};
use super::state::{Bench, Completion};
use super::transfer::{self, End};
use super::work::{Kind, Work};
use crate::fabric;
use crate::hca::objects::{Address, Objects, Qp, QpState, Service};
use crate::hca::{Hca, own_port};
use crate::profile::Link;
use crate::world::{HcaId, World};

/// Bytes of a global route header, and of the room for it in front of every message.
const GRH: usize = 40;
/// Bytes of an address vector that is not extended.
const COMPACT: usize = 16;
/// The LIDs of multicast groups.
const FIRST_MULTICAST_LID: u16 = 0xc000;
const LAST_MULTICAST_LID: u16 = 0xfffe;
/// The Q_Key of QP 1.
const GENERAL_SERVICES_KEY: u32 = 0x8001_0000;
/// A Q_Key with this bit in a request means the QP's own.
const OWN_KEY: u32 = 1 << 31;
/// The P_Key of the partition that every port is in.
const DEFAULT_PKEY: u32 = 0xffff;

/// A datagram on the wire.
struct Packet<'a> {
    from: HcaId,
    work: &'a Work,
    /// Bytes of the message.
    length: u64,
    q_key: u32,
    to_qpn: u32,
    slid: u16,
    /// What the receiver's CQE has in `flags_rqpn`.
    flags_rqpn: u32,
}

/// Where a request goes.
enum Target {
    Port(Address),
    Group([u8; 16]),
}

/// Where a request goes, and what the network needs to get it there.
struct Route {
    target: Target,
    header: Option<[u8; GRH]>,
    /// Bits of `flags_rqpn` that tell of the header.
    flags: u32,
}

/// The address vector of the request in `wqe`, and the bytes that it takes there; a compact one has no GRH.
pub(super) fn address_vector(wqe: &[u8], compact: bool) -> Option<(WqeDatagramSegment, usize)> {
    let bytes = wqe.get(CtrlSegment::BYTES..)?;
    let mut vector = WqeDatagramSegment::zeroed();
    vector.as_bytes_mut()[..COMPACT].copy_from_slice(bytes.get(..COMPACT)?);
    if vector.ext() {
        return Some((*WqeDatagramSegment::from_prefix(bytes)?, WqeDatagramSegment::BYTES));
    }
    compact.then_some((vector, COMPACT))
}

/// Sends the message in `bench`; the error is the syndrome.
pub(super) fn send(
    world: &mut World,
    (id, qpn): Place,
    work: &Work,
    length: u64,
    bench: &mut Bench,
) -> Result<(), u8> {
    let hca = &mut world.hcas[id];
    let lost = hca.engine.faults.lose_messages.strikes();
    let qp = hca.objects.qps.get(&qpn).ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
    let (vector, _) = address_vector(&bench.wqe, true).ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
    if length > 1 << qp.log_mtu {
        return Err(cqe_syndrome::LOCAL_LENGTH);
    }
    let Some(route) = route(hca, qp, &vector, length) else {
        tracing::info!(qpn, ?vector, "an address vector that leads nowhere");
        return Err(cqe_syndrome::LOCAL_QP_OPERATION);
    };
    let source = match (qp.service, qp.context.deth_sqpn()) {
        (Service::Qp0, _) => 0,
        (Service::Qp1, _) => 1,
        (_, 0) => qpn,
        (_, other) => other,
    };
    let (port, deaf) = (qp.port, qp.context.block_lb_mc());
    let q_key = if vector.q_key() & OWN_KEY != 0 { qp.context.q_key() } else { vector.q_key() };
    let packet = Packet {
        from: id,
        work,
        length,
        q_key,
        to_qpn: vector.dqp_dct(),
        slid: hca.ports.get(usize::from(port).wrapping_sub(1)).map_or(0, |port| port.lid),
        flags_rqpn: route.flags | source,
    };
    // What the receiver finds in front of the message.
    let piece = match route.header {
        Some(header) => {
            bench.wqe.extend_from_slice(&header);
            Piece::Inline { at: bench.wqe.len() - GRH, length: GRH as u64 }
        }
        None => Piece::Null { length: GRH as u64 },
    };
    bench.local.insert(0, piece);
    if lost {
        return Ok(());
    }
    let group = matches!(route.target, Target::Group(_));
    for place in targets(world, id, port, &route.target, packet.to_qpn) {
        // It does not want to hear what it says to its groups itself.
        if group && deaf && place == (id, qpn) {
            continue;
        }
        deliver(world, place, &packet, bench)?;
    }
    Ok(())
}

/// Where an address vector leads; `None` if it does not make sense on this port.
fn route(hca: &Hca, qp: &Qp, vector: &WqeDatagramSegment, length: u64) -> Option<Route> {
    let port = hca.ports.get(usize::from(qp.port).checked_sub(1)?)?;
    let sl = u32::from(vector.sl());
    if hca.profile.link() == Link::Ethernet {
        let own = hca.roce_address(vector.src_addr_index().into()).ok()?;
        let kind = match (own.roce_version(), own.roce_l3_type()) {
            (RoceVersion::V2, RoceL3Type::IPV4) => CqeRoceL3Type::IPV4,
            (RoceVersion::V2, _) => CqeRoceL3Type::IPV6,
            _ => CqeRoceL3Type::GRH,
        };
        let source = own.source_l3_address();
        let header = match kind {
            CqeRoceL3Type::IPV4 => ipv4_header(vector, source, length),
            _ => route_header(vector, source, length),
        };
        let target = if vector.fl() {
            Target::Port(Address::Gid(*source))
        } else if vector.rgid()[0] == 0xff {
            Target::Group(*vector.rgid())
        } else {
            Target::Port(Address::Gid(*vector.rgid()))
        };
        let flags = 1 << 28 | u32::from(kind.0) << 24;
        return Some(Route { target, header: Some(header), flags });
    }
    let lid = if vector.fl() { port.lid } else { vector.rlid() };
    let mut header = None;
    if vector.grh() {
        // The other entries of the table are empty.
        if vector.src_addr_index() != 0 {
            return None;
        }
        let source = hca.identity.ports.get(usize::from(qp.port) - 1)?.link_local_gid();
        header = Some(route_header(vector, &source, length));
    }
    let target = match lid {
        0 => return None,
        FIRST_MULTICAST_LID..=LAST_MULTICAST_LID if header.is_some() => {
            Target::Group(*vector.rgid())
        }
        FIRST_MULTICAST_LID..=LAST_MULTICAST_LID => return None,
        _ if vector.fl() => Target::Port(own_port(hca, port)),
        lid if vector.grh() => Target::Port(Address::Routed { lid, gid: *vector.rgid() }),
        lid => Target::Port(Address::Lid(lid)),
    };
    let group = u32::from(matches!(target, Target::Group(_)));
    let flags = u32::from(header.is_some()) << (28 + group) | sl << 24;
    Some(Route { target, header, flags })
}

/// Bytes behind a network header: transport headers (BTH, DETH), the message to the next multiple of 4, the checksum.
fn payload_length(length: u64) -> u16 {
    (12 + 8 + length.next_multiple_of(4) + 4) as u16
}

fn route_header(vector: &WqeDatagramSegment, source: &[u8; 16], length: u64) -> [u8; GRH] {
    const VERSION: u32 = 6 << 28;
    const NEXT_IS_BTH: u8 = 0x1b;
    let first = VERSION | u32::from(vector.tclass()) << 20 | vector.flow_label();
    let mut header = [0; GRH];
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&payload_length(length).to_be_bytes());
    header[6..8].copy_from_slice(&[NEXT_IS_BTH, vector.hop_limit()]);
    header[8..24].copy_from_slice(source);
    header[24..].copy_from_slice(vector.rgid());
    header
}

/// An IPv4 header stands in the last 20 of the 40 bytes.
fn ipv4_header(vector: &WqeDatagramSegment, source: &[u8; 16], length: u64) -> [u8; GRH] {
    const START: usize = 20;
    const VERSION_AND_LENGTH: u8 = 0x45;
    const UDP: u8 = 17;
    const UDP_HEADER: u16 = 8;
    let total = START as u16 + UDP_HEADER + payload_length(length);
    let mut header = [0; GRH];
    header[START..START + 2].copy_from_slice(&[VERSION_AND_LENGTH, vector.tclass()]);
    header[START + 2..START + 4].copy_from_slice(&total.to_be_bytes());
    header[START + 8..START + 10].copy_from_slice(&[vector.hop_limit(), UDP]);
    header[START + 12..START + 16].copy_from_slice(&source[12..]);
    header[START + 16..].copy_from_slice(&vector.rgid()[12..]);
    let words =
        header[START..].chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[START + 10..START + 12].copy_from_slice(&(!folded as u16).to_be_bytes());
    header
}

/// The QPs that get the message.
fn targets(world: &World, from: HcaId, port: u8, to: &Target, qpn: u32) -> Vec<Place> {
    match to {
        Target::Port(address) => {
            let id = fabric::reach(world, from, port, *address);
            id.and_then(|id| Some((id, number(&world.hcas[id].objects, qpn)?)))
                .into_iter()
                .collect()
        }
        Target::Group(group) => members(world, from, port, group),
    }
}

/// The QPs of all functions that joined a group; the sender's own function hears it as well.
fn members(world: &World, from: HcaId, port: u8, group: &[u8; 16]) -> Vec<Place> {
    let link = world.hcas[from].profile.link();
    let up = |hca: &Hca, port: usize| hca.ports.get(port).is_some_and(|port| port.up) && !hca.fatal;
    if !up(&world.hcas[from], usize::from(port).wrapping_sub(1)) {
        return Vec::new();
    }
    let hcas = world.hcas.iter().enumerate();
    hcas.filter(|(_, hca)| hca.profile.link() == link && (0..hca.ports.len()).any(|at| up(hca, at)))
        .filter_map(|(id, hca)| Some((id, hca.objects.groups.get(group)?)))
        .flat_map(|(id, qps)| qps.iter().map(move |&qpn| (id, qpn)))
        .collect()
}

/// The number by which a function knows the QP that a packet names: each port has a QP 0 and a QP 1 of its own.
fn number(objects: &Objects, qpn: u32) -> Option<u32> {
    let service = match qpn {
        0 => Service::Qp0,
        1 => Service::Qp1,
        _ => return Some(qpn),
    };
    objects.qps.iter().find(|(_, qp)| qp.service == service).map(|(&number, _)| number)
}

/// Gives the message to a QP, if it takes it; the error is the sender's.
fn deliver(
    world: &mut World,
    (id, qpn): Place,
    packet: &Packet<'_>,
    bench: &mut Bench,
) -> Result<(), u8> {
    let Some(qp) = world.hcas[id].objects.qps.get(&qpn) else { return Ok(()) };
    let ready =
        matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::SqError | QpState::SqDrained);
    let key = match qp.service {
        Service::Ud => Some(qp.context.q_key()),
        Service::Qp1 => Some(GENERAL_SERVICES_KEY),
        // Subnet management has a key of its own inside its packets.
        Service::Qp0 => Some(packet.q_key),
        _ => None,
    };
    if !ready || key != Some(packet.q_key) {
        tracing::info!(qpn, ready, ?key, sent = packet.q_key, "a datagram is not for this QP");
        return Ok(());
    }
    let general = qp.service == Service::Qp1;
    let Ok(index) = responder::next_receive(world, (id, qpn), Some(&mut bench.receive)) else {
        counters::count(&mut world.hcas[id].objects, qpn, Count::OutOfBuffer);
        return Ok(());
    };
    let bytes = packet.length + GRH as u64;
    if let Err(syndrome) = responder::scatter_list(world, (id, qpn), index, bytes, bench) {
        responder::receive_failed(world, (id, qpn), index, syndrome);
        return Ok(());
    }
    let from = &*world.hcas[packet.from].memory;
    let to = &*world.hcas[id].memory;
    match transfer::transfer(from, &bench.local, &bench.wqe, to, &bench.remote) {
        Ok(()) => {}
        Err(End::Source) => return Err(cqe_syndrome::LOCAL_PROTECTION),
        Err(End::Target) => {
            responder::receive_failed(world, (id, qpn), index, cqe_syndrome::LOCAL_PROTECTION);
            return Ok(());
        }
    }
    received(world, (id, qpn), packet, index, general);
    Ok(())
}

/// The message is there: uses up the receive WQE and writes its CQE.
fn received(world: &mut World, (id, qpn): Place, packet: &Packet<'_>, index: u16, general: bool) {
    let now = world.hcas[id].objects.limits.ticks(world.clock.now);
    let Some(cqn) = responder::use_up(world, (id, qpn), index) else { return };
    let Some(qp) = world.hcas[id].objects.qps.get(&qpn) else { return };
    let with_immediate = packet.work.kind == Kind::SendImm;
    let of = Received {
        opcode: match with_immediate {
            true => cqe_opcode::RESPONDER_SEND_IMM,
            false => cqe_opcode::RESPONDER_SEND,
        },
        index,
        bytes: (packet.length + GRH as u64) as u32,
        immediate: match (with_immediate, general) {
            (true, _) => packet.work.immediate,
            (false, true) => DEFAULT_PKEY,
            (false, false) => 0,
        },
        solicited: packet.work.solicited,
        slid: packet.slid,
        peer: packet.flags_rqpn,
        now,
    };
    let completion = Completion::responder(qp, qpn, &of, None);
    if completion::complete(world, id, cqn, completion).is_err() {
        failure::no_room(world, id, qpn);
    }
}
