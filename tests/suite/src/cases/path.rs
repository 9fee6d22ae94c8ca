//! Connections: address paths, MTUs, PSNs.

use verbless_command::{
    Gid, GlobalRoute, InitAttr, KeyAccess, Mtu, Path, RemoteAccess, RoceVersion, RtrAttr, RtsAttr,
};
use verbless_devx::{ErrorKind, GidType, LinkLayer};
use verbless_queue::service::Connected;
use verbless_queue::wr::{Inline, Send, Write};
use verbless_queue::{ConnectOptions, CqConfig, Domain, PeerAddress, QpConfig, WcStatus};

use crate::case::cases;
use crate::need::{ETHERNET, INFINIBAND};
use crate::{
    Endpoint, Lab, Need, Pair, SMALL_MTU, Stop, ensure, ensure_eq, failed, pattern,
    ready_to_receive, until,
};

cases!(
    "path",
    "Connections: paths to the peer, packet sizes, sequence numbers.":
    two_devices_reach_each_other [Need::Peer],
    every_path_mtu_up_to_port_mtu_works,
    sequence_numbers_wrap_at_24_bits,
    peer_address_round_trips_through_bytes,
    infiniband_path_may_have_global_route [INFINIBAND],
    roce_v1_path_carries_messages [ETHERNET, Need::Gid(GidType::RoceV1)],
    roce_path_keeps_traffic_class_and_hop_limit [ETHERNET],
    unassigned_address_exceeds_retries,
    smaller_path_mtu_of_both_sides_is_used,
    outstanding_reads_are_capped_by_responder,
    path_mtu_above_port_mtu_is_rejected [Need::ShortMtu],
    initial_psn_differs_per_connection,
    connect_options_reach_device,
    both_directions_share_one_udp_source_port [ETHERNET],
    grh_required_port_drops_packets_without_grh [Need::GrhRequired],
    peer_of_another_link_layer_is_rejected,
    force_loopback_qp_reaches_itself [Need::Loopback],
);

/// Some messages both ways.
fn exchange(pair: &mut Pair) -> Result<(), Stop> {
    let data = pattern(3, 20_000);
    for forth in [true, false] {
        let Pair { a, b } = &mut *pair;
        let (from, to) = if forth { (a, b) } else { (b, a) };
        from.fill(0, &data)?;
        let (sge, at) = (from.sge(0, data.len())?, to.remote(32 << 10)?);
        from.perform(&Write::new(sge, at).signaled())?;
        ensure!(to.bytes(32 << 10, data.len())? == data, "other data arrived");
        to.receive(60 << 10, 64, 1)?;
        from.perform(&Send::new(Inline(b"that is all")).signaled())?;
        ensure_eq!(to.received()??.byte_len(), 11, "bytes received");
    }
    Ok(())
}

fn connected(lab: &Lab, options: &ConnectOptions) -> Result<Pair, Stop> {
    Pair::connected(lab, &QpConfig::new(16, 16), 64 << 10, options)
}

fn two_devices_reach_each_other(lab: &Lab) -> Result<(), Stop> {
    let mut pair = connected(lab, &ConnectOptions::default())?;
    let guid = |end: &Endpoint| end.device.info().node_guid;
    ensure!(guid(&pair.a) != guid(&pair.b), "both ends are on one device");
    exchange(&mut pair)
}

/// A WRITE of 10,000 bytes advances the PSN by its number of packets at this MTU.
pub(super) fn sends_as_many_packets<S: Connected>(
    pair: &mut Pair<S>,
    mtu: u32,
) -> Result<(), Stop> {
    let next = |pair: &Pair<S>| Ok::<_, Stop>(pair.a.qp.object().query()?.next_send_psn());
    let before = next(pair)?;
    let (from, to) = (pair.a.sge(0, 10_000)?, pair.b.remote(0)?);
    pair.a.perform(&Write::new(from, to).signaled())?;
    let packets = next(pair)?.wrapping_sub(before) & 0xff_ffff;
    ensure_eq!(packets, 10_000_u32.div_ceil(mtu), format!("packets with an MTU of {mtu}"));
    Ok(())
}

