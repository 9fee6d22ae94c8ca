//! Datagrams: messages of one packet, each with its own destination.

use verbless_command::{
    Gid, GlobalRoute, InitAttr, Path, QKey, RemoteAccess, RoceVersion, RtrAttr, RtsAttr,
};
use verbless_devx::{ErrorKind, LinkLayer};
use verbless_prm::QpState;
use verbless_queue::address::GRH_BYTES;
use verbless_queue::wr::{Inline, Nop, PostError, Send, SendImm};
use verbless_queue::{
    ConnectOptions, Datagram, DatagramOptions, Destination, NetworkHeader, PeerAddress, QpConfig,
    Qpn, Sge, Source, Ud, WcOpcode, WcStatus,
};

use crate::case::cases;
use crate::need::{ETHERNET, INFINIBAND, cap};
use crate::{Endpoint, Lab, Pair, Stop, ensure, ensure_eq, failed, pattern, quiet, until};

cases!(
    "ud",
    "Datagrams: messages of one packet, each with its own destination.",
    needs [cap!(ud), crate::Need::Lossless]:
    receive_reports_source_qpn,
    datagrams_up_to_port_mtu_arrive,
    ring_wraps_under_many_datagrams,
    qp_sends_to_itself,
    one_qp_sends_to_several_peers,
    reply_address_follows_from_receive,
    infiniband_datagram_may_have_grh [INFINIBAND],
    roce_datagram_has_network_header [ETHERNET],
    datagram_with_wrong_qkey_is_dropped,
    qkey_with_top_bit_selects_senders_qkey,
    qkey_changes_in_rts,
    datagram_without_receive_is_dropped,
    datagram_to_unknown_qpn_succeeds,
    datagram_above_mtu_fails,
    undersized_receive_fails_only_at_receiver,
    bad_sge_stops_sends_until_recovery,
    error_state_flushes_sends_and_receives,
    invalid_wqe_is_rejected_at_post,
    invalid_address_is_rejected_with_reason,
    transitions_of_other_service_are_rejected,
);

const KEY: QKey = QKey(0x1122_3344);
/// Bytes of a receive, with room for the GRH.
const SLOT: usize = GRH_BYTES + 4096;

fn pair(lab: &Lab) -> Result<Pair<Ud>, Stop> {
    pair_of(lab, &QpConfig::new(64, 64))
}

fn pair_of(lab: &Lab, config: &QpConfig) -> Result<Pair<Ud>, Stop> {
    let mut pair = Pair::unconnected_of(lab, config, 1 << 20)?;
    for end in [&mut pair.a, &mut pair.b] {
        end.qp.start(&DatagramOptions::new(KEY))?;
    }
    Ok(pair)
}

/// The destination `to`, as seen from `from`.
fn way(from: &Endpoint<Ud>, to: &Endpoint<Ud>) -> Result<Destination, Stop> {
    let options = ConnectOptions::default();
    let peer = to.domain.address(&to.qp, &options)?;
    Ok(from.domain.destination(&peer, KEY, &options)?)
}

fn next(end: &mut Endpoint<Ud>) -> Result<Datagram, Stop> {
    let Endpoint { qp, receive_cq, .. } = end;
    Ok(until("a datagram", || qp.poll_datagram(receive_cq))??)
}

fn source(datagram: &Datagram) -> Result<Source, Stop> {
    datagram.source.ok_or_else(|| Stop::fail("the receive reports no source"))
}

