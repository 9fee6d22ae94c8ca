//! Flow rules: which frames they match, which rule comes first, and what the kernel and the device
//! refuse.

use std::sync::Arc;

use verbless_command::{FlowAttr, FlowRule};
use verbless_devx::Errno;
use verbless_queue::{DeviceError, RqConfig, SqConfig};

use super::rig::{BYTES, ETHERTYPE, Hosts, frame};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::{ETHERNET, FRAME_QUEUES};
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "frame_rules",
    "Flow rules of raw Ethernet: the frames that they match, their order, and refused rules.",
    needs [
        Need::ModelDevice,
        ETHERNET,
        Need::Peer,
        Need::NetRaw,
        Need::Lossless,
        FRAME_QUEUES,
        Need::FlowRules,
    ]:
    rule_matches_only_described_frames,
    first_matching_priority_wins,
    multicast_rules_match_after_all_others,
    equal_rules_deliver_to_each_queue,
    conflicting_flow_tag_is_rejected,
    kernel_rejects_impossible_rules,
    rq_with_flow_rule_rejects_destroy,
    mixed_rules_each_set_own_flow_tag,
);

fn errno<T>(what: &str, done: Result<T, DeviceError>, expected: Errno) -> Result<(), Stop> {
    match done {
        Ok(_) => Err(Stop::fail(format!("{what} worked"))),
        Err(error) => {
            ensure_eq!(error.errno(), Some(expected), "the errno of {what} ({error})");
            Ok(())
        }
    }
}

/// The tags of those of these frames that the receiver gets.
fn tags(hosts: &mut Hosts, frames: &[Vec<u8>]) -> Result<Vec<u32>, Stop> {
    let mut tags = Vec::new();
    for bytes in frames {
        hosts.receive(0)?;
        hosts.send(bytes)?;
        let (done, seen) = hosts.arrived()??;
        ensure!(&seen == bytes, "the frame");
        tags.push(done.flow_tag());
    }
    Ok(tags)
}

fn rule_matches_only_described_frames(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let attr =
        FlowAttr { source: Some(hosts.here), ..FlowAttr::to(hosts.there).ethertype(ETHERTYPE) };
    let rule = hosts.steer(&attr)?;
    let mut elsewhere = hosts.here;
    elsewhere[5] ^= 1;
    let (here, there) = (hosts.here, hosts.there);
    let good = frame(there, here, ETHERTYPE, 64, 1);
    hosts.receive(0)?;
    for other in [
        frame(there, here, ETHERTYPE + 1, 64, 2),
        frame(there, elsewhere, ETHERTYPE, 64, 3),
        frame([0xff; 6], here, ETHERTYPE, 64, 4),
        frame([2, 0, 0, 0, 0, 0x77], here, ETHERTYPE, 64, 5),
    ] {
        hosts.send(&other)?;
    }
    quiet("a frame of another kind", || hosts.receiver.poll(&mut hosts.into.cq))?;
    hosts.send(&good)?;
    ensure!(hosts.arrived()??.1 == good, "the frame that it describes");
    rule.destroy()?;
    hosts.receive(0)?;
    hosts.send(&good)?;
    quiet("a frame without a rule", || hosts.receiver.poll(&mut hosts.into.cq))
}

fn first_matching_priority_wins(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let (here, there) = (hosts.here, hosts.there);
    let rule = |hosts: &Hosts, attr: FlowAttr, priority, tag| {
        hosts.steer(&FlowAttr { priority, ..attr }.tag(tag))
    };
    let typed = FlowAttr { ethertype: Some(ETHERTYPE), ..FlowAttr::default() };
    let frames = [frame(there, here, ETHERTYPE, 64, 1), frame(there, here, ETHERTYPE + 1, 64, 2)];
    // The order of creation is neither that of the priorities nor its reverse.
    let by_type = rule(&hosts, typed, 7, 0x70)?;
    let last = rule(&hosts, FlowAttr::to(there), 15, 0xf0)?;
    ensure_eq!(tags(&mut hosts, &frames)?, [0x70, 0xf0], "tags with two rules");
    let first = rule(&hosts, FlowAttr::to(there), 0, 0x10)?;
    ensure_eq!(tags(&mut hosts, &frames)?, [0x10, 0x10], "tags with one before them");
    by_type.destroy()?;
    first.destroy()?;
    ensure_eq!(tags(&mut hosts, &frames)?, [0xf0, 0xf0], "tags with the last one");
    let error = rule(&hosts, FlowAttr::to(there), 16, 1).err();
    let error = error.ok_or_else(|| Stop::fail("a rule of a priority that no kernel has"))?;
    ensure!(error.0.contains("the priority is 16; at most 15"), "{}", error.0);
    Ok(last.destroy()?)
}

