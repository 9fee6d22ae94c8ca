//! Raw Ethernet: flow rules steer frames from send queues to receive queues.

mod headers;
pub(super) mod rig;
mod rules;

use verbless_command::{KeyAccess, RqAttr, RqWqes};
use verbless_prm::{RqState, SqState};
use verbless_queue::raw_rq::{L3Type, L4Type, ReceivedFrame};
use verbless_queue::wr::{EthSend, PostError};
use verbless_queue::{
    CompletionError, CqConfig, Domain, FlowAttr, RqConfig, SelfLoopback, Sge, SqConfig, SrqConfig,
    WcStatus,
};

use self::headers::inline_header_below_sq_minimum_fails;
use self::rig::{BYTES, ETHERTYPE, Hosts, Packet, frame};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::{ETHERNET, FRAME_QUEUES, SRQ, STRIPS_VLAN};
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "frames",
    "Raw Ethernet: flow rules steer frames from send queues to receive queues.",
    needs [
        Need::ModelDevice,
        ETHERNET,
        Need::Peer,
        Need::NetRaw,
        Need::Lossless,
        FRAME_QUEUES,
        Need::FlowRules,
    ]:
    frames_of_every_length_arrive_in_order,
    short_frame_is_padded_with_zeros,
    inline_header_below_sq_minimum_fails,
    frame_rings_wrap,
    frame_without_receive_is_counted_as_lost,
    oversized_frame_fails_only_its_receive,
    receive_with_mkey_of_another_pd_fails,
    frame_above_port_mtu_is_dropped,
    vlan_tag_is_kept_or_stripped_into_cqe [STRIPS_VLAN],
    cqe_reports_headers_and_checksum_validity,
    bad_sge_stops_sq_until_recovery,
    rq_in_error_flushes_and_recovers,
    sq_and_rq_reject_illegal_transitions,
    rqs_share_receives_of_one_rmp [SRQ],
    self_loopback_is_off_unless_enabled,
);

pub(crate) use self::rules::GROUP as RULES;

fn frames_of_every_length_arrive_in_order(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there).ethertype(ETHERTYPE).tag(0x00ab_cdef))?;
    for (n, length) in (60..1519).step_by(7).chain([1518]).enumerate() {
        let bytes = frame(hosts.there, hosts.here, ETHERTYPE, length, n);
        hosts.receive(0)?;
        hosts.send(&bytes)?;
        let (done, seen) = hosts.arrived()??;
        ensure_eq!(done.byte_len() as usize, length, "the length of a frame");
        ensure!(seen == bytes, "frame {n} of {length} bytes");
        ensure_eq!(done.flow_tag(), 0x00ab_cdef, "the tag of its rule");
        ensure!(done.l2_ok() && !done.l3_ok() && !done.l4_ok(), "{done:?} of no IP packet");
        ensure_eq!((done.l3_type(), done.l4_type(), done.vlan()), (None, None, None), "headers");
    }
    Ok(())
}

fn short_frame_is_padded_with_zeros(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    // A device may require more bytes inline than the shortest of these.
    let min = hosts.sender.min_inline_header() as usize;
    for length in [14, 20, 59].into_iter().filter(|&length| length >= min) {
        let mut bytes = frame(hosts.there, hosts.here, ETHERTYPE, length, 3);
        hosts.receive(0)?;
        hosts.post(&bytes)?;
        hosts.sent()??;
        let (done, seen) = hosts.arrived()??;
        bytes.resize(60, 0);
        ensure_eq!(done.byte_len(), 60, "the length of a frame of {length} bytes");
        ensure!(seen == bytes, "the frame of {length} bytes");
    }
    Ok(())
}

fn frame_rings_wrap(lab: &Lab) -> Result<(), Stop> {
    const DEPTH: u32 = 8;
    let mut hosts = Hosts::of(lab, &SqConfig::new(DEPTH), &RqConfig::new(DEPTH))?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    let depth = hosts.receiver.free() as usize;
    (0..depth).try_for_each(|slot| hosts.receive(slot))?;
    let full = hosts.receiver.post(hosts.into.region.sge(0, 64)?, 0);
    ensure_eq!(full, Err(PostError::Full), "one receive more");
    for n in 0..1000 {
        let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 64 + n % 900, n);
        hosts.send(&bytes)?;
        let (done, seen) = hosts.arrived()??;
        ensure_eq!(done.cookie as usize, n % depth, "the receive of frame {n}");
        ensure!(seen == bytes, "frame {n}");
        hosts.receive(n % depth)?;
    }
    Ok(())
}