/// Sends `text` from `a` to `b`, which must receive it.
fn message(pair: &mut Pair<Ud>, text: &[u8]) -> Result<Datagram, Stop> {
    let to = way(&pair.a, &pair.b)?;
    pair.b.fill(0, &[0; SLOT])?;
    pair.b.receive(0, SLOT, 3)?;
    pair.a.fill(0, text)?;
    let sge = pair.a.sge(0, text.len())?;
    pair.a.qp.post(&Send::new(sge).signaled().to(&to), 4)?;
    let sent = pair.a.sent()??;
    ensure_eq!((sent.cookie, sent.operation()), (4, WcOpcode::Send), "completion of the send");
    let got = next(&mut pair.b)?;
    ensure_eq!(got.completion.cookie, 3, "cookie of the receive");
    ensure_eq!(got.message_len() as usize, text.len(), "bytes of the message");
    ensure_eq!(got.completion.byte_len() as usize, GRH_BYTES + text.len(), "bytes received");
    ensure!(pair.b.bytes(GRH_BYTES, text.len())? == text, "other data arrived");
    Ok(got)
}

/// Fails if `b` receives anything.
fn ensure_no_datagram(pair: &mut Pair<Ud>) -> Result<(), Stop> {
    let Endpoint { qp, receive_cq, .. } = &mut pair.b;
    quiet("a datagram arrived", || qp.poll(receive_cq))
}

fn link(lab: &Lab) -> Result<LinkLayer, Stop> {
    Ok(lab.device()?.query_port(1)?.link_layer())
}

fn receive_reports_source_qpn(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let got = message(&mut pair, b"from whom?")?;
    let source = source(&got)?;
    ensure_eq!(source.qpn(), pair.a.qp.qpn(), "number of the sender");
    if link(lab)? == LinkLayer::InfiniBand {
        let lid = pair.a.device.query_port(1)?.raw.lid;
        ensure!(source.lid() == lid, "the source LID is not that of the sender's port");
        ensure_eq!(source.service_level(), 0, "service level");
        let required = pair.a.device.query_port(1)?.is_grh_required();
        ensure_eq!(source.has_header(), required, "a global route header");
    } else {
        ensure!(source.has_header(), "a packet on Ethernet has no network header");
    }
    Ok(())
}

fn datagrams_up_to_port_mtu_arrive(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let longest = pair.a.domain.max_datagram_bytes(1)? as usize;
    for length in [1, 3, 4, 63, 64, 65, 255, 256, 1000, 1024, 2047, 2048, longest - 1, longest] {
        if length <= longest {
            message(&mut pair, &pattern(length as u8, length))?;
        }
    }
    // Messages without payload: two of a zero-length SGE, and one inline.
    let to = way(&pair.a, &pair.b)?;
    for empty in [Sge { length: 0, ..pair.a.sge(0, 1)? }; 2] {
        pair.b.receive(0, SLOT, 1)?;
        pair.a.qp.post(&Send::new(empty).to(&to), 0)?;
        ensure_eq!(next(&mut pair.b)?.message_len(), 0, "bytes of an empty message");
    }
    pair.b.receive(0, SLOT, 1)?;
    pair.a.qp.post(&Send::new(Inline(b"")).to(&to), 0)?;
    ensure_eq!(next(&mut pair.b)?.message_len(), 0, "bytes of an empty message");
    Ok(())
}

fn ring_wraps_under_many_datagrams(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig { inline: 200, ..QpConfig::new(5, 16) };
    let mut pair = pair_of(lab, &config)?;
    let to = way(&pair.a, &pair.b)?;
    for round in 0..500_usize {
        let text = pattern(round as u8, 1 + round % 200);
        pair.b.receive(0, 512, round as u64)?;
        pair.a.qp.post(&Send::new(Inline(&text)).signaled().to(&to), round as u64)?;
        ensure_eq!(pair.a.sent()??.cookie, round as u64, "cookie of the send");
        let got = next(&mut pair.b)?;
        ensure_eq!(got.completion.cookie, round as u64, "cookie of the receive");
        ensure!(pair.b.bytes(GRH_BYTES, text.len())? == text, "round {round}: other bytes");
    }
    Ok(())
}

