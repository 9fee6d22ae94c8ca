use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use verbless_prm::{Aeth, Bth, BthOpcode, Deth, IpProtocol, LrhNextHeader, Reth};

use super::samples::*;
use super::*;

/// Frames that scapy 2.8's `contrib.roce` made, with its ICRC.
const WRITE_OVER_IPV4: &str = "0200000000020200000000010800456a0044123440004011a407c0000201c0000202\
    c12312b7003000000af0ffff0012345680abcdef112233445566778899aabbcc00000005686\
    56c6c6f00000078edcebd";
const DATAGRAM_OVER_IPV6: &str = "0200000000020200000000018100606486dd66a1234500281140\
    fe800000000000000000000000000001fe800000000000000000000000000002c12312b700280000\
    6440800100000011000000011111111100000022646174616772616d9fb4a7f5";

fn parse<'a>(like: &Packet<'_>, frame: &'a [u8]) -> Result<Option<Packet<'a>>, Malformed> {
    match like.headers.route {
        Route::Local(_) | Route::Global(..) => Packet::parse_infiniband(frame).map(Some),
        _ => Packet::parse_ethernet(frame),
    }
}

#[test]
fn scapy_packets_parse_and_emit_identically() {
    let write = bytes(WRITE_OVER_IPV4);
    let packet = Packet::parse_ethernet(&write).unwrap().unwrap();
    assert_eq!(packet, of_every_route()[3]);
    assert_eq!(emitted(&packet), write);

    let datagram = bytes(DATAGRAM_OVER_IPV6);
    let packet = Packet::parse_ethernet(&datagram).unwrap().unwrap();
    let vlan = Some(Vlan { priority: 3, drop_eligible: false, id: 100 });
    assert!(
        matches!(packet.headers.route, Route::Ipv6(link, ip, udp)
            if link == ethernet(vlan, EtherType::IPV6)
                && ip == grh(IpProtocol::UDP, 40)
                && udp.source_port() == 0xc123),
        "{packet:?}"
    );
    let deth = packet.headers.transport.extensions.deth.unwrap();
    assert_eq!((deth.queue_key(), deth.source_qp()), (0x1111_1111, 0x22));
    assert_eq!(packet.payload, b"datagram");
    assert_eq!(emitted(&packet), datagram);
}

#[test]
fn linux_frames_parse_and_emit_identically() {
    let mut seen = 0;
    for (ip, opcode, frame) in of_rxe() {
        let packet = Packet::parse_ethernet(&frame).unwrap().unwrap();
        assert_eq!(packet.headers.transport.bth.opcode(), opcode);
        assert_eq!(ip, if matches!(packet.headers.route, Route::Ipv4(..)) { 4 } else { 6 });
        assert_eq!(emitted(&packet), frame, "IPv{ip} {opcode:?}");
        let mut flipped = frame;
        *flipped.last_mut().unwrap() ^= 1;
        assert!(matches!(Packet::parse_ethernet(&flipped), Err(Malformed::Icrc { .. })));
        seen += 1;
    }
    assert_eq!(seen, 25);
}