fn frame_without_receive_is_counted_as_lost(lab: &Lab) -> Result<(), Stop> {
    let receive = RqConfig { count_lost: true, ..RqConfig::new(4) };
    let mut hosts = Hosts::of(lab, &SqConfig::new(8), &receive)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 100, 1);
    ensure_eq!(hosts.receiver.lost()?, Some(0), "frames that were lost");
    for lost in 1..=3 {
        hosts.send(&bytes)?;
        let counted = || hosts.receiver.lost().ok().flatten().filter(|&count| count >= lost);
        ensure_eq!(until("a lost frame", counted)?, lost, "frames that were lost");
    }
    hosts.receive(1)?;
    let last = frame(hosts.there, hosts.here, ETHERTYPE, 100, 2);
    hosts.send(&last)?;
    let (done, seen) = hosts.arrived()??;
    ensure!(done.cookie == 1 && seen == last, "the frame after them");
    ensure_eq!(hosts.receiver.lost()?, Some(3), "frames that were lost");
    Ok(())
}

fn oversized_frame_fails_only_its_receive(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    hosts.receiver.post(hosts.into.region.sge(0, 99)?, 7)?;
    hosts.receive(1)?;
    hosts.send(&frame(hosts.there, hosts.here, ETHERTYPE, 100, 1))?;
    match hosts.arrived()? {
        Err(CompletionError::Failed(failure)) => {
            ensure_eq!(
                (failure.status, failure.cookie),
                (WcStatus::LocalLength, 7),
                "the error of the short receive"
            );
        }
        other => return Err(Stop::fail(format!("{other:?}, not a length error"))),
    }
    ensure_eq!(hosts.receiver.object().query()?.state(), RqState::RDY, "the state of the queue");
    let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 100, 2);
    hosts.send(&bytes)?;
    let (done, seen) = hosts.arrived()??;
    ensure!(done.cookie == 1 && seen == bytes, "the next frame");
    Ok(())
}

fn receive_with_mkey_of_another_pd_fails(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    let stranger = Domain::new(&hosts.into.device)?.region(4096, KeyAccess::LOCAL)?;
    hosts.receiver.post(stranger.sge(0, 2048)?, 7)?;
    hosts.send(&frame(hosts.there, hosts.here, ETHERTYPE, 100, 1))?;
    match hosts.arrived()? {
        Err(CompletionError::Failed(failure)) => {
            ensure_eq!(
                (failure.status, failure.cookie),
                (WcStatus::LocalProtection, 7),
                "the error of the receive"
            );
            Ok(())
        }
        other => Err(Stop::fail(format!("{other:?}, not a protection error"))),
    }
}

fn frame_above_port_mtu_is_dropped(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    hosts.receive(0)?;
    // 1500 bytes after header and tag, and 4 bytes of FCS: the port's default limit.
    hosts.send(&frame(hosts.there, hosts.here, ETHERTYPE, 1519, 1))?;
    quiet("a frame of 1519 bytes", || hosts.receiver.poll(&mut hosts.into.cq))?;
    let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 1518, 2);
    hosts.send(&bytes)?;
    ensure!(hosts.arrived()??.1 == bytes, "a frame of 1518 bytes");
    Ok(())
}

fn vlan_tag_is_kept_or_stripped_into_cqe(lab: &Lab) -> Result<(), Stop> {
    const TAG: u16 = 0xb064;
    for keep_vlan in [true, false] {
        let receive = RqConfig { keep_vlan, ..RqConfig::new(4) };
        let mut hosts = Hosts::of(lab, &SqConfig::new(4), &receive)?;
        let attr = FlowAttr { vlan: Some(0x064), ..FlowAttr::to(hosts.there).ethertype(ETHERTYPE) };
        let rule = hosts.steer(&attr)?;
        let plain = frame(hosts.there, hosts.here, ETHERTYPE, 200, 1);
        let tagged = |tag: u16| {
            let tag = [[0x81, 0], tag.to_be_bytes()].concat();
            [&plain[..12], &tag, &plain[12..]].concat()
        };
        hosts.receive(0)?;
        hosts.send(&plain)?;
        hosts.send(&tagged(TAG + 1))?;
        quiet("a frame of no VLAN, or another", || hosts.receiver.poll(&mut hosts.into.cq))?;
        hosts.send(&tagged(TAG))?;
        let (done, seen) = hosts.arrived()??;
        match keep_vlan {
            true => ensure!(done.vlan().is_none() && seen == tagged(TAG), "{done:?}: kept"),
            false => ensure!(done.vlan() == Some(TAG) && seen == plain, "{done:?}: stripped"),
        }
        rule.destroy()?;
    }
    Ok(())
}