fn every_path_mtu_up_to_port_mtu_works(lab: &Lab) -> Result<(), Stop> {
    let active = lab.device()?.query_port(1)?.active_mtu().unwrap_or(256);
    for (bytes, mtu) in [
        (256, Mtu::B256),
        (512, Mtu::B512),
        (1024, Mtu::B1024),
        (2048, Mtu::B2048),
        (4096, Mtu::B4096),
    ] {
        if bytes <= active {
            let options = ConnectOptions { mtu: Some(mtu), ..Default::default() };
            let mut pair = connected(lab, &options)?;
            for end in [&pair.a, &pair.b] {
                ensure_eq!(end.qp.object().query()?.mtu().0, mtu as u8, "path MTU in the context");
            }
            exchange(&mut pair)?;
            sends_as_many_packets(&mut pair, bytes)?;
        }
    }
    Ok(())
}

fn sequence_numbers_wrap_at_24_bits(lab: &Lab) -> Result<(), Stop> {
    let options =
        ConnectOptions { psn: Some(0xff_fff0), mtu: Some(Mtu::B256), ..Default::default() };
    let mut pair = connected(lab, &options)?;
    for _ in 0..3 {
        exchange(&mut pair)?;
    }
    Ok(())
}

fn peer_address_round_trips_through_bytes(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    // Each side starts at its own PSN.
    let [ours, theirs] =
        [0x12_3456, 0xab_cdef].map(|psn| ConnectOptions { psn: Some(psn), ..Default::default() });
    let over = |address: PeerAddress| {
        let read = PeerAddress::from_bytes(&address.to_bytes())?;
        ensure_eq!(read, address, "the parsed address");
        Ok::<_, Stop>(read)
    };
    let here = over(pair.a.domain.address(&pair.a.qp, &ours)?)?;
    let there = over(pair.b.domain.address(&pair.b.qp, &theirs)?)?;
    ensure_eq!((here.psn, there.psn), (0x12_3456, 0xab_cdef), "start PSNs");
    pair.a.domain.connect(&mut pair.a.qp, &there, &ours)?;
    pair.b.domain.connect(&mut pair.b.qp, &here, &theirs)?;
    exchange(&mut pair)?;
    ensure!(PeerAddress::from_bytes(&[0xff; 28]).is_err(), "invalid bytes were accepted");
    Ok(())
}

/// Connects one side over the case's own path.
fn connect_over(end: &mut Endpoint, peer: &PeerAddress, path: Path) -> Result<(), Stop> {
    end.qp.to_init(&verbless_command::InitAttr {
        port: 1,
        pkey_index: 0,
        access: verbless_command::RemoteAccess::ALL,
    })?;
    end.qp.to_rtr(&RtrAttr {
        path,
        mtu: SMALL_MTU,
        remote_qpn: peer.qpn,
        receive_psn: peer.psn,
        max_destination_reads: 1,
        min_rnr_timer: 12,
    })?;
    let (ack_timeout, retry_count) = (8, 1);
    let send_psn = end.qp.object().first_psn();
    end.qp.to_rts(&RtsAttr { send_psn, ack_timeout, retry_count, rnr_retry: 7, max_reads: 1 })?;
    Ok(())
}

/// Two unconnected sides, and their addresses.
fn unconnected_pair(lab: &Lab) -> Result<(Pair, PeerAddress, PeerAddress), Stop> {
    let pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    let options = ConnectOptions::default();
    let here = pair.a.domain.address(&pair.a.qp, &options)?;
    let there = pair.b.domain.address(&pair.b.qp, &options)?;
    Ok((pair, here, there))
}