#[test]
fn linux_frames_carry_expected_headers() {
    for version in [4, 6] {
        let of = |opcode| {
            let mut frames = of_rxe().filter(|(ip, ..)| *ip == version);
            let (_, _, frame) = frames.find(|(_, of, _)| *of == opcode).unwrap();
            let packet = Packet::parse_ethernet(&frame).unwrap().unwrap();
            (packet.headers.transport, packet.payload.len())
        };
        // 301 bytes at a path MTU of 256.
        assert_eq!(of(BthOpcode::RC_SEND_FIRST).1, 256);
        let (last, length) = of(BthOpcode::RC_SEND_LAST);
        assert_eq!((length, last.bth.pad_count()), (45, 3));
        let (write, length) = of(BthOpcode::RC_WRITE_ONLY);
        assert_eq!((length, write.extensions.reth.unwrap().dma_length()), (45, 45));
        let (read, _) = of(BthOpcode::RC_READ_REQUEST);
        assert_eq!(read.extensions.reth.unwrap().dma_length(), 523);
        let answers = [
            BthOpcode::RC_READ_RESPONSE_FIRST,
            BthOpcode::RC_READ_RESPONSE_MIDDLE,
            BthOpcode::RC_READ_RESPONSE_LAST,
        ];
        assert_eq!(answers.map(|answer| of(answer).1), [256, 256, 11]);
        let syndrome = |opcode| of(opcode).0.extensions.aeth.map(|aeth| aeth.syndrome());
        // An ACK without credit information.
        assert_eq!(syndrome(BthOpcode::RC_ACKNOWLEDGE), Some(0x1f));
        assert_eq!(syndrome(BthOpcode::RC_ATOMIC_ACKNOWLEDGE), Some(0x1f));
        assert!(of(BthOpcode::RC_FETCH_ADD).0.extensions.atomic_eth.is_some());
        let (datagram, length) = of(BthOpcode::UD_SEND_ONLY);
        assert_eq!((length, datagram.extensions.deth.unwrap().queue_key()), (61, 0x1111_1111));
    }
}

#[test]
fn emitted_packet_parses_back_on_every_route() {
    for packet in of_every_route() {
        let frame = emitted(&packet);
        assert_eq!(parse(&packet, &frame), Ok(Some(packet)));
    }
}

#[test]
fn emit_computes_lengths_and_checksums() {
    for packet in of_every_route() {
        let mut wrong = packet;
        wrong.headers.transport.bth.set_pad_count(0);
        match &mut wrong.headers.route {
            Route::Local(lrh) | Route::Global(lrh, _) => {
                lrh.set_packet_length(1).set_link_next_header(LrhNextHeader::RAW);
            }
            Route::RoceV1(ethernet, ip) | Route::Ipv6(ethernet, ip, _) => {
                ethernet.ether_type = EtherType::ARP;
                ip.set_payload_length(1).set_next_header(IpProtocol::TCP).set_version(4);
            }
            Route::Ipv4(ethernet, ip, udp) => {
                ethernet.ether_type = EtherType::ARP;
                ip.set_header_checksum(1).set_total_length(1).set_header_length(6);
                udp.set_destination_port(1).set_checksum(1).set_length(1);
            }
        }
        assert_eq!(emitted(&wrong), emitted(&packet));
    }
}

/// Whether a switch or router may change this byte on the way, so that no check covers it.
fn may_change(route: &Route, at: usize, bit: u8) -> bool {
    let ethernet = route.uncovered();
    let Some(at) = at.checked_sub(ethernet) else { return true };
    let of_grh = |at: usize| match at {
        0 => bit < 4,
        1..=3 | 7 => true,
        _ => false,
    };
    let (bth, other) = match route {
        Route::Local(_) => (8, at == 0 && bit >= 4),
        // Of its LRH only the version, the length and the next header matter.
        Route::Global(..) => {
            let counts = matches!((at, bit), (0, 0..4) | (1, 0..2) | (4, 0..3) | (5, _));
            (48, at < 8 && !counts || at.checked_sub(8).is_some_and(of_grh))
        }
        Route::RoceV1(..) => (40, of_grh(at)),
        // A checksum covers the header.
        Route::Ipv4(..) => (28, false),
        Route::Ipv6(..) => (48, of_grh(at)),
    };
    other || at == bth + 4
}

#[test]
fn flipped_bit_is_detected_in_invariant_fields() {
    for packet in of_every_route() {
        let frame = emitted(&packet);
        for at in packet.headers.route.uncovered()..frame.len() {
            for bit in 0..8 {
                let mut flipped = frame.clone();
                flipped[at] ^= 1 << bit;
                let seen = parse(&packet, &flipped);
                let same = matches!(seen, Ok(Some(seen)) if seen.payload == packet.payload);
                let expected = may_change(&packet.headers.route, at, bit);
                assert_eq!(same, expected, "byte {at} bit {bit}: {seen:?}");
            }
        }
    }
}

