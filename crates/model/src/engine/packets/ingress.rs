//! Packets that arrive at a port: finds their QP, and checks their keys.
//!
//! Sources: InfiniBand specification, volume 1, 9.6.1 and 10.9 (partitions), 10.2.5 (Q_Keys); Linux
//! `drivers/infiniband/sw/rxe/rxe_recv.c` for the order of checks and the counters.

use super::super::scratch::Scratch;
use super::datagram::{self, has_q_key};
use super::path::{Addresses, mapped};
use crate::engine::ethernet;
use crate::engine::function::FunctionEngine;
use crate::engine::transport;
use crate::fabric::{Delivery, Vport};
use crate::functions::OtherFunctions;
use crate::hca::Hca;
use crate::hca::objects::{Objects, QpObject};
use crate::hca::state::Violations;
use verbless_wire::{Opcode, Packet, Route, Service};

/// The destination QPN of multicast datagrams.
const MULTICAST_QPN: u32 = 0xff_ffff;
/// The bit of a P_Key that marks a full member; the other bits name the partition.
const FULL: u16 = 1 << 15;

/// Takes a packet that arrived at a port of a function.
pub(in crate::engine) fn arrive(
    function: &mut FunctionEngine,
    others: OtherFunctions<'_>,
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
        Ok(None) => return ethernet::arrive(function, others, delivery, now, scratch),
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
    if !addresses.takes(port, route, to == MULTICAST_QPN) {
        return;
    }
    if to == MULTICAST_QPN && opcode.service == Service::Ud {
        to_group((function, others), (&packet, opcode), (port, own), now, scratch);
        return;
    }
    let Some(qpn) = local_number(&function.hca.objects, port, to) else {
        tracing::debug!(port, to, "a packet for a management QP that does not exist");
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
    if let Err(wrong) = keys_fit(&function.hca, qp, &packet) {
        return count_wrong_key(&mut function.hca, qpn, wrong);
    }
    match (transport::find(st), function.pair_among(qpn, now, others)) {
        (Some(transport), Ok(mut pair)) => (transport.take)(&mut pair, &packet, opcode, scratch),
        (_, Err(missing)) => tracing::error!(%missing, "a packet for a QP that cannot take it"),
        (None, _) => tracing::error!(qpn, ?st, "a packet for a QP of a type that takes none"),
    }
}

fn addresses(hca: &Hca) -> Addresses<'_> {
    Addresses { link: hca.profile.link(), ports: &hca.ports, roce: &hca.roce_addresses }
}

/// A key of a packet that differs from that of its QP.
#[derive(Debug)]
struct WrongKey {
    key: Key,
    /// The QP's port.
    port: u8,
    /// Whether the QP takes messages. A QP that takes no packets drops this one anyway: no
    /// violation.
    counts: bool,
}

#[derive(Debug)]
enum Key {
    P,
    Q,
}

/// Whether the keys of a packet match those of its QP.
fn keys_fit(hca: &Hca, qp: &QpObject, packet: &Packet<'_>) -> Result<(), WrongKey> {
    let transport = &packet.headers.transport;
    let sent = transport.bth.partition_key();
    let index = qp.context.primary_address_path().pkey_index();
    let pkey_fits = hca.pkey(index.into()).is_ok_and(|own| pkeys_match(own, sent));
    let q_key_fits = transport.extensions.deth.is_none_or(|deth| has_q_key(qp, deth.queue_key()));
    let key = match (pkey_fits, q_key_fits) {
        (true, true) => return Ok(()),
        (true, false) => Key::Q,
        (false, _) => Key::P,
    };
    Err(WrongKey { key, port: qp.port, counts: qp.state.receives() })
}

/// Counts a packet with a wrong key at its port.
fn count_wrong_key(hca: &mut Hca, qpn: u32, wrong: WrongKey) {
    tracing::info!(qpn, ?wrong, "a packet with a wrong key");
    let port = usize::from(wrong.port).checked_sub(1).and_then(|at| hca.ports.get_mut(at));
    let Some(port) = port else {
        tracing::error!(qpn, port = wrong.port, "a QP is bound to a port that does not exist");
        return;
    };
    if wrong.counts {
        let Violations { pkey, qkey } = &mut port.violations;
        let count = match wrong.key {
            Key::P => pkey,
            Key::Q => qkey,
        };
        *count = count.saturating_add(1);
    }
}

/// Whether two members may communicate: they are of one partition, and not both limited.
fn pkeys_match(own: u16, sent: u16) -> bool {
    let partition = own & !FULL;
    partition != 0 && partition == sent & !FULL && (own | sent) & FULL != 0
}

/// Delivers a datagram to all QPs of a function that joined its group.
fn to_group(
    (function, others): (&mut FunctionEngine, OtherFunctions<'_>),
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
    // Packets to any group reach every port.
    let Some(members) = function.hca.objects.groups.get(&group) else { return };
    let source = packet.headers.transport.extensions.deth.map(|deth| deth.source_qp());
    let members: Vec<u32> = members.iter().copied().collect();
    for qpn in members {
        let Some(qp) = function.hca.objects.qps.get(&qpn) else {
            tracing::error!(qpn, ?group, "a multicast group has a destroyed member");
            continue;
        };
        // The QP may block its own multicast packets.
        let blocks_own = qp.context.block_lb_mc() && own && source == Some(qpn);
        if blocks_own || qp.port != port {
            continue;
        }
        if let Err(wrong) = keys_fit(&function.hca, qp, packet) {
            count_wrong_key(&mut function.hca, qpn, wrong);
            continue;
        }
        match function.pair_among(qpn, now, others) {
            Ok(mut pair) => datagram::take(&mut pair, packet, opcode, scratch),
            Err(missing) => {
                tracing::error!(%missing, ?group, "a member of a multicast group was destroyed")
            }
        }
    }
}

/// The function's number of the QP that a packet names: each port has a QP 0 and a QP 1 of its own.
fn local_number(objects: &Objects, port: u8, qpn: u32) -> Option<u32> {
    const MANAGEMENT: std::ops::RangeInclusive<u32> = 0..=1;
    if !MANAGEMENT.contains(&qpn) {
        return Some(qpn);
    }
    let known_as = |qp: &QpObject| qp.qp_type.datagrams.and_then(|datagrams| datagrams.number);
    let mut qps = objects.qps.iter();
    qps.find(|(_, qp)| known_as(qp) == Some(qpn) && qp.port == port).map(|(&number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::pkeys_match;

    #[test]
    fn pkeys_match_unless_both_are_limited() {
        for (own, sent, may) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0xffff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0x0001, true),
            (0x8001, 0x8002, false),
            (0xffff, 0x8001, false),
            (0x0000, 0x8000, false),
            (0x8000, 0x8000, false),
        ] {
            assert_eq!(pkeys_match(own, sent), may, "{own:#x} and {sent:#x}");
        }
    }
}