fn qp_sends_to_itself(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let to = way(&pair.a, &pair.a)?;
    pair.a.receive(0, 256, 1)?;
    pair.a.qp.post(&Send::new(Inline(b"me")).signaled().to(&to), 2)?;
    pair.a.sent()??;
    let got = next(&mut pair.a)?;
    ensure_eq!(source(&got)?.qpn(), pair.a.qp.qpn(), "number of the sender");
    ensure_eq!(pair.a.bytes(GRH_BYTES, 2)?, b"me", "the arrived bytes");
    Ok(())
}

fn one_qp_sends_to_several_peers(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b } = pair(lab)?;
    let mut others = vec![b];
    for _ in 0..3 {
        let mut end = Endpoint::of(lab.other_device()?, &QpConfig::new(16, 16), 1 << 16)?;
        end.qp.start(&DatagramOptions::new(KEY))?;
        others.push(end);
    }
    let ways: Vec<_> = others.iter().map(|end| way(&a, end)).collect::<Result<_, _>>()?;
    for end in &mut others {
        (0..8).try_for_each(|cookie| end.receive(512 * cookie as usize, 512, cookie))?;
    }
    let mut batch = a.qp.batch();
    for round in 0..8u8 {
        for (number, to) in (0..).zip(&ways) {
            batch.post(&Send::new(Inline(&[number, round])).to(to), 0)?;
        }
    }
    batch.post(&Nop::new().signaled(), 1)?;
    batch.ring();
    a.sent()??;
    for (number, end) in (0..).zip(&mut others) {
        for round in 0..8u8 {
            ensure_eq!(next(end)?.completion.cookie, u64::from(round), "cookie");
            let there = end.bytes(512 * usize::from(round) + GRH_BYTES, 2)?;
            ensure_eq!(there, [number, round], "message");
        }
    }
    Ok(())
}

fn reply_address_follows_from_receive(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let got = message(&mut pair, b"where are you?")?;
    let source = source(&got)?;
    let options = ConnectOptions::default();
    let port = pair.b.device.query_port(1)?;
    let ethernet = port.link_layer() == LinkLayer::Ethernet;
    let back = if !ethernet && !port.is_grh_required() {
        pair.b.domain.address_handle(&Path::to_lid(source.lid()))?.to(source.qpn(), KEY)
    } else {
        // The sender's GID is the header's source; an IPv4 address is at its end.
        let mut gid = Gid::default();
        match source.network_header() {
            NetworkHeader::Ipv4 => {
                gid.0[10..12].fill(0xff);
                gid.0[12..].copy_from_slice(&pair.b.bytes(32, 4)?);
            }
            _ => gid.0.copy_from_slice(&pair.b.bytes(8, 16)?),
        }
        let peer = PeerAddress {
            qpn: source.qpn(),
            psn: 0,
            ethernet,
            lid: if ethernet { 0 } else { source.lid() },
            gid,
            grh_required: !ethernet,
            service_level: 0,
            mtu: crate::SMALL_MTU,
            reads: 0,
        };
        pair.b.domain.destination(&peer, KEY, &options)?
    };
    pair.a.receive(0, SLOT, 8)?;
    pair.b.qp.post(&Send::new(Inline(b"here")).signaled().to(&back), 9)?;
    ensure_eq!(pair.b.sent()??.cookie, 9, "cookie of the answer");
    ensure_eq!(next(&mut pair.a)?.completion.cookie, 8, "cookie of its receive");
    ensure_eq!(pair.a.bytes(GRH_BYTES, 4)?, b"here", "the answer");
    Ok(())
}