#[test]
fn router_changes_keep_the_icrc() {
    let packet = of_every_route()[3];
    let mut routed = packet;
    let Route::Ipv4(_, ip, udp) = &mut routed.headers.route else { panic!("another route") };
    ip.set_time_to_live(63).set_type_of_service(0x6b);
    routed.headers.transport.bth.set_forward_congestion(true);
    udp.set_source_port(udp.source_port());
    let (before, after) = (emitted(&packet), emitted(&routed));
    assert_ne!(before, after);
    assert_eq!(before.last_chunk::<4>(), after.last_chunk::<4>());
}

#[test]
fn truncated_packet_is_never_accepted() {
    for packet in of_every_route() {
        let frame = emitted(&packet);
        for length in 0..frame.len() {
            let seen = parse(&packet, &frame[..length]);
            assert!(matches!(seen, Err(_) | Ok(None)), "{length} bytes: {seen:?}");
        }
    }
}

#[test]
fn ethernet_padding_is_not_payload() {
    for packet in of_every_route().iter().filter(|it| it.headers.route.uncovered() != 0) {
        let mut frame = emitted(packet);
        frame.extend([0; 12]);
        assert_eq!(Packet::parse_ethernet(&frame), Ok(Some(*packet)));
    }
}

#[test]
fn frames_of_other_protocols_and_ports_are_not_roce() {
    let roce = of_every_route()[3];
    let other = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = emitted(&roce);
        change(&mut frame);
        Packet::parse_ethernet(&frame).map(|packet| packet.is_some())
    };
    assert_eq!(other(&|_| ()), Ok(true));
    assert_eq!(other(&|frame| frame[12..14].copy_from_slice(&[8, 6])), Ok(false), "ARP");
    assert_eq!(other(&|frame| frame[23] = IpProtocol::TCP.0), Ok(false), "TCP");
    assert_eq!(other(&|frame| frame[36..38].copy_from_slice(&[0, 53])), Ok(false), "DNS");
    assert_eq!(other(&|frame| frame[21] = 1), Ok(false), "a later fragment");
    let dns = |frame: &mut Vec<u8>| {
        frame[36..38].copy_from_slice(&[0, 53]);
        frame[24] ^= 1;
        frame[17] = 200;
    };
    assert_eq!(other(&dns), Ok(false), "its receiver checks the checksum and length");
    assert_eq!(other(&|frame| frame.truncate(40)), Ok(false), "its port is cut off");
    assert_eq!(
        other(&|frame| frame[14] = 0x46),
        Ok(false),
        "with options, the port would be elsewhere"
    );
}

#[test]
fn malformed_packet_error_names_the_defect() {
    let roce = of_every_route()[3];
    let wrong = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = emitted(&roce);
        change(&mut frame);
        // The IPv4 header's checksum is right again.
        frame[24..26].fill(0);
        let sum: u32 = frame[14..34]
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        match Packet::parse_ethernet(&frame).unwrap_err() {
            Malformed::Icrc { is, .. } => {
                *frame.last_chunk_mut().unwrap() = is.to_le_bytes();
                Packet::parse_ethernet(&frame).unwrap_err()
            }
            other => other,
        }
    };
    const BTH: usize = 42;
    let length = |header, says, has| Malformed::Length { header, says, has };
    assert_eq!(wrong(&|frame| frame[20] |= 0x20), Malformed::Fragment);
    assert_eq!(wrong(&|frame| frame[17] = 200), length("IPv4 header", 200, 68));
    assert_eq!(wrong(&|frame| frame[39] = 47), length("UDP header", 47, 48));
    assert_eq!(wrong(&|frame| frame[41] = 1), Malformed::UdpChecksum);
    assert_eq!(wrong(&|frame| frame[BTH] = 0x15), Malformed::Opcode(0x15));
    assert_eq!(
        wrong(&|frame| frame[BTH + 1] |= 1),
        Malformed::Version { header: "BTH", version: 1 }
    );
    assert_eq!(wrong(&|frame| frame[BTH] = 0x13), truncated("AtomicETH", 28, 24));
    assert_eq!(wrong(&|frame| frame[BTH] = 0x0c), Malformed::Pad { count: 3, has: 8 });
    // The other fields of a packet with a wrong ICRC do not count.
    let mut frame = emitted(&roce);
    frame[BTH] = 0x15;
    assert!(matches!(Packet::parse_ethernet(&frame), Err(Malformed::Icrc { .. })));
}

