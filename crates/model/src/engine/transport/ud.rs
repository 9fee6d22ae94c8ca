//! Unreliable datagrams: what UD QPs and the management QPs 0 and 1 send. Each request says where
//! it goes, and nothing comes back.
//!
//! The receiver finds 40 bytes in front of the message: the global route header, where the packet
//! had one. Sources: InfiniBand specification, volume 1, 8.3 (GRH), 9.8.3 (UD), 10.2.5 (Q_Keys);
//! Linux `drivers/infiniband/hw/mlx5/{wr,cq}.c`.

use verbless_prm::hot::{CqeSourceQp, cqe_opcode, cqe_syndrome};
use verbless_prm::{
    Bth, CqeRoceL3Type, DatagramSegment, Deth, Grh, Immdt, IpProtocol, Ipv4Header, RoceL3Type,
    RoceVersion, UdpHeader,
};

use super::super::context::{Missing, QueuePair};
use super::super::counters::Count;
use super::super::cqe::Received;
use super::super::function::{Function, beside};
use super::super::keys::Sge;
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::transfer::{self, End};
use super::super::work::{Placed, Work, address_vector};
use super::connected::{Carrier, QpId};
use crate::fabric;
use crate::hca::objects::{Address, Objects, Qp, Service};
use crate::hca::{Hca, is_group};
use crate::memory::HostMemory;
use crate::profile::Link;
use crate::wire;
use crate::world::World;

/// Bytes of a global route header, and of the room for it in front of every message.
const GRH: usize = Grh::BYTES;
/// The LIDs of multicast groups.
const FIRST_MULTICAST_LID: u16 = 0xc000;
const LAST_MULTICAST_LID: u16 = 0xfffe;
/// The Q_Key of QP 1.
pub(in crate::engine) const GENERAL_SERVICES_KEY: u32 = 0x8001_0000;
/// A Q_Key with this bit in a request means the QP's own.
pub(in crate::engine) const OWN_KEY: u32 = 1 << 31;
/// The P_Key of the partition that every port is in.
const DEFAULT_PKEY: u32 = 0xffff;

/// A datagram on the wire.
struct Packet<'a> {
    work: &'a Work,
    /// Bytes of the message.
    length: u64,
    q_key: u32,
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

impl Carrier<'_> {
    /// Sends a request that is ready: it is done when it has left, whoever hears it.
    pub(super) fn send_datagram(
        &mut self,
        placed: &Placed,
        scratch: &mut Scratch,
    ) -> Result<Turn, Missing> {
        let sent = self.deliver_all(placed, scratch)?;
        let mut pair = self.pair()?;
        Ok(if pair.failed_meanwhile() { Turn::Sleep } else { pair.finish(placed, sent) })
    }

    /// Takes the message in `scratch` to whom it is for; the inner error is the syndrome.
    fn deliver_all(
        &mut self,
        placed: &Placed,
        scratch: &mut Scratch,
    ) -> Result<Result<(), u8>, Missing> {
        let (world, (id, qpn)) = (&mut *self.world, self.from);
        const MALFORMED: u8 = cqe_syndrome::LOCAL_QP_OPERATION;
        let (work, length) = (&placed.work, placed.length);
        let Function { hca, engine } = &mut world.functions[id];
        let lost = engine.faults.loses_message(qpn);
        let qp = hca.objects.qps.get(&qpn).ok_or(Missing::Qp(qpn))?;
        let Some((vector, _)) = address_vector(&scratch.wqe) else { return Ok(Err(MALFORMED)) };
        if length > 1 << qp.log_mtu {
            return Ok(Err(cqe_syndrome::LOCAL_LENGTH));
        }
        let immediate = if work.operation.immediate { Immdt::BYTES } else { 0 };
        let behind = wire::behind(Bth::BYTES + Deth::BYTES + immediate, length as usize);
        let Some(route) = route(hca, qp, &vector, behind) else {
            tracing::info!(qpn, ?vector, "an address vector that leads nowhere");
            return Ok(Err(MALFORMED));
        };
        let source = match (qp.service, qp.context.deth_sqpn()) {
            (Service::Qp0, _) => 0,
            (Service::Qp1, _) => 1,
            (_, 0) => qpn,
            (_, other) => other,
        };
        let (port, deaf) = (qp.port, qp.context.block_lb_mc());
        let q_key = if vector.q_key() & OWN_KEY != 0 { qp.context.q_key() } else { vector.q_key() };
        // What the receiver finds in front of the message.
        let front = match route.header {
            Some(header) => {
                scratch.wqe.extend_from_slice(&header);
                Sge::Inline { at: scratch.wqe.len() - GRH, length: GRH as u64 }
            }
            None => Sge::Null { length: GRH as u64 },
        };
        scratch.local.insert(0, front);
        if lost {
            return Ok(Ok(()));
        }
        let packet =
            Packet { work, length, q_key, slid: hca.lid(port), flags_rqpn: route.flags | source };
        let mut targets = std::mem::take(&mut scratch.targets);
        targets.clear();
        find_targets(world, id, port, &route.target, vector.dqp_dct(), &mut targets);
        // It does not want to hear what it says to its groups itself.
        if deaf && matches!(route.target, Target::Group(_)) {
            targets.retain(|&place| place != (id, qpn));
        }
        let mut sent = Ok(());
        for &(to, qpn) in &targets {
            let now = world.clock.now;
            let (function, memory) = beside(&mut world.functions, to, id);
            match function.pair(qpn, now) {
                Ok(mut pair) => sent = pair.receive_datagram(&packet, memory, scratch),
                Err(missing) => tracing::info!(%missing, "nobody gets a datagram"),
            }
            // What the sender cannot read, nobody else gets.
            if sent.is_err() {
                break;
            }
        }
        scratch.targets = targets;
        Ok(sent)
    }
}

