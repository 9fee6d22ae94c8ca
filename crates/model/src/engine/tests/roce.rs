//! RoCE: the fields of a path that must be right for a message to arrive, and for its answer; the
//! same for messages that are carried whole and in packets.

use std::time::Duration;

use verbless_prm::hot::cqe_syndrome;
use verbless_prm::{AddressPath, RoceAddrLayout, RoceL3Type, RoceVersion};

use super::rig::{Endpoint, Request, Rig};
use crate::hca::objects::Address;
use crate::profile::Link;

/// The address of a function.
fn address(function: u8) -> RoceAddrLayout {
    let mut entry = RoceAddrLayout::zeroed();
    entry.set_source_l3_address(&[function + 1; 16]);
    entry.set_source_mac_47_32(0x0200).set_source_mac_31_0(u32::from(function) + 1);
    entry.set_roce_version(RoceVersion::V2).set_roce_l3_type(RoceL3Type::IPV6);
    entry
}

/// The addresses of two functions, and the paths of a QP of each to the other's.
struct Network {
    entries: [RoceAddrLayout; 2],
    paths: [AddressPath; 2],
}

impl Network {
    fn new() -> Self {
        let path = |to: u8| {
            let mut path = AddressPath::zeroed();
            path.set_vhca_port_num(1).set_hop_limit(64).set_udp_sport(0xc000);
            path.set_rgid_rip(&[to + 1; 16]);
            path.set_rmac_47_32(0x0200).set_rmac_31_0(u32::from(to) + 1);
            path
        };
        Self { entries: [0, 1].map(address), paths: [1, 0].map(path) }
    }

    fn connect(&self, rig: &mut Rig, ends: [&Endpoint; 2]) {
        rig.connect(ends[0], ends[1]);
        for (end, path) in ends.iter().zip(&self.paths) {
            let mac = u64::from(path.rmac_47_32()) << 32 | u64::from(path.rmac_31_0());
            let [_, _, mac @ ..] = mac.to_be_bytes();
            let (gid, own) = (*path.rgid_rip(), path.src_addr_index());
            let qp = rig.qp(end);
            *qp.context.primary_address_path_mut() = *path;
            qp.remote = Some(Address::Roce { gid, mac, own });
            let function = &mut rig.locked.functions[end.hca];
            function.hca.roce_addresses[0] = self.entries[end.hca];
            rig.locked.publish_addresses(end.hca);
        }
    }
}

/// The outcome of a WRITE: the syndrome of its CQE, if it failed, and whether its bytes arrived.
type Outcome = (Option<u8>, bool);

type Case = (&'static str, fn(&mut Network), Outcome);

fn outcome(in_packets: bool, edit: fn(&mut Network)) -> Outcome {
    let mut rig = Rig::on(Link::Ethernet);
    rig.locked.in_packets = in_packets;
    let mut network = Network::new();
    edit(&mut network);
    let (mut a, b) = (rig.end(0), rig.end(1));
    network.connect(&mut rig, [&a, &b]);
    let (to, rkey) = rig.region(1, 64);
    rig.post(&mut a, Request::write(to, rkey).inline(b"arrives"));
    rig.run();
    for _ in 0..10 {
        rig.advance(Duration::from_secs(1));
    }
    let done = rig.one(0, a.send_cq);
    let failed = done.opcode() == verbless_prm::hot::cqe_opcode::REQUESTER_ERROR;
    (failed.then(|| done.syndrome()), rig.bytes(to, 7) == b"arrives")
}

#[test]
fn roce_delivery_checks_gid_mac_vlan_and_version() {
    let lost = (Some(cqe_syndrome::TRANSPORT_RETRY_EXCEEDED), false);
    let unanswered = (Some(cqe_syndrome::TRANSPORT_RETRY_EXCEEDED), true);
    let cases: [Case; 13] = [
        ("a right path", |_| {}, (None, true)),
        ("another MAC", |it| _ = it.paths[0].set_rmac_31_0(7), lost),
        ("another GID", |it| _ = it.paths[0].set_rgid_rip(&[7; 16]), lost),
        ("a VLAN", |it| _ = it.entries[0].set_vlan_valid(true).set_vlan_id(5), lost),
        ("a VLAN there", |it| _ = it.entries[1].set_vlan_valid(true).set_vlan_id(5), lost),
        (
            "one VLAN",
            |it| it.entries.iter_mut().for_each(|it| _ = it.set_vlan_valid(true).set_vlan_id(5)),
            (None, true),
        ),
        (
            "VLAN 0, which is none",
            |it| _ = it.entries[0].set_vlan_valid(true).set_vlan_id(0),
            (None, true),
        ),
        ("RoCE v1 to v2", |it| _ = it.entries[0].set_roce_version(RoceVersion::V1), lost),
        ("IPv4 to IPv6", |it| _ = it.entries[0].set_roce_l3_type(RoceL3Type::IPV4), lost),
        ("a MAC that is wrong on the way back", |it| _ = it.paths[1].set_rmac_31_0(7), unanswered),
        ("a peer that has another GID", |it| _ = it.paths[1].set_rgid_rip(&[7; 16]), lost),
        // There is no router between the ports.
        ("a hop limit of 0", |it| _ = it.paths[0].set_hop_limit(0), (None, true)),
        ("an own address that is none", |it| _ = it.paths[0].set_src_addr_index(3), lost),
    ];
    for (what, edit, expected) in cases {
        for in_packets in [true, false] {
            assert_eq!(outcome(in_packets, edit), expected, "{what}; in packets: {in_packets}");
        }
    }
}
