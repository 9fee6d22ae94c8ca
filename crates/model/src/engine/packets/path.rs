//! Converts an address path or vector to the headers of link and network, and back: whether a
//! packet is for a port, and whether a connected QP's peer sent it.
//!
//! Sources: InfiniBand specification, volume 1, 7.7, 8.3, 9.6.1 and annexes 16 and 17; IEEE 802.1Q;
//! Linux `drivers/infiniband/hw/mlx5/{qp,ah}.c` for the meaning of a path's fields.

use verbless_prm::{
    AddressPath, DatagramSegment, Grh, Ipv4Header, Lrh, RoceAddrLayout, RoceL3Type, RoceVersion,
    UdpHeader,
};

use crate::fabric::address::FIRST_MULTICAST_LID;
use crate::hca::objects::Address;
use crate::hca::state::Port;
use crate::profile::Link;
use verbless_wire::{EtherType, Ethernet, Mac, Route, Vlan};

/// The addresses of the ports of a function.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Addresses<'a> {
    pub link: Link,
    pub ports: &'a [Port],
    pub roce: &'a [RoceAddrLayout],
}

/// The path of a request: an address path or an address vector.
pub(super) struct Hop<'a> {
    pub loopback: bool,
    pub index: u8,
    pub lid: u16,
    pub path_bits: u8,
    /// InfiniBand: the service level.
    pub service_level: u8,
    /// Ethernet: the priority in the VLAN tag.
    pub priority: u8,
    pub global: bool,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub flow_label: u32,
    pub gid: &'a [u8; 16],
    pub mac: [u8; 6],
    pub udp_port: u16,
}

impl<'a> From<&'a AddressPath> for Hop<'a> {
    fn from(path: &'a AddressPath) -> Self {
        let mac = u64::from(path.rmac_47_32()) << 32 | u64::from(path.rmac_31_0());
        Self {
            loopback: path.fl(),
            index: path.src_addr_index(),
            lid: path.rlid(),
            path_bits: path.mlid(),
            service_level: path.sl(),
            priority: path.eth_prio(),
            global: path.grh(),
            hop_limit: path.hop_limit(),
            traffic_class: path.tclass(),
            flow_label: path.flow_label(),
            gid: path.rgid_rip(),
            mac: mac_of(mac),
            udp_port: path.udp_sport(),
        }
    }
}

impl<'a> From<&'a DatagramSegment> for Hop<'a> {
    fn from(vector: &'a DatagramSegment) -> Self {
        Self {
            loopback: vector.fl(),
            index: vector.src_addr_index(),
            lid: vector.rlid(),
            path_bits: vector.mlid(),
            service_level: vector.sl(),
            // Bits 3:1 of the service level (Linux `create_ib_ah`, libmlx5 `mlx5_create_ah`).
            priority: vector.sl() >> 1,
            global: vector.grh(),
            hop_limit: vector.hop_limit(),
            traffic_class: vector.tclass(),
            flow_label: vector.flow_label(),
            gid: vector.rgid(),
            mac: *vector.rmac(),
            udp_port: vector.udp_sport(),
        }
    }
}

fn mac_of(bits: u64) -> [u8; 6] {
    let [_, _, mac @ ..] = bits.to_be_bytes();
    mac
}

/// The MAC of an entry of the RoCE address table.
fn own_mac(own: &RoceAddrLayout) -> [u8; 6] {
    mac_of(u64::from(own.source_mac_47_32()) << 32 | u64::from(own.source_mac_31_0()))
}

fn vlan_of(own: &RoceAddrLayout) -> Option<u16> {
    own.vlan_valid().then_some(own.vlan_id())
}

/// The IPv4 address in a GID that maps one.
fn ipv4_of(gid: &[u8; 16]) -> [u8; 4] {
    gid.last_chunk().copied().unwrap_or_default()
}