/// Where an address vector leads; `None` if it does not make sense on this port. `behind`: bytes
/// behind the network header, or the UDP header of RoCE v2.
fn route(hca: &Hca, qp: &Qp, vector: &DatagramSegment, behind: usize) -> Option<Route> {
    let port = hca.ports.get(usize::from(qp.port).checked_sub(1)?)?;
    if hca.profile.link() == Link::Ethernet {
        let own = hca.roce_address(vector.src_addr_index().into()).ok()?;
        let kind = match (own.roce_version(), own.roce_l3_type()) {
            (RoceVersion::V2, RoceL3Type::IPV4) => CqeRoceL3Type::IPV4,
            (RoceVersion::V2, _) => CqeRoceL3Type::IPV6,
            _ => CqeRoceL3Type::GRH,
        };
        let source = own.source_l3_address();
        let udp = UdpHeader::BYTES + behind;
        let header = match kind {
            CqeRoceL3Type::IPV4 => ipv4(vector, source, udp),
            CqeRoceL3Type::IPV6 => grh(vector, source, IpProtocol::UDP, udp),
            _ => grh(vector, source, IpProtocol::IBA, behind),
        };
        let target = if vector.fl() {
            Target::Port(Address::Gid(*source))
        } else if is_group(vector.rgid()) {
            Target::Group(*vector.rgid())
        } else {
            Target::Port(Address::Gid(*vector.rgid()))
        };
        let flags = CqeSourceQp::new().with_g(1).with_roce_l3_type(kind.0).into_bits();
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
        header = Some(grh(vector, &source, IpProtocol::IBA, behind));
    }
    let target = match lid {
        0 => return None,
        FIRST_MULTICAST_LID..=LAST_MULTICAST_LID if header.is_some() => {
            Target::Group(*vector.rgid())
        }
        FIRST_MULTICAST_LID..=LAST_MULTICAST_LID => return None,
        _ if vector.fl() => Target::Port(hca.own_address(port)),
        lid if vector.grh() => Target::Port(Address::Routed { lid, gid: *vector.rgid() }),
        lid => Target::Port(Address::Lid(lid)),
    };
    let g = match (&header, &target) {
        (None, _) => 0,
        (Some(_), Target::Group(_)) => 2,
        (Some(_), _) => 1,
    };
    let flags = CqeSourceQp::new().with_g(g).with_sl(vector.sl()).into_bits();
    Some(Route { target, header, flags })
}

/// A GRH, or the IPv6 header of RoCE v2, as the receiver finds it.
fn grh(vector: &DatagramSegment, source: &[u8; 16], next: IpProtocol, behind: usize) -> [u8; GRH] {
    let mut grh = Grh::zeroed();
    grh.set_traffic_class(vector.tclass())
        .set_flow_label(vector.flow_label())
        .set_hop_limit(vector.hop_limit())
        .set_source_gid(source)
        .set_destination_gid(vector.rgid());
    *wire::complete_grh(grh, next, behind).as_bytes()
}

