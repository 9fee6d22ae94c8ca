use std::sync::{Arc, Mutex};
use std::time::Duration;

use verbless_prm::{Bth, Grh, Lrh, LrhNextHeader};

use super::forward::{MAX_IN_FLIGHT, MAX_LEARNED};
use super::*;
use verbless_wire::{Ethernet, Extensions, Headers, Packet, Route, Transport};

const ETHERNET: Link = Link::Ethernet;

fn vport(function: usize) -> Vport {
    Vport { function, port: 1 }
}

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

/// Functions 0 and 1 on one card, 2 and 3 each on its own, with a MAC and a LID of their numbers.
fn fabric(kind: Link) -> Fabric {
    let mut fabric = Fabric::default();
    fabric.add_card(kind, 1, [0, 1]);
    fabric.add_card(kind, 1, [2]);
    fabric.add_card(kind, 1, [3]);
    for function in 0..4 {
        let number = function as u8 + 1;
        let addresses =
            Addresses { macs: vec![mac(number)], lid: number.into(), ..Addresses::default() };
        fabric.set_addresses(vport(function), addresses);
    }
    fabric
}

/// An Ethernet frame with one byte of payload that identifies it.
fn frame(fabric: &mut Fabric, to: Mac, from: Mac, payload: u8) -> Frame {
    let mut bytes = [0; 64];
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&from.0);
    bytes[12..15].copy_from_slice(&[0x88, 0xb5, payload]);
    fabric.buffers.of_bytes(ETHERNET, &bytes)
}

fn send(fabric: &mut Fabric, now: u64, from: usize, to: Mac, payload: u8) {
    let frame = frame(fabric, to, mac(from as u8 + 1), payload);
    fabric.transmit(now, vport(from), frame);
}

/// The next frame that arrives by time `now`.
fn pop(fabric: &mut Fabric, now: u64) -> Option<Delivery> {
    let function = fabric.next_receiver(now)?;
    fabric.take(now, function)
}

/// The frames that arrive by time `now`: function, whether it is its own, payload.
fn arrived(fabric: &mut Fabric, now: u64) -> Vec<(usize, bool, u8)> {
    let mut all = Vec::new();
    while let Some(Delivery { to, own, frame }) = pop(fabric, now) {
        all.push((to.function, own, frame.bytes()[14]));
        fabric.recycle(frame);
    }
    all
}

fn delayed(latency: u64) -> LinkSettings {
    LinkSettings { latency: Duration::from_nanos(latency), ..LinkSettings::default() }
}

fn port(fabric: &Fabric, function: usize) -> PhysicalPort {
    fabric.physical_port(vport(function)).unwrap()
}

#[test]
fn frame_reaches_its_mac_by_switch_or_inside_card() {
    let mut fabric = fabric(ETHERNET);
    send(&mut fabric, 5, 0, mac(3), 10);
    send(&mut fabric, 5, 0, mac(2), 11);
    send(&mut fabric, 5, 0, mac(1), 12);
    assert_eq!(fabric.next_due(), Some(5));
    assert_eq!(arrived(&mut fabric, 4), []);
    assert_eq!(arrived(&mut fabric, 5), [(2, false, 10), (1, false, 11), (0, true, 12)]);
    assert_eq!(fabric.next_due(), None);
    let [out, incoming] = fabric.traffic(port(&fabric, 0));
    assert_eq!((out.frames, out.bytes, incoming.frames), (1, 64, 0), "only one left the card");
}

#[test]
fn broadcast_reaches_all_and_marks_own_copy() {
    let mut fabric = fabric(ETHERNET);
    send(&mut fabric, 0, 0, Mac::BROADCAST, 7);
    let all = [(0, true, 7), (1, false, 7), (2, false, 7), (3, false, 7)];
    assert_eq!(arrived(&mut fabric, 0), all);
}