fn multicast_rules_match_after_all_others(lab: &Lab) -> Result<(), Stop> {
    const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 0, 0, 7];
    let mut hosts = Hosts::new(lab)?;
    let _group = hosts.steer(&FlowAttr { priority: 0, ..FlowAttr::to(GROUP_MAC) }.tag(1))?;
    let frames = [frame(GROUP_MAC, hosts.here, ETHERTYPE, 64, 1)];
    ensure_eq!(tags(&mut hosts, &frames)?, [1], "the tag of the function's own rule");
    let typed = FlowAttr { ethertype: Some(ETHERTYPE), priority: 15, ..FlowAttr::default() };
    let _typed = hosts.steer(&typed.tag(2))?;
    ensure_eq!(tags(&mut hosts, &frames)?, [2], "the tag by a rule of a later priority");
    Ok(())
}

fn equal_rules_deliver_to_each_queue(lab: &Lab) -> Result<(), Stop> {
    let mut hosts = Hosts::new(lab)?;
    let attr = FlowAttr::to(hosts.there).ethertype(ETHERTYPE).tag(5);
    let bytes = frame(hosts.there, hosts.here, ETHERTYPE, 100, 1);
    let mut cq = hosts.into.domain.completion_queue(&verbless_queue::CqConfig::new(16))?;
    let mut second = hosts.into.domain.rq(&RqConfig::new(4), &cq)?;
    let region = &hosts.into.region;
    for (to_first, to_second) in [(true, false), (true, true), (false, true)] {
        let _first = to_first.then(|| hosts.steer(&attr)).transpose()?;
        let rules = to_second.then(|| Ok::<_, Stop>([second.steer(&attr)?, second.steer(&attr)?]));
        let rules = rules.transpose()?;
        // One of two equal rules is destroyed.
        let _second = rules.map(|[one, other]| one.destroy().map(|()| other)).transpose()?;
        hosts.receiver.post(region.sge(0, BYTES)?, 0)?;
        second.post(region.sge(BYTES, BYTES)?, 1)?;
        let payload = hosts.from.region.sge(0, bytes.len() - 18)?;
        hosts.from.region.write_at(0, &bytes[18..])?;
        hosts
            .sender
            .post(&verbless_queue::wr::EthSend::new(&bytes[..18], payload).signaled(), 0)?;
        until("the frame was sent", || hosts.sender.poll(&mut hosts.from.cq))??;
        let queues = [
            ("the first", to_first, &mut hosts.receiver, &mut hosts.into.cq),
            ("the second", to_second, &mut second, &mut cq),
        ];
        for (which, leads, receiver, cq) in queues {
            match leads {
                true => {
                    let done = until("the frame", || receiver.poll(cq))??;
                    ensure_eq!(done.flow_tag(), 5, "the tag at {which} queue");
                }
                false => quiet("a frame without a rule", || receiver.poll(cq))?,
            }
        }
        hosts.receiver.recover()?;
        second.recover()?;
    }
    Ok(())
}

fn conflicting_flow_tag_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let hosts = Hosts::new(lab)?;
    let attr = FlowAttr::to(hosts.there).ethertype(ETHERTYPE);
    let _rule = hosts.steer(&attr.tag(5))?;
    let other = hosts.receiver.steer(&attr.tag(6));
    errno("a rule of another tag", other, Errno::EEXIST)?;
    // A rule without a tag, and a rule of another priority, coexist with it.
    let _same = hosts.steer(&attr)?;
    let _later = hosts.steer(&FlowAttr { priority: 1, ..attr }.tag(6))?;
    Ok(())
}