fn infiniband_datagram_may_have_grh(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let options = ConnectOptions::default();
    let peer = pair.b.domain.address(&pair.b.qp, &options)?;
    let here = pair.a.domain.address(&pair.a.qp, &options)?;
    let mut route = GlobalRoute::new(peer.gid, 0);
    (route.traffic_class, route.flow_label, route.hop_limit) = (0x5a, 0x1_2345, 3);
    let path = Path::InfiniBand { dlid: peer.lid, sl: 0, source_path_bits: 0, grh: Some(route) };
    let to = pair.a.domain.address_handle(&path)?.to(peer.qpn, KEY);
    pair.b.receive(0, 256, 1)?;
    pair.a.qp.post(&Send::new(Inline(b"routed")).signaled().to(&to), 2)?;
    pair.a.sent()??;
    let got = next(&mut pair.b)?;
    ensure!(source(&got)?.has_header(), "the receive reports no GRH");
    let header = pair.b.bytes(0, GRH_BYTES)?;
    ensure_eq!(header[..4], [0x65, 0xa1, 0x23, 0x45], "version, traffic class, flow label");
    ensure_eq!(header[6], 0x1b, "next header");
    ensure_eq!(header[8..24], here.gid.0, "source GID");
    ensure_eq!(header[24..], peer.gid.0, "destination GID");
    ensure_eq!(pair.b.bytes(GRH_BYTES, 6)?, b"routed", "the arrived bytes");
    Ok(())
}

fn roce_datagram_has_network_header(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let options = ConnectOptions::default();
    let gid = pair.a.domain.address(&pair.a.qp, &options)?.gid;
    let peer = pair.b.domain.address(&pair.b.qp, &options)?;
    let version = match pair.a.domain.path(&peer, &options)? {
        Path::Roce { version, .. } => version,
        path => return Err(Stop::fail(format!("{path:?} on an Ethernet port"))),
    };
    let got = message(&mut pair, b"framed")?;
    let is_v4 = gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let expected = match version {
        RoceVersion::V1 => NetworkHeader::Global,
        RoceVersion::V2 if is_v4 => NetworkHeader::Ipv4,
        RoceVersion::V2 => NetworkHeader::Ipv6,
    };
    ensure_eq!(source(&got)?.network_header(), expected, "network header");
    let header = pair.b.bytes(0, GRH_BYTES)?;
    if is_v4 {
        ensure_eq!(header[32..36], gid.0[12..], "source address");
    } else {
        // UDP after an IPv6 header, a BTH after a GRH.
        let next = if version == RoceVersion::V2 { 17 } else { 0x1b };
        ensure_eq!(header[6], next, "next header");
        ensure_eq!(header[8..24], gid.0, "source GID");
    }
    Ok(())
}

fn datagram_with_wrong_qkey_is_dropped(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let options = ConnectOptions::default();
    let peer = pair.b.domain.address(&pair.b.qp, &options)?;
    for key in [QKey(0), QKey(KEY.0 ^ 1), QKey(KEY.0.swap_bytes())] {
        let wrong = pair.a.domain.destination(&peer, key, &options)?;
        pair.b.receive(0, 256, 1)?;
        pair.a.qp.post(&Send::new(Inline(b"let me in")).signaled().to(&wrong), 1)?;
        pair.a.sent()??;
    }
    ensure_no_datagram(&mut pair)?;
    let right = way(&pair.a, &pair.b)?;
    pair.a.qp.post(&Send::new(Inline(b"it is me")).to(&right), 2)?;
    ensure_eq!(next(&mut pair.b)?.completion.cookie, 1, "cookie");
    Ok(())
}

fn qkey_with_top_bit_selects_senders_qkey(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let options = ConnectOptions::default();
    let peer = pair.b.domain.address(&pair.b.qp, &options)?;
    let own = pair.a.domain.destination(&peer, QKey(0x8000_0000), &options)?;
    pair.b.receive(0, 256, 1)?;
    pair.a.qp.post(&Send::new(Inline(b"as I am")).to(&own), 1)?;
    ensure_eq!(next(&mut pair.b)?.message_len(), 7, "bytes");
    Ok(())
}

