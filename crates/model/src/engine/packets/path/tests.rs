//! The headers of a packet, the port that takes it, and the peer that sent it.

use super::*;
use crate::hca::state::Violations;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const VLAN: u16 = 5;

/// An entry of the RoCE address table.
fn entry(gid: [u8; 16], version: RoceVersion, l3: RoceL3Type, vlan: Option<u16>) -> RoceAddrLayout {
    let mut own = RoceAddrLayout::zeroed();
    own.set_source_l3_address(&gid)
        .set_roce_version(version)
        .set_roce_l3_type(l3)
        .set_source_mac_47_32(u16::from_be_bytes([MAC[0], MAC[1]]))
        .set_source_mac_31_0(u32::from_be_bytes([MAC[2], MAC[3], MAC[4], MAC[5]]))
        .set_vlan_valid(vlan.is_some())
        .set_vlan_id(vlan.unwrap_or(0));
    own
}

fn ethernet(mac: [u8; 6], vlan: Option<u16>) -> Ethernet {
    let vlan = vlan.map(|id| Vlan { priority: 0, drop_eligible: false, id });
    Ethernet { destination: Mac(mac), vlan, ..Ethernet::default() }
}

fn ipv6(ethernet: Ethernet, gid: [u8; 16]) -> Route {
    let mut grh = Grh::zeroed();
    grh.set_destination_gid(&gid);
    Route::Ipv6(ethernet, grh, UdpHeader::zeroed())
}

#[test]
fn roce_packet_matches_mac_vlan_gid_and_type() {
    let (v6, v4, tagged) = ([6; 16], mapped(&[10, 0, 0, 4]), [9; 16]);
    let roce = [
        entry(v6, RoceVersion::V2, RoceL3Type::IPV6, None),
        entry(v4, RoceVersion::V2, RoceL3Type::IPV4, None),
        entry(tagged, RoceVersion::V2, RoceL3Type::IPV6, Some(VLAN)),
        RoceAddrLayout::zeroed(),
    ];
    let violations = Violations::default();
    let port = Port { up: true, cap_mask1: 0, lid: 0, gids: Vec::new(), violations };
    let ports = [port];
    let addresses = Addresses { link: Link::Ethernet, ports: &ports, roce: &roce };
    let ipv4 = |mac, address: [u8; 4]| {
        let mut ip = Ipv4Header::zeroed();
        ip.set_destination_address(&address);
        Route::Ipv4(ethernet(mac, None), ip, UdpHeader::zeroed())
    };
    let v1 = |gid: [u8; 16]| {
        let mut grh = Grh::zeroed();
        grh.set_destination_gid(&gid);
        Route::RoceV1(ethernet(MAC, None), grh)
    };
    let other = [2, 0, 0, 0, 0, 8];
    let cases = [
        (true, "IPv6", ipv6(ethernet(MAC, None), v6)),
        (true, "a priority without a VLAN", ipv6(ethernet(MAC, Some(0)), v6)),
        (true, "IPv4", ipv4(MAC, [10, 0, 0, 4])),
        (true, "a VLAN", ipv6(ethernet(MAC, Some(VLAN)), tagged)),
        (false, "another MAC", ipv6(ethernet(other, None), v6)),
        (false, "another GID", ipv6(ethernet(MAC, None), [7; 16])),
        (false, "a VLAN that the entry does not have", ipv6(ethernet(MAC, Some(VLAN)), v6)),
        (false, "no VLAN where the entry has one", ipv6(ethernet(MAC, None), tagged)),
        (false, "another VLAN", ipv6(ethernet(MAC, Some(VLAN + 1)), tagged)),
        (false, "another IPv4 address", ipv4(MAC, [10, 0, 0, 5])),
        (false, "IPv4 to another MAC", ipv4(other, [10, 0, 0, 4])),
        (false, "version 1 where the entry is of version 2", v1(v6)),
        (false, "IPv6 where the entry is IPv4", ipv6(ethernet(MAC, None), v4)),
        (false, "the GID of no entry", ipv6(ethernet([0; 6], None), [0; 16])),
    ];
    for (takes, what, route) in cases {
        assert_eq!(addresses.takes(1, &route, false), takes, "{what}");
        assert!(!addresses.takes(2, &route, false), "there is no port 2: {what}");
    }
    // Only VLAN and type count for packets to a group.
    let group = [0x33, 0x33, 0, 0, 0, 1];
    for (takes, vlan) in [(true, None), (true, Some(VLAN)), (false, Some(VLAN + 1))] {
        let route = ipv6(ethernet(group, vlan), [0xff; 16]);
        assert_eq!(addresses.takes(1, &route, true), takes, "{vlan:?}");
        assert!(!addresses.takes(1, &route, false));
    }
    let route = ipv4([1, 0, 0x5e, 1, 2, 3], [239, 1, 2, 3]);
    assert!(addresses.takes(1, &route, true) && !addresses.takes(1, &route, false));
}