fn cqe_reports_headers_and_checksum_validity(lab: &Lab) -> Result<(), Stop> {
    use L3Type::{Ipv4, Ipv6};
    use L4Type::{Tcp, Udp};
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    let (to, from) = (hosts.there, hosts.here);
    let at = |packet: Packet, byte: usize| {
        let mut bytes = packet.frame(to, from);
        bytes[byte] ^= 0x40;
        bytes
    };
    let whole = |packet: Packet| packet.frame(to, from);
    let says =
        |done: &ReceivedFrame| ((done.l3_type(), done.l3_ok()), (done.l4_type(), done.l4_ok()));
    let (v4, v6) = ((Some(Ipv4), true), (Some(Ipv6), true));
    let (udp, tcp) = ((Some(Udp), true), (Some(Tcp), true));
    let rows = [
        (whole(Packet::udp4()), (v4, udp)),
        (whole(Packet::tcp4()), (v4, tcp)),
        (whole(Packet::udp6()), (v6, udp)),
        // A byte of the payload.
        (at(Packet::udp4(), 60), (v4, (Some(Udp), false))),
        (at(Packet::tcp4(), 60), (v4, (Some(Tcp), false))),
        (at(Packet::udp6(), 70), (v6, (Some(Udp), false))),
        // The TTL, which the transport's checksum does not cover.
        (at(Packet::udp4(), 22), ((Some(Ipv4), false), udp)),
        // Another protocol, and a fragment.
        (at(Packet::udp4(), 23), ((Some(Ipv4), false), (None, false))),
        (at(Packet::udp4(), 21), ((Some(Ipv4), false), (None, false))),
        // A UDP packet over IPv4 that has no checksum.
        (whole(Packet::udp4().without_checksum()), (v4, udp)),
    ];
    for (n, (bytes, expected)) in rows.into_iter().enumerate() {
        hosts.receive(0)?;
        hosts.send(&bytes)?;
        let (done, seen) = hosts.arrived()??;
        ensure!(seen == bytes, "packet {n}");
        ensure_eq!(says(&done), expected, "the completion of packet {n}");
        ensure_eq!(done.checksum(), rig::sum(&bytes[14..]), "the sum of packet {n}");
    }
    Ok(())
}

fn bad_sge_stops_sq_until_recovery(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 100, 1);
    hosts.receive(0)?;
    let good = hosts.from.region.sge(18, 82)?;
    // One byte too many, and a key of another owner.
    let end = hosts.from.region.len() as u64;
    let past = Sge { address: good.address - 18 + end - 81, ..good };
    let foreign = Sge { lkey: hosts.into.region.sge(0, 1)?.lkey, ..good };
    for bad in [past, foreign] {
        hosts.sender.post(&EthSend::new(&bytes[..18], bad), 1)?;
        hosts.sender.post(&EthSend::new(&bytes[..18], good).signaled(), 2)?;
        for (status, cookie) in [(WcStatus::LocalProtection, 1), (WcStatus::Flushed, 2)] {
            crate::failed(hosts.sent()?, status).and_then(|seen| {
                ensure_eq!(seen, cookie, "the request that failed");
                Ok(())
            })?;
        }
        ensure_eq!(hosts.sender.object().query()?.state(), SqState::ERR, "the state");
        hosts.sender.recover()?;
        ensure_eq!(
            hosts.sender.object().query()?.state(),
            SqState::RDY,
            "the state after the recovery"
        );
    }
    hosts.send(&bytes)?;
    let (done, seen) = hosts.arrived()??;
    ensure!(done.cookie == 0 && seen == bytes, "the first frame that was sent");
    Ok(())
}

fn rq_in_error_flushes_and_recovers(lab: &Lab) -> Result<(), Stop> {
    let receive = RqConfig { count_lost: true, ..RqConfig::new(4) };
    let mut hosts = Hosts::of(lab, &SqConfig::new(8), &receive)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there))?;
    let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 100, 1);
    (0..2).try_for_each(|slot| hosts.receive(slot))?;
    hosts.receiver.to_error()?;
    // Later requests are flushed as well.
    hosts.receive(2)?;
    for slot in 0..3 {
        match hosts.arrived()? {
            Err(CompletionError::Failed(failure)) => {
                let said = (failure.status, failure.cookie);
                ensure_eq!(said, (WcStatus::Flushed, slot), "a flushed receive");
            }
            other => return Err(Stop::fail(format!("{other:?}, not a flushed receive"))),
        }
    }
    hosts.send(&bytes)?;
    quiet("a frame in the error state", || hosts.receiver.poll(&mut hosts.into.cq))?;
    hosts.receiver.recover()?;
    hosts.receive(3)?;
    hosts.send(&bytes)?;
    let (done, seen) = hosts.arrived()??;
    ensure!(done.cookie == 3 && seen == bytes, "the next frame");
    ensure_eq!(hosts.receiver.lost()?, Some(0), "frames lost without a receive");
    Ok(())
}