#[test]
fn unknown_mac_is_flooded_until_learned() {
    let mut fabric = fabric(ETHERNET);
    let received = Arc::new(Mutex::new(Vec::new()));
    let to = received.clone();
    let external = fabric.add_external(
        ETHERNET,
        None,
        Box::new(move |bytes| to.lock().unwrap().push(bytes.to_vec())),
    );
    fabric.set_addresses(
        vport(3),
        Addresses { macs: vec![mac(4)], promiscuous: true, ..Addresses::default() },
    );
    send(&mut fabric, 0, 0, mac(9), 20);
    assert_eq!(arrived(&mut fabric, 0), [(3, false, 20)]);
    assert_eq!(received.lock().unwrap().len(), 1);
    // A host outside answers, and the switch learns its address.
    let mut bytes = [0; 60];
    bytes[..6].copy_from_slice(&mac(1).0);
    bytes[6..12].copy_from_slice(&mac(9).0);
    bytes[14] = 21;
    fabric.receive_external(0, external, &bytes);
    assert_eq!(arrived(&mut fabric, 0), [(0, false, 21)]);
    send(&mut fabric, 0, 0, mac(9), 22);
    assert_eq!(arrived(&mut fabric, 0), [], "only the host outside gets it");
    assert_eq!(received.lock().unwrap().len(), 2);
    // A frame from that host to itself is not sent back.
    bytes[..6].copy_from_slice(&mac(9).0);
    fabric.receive_external(0, external, &bytes);
    assert_eq!(received.lock().unwrap().len(), 2);
    // A host outside cannot take over the address of a vport.
    bytes[..6].copy_from_slice(&mac(1).0);
    bytes[6..12].copy_from_slice(&mac(3).0);
    fabric.receive_external(0, external, &bytes);
    assert_eq!(arrived(&mut fabric, 0).len(), 1);
    send(&mut fabric, 0, 0, mac(3), 23);
    assert_eq!(arrived(&mut fabric, 0), [(2, false, 23)]);
}

#[test]
fn invalid_frames_drop_and_learned_macs_are_bounded() {
    let mut fabric = fabric(ETHERNET);
    let external = fabric.add_external(ETHERNET, None, Box::new(|_| ()));
    for length in [0, 1, 13, 0x10000] {
        fabric.receive_external(0, external, &vec![0; length]);
    }
    assert_eq!(fabric.traffic(external)[0].frames, 0);
    for number in 0..2 * MAX_LEARNED as u32 {
        let mut bytes = [0; 14];
        bytes[..6].copy_from_slice(&mac(1).0);
        bytes[6..].copy_from_slice(&[6, 0, 0, 0, 0, 0, 0, 0]);
        bytes[8..12].copy_from_slice(&number.to_be_bytes());
        fabric.receive_external(0, external, &bytes);
        let delivery = pop(&mut fabric, 0).expect("the frame is for function 0");
        fabric.recycle(delivery.frame);
    }
    assert!(fabric.learned.len() <= MAX_LEARNED);
    assert_eq!(fabric.buffers.free(), 1, "one buffer did all this");
}

fn packet(fabric: &mut Fabric, lid: u16, gid: Option<[u8; 16]>, payload: u8) -> Frame {
    let mut lrh = Lrh::zeroed();
    let next = if gid.is_some() { LrhNextHeader::IBA_GLOBAL } else { LrhNextHeader::IBA_LOCAL };
    lrh.set_destination_lid(lid).set_link_next_header(next);
    let mut grh = Grh::zeroed();
    grh.set_destination_gid(&gid.unwrap_or_default());
    let mut bytes = [lrh.as_bytes().as_slice(), grh.as_bytes()].concat();
    // A byte of the source GID identifies the packet.
    bytes[14] = payload;
    fabric.buffers.of_bytes(Link::Infiniband, &bytes)
}

#[test]
fn infiniband_routes_by_lid_and_shared_lid_by_gid() {
    let mut fabric = fabric(Link::Infiniband);
    for (function, gid) in [(0, [7; 16]), (1, [8; 16])] {
        let shared =
            Addresses { lid: 1, gids: vec![gid], grh_required: true, ..Addresses::default() };
        fabric.set_addresses(vport(function), shared);
    }
    for (from, lid, gid, payload) in [
        (2, 1, Some([8; 16]), 1),
        (2, 1, Some([9; 16]), 2),
        (2, 1, None, 3),
        (2, 4, None, 4),
        (2, 5, None, 5),
        (0, 1, Some([8; 16]), 6),
        (0, 1, Some([7; 16]), 7),
        (2, 0xc001, Some([0xff; 16]), 8),
        (2, 0xffff, None, 9),
    ] {
        let packet = packet(&mut fabric, lid, gid, payload);
        fabric.transmit(0, vport(from), packet);
    }
    let expected =
        [(1, false, 1), (3, false, 4), (1, false, 6), (0, true, 7), (2, true, 8), (0, false, 8)];
    let arrived = arrived(&mut fabric, 0);
    assert_eq!(arrived[..6], expected);
    assert_eq!(arrived[6..], [(1, false, 8), (3, false, 8)]);
}

#[test]
fn ethernet_broadcast_does_not_reach_infiniband() {
    let mut fabric = fabric(ETHERNET);
    fabric.add_card(Link::Infiniband, 1, [4]);
    fabric.set_addresses(vport(4), Addresses { lid: 3, ..Addresses::default() });
    send(&mut fabric, 0, 0, Mac::BROADCAST, 1);
    assert!(arrived(&mut fabric, 0).iter().all(|&(function, ..)| function != 4));
}