fn kernel_rejects_impossible_rules(lab: &Lab) -> Result<(), Stop> {
    const OUTER: u8 = 1;
    let hosts = Hosts::new(lab)?;
    let device = &hosts.into.device;
    let to = FlowAttr::to(hosts.there);
    let late = hosts.receiver.steer(&FlowAttr { priority: 16, ..to }).err();
    let late = late.ok_or_else(|| Stop::fail("a rule of a priority that no kernel has"))?;
    ensure_eq!(
        late.kind(),
        verbless_devx::ErrorKind::InvalidInput,
        "the kind of a late rule's error"
    );
    let rule = |mask: &[u8], value: &[u8], criteria| {
        let matcher = Arc::new(device.create_flow_matcher(mask, criteria, 3)?);
        matcher.create_rule(value, hosts.receiver.tir().object(), None)
    };
    // EtherType in bytes 6 and 7, with a bit set that the mask excludes.
    let (mut mask, mut value) = ([0; 0x40], [0; 0x40]);
    mask[6..8].copy_from_slice(&[0xff, 0xf0]);
    value[6..8].copy_from_slice(&[0x88, 0xb5]);
    errno("a value outside its mask", rule(&mask, &value, OUTER), Errno::EINVAL)?;
    value[7] = 0xb0;
    drop(rule(&mask, &value, OUTER)?);
    // The device refuses a match on a UDP packet's source port: it has no such field.
    let (mut mask, mut value) = ([0; 0x40], [0; 0x40]);
    mask[0x1c..0x1e].fill(0xff);
    value[0x1c] = 1;
    ensure!(rule(&mask, &value, OUTER).is_err(), "a field that the device cannot match");
    Ok(())
}

fn rq_with_flow_rule_rejects_destroy(lab: &Lab) -> Result<(), Stop> {
    let Hosts { receiver, there, into, .. } = Hosts::of(lab, &SqConfig::new(4), &RqConfig::new(4))?;
    let rule = receiver.steer(&FlowAttr::to(there))?;
    let tir = receiver.tir().clone();
    let number = tir.tirn().0;
    ensure!(receiver.destroy().is_err(), "a queue with a rule was destroyed");
    ensure_eq!(tir.query()?.inline_rqn(), tir.rq().rqn().0, "where TIR {number} leads");
    rule.destroy()?;
    Arc::into_inner(tir).ok_or_else(|| Stop::fail("the TIR is held"))?.destroy()?;
    drop(into);
    Ok(())
}

fn mixed_rules_each_set_own_flow_tag(lab: &Lab) -> Result<(), Stop> {
    const RULES: u16 = 100;
    let mut hosts = Hosts::new(lab)?;
    let (here, there) = (hosts.here, hosts.there);
    let of = |n: u16| {
        let ethertype = ETHERTYPE + n;
        let attr = match n % 3 {
            0 => FlowAttr::to(there),
            1 => FlowAttr { source: Some(here), ..FlowAttr::default() },
            _ => FlowAttr::default(),
        };
        FlowAttr { priority: n % 4, ..attr.ethertype(ethertype) }.tag(u32::from(n) + 1)
    };
    let mut rules: Vec<Option<FlowRule>> = Vec::new();
    for n in 0..RULES {
        rules.push(Some(hosts.steer(&of(n))?));
    }
    let frame = |n: u16| frame(there, here, ETHERTYPE + n, 64, n.into());
    for n in (0..RULES).step_by(7) {
        ensure_eq!(tags(&mut hosts, &[frame(n)])?, [u32::from(n) + 1], "the tag of rule {n}");
    }
    // Every second rule is destroyed and made again.
    for n in (0..RULES).step_by(2) {
        rules[usize::from(n)] = None;
    }
    hosts.receive(0)?;
    hosts.send(&frame(14))?;
    quiet("a frame without a rule", || hosts.receiver.poll(&mut hosts.into.cq))?;
    hosts.send(&frame(21))?;
    ensure_eq!(hosts.arrived()??.0.flow_tag(), 22, "the tag of a rule that stayed");
    for n in (0..RULES).step_by(2) {
        rules[usize::from(n)] = Some(hosts.steer(&of(n))?);
    }
    for n in (0..RULES).step_by(9) {
        ensure_eq!(tags(&mut hosts, &[frame(n)])?, [u32::from(n) + 1], "the tag of rule {n}");
    }
    Ok(())
}