fn qkey_changes_in_rts(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    message(&mut pair, b"under the first key")?;
    let other = QKey(0x55);
    pair.b.qp.change_q_key(other)?;
    ensure_eq!(pair.b.qp.object().query()?.q_key(), other.0, "key");
    let stale = way(&pair.a, &pair.b)?;
    pair.b.receive(0, 256, 1)?;
    pair.a.qp.post(&Send::new(Inline(b"stale")).signaled().to(&stale), 1)?;
    pair.a.sent()??;
    ensure_no_datagram(&mut pair)?;
    let options = ConnectOptions::default();
    let peer = pair.b.domain.address(&pair.b.qp, &options)?;
    let fresh = pair.a.domain.destination(&peer, other, &options)?;
    pair.a.qp.post(&Send::new(Inline(b"fresh")).to(&fresh), 2)?;
    ensure_eq!(next(&mut pair.b)?.completion.cookie, 1, "cookie");
    ensure_eq!(pair.b.bytes(GRH_BYTES, 5)?, b"fresh", "the arrived bytes");
    Ok(())
}

fn datagram_without_receive_is_dropped(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let to = way(&pair.a, &pair.b)?;
    for round in 1..=3u8 {
        pair.a.qp.post(&Send::new(Inline(&[0xee; 9])).signaled().to(&to), 0)?;
        pair.a.sent()??;
        ensure_no_datagram(&mut pair)?;
        message(&mut pair, &[round; 33])?;
    }
    Ok(())
}

fn datagram_to_unknown_qpn_succeeds(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let options = ConnectOptions::default();
    let peer = pair.b.domain.address(&pair.b.qp, &options)?;
    let absent = PeerAddress { qpn: Qpn(0xff_fff0), ..peer };
    let absent = pair.a.domain.destination(&absent, KEY, &options)?;
    pair.a.qp.post(&Send::new(Inline(b"anybody?")).signaled().to(&absent), 1)?;
    pair.a.sent()??;
    if link(lab)? == LinkLayer::InfiniBand {
        let nowhere = pair.a.domain.address_handle(&Path::to_lid(0xbffe))?.to(peer.qpn, KEY);
        pair.a.qp.post(&Send::new(Inline(b"anywhere?")).signaled().to(&nowhere), 2)?;
        pair.a.sent()??;
    }
    message(&mut pair, b"here")?;
    Ok(())
}

/// `a`'s send fails with this status; then it recovers.
fn fails(pair: &mut Pair<Ud>, sge: Sge, status: WcStatus) -> Result<(), Stop> {
    let to = way(&pair.a, &pair.b)?;
    let mut batch = pair.a.qp.batch();
    batch.post(&Send::new(sge).to(&to), 1)?;
    batch.post(&Nop::new().signaled(), 2)?;
    batch.ring();
    ensure_eq!(failed(pair.a.sent()?, status)?, 1, "the failed request");
    ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, 2, "the next request");
    ensure_eq!(pair.a.qp.object().state()?, QpState::SQER, "state");
    pair.a.qp.recover()?;
    message(pair, b"as before")?;
    Ok(())
}

fn datagram_above_mtu_fails(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    for length in [4097, 100_000] {
        let sge = pair.a.sge(0, length)?;
        fails(&mut pair, sge, WcStatus::LocalLength)?;
    }
    Ok(())
}

fn undersized_receive_fails_only_at_receiver(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let to = way(&pair.a, &pair.b)?;
    // The receive has room for the message, but not for the GRH before it.
    pair.b.receive(0, 48, 5)?;
    pair.a.qp.post(&Send::new(Inline(&[7; 32])).signaled().to(&to), 1)?;
    pair.a.sent()??;
    ensure_eq!(failed(pair.b.received()?, WcStatus::LocalLength)?, 5, "cookie");
    ensure_eq!(pair.a.qp.object().state()?, QpState::RTS, "state of the sender");
    Ok(())
}

fn bad_sge_stops_sends_until_recovery(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    for round in 0..3 {
        let end = pair.a.region.len() as u64 + pair.a.region.address();
        let outside = Sge { address: end - 8, length: 64 + round, ..pair.a.sge(0, 1)? };
        fails(&mut pair, outside, WcStatus::LocalProtection)?;
    }
    Ok(())
}