/// An IPv4 header as the receiver finds it: in the last 20 of the 40 bytes.
fn ipv4(vector: &DatagramSegment, source: &[u8; 16], behind: usize) -> [u8; GRH] {
    const START: usize = GRH - Ipv4Header::BYTES;
    let address = |gid: &[u8; 16]| gid.last_chunk().copied().unwrap_or_default();
    let mut ip = Ipv4Header::zeroed();
    ip.set_type_of_service(vector.tclass())
        .set_dont_fragment(true)
        .set_time_to_live(vector.hop_limit())
        .set_source_address(&address(source))
        .set_destination_address(&address(vector.rgid()));
    let mut header = [0; GRH];
    header[START..].copy_from_slice(wire::complete_ipv4(ip, behind).as_bytes());
    header
}

/// Adds the QPs that get the message to `targets`.
fn find_targets(
    world: &World,
    from: usize,
    port: u8,
    to: &Target,
    qpn: u32,
    targets: &mut Vec<QpId>,
) {
    match to {
        Target::Port(address) => {
            let to = fabric::reach(&world.functions, from, port, *address);
            targets.extend(
                to.and_then(|id| Some((id, number(&world.functions[id].hca.objects, qpn)?))),
            );
        }
        Target::Group(group) => members(world, from, port, group, targets),
    }
}

/// Adds the QPs of all functions that joined a group; the sender's own function hears it as well.
fn members(world: &World, from: usize, port: u8, group: &[u8; 16], targets: &mut Vec<QpId>) {
    let source = &world.functions[from].hca;
    let link = source.profile.link();
    if !source.is_up(port) {
        return;
    }
    for (id, Function { hca, .. }) in world.functions.iter().enumerate() {
        let hears =
            hca.profile.link() == link && (1..=hca.ports.len() as u8).any(|at| hca.is_up(at));
        let members = hca.objects.groups.get(group).filter(|_| hears);
        targets.extend(members.into_iter().flatten().map(|&qpn| (id, qpn)));
    }
}

/// The number by which a function knows the QP that a packet names: each port has a QP 0 and a QP 1
/// of its own.
fn number(objects: &Objects, qpn: u32) -> Option<u32> {
    let service = match qpn {
        0 => Service::Qp0,
        1 => Service::Qp1,
        _ => return Some(qpn),
    };
    objects.qps.iter().find(|(_, qp)| qp.service == service).map(|(&number, _)| number)
}

impl QueuePair<'_> {
    /// Takes a datagram out of `memory`, the QP's own without it, if it is for this QP; the error
    /// is the sender's.
    fn receive_datagram(
        &mut self,
        packet: &Packet<'_>,
        memory: Option<&dyn HostMemory>,
        scratch: &mut Scratch,
    ) -> Result<(), u8> {
        let key = match self.qp.service {
            Service::Ud => Some(self.qp.context.q_key()),
            Service::Qp1 => Some(GENERAL_SERVICES_KEY),
            // Subnet management has a key of its own inside its packets.
            Service::Qp0 => Some(packet.q_key),
            _ => None,
        };
        let ready = self.qp.state.receives();
        if !ready || key != Some(packet.q_key) {
            let sent = packet.q_key;
            tracing::info!(self.qpn, ready, ?key, sent, "a datagram is not for this QP");
            return Ok(());
        }
        let Ok(index) = self.next_receive(Some(&mut scratch.receive)) else {
            self.count(Count::OutOfBuffer);
            return Ok(());
        };
        let bytes = packet.length + GRH as u64;
        if let Err(syndrome) = self.scatter_part(0, bytes, scratch) {
            self.receive_failed(index, syndrome);
            return Ok(());
        }
        let (to, Scratch { local, wqe, remote, .. }) = (self.context.memory, scratch);
        match transfer::transfer(memory.unwrap_or(to), local, wqe, to, remote) {
            Ok(()) => {}
            Err(End::Source) => return Err(cqe_syndrome::LOCAL_PROTECTION),
            Err(End::Target) => {
                self.receive_failed(index, cqe_syndrome::LOCAL_PROTECTION);
                return Ok(());
            }
        }
        let Work { operation, immediate, solicited, .. } = *packet.work;
        let of = Received {
            opcode: operation.responder_cqe.unwrap_or(cqe_opcode::RESPONDER_SEND),
            index,
            bytes: bytes as u32,
            immediate: match (operation.immediate, self.qp.service) {
                (true, _) => immediate,
                (false, Service::Qp1) => DEFAULT_PKEY,
                (false, _) => 0,
            },
            solicited,
            slid: packet.slid,
            peer: packet.flags_rqpn,
            now: self.context.ticks(),
        };
        // Whatever is wrong here, nobody else hears of it.
        let _ = self.complete_receive(&of, None);
        Ok(())
    }
}
