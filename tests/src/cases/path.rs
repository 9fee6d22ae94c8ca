//! Connections: ways to the peer, packet sizes, sequence numbers.

use verbless_command::{Gid, GlobalRoute, Mtu, Path, RoceVersion, RtrAttr, RtsAttr};
use verbless_devx::{GidType, LinkLayer};
use verbless_queue::wr::{Inline, Send, Write};
use verbless_queue::{ConnectOptions, PeerAddress, QpConfig, Status};

use crate::case::cases;
use crate::{
    Endpoint, Lab, Pair, SMALL_MTU, Stop, ensure, ensure_eq, failed, pattern, ready_to_receive,
};

cases!("path":
    two_devices_reach_each_other,
    every_path_mtu_up_to_the_ports_works,
    sequence_numbers_wrap_at_24_bits,
    each_side_begins_with_a_sequence_number_of_its_own,
    an_address_goes_through_bytes,
    an_infiniband_path_may_have_a_global_route,
    a_roce_path_may_be_of_version_one,
    a_roce_path_keeps_its_traffic_class_hop_limit_and_port,
    an_address_that_nobody_has_completes_with_retries_exceeded,
);

/// Some messages both ways.
fn exchange(pair: &mut Pair) -> Result<(), Stop> {
    let data = pattern(3, 20_000);
    for forth in [true, false] {
        let Pair { a, b } = &mut *pair;
        let (from, to) = if forth { (a, b) } else { (b, a) };
        from.fill(0, &data)?;
        let (piece, at) = (from.sge(0, data.len())?, to.remote(32 << 10)?);
        from.perform(&Write::new(piece, at).signaled())?;
        ensure!(to.bytes(32 << 10, data.len())? == data, "the data came out otherwise");
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
    if !lab.has_peer() {
        return Err(Stop::skip("there is one device; --peer names another on its fabric"));
    }
    let mut pair = connected(lab, &ConnectOptions::default())?;
    let guid = |end: &Endpoint| end.device.info().node_guid;
    ensure!(guid(&pair.a) != guid(&pair.b), "both are the same device");
    exchange(&mut pair)
}

fn every_path_mtu_up_to_the_ports_works(lab: &Lab) -> Result<(), Stop> {
    let active = lab.device()?.query_port(1)?.active_mtu().unwrap_or(256);
    for (bytes, mtu) in [
        (256, Mtu::B256),
        (512, Mtu::B512),
        (1024, Mtu::B1024),
        (2048, Mtu::B2048),
        (4096, Mtu::B4096),
    ] {
        if bytes <= active {
            exchange(&mut connected(
                lab,
                &ConnectOptions { mtu: Some(mtu), ..Default::default() },
            )?)?;
        }
    }
    Ok(())
}

fn sequence_numbers_wrap_at_24_bits(lab: &Lab) -> Result<(), Stop> {
    let options = ConnectOptions { psn: 0xff_fff0, mtu: Some(Mtu::B256), ..Default::default() };
    let mut pair = connected(lab, &options)?;
    for _ in 0..3 {
        exchange(&mut pair)?;
    }
    Ok(())
}

fn each_side_begins_with_a_sequence_number_of_its_own(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    let ours = ConnectOptions { psn: 0x12_3456, ..Default::default() };
    let theirs = ConnectOptions { psn: 0xab_cdef, ..Default::default() };
    let here = pair.a.domain.address(&pair.a.qp, &ours)?;
    let there = pair.b.domain.address(&pair.b.qp, &theirs)?;
    pair.a.domain.connect(&pair.a.qp, &there, &ours)?;
    pair.b.domain.connect(&pair.b.qp, &here, &theirs)?;
    exchange(&mut pair)
}

fn an_address_goes_through_bytes(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    let options = ConnectOptions { psn: 77, ..Default::default() };
    let over = |address: PeerAddress| {
        let read = PeerAddress::from_bytes(&address.to_bytes());
        read.ok_or_else(|| Stop::fail(format!("{address:?} does not read back")))
    };
    let here = over(pair.a.domain.address(&pair.a.qp, &options)?)?;
    let there = over(pair.b.domain.address(&pair.b.qp, &options)?)?;
    pair.a.domain.connect(&pair.a.qp, &there, &options)?;
    pair.b.domain.connect(&pair.b.qp, &here, &options)?;
    exchange(&mut pair)?;
    ensure!(PeerAddress::from_bytes(&[0xff; 28]).is_none(), "numbers of 32 bits were taken");
    Ok(())
}

/// Connects one side over a path of the case's own.
fn connect_over(end: &Endpoint, peer: &PeerAddress, path: Path) -> Result<(), Stop> {
    let object = end.qp.object();
    object.to_init(&verbless_command::InitAttr {
        port: 1,
        pkey_index: 0,
        access: verbless_command::RemoteAccess::ALL,
    })?;
    object.to_rtr(&RtrAttr {
        path,
        mtu: SMALL_MTU,
        remote_qpn: peer.qpn,
        receive_psn: peer.psn,
        max_destination_reads: 1,
        min_rnr_timer: 12,
    })?;
    let (ack_timeout, retry_count) = (8, 1);
    object.to_rts(&RtsAttr {
        send_psn: 0,
        ack_timeout,
        retry_count,
        rnr_retry: 7,
        max_reads: 1,
    })?;
    Ok(())
}

/// Two sides that are not connected, and their addresses.
fn apart(lab: &Lab) -> Result<(Pair, PeerAddress, PeerAddress), Stop> {
    let pair = Pair::unconnected(lab, &QpConfig::new(16, 16), 64 << 10)?;
    let options = ConnectOptions::default();
    let here = pair.a.domain.address(&pair.a.qp, &options)?;
    let there = pair.b.domain.address(&pair.b.qp, &options)?;
    Ok((pair, here, there))
}

fn link(lab: &Lab, wanted: LinkLayer, what: &str) -> Result<(), Stop> {
    if lab.device()?.query_port(1)?.link_layer() == wanted { Ok(()) } else { Err(Stop::skip(what)) }
}

fn an_infiniband_path_may_have_a_global_route(lab: &Lab) -> Result<(), Stop> {
    link(lab, LinkLayer::InfiniBand, "the port is not an InfiniBand one")?;
    let (mut pair, here, there) = apart(lab)?;
    for (end, peer) in [(&pair.a, &there), (&pair.b, &here)] {
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

fn a_roce_path_may_be_of_version_one(lab: &Lab) -> Result<(), Stop> {
    link(lab, LinkLayer::Ethernet, "the port is not an Ethernet one")?;
    let table = lab.device()?.gid_table()?;
    let first = table.iter().find(|entry| entry.port == 1 && entry.kind == GidType::RoceV1);
    let Some(first) = first else { return Err(Stop::skip("port 1 has no RoCE v1 GID")) };
    let gid_index = Some(u8::try_from(first.index)?);
    exchange(&mut connected(lab, &ConnectOptions { gid_index, ..Default::default() })?)
}

fn a_roce_path_keeps_its_traffic_class_hop_limit_and_port(lab: &Lab) -> Result<(), Stop> {
    link(lab, LinkLayer::Ethernet, "the port is not an Ethernet one")?;
    let (mut pair, here, there) = apart(lab)?;
    for (end, peer) in [(&pair.a, &there), (&pair.b, &here)] {
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

fn an_address_that_nobody_has_completes_with_retries_exceeded(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, here, there) = apart(lab)?;
    let nowhere = match pair.a.domain.path(&there, &ConnectOptions::default())? {
        Path::InfiniBand { .. } => Path::to_lid(0xbffe),
        Path::Roce { route, .. } => {
            let mut gid = route.dgid.0;
            gid[8..].copy_from_slice(b"nobodyis");
            let route = GlobalRoute { dgid: Gid(gid), ..route };
            Path::to_gid(route, [0x02, 0, 0, 0xde, 0xad, 1])
        }
    };
    connect_over(&pair.a, &there, nowhere)?;
    ready_to_receive(&pair.b.domain, pair.b.qp.object(), &here)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"anybody?"), to).signaled(), 5)?;
    ensure_eq!(failed(pair.a.sent()?, Status::TransportRetryExceeded)?, 5, "cookie");
    Ok(())
}