#[test]
fn infiniband_packet_must_match_port_lid_and_gid() {
    let violations = Violations::default();
    let port = Port { up: true, cap_mask1: 0, lid: 4, gids: vec![[3; 16]], violations };
    let none = Port { lid: 0, ..port.clone() };
    let ports = [port, none];
    let addresses = Addresses { link: Link::Infiniband, ports: &ports, roce: &[] };
    let lrh = |lid| {
        let mut lrh = Lrh::zeroed();
        lrh.set_destination_lid(lid);
        lrh
    };
    let routed = |lid, gid: [u8; 16]| {
        let mut grh = Grh::zeroed();
        grh.set_destination_gid(&gid);
        Route::Global(lrh(lid), grh)
    };
    let group = [0xff; 16];
    for (takes, port, route, to_group) in [
        (true, 1, Route::Local(lrh(4)), false),
        (false, 1, Route::Local(lrh(5)), false),
        (false, 2, Route::Local(lrh(0)), false),
        (true, 1, routed(4, [3; 16]), false),
        (false, 1, routed(5, [3; 16]), false),
        (false, 1, routed(4, [4; 16]), false),
        (true, 1, routed(0xc000, group), true),
        (false, 1, routed(0xc000, group), false),
    ] {
        assert_eq!(addresses.takes(port, &route, to_group), takes, "{route:?}");
    }
}

fn port(lid: u16) -> Port {
    Port { up: true, cap_mask1: 0, lid, gids: vec![[3; 16]], violations: Violations::default() }
}

fn hop(gid: &[u8; 16]) -> Hop<'_> {
    Hop {
        loopback: false,
        index: 0,
        lid: 9,
        path_bits: 1,
        service_level: 13,
        priority: 3,
        global: true,
        hop_limit: 64,
        traffic_class: 0x21,
        flow_label: 0x12345,
        gid,
        mac: [2, 0, 0, 0, 0, 9],
        udp_port: 0xc123,
    }
}

#[test]
fn roce_route_uses_gid_entry_and_hop_fields() {
    let (v6, v4, there) = ([6; 16], mapped(&[10, 0, 0, 4]), mapped(&[10, 0, 0, 5]));
    let roce = [
        entry(v6, RoceVersion::V2, RoceL3Type::IPV6, Some(VLAN)),
        entry(v4, RoceVersion::V2, RoceL3Type::IPV4, None),
        entry(v6, RoceVersion::V1, RoceL3Type::IPV6, None),
        RoceAddrLayout::zeroed(),
    ];
    let ports = [port(0)];
    let addresses = Addresses { link: Link::Ethernet, ports: &ports, roce: &roce };
    let from = |index, loopback| {
        addresses.route(1, &Hop { index, loopback, ..hop(&there) }).expect("the hop has a route")
    };
    let Route::Ipv6(ethernet, grh, udp) = from(0, false) else { panic!("IPv6") };
    assert_eq!(ethernet.vlan, Some(Vlan { priority: 3, drop_eligible: false, id: VLAN }));
    assert_eq!((ethernet.source, ethernet.destination), (Mac(MAC), Mac([2, 0, 0, 0, 0, 9])));
    assert_eq!((grh.source_gid(), grh.destination_gid()), (&v6, &there));
    let sent = (grh.traffic_class(), grh.flow_label(), grh.hop_limit());
    assert_eq!((sent, udp.source_port()), ((0x21, 0x12345, 64), 0xc123));

    let Route::Ipv4(ethernet, ip, udp) = from(1, false) else { panic!("IPv4") };
    assert_eq!(ethernet.vlan, None);
    assert_eq!((ip.source_address(), ip.destination_address()), (&[10, 0, 0, 4], &[10, 0, 0, 5]));
    assert_eq!((ip.type_of_service(), ip.time_to_live(), ip.dont_fragment()), (0x21, 64, true));
    assert_eq!(udp.source_port(), 0xc123);

    let Route::RoceV1(_, grh) = from(2, false) else { panic!("version 1") };
    assert_eq!((grh.source_gid(), grh.destination_gid()), (&v6, &there));

    let Route::Ipv4(ethernet, ip, _) = from(1, true) else { panic!("IPv4") };
    assert_eq!((ethernet.destination, ip.destination_address()), (Mac(MAC), &[10, 0, 0, 4]));

    for (number, index) in [(0, 0), (2, 0), (1, 3), (1, 4)] {
        assert_eq!(addresses.route(number, &Hop { index, ..hop(&there) }), None);
    }
}