fn infiniband_path_may_have_global_route(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, here, there) = unconnected_pair(lab)?;
    for (end, peer) in [(&mut pair.a, &there), (&mut pair.b, &here)] {
        let path = Path::InfiniBand {
            dlid: peer.lid,
            sl: 0,
            source_path_bits: 0,
            grh: Some(GlobalRoute::new(peer.gid, 0)),
        };
        connect_over(end, peer, path)?;
        let shown = *end.qp.object().query()?.primary_address_path();
        ensure!(shown.grh(), "the path has no global route");
        ensure_eq!(shown.rgid_rip(), &peer.gid.0, "destination GID");
    }
    exchange(&mut pair)
}

fn roce_v1_path_carries_messages(lab: &Lab) -> Result<(), Stop> {
    let table = lab.device()?.gid_table()?;
    let first = table.iter().find(|entry| entry.port == 1 && entry.kind == GidType::RoceV1);
    let first = first.ok_or_else(|| Stop::fail("port 1 has no RoCE v1 GID"))?;
    let gid_index = Some(u8::try_from(first.index)?);
    exchange(&mut connected(lab, &ConnectOptions { gid_index, ..Default::default() })?)
}

fn roce_path_keeps_traffic_class_and_hop_limit(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, here, there) = unconnected_pair(lab)?;
    for (end, peer) in [(&mut pair.a, &there), (&mut pair.b, &here)] {
        let Path::Roce { route, destination_mac, .. } =
            end.domain.path(peer, &ConnectOptions::default())?
        else {
            return Err(Stop::fail("an Ethernet port has a path that is not of RoCE"));
        };
        let path = Path::Roce {
            version: RoceVersion::V2,
            route: GlobalRoute { hop_limit: 9, traffic_class: 0x68, ..route },
            destination_mac,
            udp_source_port: 0xd123,
            priority: 3,
        };
        connect_over(end, peer, path)?;
        let shown = *end.qp.object().query()?.primary_address_path();
        ensure_eq!(shown.hop_limit(), 9, "hop limit");
        ensure_eq!(shown.udp_sport(), 0xd123, "UDP source port");
        ensure_eq!(shown.dscp(), 0x68 >> 2, "DSCP");
        ensure_eq!(shown.eth_prio(), 3, "priority");
    }
    exchange(&mut pair)
}

fn unassigned_address_exceeds_retries(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, here, there) = unconnected_pair(lab)?;
    let nowhere = match pair.a.domain.path(&there, &ConnectOptions::default())? {
        Path::InfiniBand { .. } => Path::to_lid(0xbffe),
        Path::Roce { route, .. } => {
            let mut gid = route.dgid.0;
            gid[8..].copy_from_slice(b"nobodyis");
            let route = GlobalRoute { dgid: Gid(gid), ..route };
            Path::to_gid(route, [0x02, 0, 0, 0xde, 0xad, 1])
        }
        Path::Loopback => return Err(Stop::fail("no other queue pair is reached by loopback")),
    };
    connect_over(&mut pair.a, &there, nowhere)?;
    ready_to_receive(&pair.b.domain, &mut pair.b.qp, &here)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"anybody?"), to).signaled(), 5)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::TransportRetryExceeded)?, 5, "cookie");
    Ok(())
}

fn smaller_path_mtu_of_both_sides_is_used(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    let ours = ConnectOptions { mtu: Some(Mtu::B256), ..Default::default() };
    let theirs = ConnectOptions::default();
    let here = pair.a.domain.address(&pair.a.qp, &ours)?;
    let there = pair.b.domain.address(&pair.b.qp, &theirs)?;
    pair.a.domain.connect(&mut pair.a.qp, &there, &ours)?;
    pair.b.domain.connect(&mut pair.b.qp, &here, &theirs)?;
    for end in [&pair.a, &pair.b] {
        ensure_eq!(end.qp.object().query()?.mtu().0, Mtu::B256 as u8, "path MTU");
    }
    exchange(&mut pair)
}