fn sq_and_rq_reject_illegal_transitions(lab: &Lab) -> Result<(), Stop> {
    let hosts = Hosts::new(lab)?;
    let (sq, rq) = (hosts.sender.object(), hosts.receiver.object());
    for from in [SqState::RST, SqState::ERR] {
        ensure!(sq.modify(from, SqState::RDY).is_err(), "an SQ in RDY that is said to be {from:?}");
    }
    for from in [RqState::RST, RqState::ERR] {
        ensure!(rq.modify(from, RqState::RDY).is_err(), "an RQ in RDY that is said to be {from:?}");
    }
    sq.to_error()?;
    rq.to_error()?;
    ensure!(sq.modify(SqState::ERR, SqState::RDY).is_err(), "an SQ from ERR to RDY");
    ensure!(rq.modify(RqState::ERR, RqState::RDY).is_err(), "an RQ from ERR to RDY");
    sq.to_reset()?;
    rq.to_reset()?;
    sq.to_ready()?;
    Ok(rq.to_ready()?)
}

fn rqs_share_receives_of_one_rmp(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let (device, domain) = (&hosts.into.device, &hosts.into.domain);
    let mut srq = domain.srq(&SrqConfig::new(7))?;
    let mut cq = domain.completion_queue(&CqConfig::new(16))?;
    let transport = std::sync::Arc::new(device.alloc_transport_domain()?);
    let mut rules = Vec::new();
    for user_index in 1..=2_u32 {
        let rq = device.create_rq(RqAttr {
            cq: cq.object().clone(),
            wqes: RqWqes::Rmp(srq.object().clone()),
            user_index,
            flush_in_error: true,
            keep_vlan: true,
            timestamps: device.caps().rq_timestamps,
            counter: None,
        })?;
        rq.to_ready()?;
        let loopback = SelfLoopback::default();
        let tir = device.create_tir(transport.clone(), std::sync::Arc::new(rq), loopback)?;
        let attr = FlowAttr::to(hosts.there).ethertype(ETHERTYPE + user_index as u16);
        rules.push(device.create_flow_rule(&attr, &std::sync::Arc::new(tir))?);
    }
    for slot in 0..4 {
        srq.post(hosts.into.region.sge(slot * BYTES, BYTES)?, slot as u64)?;
    }
    for n in 0..4 {
        let of = 1 + n % 2;
        let bytes = frame(hosts.there, hosts.here, ETHERTYPE + of as u16, 70 + n, n);
        hosts.send(&bytes)?;
        let cqe = until("a frame of the SRQ", || cq.poll_eth())?;
        ensure_eq!(cqe.cqe().user_index() as usize, of, "the queue that received it");
        let done = cqe.frame(0).ok_or_else(|| Stop::fail("a CQE of no frame"))?;
        let cookie = srq.complete(cqe.into_cqe())?.cookie as usize;
        ensure_eq!(cookie, n, "the receive that it took");
        ensure_eq!(done.byte_len() as usize, bytes.len(), "bytes of the frame");
        let mut seen = vec![0; bytes.len()];
        hosts.into.region.read_at(cookie * BYTES, &mut seen)?;
        ensure!(seen == bytes, "frame {n}");
    }
    Ok(())
}

fn self_loopback_is_off_unless_enabled(lab: &Lab) -> Result<(), Stop> {
    const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
    let unasked = RqConfig::new(4);
    for (allow_unicast, allow_multicast) in [(false, false), (true, false), (false, true)] {
        let mut hosts = Hosts::new(lab)?;
        let loopback = SelfLoopback { allow_unicast, allow_multicast };
        let config = RqConfig { loopback, ..unasked };
        ensure_eq!(config == unasked, !allow_unicast && !allow_multicast, "the default");
        // Receivers on the sender's device: in its transport domain, and in another one.
        let other = Domain::new(&hosts.from.device)?;
        let mut near_cq = hosts.from.domain.completion_queue(&CqConfig::new(16))?;
        let mut far_cq = other.completion_queue(&CqConfig::new(16))?;
        let mut near = hosts.from.domain.rq(&config, &near_cq)?;
        let mut far = other.rq(&config, &far_cq)?;
        let region = other.region(BYTES, KeyAccess::LOCAL)?;
        for (to, allowed) in [(hosts.here, allow_unicast), (GROUP_MAC, allow_multicast)] {
            let _rules = [near.steer(&FlowAttr::to(to))?, far.steer(&FlowAttr::to(to))?];
            near.post(hosts.from.region.sge(BYTES, BYTES)?, 0)?;
            far.post(region.sge(0, BYTES)?, 0)?;
            hosts.send(&frame(to, hosts.here, ETHERTYPE, 80, 1))?;
            let done = until("a frame of another domain", || far.poll(&mut far_cq))??;
            ensure_eq!(done.byte_len(), 80, "bytes of the frame");
            match allowed {
                true => _ = until("a frame of its own domain", || near.poll(&mut near_cq))??,
                false => quiet("a frame of its own domain", || near.poll(&mut near_cq))?,
            }
        }
    }
    Ok(())
}