fn error_state_flushes_sends_and_receives(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let to = way(&pair.a, &pair.b)?;
    (0..3).try_for_each(|cookie| pair.a.receive(0, 64, cookie))?;
    pair.a.qp.to_error()?;
    pair.a.qp.post(&Send::new(Inline(b"too late")).to(&to), 9)?;
    for cookie in 0..3 {
        ensure_eq!(failed(pair.a.received()?, WcStatus::Flushed)?, cookie, "a receive");
    }
    ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, 9, "the send");
    pair.a.qp.reset()?;
    pair.a.qp.start(&DatagramOptions::new(KEY))?;
    message(&mut pair, b"back again")?;
    Ok(())
}

fn invalid_wqe_is_rejected_at_post(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig { send_sges: 2, inline: 32, ..QpConfig::new(4, 4) };
    let mut pair = pair_of(lab, &config)?;
    let to = way(&pair.a, &pair.b)?;
    let sge = pair.a.sge(0, 8)?;
    let long = Sge { length: 0x8000_0000, ..sge };
    let qp = &mut pair.a.qp;
    let free = qp.send.free();
    let refused = [
        (qp.post(&Send::new([sge; 3]).to(&to), 0), PostError::TooManySges),
        (qp.post(&Send::new(Inline(&[0; 33])).to(&to), 0), PostError::InlineTooLong),
        (qp.post(&SendImm::new(long, 1).to(&to), 0), PostError::SgeTooLong),
    ];
    for (got, why) in refused {
        ensure_eq!(got, Err(why), "result of posting an invalid WQE");
    }
    ensure_eq!(pair.a.qp.send.free(), free, "free WQEBBs");
    Ok(())
}

fn invalid_address_is_rejected_with_reason(lab: &Lab) -> Result<(), Stop> {
    let _ = lab;
    let wide = Path::InfiniBand { dlid: 1, sl: 16, source_path_bits: 0, grh: None };
    for (path, word) in [(wide, "service level"), (Path::to_lid(0), "LID 0")] {
        let error = path.address_vector().err();
        let error = error.ok_or_else(|| Stop::fail(format!("{path:?} was accepted")))?;
        ensure_eq!(error.kind(), ErrorKind::InvalidInput, "kind");
        ensure!(error.to_string().contains(word), "{word} is not in {error}");
    }
    Ok(())
}

fn transitions_of_other_service_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let mut connected = Endpoint::new(lab.device()?, &QpConfig::new(4, 4), 4096)?;
    let (ours, theirs) = (&mut pair.a.qp, &mut connected.qp);
    let path = Path::to_lid(1);
    let attr = verbless_command::DatagramAttr { port: 1, pkey_index: 0, q_key: KEY };
    let refused = [
        ours.to_init(&InitAttr { port: 1, pkey_index: 0, access: RemoteAccess::ALL }),
        ours.to_rtr(&RtrAttr {
            path,
            mtu: crate::SMALL_MTU,
            remote_qpn: Qpn(1),
            receive_psn: 0,
            max_destination_reads: 1,
            min_rnr_timer: 1,
        }),
        ours.to_rts(&RtsAttr {
            send_psn: 0,
            ack_timeout: 1,
            retry_count: 1,
            rnr_retry: 1,
            max_reads: 1,
        }),
        theirs.to_init_datagram(&attr),
        theirs.to_rtr_datagram(),
        theirs.to_rts_datagram(0),
        theirs.change_q_key(KEY),
    ];
    for result in refused {
        let error = result
            .err()
            .ok_or_else(|| Stop::fail("a transition of another service was accepted"))?;
        ensure_eq!(error.kind(), ErrorKind::InvalidInput, format!("the kind of {error}"));
    }
    Ok(())
}