fn truncated(header: &'static str, needs: usize, has: usize) -> Malformed {
    Malformed::Truncated { header, needs, has }
}

#[test]
fn valid_udp_checksum_is_accepted() {
    let mut frame = bytes(DATAGRAM_OVER_IPV6);
    let mut pseudo = Vec::new();
    pseudo.extend_from_slice(&frame[26..58]);
    pseudo.extend([0, 0, 0, 40, 0, 0, 0, 17]);
    pseudo.extend_from_slice(&frame[58..]);
    let sum: u32 =
        pseudo.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[64..66].copy_from_slice(&(!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes());
    assert!(Packet::parse_ethernet(&frame).unwrap().is_some());
    frame[64] ^= 1;
    assert_eq!(Packet::parse_ethernet(&frame), Err(Malformed::UdpChecksum));
}

#[test]
fn opcode_round_trips() {
    let known = (0..=255).filter(|&bits| {
        let opcode = Opcode::of(BthOpcode(bits));
        assert!(opcode.is_none_or(|opcode| opcode.bits() == Some(BthOpcode(bits))), "{bits:#x}");
        opcode.is_some()
    });
    // RC and XRC 23 each, UC 12, RD 21, UD 2, and two congestion notifications.
    assert_eq!(known.count(), 23 + 23 + 12 + 21 + 2 + 2);
    for name in [
        BthOpcode::UD_SEND_ONLY_IMM,
        BthOpcode::UC_WRITE_LAST_IMM,
        BthOpcode::CNP,
        BthOpcode::ROCE_CNP,
    ] {
        assert!(Opcode::of(name).is_some(), "{name:?}");
    }
    // An invalidation needs a reliable service, a READ an answer.
    for reserved in [0x15, 0x18, 0x2c, 0x36, 0x60, 0x82, 0xc0] {
        assert_eq!(Opcode::of(BthOpcode(reserved)), None, "{reserved:#x}");
    }
}

#[test]
#[should_panic(expected = "has other extension headers")]
fn emit_panics_without_headers_of_opcode() {
    let mut packet = of_every_route()[0];
    packet.headers.transport.extensions.reth = None;
    emitted(&packet);
}

#[test]
fn every_opcode_has_its_headers_in_order() {
    assert_eq!(of_every_opcode().count(), 83);
    let route = of_every_route()[3].headers.route;
    for transport in of_every_opcode() {
        let packet = Packet { headers: Headers { route, transport }, payload: b"" };
        let frame = emitted(&packet);
        let again = Packet::parse_ethernet(&frame).unwrap().unwrap();
        assert_eq!(again.headers.transport, transport);
    }
    let length = |opcode: BthOpcode| {
        of_every_opcode().find(|it| it.bth.opcode() == opcode).map(|it| it.length() - Bth::BYTES)
    };
    assert_eq!(length(BthOpcode::RC_READ_RESPONSE_MIDDLE), Some(0));
    assert_eq!(length(BthOpcode::RC_READ_RESPONSE_LAST), Some(Aeth::BYTES));
    assert_eq!(length(BthOpcode::RC_ATOMIC_ACKNOWLEDGE), Some(12));
    assert_eq!(length(BthOpcode::RC_WRITE_ONLY_IMM), Some(Reth::BYTES + 4));
    assert_eq!(length(BthOpcode::UD_SEND_ONLY_IMM), Some(Deth::BYTES + 4));
    assert_eq!(length(BthOpcode(0xb3)), Some(4 + 28), "an XRC compare-and-swap");
    assert_eq!(length(BthOpcode(0xb1)), Some(Aeth::BYTES), "its responses name no SRQ");
}

#[test]
fn late_sealing_equals_immediate_sealing() {
    for packet in of_every_route() {
        let sealed = emitted(&packet);
        let length = packet.payload.len();
        let mut frame = vec![0xa5; packet.frame_length()];
        packet.headers.emit(length, &mut frame);
        frame[packet.headers.length()..][..length].copy_from_slice(packet.payload);
        packet.headers.pad(length, &mut frame);
        let is_local = matches!(packet.headers.route, Route::Local(_) | Route::Global(..));
        let unsealed = match is_local {
            true => Packet::parse_infiniband_as(&frame, false).map(Some),
            false => Packet::parse_ethernet_as(&frame, false),
        };
        assert_eq!(unsealed, Ok(Some(packet)));
        assert!(matches!(parse(&packet, &frame), Err(Malformed::Icrc { says: 0, .. })));
        match is_local {
            true => seal_infiniband(&mut frame).unwrap(),
            false => {
                // The padding of a short frame is not covered.
                frame.extend([0; 12]);
                assert_eq!(seal_ethernet(&mut frame), Ok(true));
                frame.truncate(sealed.len());
            }
        }
        assert_eq!(frame, sealed);
    }
}

#[test]
fn non_packets_are_not_sealed() {
    let roce = of_every_route()[3];
    let mut arp = emitted(&roce);
    arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
    let before = arp.clone();
    assert_eq!(seal_ethernet(&mut arp), Ok(false));
    assert_eq!(arp, before);
    let mut cut = emitted(&roce);
    cut.truncate(50);
    assert!(seal_ethernet(&mut cut).is_err());
    // A datagram for the RoCE port that ends before a BTH would.
    let (transport, following) = (8 + 8, 36);
    let mut short = emitted(&roce)[..14 + following].to_vec();
    short[16..18].copy_from_slice(&(following as u16).to_be_bytes());
    short[38..40].copy_from_slice(&(transport as u16).to_be_bytes());
    short[24..26].fill(0);
    let sum: u32 =
        short[14..34].chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
    short[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    assert_eq!(seal_ethernet(&mut short), Err(truncated("BTH and ICRC", 16, 8)));
}

proptest! {
    #[test]
    fn parser_never_panics(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Packet::parse_ethernet(&frame);
        let _ = Packet::parse_infiniband(&frame);
        let _ = Packet::parse_ethernet_as(&frame, false);
        let _ = Packet::parse_infiniband_as(&frame, false);
        let _ = seal_ethernet(&mut frame.clone());
        let _ = seal_infiniband(&mut frame.clone());
    }

    #[test]
    fn parsed_packet_emits_unchanged(
        route in 0_usize..6,
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        at in 0_usize..80,
        value: u8,
    ) {
        let mut packet = of_every_route()[route];
        packet.payload = &payload;
        let mut frame = emitted(&packet);
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
        if let Ok(Some(seen)) = parse(&packet, &frame) {
            // Reserved bits, and fields that a router changed, are kept.
            let again = emitted(&seen);
            prop_assert_eq!(again, frame);
        }
    }

    #[test]
    fn payload_of_any_length_round_trips(
        route in 0_usize..6,
        payload in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        let mut packet = of_every_route()[route];
        packet.payload = &payload;
        let frame = emitted(&packet);
        prop_assert_eq!((frame.len() - packet.headers.route.uncovered()) % 4, 0);
        let again = parse(&packet, &frame).unwrap().unwrap();
        prop_assert_eq!(again.payload, &payload[..]);
    }
}