#[test]
fn frames_arrive_by_time_then_number() {
    let mut fabric = fabric(ETHERNET);
    let (first, third) = (port(&fabric, 0), port(&fabric, 3));
    fabric.set_link(first, delayed(100));
    fabric.set_link(third, delayed(50));
    send(&mut fabric, 0, 0, mac(4), 1);
    send(&mut fabric, 0, 2, mac(4), 2);
    send(&mut fabric, 100, 2, mac(4), 3);
    assert_eq!(arrived(&mut fabric, 49), []);
    assert_eq!(arrived(&mut fabric, 149), [(3, false, 2)]);
    // Both reach the switch at 100: they leave in the order of their arrival.
    assert_eq!(fabric.next_due(), Some(150));
    assert_eq!(arrived(&mut fabric, 150), [(3, false, 1), (3, false, 3)]);
}

#[test]
fn fabric_is_undisturbed_only_when_perfect_and_empty() {
    let mut fabric = fabric(ETHERNET);
    assert!(fabric.is_undisturbed());
    let first = port(&fabric, 0);
    fabric.set_link(first, delayed(10));
    assert!(!fabric.is_undisturbed());
    send(&mut fabric, 0, 2, mac(1), 1);
    fabric.set_link(first, LinkSettings::default());
    assert!(!fabric.is_undisturbed(), "a frame is on its way");
    assert_eq!(arrived(&mut fabric, 10), [(0, false, 1)]);
    assert!(fabric.is_undisturbed());
    fabric.set_link(first, LinkSettings { partition: 1, ..LinkSettings::default() });
    assert!(!fabric.is_undisturbed());
    fabric.set_link(first, LinkSettings::default());
    let external = fabric.add_external(ETHERNET, None, Box::new(|_| ()));
    assert!(!fabric.is_undisturbed());
    fabric.remove_external(external);
    assert!(fabric.is_undisturbed());
}

#[test]
fn partition_and_down_link_pass_no_frames() {
    let mut fabric = fabric(ETHERNET);
    let (first, third) = (port(&fabric, 0), port(&fabric, 2));
    fabric.set_link(third, LinkSettings { partition: 1, ..LinkSettings::default() });
    for to in [mac(3), mac(4), Mac::BROADCAST] {
        send(&mut fabric, 0, 0, to, 1);
    }
    let functions: Vec<_> = arrived(&mut fabric, 0).iter().map(|&(to, ..)| to).collect();
    assert_eq!(functions, [3, 0, 1, 3], "function 2 is in another partition");
    fabric.set_link(first, LinkSettings { up: false, ..LinkSettings::default() });
    send(&mut fabric, 0, 0, mac(4), 2);
    send(&mut fabric, 0, 3, mac(1), 3);
    send(&mut fabric, 0, 0, mac(2), 4);
    assert_eq!(
        arrived(&mut fabric, 0),
        [(1, false, 4)],
        "the card still switches between its own functions"
    );
    assert_eq!(fabric.traffic(first).map(|it| it.down), [1, 1]);
}

#[test]
fn each_card_port_has_its_own_link() {
    let mut fabric = Fabric::default();
    fabric.add_card(ETHERNET, 2, [0, 1]);
    let ports: Vec<_> = [(0, 1), (0, 2), (1, 1), (1, 2), (0, 3)]
        .map(|(function, port)| fabric.physical_port(Vport { function, port }))
        .into();
    assert_eq!(ports[0], ports[2]);
    assert_eq!(ports[1], ports[3]);
    assert_ne!(ports[0], ports[1]);
    assert_eq!(ports[4], None);
}

#[test]
fn frames_in_a_steady_state_take_no_new_buffers() {
    let mut fabric = fabric(ETHERNET);
    let fourth = port(&fabric, 3);
    fabric.set_link(fourth, delayed(10));
    let mut buffers = Vec::new();
    for turn in 0..100 {
        send(&mut fabric, turn, 0, mac(4), 1);
        send(&mut fabric, turn, 0, Mac::BROADCAST, 1);
        arrived(&mut fabric, turn);
        buffers.push(fabric.buffers.free());
    }
    // The frames in flight in 10 turns, and a broadcast with its copies.
    arrived(&mut fabric, 1000);
    let all = fabric.buffers.free();
    assert!(buffers.iter().skip(20).all(|free| (1..all).contains(free)), "{buffers:?} of {all}");
    assert_eq!(all, 10 * 2 + 6);
}