#[test]
fn ib_route_sets_lid_path_bits_and_optional_grh() {
    let ports = [port(4)];
    let addresses = Addresses { link: Link::Infiniband, ports: &ports, roce: &[] };
    let there = [7; 16];
    let lids = |lrh: &Lrh| (lrh.source_lid(), lrh.destination_lid(), lrh.service_level());
    let Some(Route::Global(lrh, grh)) = addresses.route(1, &hop(&there)) else { panic!() };
    assert_eq!(lids(&lrh), (5, 9, 13));
    assert_eq!((grh.source_gid(), grh.destination_gid()), (&[3; 16], &there));
    let local = Hop { global: false, ..hop(&there) };
    let Some(Route::Local(lrh)) = addresses.route(1, &local) else { panic!() };
    assert_eq!(lids(&lrh), (5, 9, 13));
    let back = Hop { loopback: true, ..hop(&there) };
    let Some(Route::Global(lrh, grh)) = addresses.route(1, &back) else { panic!() };
    assert_eq!((lrh.destination_lid(), grh.destination_gid()), (4, &[3; 16]));

    for (global, lid, leads) in [
        (false, 0, false),
        (true, 0, false),
        (false, 0xc000, false),
        (false, 0xfffe, false),
        (true, 0xc000, true),
        (false, 0xbfff, true),
        (false, 0xffff, true),
    ] {
        let route = addresses.route(1, &Hop { global, lid, ..hop(&there) });
        assert_eq!(route.is_some(), leads, "{lid:#x}, with a GRH: {global}");
    }
    let no_gid = Hop { index: 1, ..hop(&there) };
    assert_eq!(addresses.route(1, &no_gid), None, "the port has one GID");
}

#[test]
fn peer_matches_by_source_and_own_address() {
    let (v6, v4) = ([6; 16], mapped(&[10, 0, 0, 4]));
    let roce = [
        entry(v6, RoceVersion::V2, RoceL3Type::IPV6, None),
        entry(v4, RoceVersion::V2, RoceL3Type::IPV4, None),
    ];
    let addresses = Addresses { link: Link::Ethernet, ports: &[], roce: &roce };
    let path = |index| *AddressPath::zeroed().set_src_addr_index(index);
    let peer = |index, gid: [u8; 16], route: &Route| {
        addresses.is_peer(&path(index), Address::Roce { gid, mac: [0; 6], own: index }, route)
    };
    let mut grh = Grh::zeroed();
    grh.set_source_gid(&[8; 16]).set_destination_gid(&v6);
    for route in [
        Route::Ipv6(Ethernet::default(), grh, UdpHeader::zeroed()),
        Route::RoceV1(Ethernet::default(), grh),
    ] {
        assert!(peer(0, [8; 16], &route));
        assert!(!peer(0, [9; 16], &route), "another peer");
        assert!(!peer(1, [8; 16], &route) && !peer(2, [8; 16], &route), "another own address");
        let lid = Address::Lid(0);
        assert!(!addresses.is_peer(&path(0), lid, &route), "the address is of another network");
    }
    let mut ip = Ipv4Header::zeroed();
    ip.set_source_address(&[10, 0, 0, 8]).set_destination_address(&[10, 0, 0, 4]);
    let route = Route::Ipv4(Ethernet::default(), ip, UdpHeader::zeroed());
    assert!(peer(1, mapped(&[10, 0, 0, 8]), &route));
    assert!(!peer(1, mapped(&[10, 0, 0, 9]), &route) && !peer(0, mapped(&[10, 0, 0, 8]), &route));

    let mut lrh = Lrh::zeroed();
    lrh.set_source_lid(4);
    let mut grh = Grh::zeroed();
    grh.set_source_gid(&[3; 16]);
    let (local, routed) = (Route::Local(lrh), Route::Global(lrh, grh));
    let known = |peer, route| addresses.is_peer(&path(0), peer, route);
    assert!(known(Address::Lid(4), &local) && !known(Address::Lid(5), &local));
    let gid = [3; 16];
    assert!(known(Address::Routed { lid: 4, gid }, &routed));
    assert!(!known(Address::Routed { lid: 5, gid }, &routed));
    assert!(!known(Address::Routed { lid: 4, gid: [4; 16] }, &routed));
    assert_eq!((slid(&local), slid(&routed)), (4, 4));
}

#[test]
fn vlan_priority_comes_from_eth_prio_or_sl_of_datagram() {
    let mut path = AddressPath::zeroed();
    path.set_sl(7).set_eth_prio(5);
    assert_eq!(Hop::from(&path).priority, 5);
    let mut vector = DatagramSegment::zeroed();
    vector.set_sl(5 << 1);
    assert_eq!(Hop::from(&vector).priority, 5);
}