fn outstanding_reads_are_capped_by_responder(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    let ours = ConnectOptions { reads: 16, ..Default::default() };
    let theirs = ConnectOptions { reads: 3, ..Default::default() };
    let here = pair.a.domain.address(&pair.a.qp, &ours)?;
    let there = pair.b.domain.address(&pair.b.qp, &theirs)?;
    pair.a.domain.connect(&mut pair.a.qp, &there, &ours)?;
    pair.b.domain.connect(&mut pair.b.qp, &here, &theirs)?;
    let (a, b) = (pair.a.qp.object().query()?, pair.b.qp.object().query()?);
    ensure!(
        a.log_sra_max() <= b.log_rra_max() && b.log_sra_max() <= a.log_rra_max(),
        "READs at a time, as logarithms: asked for {} and {}, answered {} and {}",
        a.log_sra_max(),
        b.log_sra_max(),
        b.log_rra_max(),
        a.log_rra_max()
    );
    ensure!(a.log_sra_max() <= 2, "{} READs are asked of a side that answers 4", a.log_sra_max());
    exchange(&mut pair)
}

fn path_mtu_above_port_mtu_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, _, there) = unconnected_pair(lab)?;
    let active = pair.a.device.query_port(1)?.active_mtu().unwrap_or(256);
    let above = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() > active);
    let above = above.ok_or_else(|| Stop::fail("the active MTU is the largest"))?;
    let options = ConnectOptions { mtu: Some(above), ..Default::default() };
    let said = match pair.a.domain.connect(&mut pair.a.qp, &there, &options) {
        Ok(()) => return Err(Stop::fail("the driver took it")),
        Err(error) => error.to_string(),
    };
    ensure!(said.contains(&active.to_string()), "the error does not name the limit: {said}");
    pair.a.qp.to_init(&verbless_command::InitAttr {
        port: 1,
        pkey_index: 0,
        access: verbless_command::RemoteAccess::ALL,
    })?;
    let refused = pair.a.qp.to_rtr(&RtrAttr {
        path: pair.a.domain.path(&there, &ConnectOptions::default())?,
        mtu: above,
        remote_qpn: there.qpn,
        receive_psn: there.psn,
        max_destination_reads: 1,
        min_rnr_timer: 12,
    });
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Command), "the device");
    Ok(())
}

fn initial_psn_differs_per_connection(lab: &Lab) -> Result<(), Stop> {
    let mut pair = connected(lab, &ConnectOptions::default())?;
    exchange(&mut pair)?;
    let psn = |pair: &Pair| (pair.a.qp.object().first_psn(), pair.b.qp.object().first_psn());
    let before = psn(&pair);
    pair.restart()?;
    exchange(&mut pair)?;
    // Four equal 24-bit numbers are not an accident.
    ensure!(
        before != psn(&pair) || before.0 != before.1,
        "both connections start at the PSNs {before:?}"
    );
    Ok(())
}

fn connect_options_reach_device(lab: &Lab) -> Result<(), Stop> {
    let ethernet = lab.device()?.query_port(1)?.link_layer() == LinkLayer::Ethernet;
    let options = ConnectOptions {
        service_level: Some(3),
        traffic_class: 0x68,
        flow_label: 0x4_0003,
        hop_limit: 9,
        ..Default::default()
    };
    let mut pair = connected(lab, &options)?;
    for end in [&pair.a, &pair.b] {
        let shown = *end.qp.object().query()?.primary_address_path();
        if ethernet {
            ensure_eq!(shown.eth_prio(), 3, "priority");
            ensure_eq!(shown.dscp(), 0x68 >> 2, "DSCP");
            ensure_eq!(shown.udp_sport(), 0xc000 | 3 ^ 0x10, "UDP source port of the flow label");
        } else {
            ensure_eq!(shown.sl(), 3, "service level");
        }
        if ethernet || shown.grh() {
            ensure_eq!(shown.hop_limit(), 9, "hop limit");
            ensure_eq!(shown.tclass(), 0x68, "traffic class");
            ensure_eq!(shown.flow_label(), 0x4_0003, "flow label");
        }
    }
    exchange(&mut pair)
}

