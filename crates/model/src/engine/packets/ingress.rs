//! Packets that arrive at a port: whose they are.

use super::super::scratch::Scratch;
use super::egress::DEFAULT_PKEY;
use super::path::{Addresses, mapped};
use crate::engine::function::Function;
use crate::engine::transport;
use crate::fabric::{Delivery, Vport};
use crate::functions::Others;
use crate::hca::Hca;
use crate::hca::objects::{Objects, QpObject};
use crate::wire::{Opcode, Packet, Route, Service};

/// The QP number of datagrams to a group.
const GROUP: u32 = 0xff_ffff;
/// Bits of a P_Key that name the partition; the last one says how full a member it is.
const MEMBERS: u16 = 0x7fff;

/// Takes what arrived at a port of a function.
pub(in crate::engine) fn arrive(
    function: &mut Function,
    others: Others<'_>,
    delivery: &Delivery,
    now: u64,
    scratch: &mut Scratch,
) {
    let Delivery { to: Vport { port, .. }, own, ref frame } = *delivery;
    if !function.hca.is_up(port) {
        return;
    }
    let packet = match frame.packet() {
        Ok(Some(packet)) => packet,
        Ok(None) => return,
        Err(why) => {
            tracing::debug!(port, %why, "a port drops a packet");
            return;
        }
    };
    let Some(opcode) = packet.headers.transport.opcode() else {
        tracing::debug!(port, "a packet of a reserved opcode");
        return;
    };
    let addresses = addresses(&function.hca);
    let route = &packet.headers.route;
    let bth = &packet.headers.transport.bth;
    let to = bth.destination_qp();
    if !addresses.takes(port, route, to == GROUP) {
        return;
    }
    // Every QP is in the default partition, as a full member: limited ones may talk to it.
    if bth.partition_key() & MEMBERS != DEFAULT_PKEY & MEMBERS {
        tracing::debug!(to, "a packet of another partition");
        return;
    }
    if to == GROUP && opcode.service == Service::Ud {
        to_group((function, others), (&packet, opcode), (port, own), now, scratch);
        return;
    }
    let Some(qpn) = number(&function.hca.objects, port, to) else {
        tracing::debug!(port, to, "a packet for a management QP that nobody has made");
        return;
    };
    let Some(qp) = function.hca.objects.qps.get(&qpn) else {
        tracing::debug!(qpn, "a packet for a QP that does not exist");
        return;
    };
    let carries = qp.qp_type.service == Some(opcode.service);
    if !carries || qp.port != port {
        tracing::debug!(qpn, ?opcode, "a packet of another service, or for another port");
        return;
    }
    if qp.qp_type.connected {
        let path = qp.context.primary_address_path();
        let known = qp.remote.is_some_and(|peer| addresses.is_peer(path, peer, route));
        if !known {
            tracing::debug!(qpn, "a packet that the QP's peer did not send");
            return;
        }
    }
    let st = qp.qp_type.st;
    match (transport::find(st), function.pair_among(qpn, now, others)) {
        (Some(transport), Ok(mut pair)) => (transport.take)(&mut pair, &packet, opcode, scratch),
        (_, Err(missing)) => tracing::error!(%missing, "a packet for a QP that cannot take it"),
        (None, _) => tracing::error!(qpn, ?st, "a packet for a QP of a type that takes none"),
    }
}

fn addresses(hca: &Hca) -> Addresses<'_> {
    Addresses { link: hca.profile.link(), ports: &hca.ports, roce: &hca.roce_addresses }
}

/// Gives a datagram to all QPs of a function that joined its group.
fn to_group(
    (function, others): (&mut Function, Others<'_>),
    (packet, opcode): (&Packet<'_>, Opcode),
    (port, own): (u8, bool),
    now: u64,
    scratch: &mut Scratch,
) {
    let group = match &packet.headers.route {
        Route::Global(_, grh) | Route::RoceV1(_, grh) | Route::Ipv6(_, grh, _) => {
            *grh.destination_gid()
        }
        Route::Ipv4(_, ip, _) => mapped(ip.destination_address()),
        Route::Local(_) => return,
    };
    // Every port hears what is sent to any group.
    let Some(members) = function.hca.objects.groups.get(&group) else { return };
    let source = packet.headers.transport.extensions.deth.map(|deth| deth.source_qp());
    let members: Vec<u32> = members.iter().copied().collect();
    for qpn in members {
        let mut pair = match function.pair_among(qpn, now, others) {
            Ok(pair) => pair,
            Err(missing) => {
                tracing::error!(%missing, ?group, "a group has a member that is gone");
                continue;
            }
        };
        // It does not want to hear what it says to its groups itself.
        let deaf = pair.qp.context.block_lb_mc() && own && source == Some(qpn);
        if !deaf && pair.qp.port == port {
            pair.take_datagram(packet, opcode, scratch);
        }
    }
}

/// The number by which a function knows the QP that a packet names: each port has a QP 0 and a QP 1
/// of its own.
fn number(objects: &Objects, port: u8, qpn: u32) -> Option<u32> {
    const MANAGEMENT: std::ops::RangeInclusive<u32> = 0..=1;
    if !MANAGEMENT.contains(&qpn) {
        return Some(qpn);
    }
    let known_as = |qp: &QpObject| qp.qp_type.datagrams.and_then(|datagrams| datagrams.number);
    let mut qps = objects.qps.iter();
    qps.find(|(_, qp)| known_as(qp) == Some(qpn) && qp.port == port).map(|(&number, _)| number)
}