fn fault(effect: FrameEffect, when: Occurrence) -> FrameFault {
    FrameFault { effect, select: FrameSelector::default(), when }
}

fn with_faults(faults: impl Into<Vec<FrameFault>>, seed: u64) -> LinkSettings {
    LinkSettings { faults: faults.into(), seed, ..LinkSettings::default() }
}

/// The frames that function 3 gets of 256 from function 0, one each nanosecond.
fn run(settings: &LinkSettings) -> Vec<(usize, bool, u8)> {
    let mut fabric = fabric(ETHERNET);
    let third = port(&fabric, 3);
    fabric.set_link(third, settings.clone());
    let mut all = Vec::new();
    for number in 0..=255 {
        send(&mut fabric, number.into(), 0, mac(4), number);
        all.extend(arrived(&mut fabric, number.into()));
    }
    all.extend(arrived(&mut fabric, u64::MAX));
    all
}

#[test]
fn chance_faults_repeat_for_the_same_seed() {
    let chance = Occurrence::Chance(0.25);
    let delay = FrameEffect::Delay(Duration::from_nanos(10));
    let numbers = |settings: &LinkSettings| {
        run(settings).iter().map(|&(.., number)| number).collect::<Vec<_>>()
    };
    let lost = numbers(&with_faults([fault(FrameEffect::Lose, chance)], 1));
    assert!((160..225).contains(&lost.len()) && lost.is_sorted(), "{}", lost.len());
    let doubled = numbers(&with_faults([fault(FrameEffect::Duplicate, chance)], 1));
    assert!((290..350).contains(&doubled.len()) && doubled.is_sorted());
    let late = numbers(&with_faults([fault(delay, chance)], 1));
    assert!(late.len() == 256 && !late.is_sorted());
    let mut sorted = late.clone();
    sorted.sort();
    assert!(sorted.into_iter().eq(0..=255));
    for (at, &number) in late.iter().enumerate() {
        assert!(at.abs_diff(number.into()) <= 10, "frame {number} arrived at position {at}");
    }
    // The first fault selects the same frames, whatever fault follows it.
    let all = with_faults(
        [FrameEffect::Lose, FrameEffect::Duplicate, delay].map(|it| fault(it, chance)),
        1,
    );
    let same: std::collections::BTreeSet<_> = numbers(&all).into_iter().collect();
    assert!(same.iter().eq(&lost));
    assert_eq!(run(&all), run(&all));
    assert_ne!(run(&all), run(&LinkSettings { seed: 2, ..all }));
}

#[test]
fn each_link_has_its_own_chances() {
    let mut fabric = fabric(ETHERNET);
    let settings = with_faults([fault(FrameEffect::Lose, Occurrence::Chance(0.5))], 7);
    for function in [2, 3] {
        let port = port(&fabric, function);
        fabric.set_link(port, settings.clone());
    }
    for number in 0..100 {
        send(&mut fabric, 0, 0, Mac::BROADCAST, number);
    }
    let all = arrived(&mut fabric, 0);
    let of = |function| all.iter().filter(move |it| it.0 == function).map(|it| it.2);
    assert!(!of(2).eq(of(3)));
    assert_eq!(of(1).count(), 100, "nothing is lost inside the card");
}

#[test]
fn finished_fault_has_no_effect() {
    let mut fabric = fabric(ETHERNET);
    let first = port(&fabric, 0);
    let once = [fault(FrameEffect::Lose, Occurrence::Nth { skip: 0, count: 1 })];
    fabric.set_link(first, with_faults(once.clone(), 0));
    assert!(!fabric.is_undisturbed());
    send(&mut fabric, 0, 0, mac(2), 1);
    send(&mut fabric, 0, 2, mac(1), 2);
    send(&mut fabric, 0, 2, mac(1), 3);
    assert_eq!(arrived(&mut fabric, 0), [(1, false, 1), (0, false, 3)]);
    assert!(fabric.is_undisturbed());
    // Equal faults keep their state, others start anew.
    fabric.set_link(
        first,
        LinkSettings { latency: Duration::from_nanos(1), ..with_faults(once.clone(), 0) },
    );
    send(&mut fabric, 0, 2, mac(1), 4);
    assert_eq!(arrived(&mut fabric, 1), [(0, false, 4)]);
    fabric.set_link(first, LinkSettings { loopback: true, ..with_faults(once, 1) });
    assert!(!fabric.is_undisturbed());
    let before = fabric.traffic_inside(first);
    send(&mut fabric, 1, 0, mac(2), 5);
    send(&mut fabric, 1, 0, mac(2), 6);
    assert_eq!(arrived(&mut fabric, 1), [(1, false, 6)]);
    let inside = fabric.traffic_inside(first);
    assert_eq!((inside.frames - before.frames, inside.lost - before.lost), (2, 1));
}