/// The GID that maps an IPv4 address.
pub(super) fn mapped(address: &[u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(address);
    gid
}

impl<'a> Addresses<'a> {
    /// The headers of a packet that leaves port `number` (from 1) for `hop`; `None` if there is no
    /// such port, or the hop is invalid on it.
    pub(super) fn route(&self, number: u8, hop: &Hop<'_>) -> Option<Route> {
        let port = self.ports.get(usize::from(number).checked_sub(1)?)?;
        match self.link {
            Link::Ethernet => self.roce(hop),
            Link::Infiniband => infiniband(port, hop),
        }
    }

    fn entry(&self, index: u8) -> Option<&'a RoceAddrLayout> {
        self.roce.get(usize::from(index)).filter(|own| **own != RoceAddrLayout::zeroed())
    }

    fn roce(&self, hop: &Hop<'_>) -> Option<Route> {
        let own = self.entry(hop.index)?;
        let source = own.source_l3_address();
        let destination = if hop.loopback { source } else { hop.gid };
        let ethernet = Ethernet {
            destination: Mac(if hop.loopback { own_mac(own) } else { hop.mac }),
            source: Mac(own_mac(own)),
            vlan: vlan_of(own).map(|id| Vlan { priority: hop.priority, drop_eligible: false, id }),
            ether_type: EtherType::default(),
        };
        let mut udp = UdpHeader::zeroed();
        udp.set_source_port(hop.udp_port);
        Some(match (own.roce_version(), own.roce_l3_type()) {
            (RoceVersion::V2, RoceL3Type::IPV4) => {
                let mut ip = Ipv4Header::zeroed();
                ip.set_type_of_service(hop.traffic_class)
                    .set_dont_fragment(true)
                    .set_time_to_live(hop.hop_limit)
                    .set_source_address(&ipv4_of(source))
                    .set_destination_address(&ipv4_of(destination));
                Route::Ipv4(ethernet, ip, udp)
            }
            (RoceVersion::V2, _) => Route::Ipv6(ethernet, global(hop, source, destination), udp),
            _ => Route::RoceV1(ethernet, global(hop, source, destination)),
        })
    }

    /// Whether a port of the function takes packets with these headers. On Ethernet an entry of the
    /// RoCE address table must have their MAC, VLAN, type and GID; for a multicast packet only VLAN
    /// and type count.
    pub(super) fn takes(&self, number: u8, route: &Route, to_group: bool) -> bool {
        let Some(port) = usize::from(number).checked_sub(1).and_then(|at| self.ports.get(at))
        else {
            return false;
        };
        match route {
            Route::Local(lrh) => self.has_lid(port, lrh),
            Route::Global(lrh, grh) => {
                let gid = grh.destination_gid();
                to_group && gid[0] == 0xff || (self.has_lid(port, lrh) && port.gids.contains(gid))
            }
            Route::RoceV1(ethernet, grh) => {
                self.has(ethernet, grh.destination_gid(), to_group, |own| {
                    own.roce_version() == RoceVersion::V1
                })
            }
            Route::Ipv4(ethernet, ip, _) => {
                self.has(ethernet, &mapped(ip.destination_address()), to_group, |own| {
                    own.roce_version() == RoceVersion::V2 && own.roce_l3_type() == RoceL3Type::IPV4
                })
            }
            Route::Ipv6(ethernet, ip, _) => {
                self.has(ethernet, ip.destination_gid(), to_group, |own| {
                    own.roce_version() == RoceVersion::V2 && own.roce_l3_type() == RoceL3Type::IPV6
                })
            }
        }
    }

    fn has_lid(&self, port: &Port, lrh: &Lrh) -> bool {
        port.lid != 0 && lrh.destination_lid() == port.lid
    }

    fn has(
        &self,
        ethernet: &Ethernet,
        gid: &[u8; 16],
        to_group: bool,
        kind: impl Fn(&RoceAddrLayout) -> bool,
    ) -> bool {
        let tag = ethernet.vlan.map(|vlan| vlan.id).filter(|&id| id != 0);
        let group = to_group && ethernet.destination.is_group();
        let used = |own: &&RoceAddrLayout| **own != RoceAddrLayout::zeroed();
        self.roce.iter().filter(used).any(|own| {
            kind(own)
                && vlan_of(own).filter(|&id| id != 0) == tag
                && (group
                    || (own_mac(own) == ethernet.destination.0 && own.source_l3_address() == gid))
        })
    }

    /// Whether packets with these headers come from the peer of a connected QP with this path.
    pub(super) fn is_peer(&self, path: &AddressPath, peer: Address, route: &Route) -> bool {
        match (route, peer) {
            (Route::Local(lrh), Address::Lid(lid)) => lrh.source_lid() == lid,
            (Route::Global(lrh, grh), Address::Routed { lid, gid }) => {
                lrh.source_lid() == lid && *grh.source_gid() == gid
            }
            (Route::RoceV1(_, grh) | Route::Ipv6(_, grh, _), Address::Roce { gid, .. }) => {
                *grh.source_gid() == gid && self.is_own(path, grh.destination_gid())
            }
            (Route::Ipv4(_, ip, _), Address::Roce { gid, .. }) => {
                mapped(ip.source_address()) == gid
                    && self.is_own(path, &mapped(ip.destination_address()))
            }
            _ => false,
        }
    }

    /// Whether a GID is the source GID of a path.
    fn is_own(&self, path: &AddressPath, gid: &[u8; 16]) -> bool {
        self.entry(path.src_addr_index()).is_some_and(|own| own.source_l3_address() == gid)
    }
}

/// The LID that a packet left from; 0 on Ethernet.
pub(super) fn slid(route: &Route) -> u16 {
    match route {
        Route::Local(lrh) | Route::Global(lrh, _) => lrh.source_lid(),
        _ => 0,
    }
}

fn is_multicast_lid(lid: u16) -> bool {
    (FIRST_MULTICAST_LID..0xffff).contains(&lid)
}

fn infiniband(port: &Port, hop: &Hop<'_>) -> Option<Route> {
    let lid = if hop.loopback { port.lid } else { hop.lid };
    if lid == 0 {
        return None;
    }
    let mut lrh = Lrh::zeroed();
    lrh.set_service_level(hop.service_level)
        .set_destination_lid(lid)
        .set_source_lid(port.lid | u16::from(hop.path_bits));
    if !hop.global {
        if is_multicast_lid(lid) {
            return None;
        }
        return Some(Route::Local(lrh));
    }
    // The other entries of the table are empty.
    let source = port.gids.get(usize::from(hop.index))?;
    let destination = if hop.loopback { source } else { hop.gid };
    Some(Route::Global(lrh, global(hop, source, destination)))
}

fn global(hop: &Hop<'_>, source: &[u8; 16], destination: &[u8; 16]) -> Grh {
    let mut grh = Grh::zeroed();
    grh.set_traffic_class(hop.traffic_class)
        .set_flow_label(hop.flow_label)
        .set_hop_limit(hop.hop_limit)
        .set_source_gid(source)
        .set_destination_gid(destination);
    grh
}

#[cfg(test)]
mod tests;