fn both_directions_share_one_udp_source_port(lab: &Lab) -> Result<(), Stop> {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let pair = connected(lab, &ConnectOptions::default())?;
        let port = |end: &Endpoint| {
            Ok::<_, Stop>(end.qp.object().query()?.primary_address_path().udp_sport())
        };
        ensure_eq!(port(&pair.a)?, port(&pair.b)?, "UDP source port of both directions");
        // Another pair of numbers for the next connection.
        let _ =
            pair.a.domain.queue_pair(&QpConfig::new(1, 1), &pair.a.send_cq, &pair.a.receive_cq)?;
        seen.insert((pair.a.qp.qpn().0, pair.b.qp.qpn().0, port(&pair.a)?));
    }
    let ports: std::collections::BTreeSet<_> = seen.iter().map(|&(.., port)| port).collect();
    let numbers: std::collections::BTreeSet<_> = seen.iter().map(|&(a, b, _)| (a, b)).collect();
    ensure!(ports.len() > 1 || numbers.len() == 1, "all use one port: {seen:x?}");
    Ok(())
}

fn grh_required_port_drops_packets_without_grh(lab: &Lab) -> Result<(), Stop> {
    let pair = connected(lab, &ConnectOptions::default())?;
    ensure!(
        pair.a.qp.object().query()?.primary_address_path().grh(),
        "the address path has no GRH"
    );
    let (mut pair, here, there) = unconnected_pair(lab)?;
    connect_over(&mut pair.a, &there, Path::to_lid(there.lid))?;
    ready_to_receive(&pair.b.domain, &mut pair.b.qp, &here)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"who?"), to).signaled(), 5)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::TransportRetryExceeded)?, 5, "cookie");
    Ok(())
}

fn peer_of_another_link_layer_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, _, there) = unconnected_pair(lab)?;
    let other = PeerAddress { ethernet: !there.ethernet, ..there };
    let refused = pair.a.domain.connect(&mut pair.a.qp, &other, &ConnectOptions::default());
    let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(said.contains("Ethernet") && said.contains("InfiniBand"), "the error is {said:?}");
    Ok(())
}

fn force_loopback_qp_reaches_itself(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let cq = &mut domain.completion_queue(&CqConfig::new(64))?;
    let region = domain.region(64 << 10, KeyAccess::ALL)?;
    for connected_by_the_driver in [false, true] {
        let mut qp = domain.queue_pair(&QpConfig::new(16, 16), cq, cq)?;
        if connected_by_the_driver {
            domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
        } else {
            let access = RemoteAccess::ALL;
            qp.to_init(&InitAttr { port: 1, pkey_index: 0, access })?;
            qp.to_rtr(&RtrAttr {
                path: Path::Loopback,
                mtu: SMALL_MTU,
                remote_qpn: qp.qpn(),
                receive_psn: 7,
                max_destination_reads: 1,
                min_rnr_timer: 12,
            })?;
            let rts = RtsAttr {
                send_psn: 7,
                ack_timeout: 14,
                retry_count: 7,
                rnr_retry: 7,
                max_reads: 1,
            };
            qp.to_rts(&rts)?;
        }
        let context = qp.object().query()?;
        let path = context.primary_address_path();
        ensure!(path.fl(), "the path does not loop back");
        ensure_eq!(*path.rgid_rip(), [0; 16], "destination GID");
        ensure_eq!((path.rmac_47_32(), path.rmac_31_0()), (0, 0), "destination MAC");
        let data = pattern(3, 20_000);
        region.write_at(0, &data)?;
        let (source, target) = (region.sge(0, data.len())?, region.remote(32 << 10, data.len())?);
        qp.post_receive(region.sge(60 << 10, 64)?, 3)?;
        qp.post(&Write::new(source, target).signaled(), 1)?;
        qp.post(&Send::new(Inline(b"to itself")).signaled(), 2)?;
        let mut cookies = Vec::new();
        for _ in 0..3 {
            cookies.push(until("a completion", || qp.poll(cq))??.cookie);
        }
        cookies.sort_unstable();
        ensure_eq!(cookies, [1, 2, 3], "cookies");
        let mut found = vec![0; data.len()];
        region.read_at(32 << 10, &mut found)?;
        ensure!(found == data, "other data arrived");
    }
    Ok(())
}