#[test]
fn lost_frame_occupies_link() {
    let mut fabric = fabric(ETHERNET);
    let first = port(&fabric, 0);
    let faults = [fault(FrameEffect::Lose, Occurrence::Nth { skip: 0, count: 1 })];
    let bandwidth = Some(8_000_000_000);
    fabric.set_link(first, LinkSettings { bandwidth, ..with_faults(faults, 0) });
    send(&mut fabric, 0, 0, mac(4), 1);
    send(&mut fabric, 0, 0, mac(4), 2);
    assert_eq!(fabric.next_due(), Some(2 * (64 + 24)));
}

#[test]
fn corrupt_frame_arrives_beside_intact_copy() {
    let mut fabric = fabric(ETHERNET);
    let third = port(&fabric, 3);
    let always = Occurrence::Chance(1.0);
    let faults = [fault(FrameEffect::Corrupt(1), always), fault(FrameEffect::Duplicate, always)];
    fabric.set_link(third, with_faults(faults, 0));
    let frame = frame(&mut fabric, mac(4), mac(1), 1);
    let sent = frame.bytes().to_vec();
    fabric.transmit(0, vport(0), frame);
    let mut differences = Vec::new();
    while let Some(Delivery { frame, .. }) = pop(&mut fabric, 0) {
        let changed =
            frame.bytes().iter().zip(&sent).map(|(one, other)| (one ^ other).count_ones());
        differences.push(changed.sum::<u32>());
        fabric.recycle(frame);
    }
    assert_eq!(differences, [0, 1]);
    let incoming = fabric.traffic(third)[1];
    assert_eq!((incoming.corrupted, incoming.duplicated, incoming.lost), (1, 1, 0));
}

#[test]
fn undelivered_frames_are_bounded() {
    let mut fabric = fabric(ETHERNET);
    for _ in 0..MAX_IN_FLIGHT + 10 {
        send(&mut fabric, 0, 0, mac(4), 1);
    }
    assert_eq!(arrived(&mut fabric, 0).len(), MAX_IN_FLIGHT);
    let third = port(&fabric, 3);
    assert_eq!(fabric.traffic(third)[1].overflowed, 10);
}

#[test]
fn watcher_sees_sealed_frame_at_both_ports() {
    let mut fabric = fabric(ETHERNET);
    let outbox = Arc::<Outbox>::default();
    fabric.report_to(outbox.clone());
    assert!(fabric.is_undisturbed(), "without an observer");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let see = seen.clone();
    let watcher = outbox.frames.add(move |frame: &SeenFrame| {
        assert_eq!(frame.link, ETHERNET);
        let SeenFrame { name, at, leaving, bytes, .. } = frame;
        see.lock().unwrap().push((name.to_string(), at.as_nanos(), *leaving, bytes.to_vec()));
    });
    assert!(!fabric.is_undisturbed());
    let third = port(&fabric, 3);
    fabric.set_link(third, delayed(5));
    let mut headers = Headers {
        route: Route::RoceV1(
            Ethernet { destination: mac(4), source: mac(1), ..Ethernet::default() },
            Grh::zeroed(),
        ),
        transport: Transport { bth: Bth::zeroed(), extensions: Extensions::default() },
    };
    let frame = fabric.buffers.packet(&headers, 4, |payload| payload.fill(1));
    fabric.transmit(7, vport(0), frame);
    if let Route::RoceV1(ethernet, _) = &mut headers.route {
        ethernet.destination = mac(2);
    }
    let frame = fabric.buffers.packet(&headers, 4, |payload| payload.fill(2));
    fabric.transmit(8, vport(0), frame);
    while let Some(delivery) = pop(&mut fabric, 100) {
        assert!(delivery.frame.packet().unwrap().is_some());
        fabric.recycle(delivery.frame);
    }
    outbox.frames.remove(watcher);
    let seen = seen.lock().unwrap();
    let where_and_when: Vec<_> =
        seen.iter().map(|(name, at, leaving, _)| (&**name, *at, *leaving)).collect();
    let (first, third) = ("device 0 port 1", "device 3 port 1");
    assert_eq!(where_and_when, [(first, 7, true), (first, 8, true), (third, 12, false)]);
    for (.., bytes) in &*seen {
        assert!(Packet::parse_ethernet(bytes).unwrap().is_some(), "its ICRC is right");
    }
    assert_eq!(seen[0].3, seen[2].3);
}
