//! RoCE v2 over an ordinary UDP socket: packets as the payload of datagrams to port 4791.
//!
//! The kernel on either side writes the headers of IP and UDP, and the ICRC covers part of them. So
//! a sender must know the headers that its kernel writes, and a receiver those that the peer's
//! kernel wrote:
//!
//! | covered by the ICRC | sent by us | received |
//! |---|---|---|
//! | lengths, protocol, destination port | follow from the packet | so too |
//! | addresses, source port | those of the bound socket | come with the datagram |
//! | IPv4 identification, DF | 0 and 1 (below) | solved from the ICRC |
//!
//! Linux sends IPv4 identification 0 from a socket that is not connected, if the packet has DF, as
//! all have once the socket discovers the path MTU by itself (`ip_select_ident_segs` in
//! `include/net/ip.h`, `__ip_make_skb` in `net/ipv4/ip_output.c`). Linux's rdma_rxe increments the
//! identification (`prepare_ipv4_hdr` in `rxe_net.c`), and a socket does not report it. But the CRC
//! of a packet determines four consecutive bytes if all others are known: [`receive`] takes the
//! identification for which the ICRC is right, if the flags beside it are valid for an unfragmented
//! packet. One damaged packet in 2^15 passes that check, where the ICRC by itself would let one in
//! 2^32 pass; the checksum of UDP, where the sender computes one, comes first.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use verbless_prm::{Bth, Grh, Ipv4Header, UdpHeader};

use super::ethernet::{Ethernet, Mac};
use super::icrc;
use super::route::{ROCE_PORT, Route};

/// Hop limit of arrived packets: Linux's default, since a socket reports it only on request.
const HOP_LIMIT: u8 = 64;
/// The IPv4 identification and the flags after it, in the IPv4 header.
const IDENTIFICATION_AND_FLAGS: core::ops::Range<usize> = 4..8;
/// The flag DF of an IPv4 header.
const DONT_FRAGMENT: u8 = 0x40;

/// The IP addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPair {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
}

/// Rewrites a frame as the packet that a socket of [`ROCE_PORT`] sends: with the headers that the
/// kernel will write, and the ICRC of those. An ICRC that was wrong before stays wrong. Returns the
/// packet's addresses, and the offset of the datagram's payload in the frame; `None` if the frame
/// is not a RoCE v2 packet, or has a VLAN tag, which no socket sends.
pub fn send(frame: &mut [u8]) -> Option<(IpPair, usize)> {
    let (route, rest) = Route::parse_ethernet(frame).ok()??;
    if rest.len() < Bth::BYTES + icrc::LENGTH {
        return None;
    }
    let (length, payload) = (rest.len(), route.length());
    let (addresses, sent) = match route {
        Route::Ipv4(ethernet, mut ip, mut udp) if ethernet.vlan.is_none() => {
            let addresses = IpPair {
                source: (*ip.source_address()).into(),
                destination: (*ip.destination_address()).into(),
            };
            ip.set_identification(0).set_dont_fragment(true);
            udp.set_source_port(ROCE_PORT);
            (addresses, Route::Ipv4(ethernet, ip, udp))
        }
        Route::Ipv6(ethernet, ip, mut udp) if ethernet.vlan.is_none() => {
            let addresses = IpPair {
                source: (*ip.source_gid()).into(),
                destination: (*ip.destination_gid()).into(),
            };
            udp.set_source_port(ROCE_PORT);
            (addresses, Route::Ipv6(ethernet, ip, udp))
        }
        _ => return None,
    };
    if sent != route {
        let end = payload + length - icrc::LENGTH;
        let was = icrc::compute(route.front(), &frame[route.uncovered()..end]);
        sent.emit(length, frame);
        let is = icrc::compute(sent.front(), &frame[sent.uncovered()..end]);
        let (_, crc) = frame.split_last_chunk_mut()?;
        *crc = (u32::from_le_bytes(*crc) ^ was ^ is).to_le_bytes();
    }
    Some((addresses, payload))
}

/// The frame of a datagram that arrived at [`ROCE_PORT`] of `to`: as its sender saw it, except for
/// fields that the ICRC does not cover. `None` if the two addresses are of different families, or
/// the payload is too long for a packet. It takes any payload; the port that gets the frame checks
/// it.
pub fn receive(macs: [Mac; 2], from: SocketAddr, to: IpAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let [destination, source] = macs;
    let ethernet = Ethernet { destination, source, ..Ethernet::default() };
    let mut udp = UdpHeader::zeroed();
    udp.set_source_port(from.port());
    let route = match (from.ip(), to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = Ipv4Header::zeroed();
            ip.set_dont_fragment(true)
                .set_time_to_live(HOP_LIMIT)
                .set_source_address(&from.octets())
                .set_destination_address(&to.octets());
            Route::Ipv4(ethernet, ip, udp)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut ip = Grh::zeroed();
            ip.set_hop_limit(HOP_LIMIT)
                .set_source_gid(&from.octets())
                .set_destination_gid(&to.octets());
            Route::Ipv6(ethernet, ip, udp)
        }
        _ => return None,
    };
    let length = route.length() + payload.len();
    if length - route.uncovered() > usize::from(u16::MAX) {
        return None;
    }
    let mut frame = vec![0; length];
    route.emit(payload.len(), &mut frame);
    frame[route.length()..].copy_from_slice(payload);
    if let Route::Ipv4(ethernet, ip, udp) = route
        && let Some((identification, dont_fragment)) = find_identification(&route, &frame)
    {
        let mut ip = ip;
        ip.set_identification(identification).set_dont_fragment(dont_fragment);
        Route::Ipv4(ethernet, ip, udp).emit(payload.len(), &mut frame);
    }
    Some(frame)
}

/// The identification and the flag DF with which the ICRC of an IPv4 frame is right, if the frame's
/// own are wrong and others fit.
fn find_identification(route: &Route, frame: &[u8]) -> Option<(u16, bool)> {
    let (packet, crc) = frame[route.uncovered()..].split_last_chunk()?;
    if packet.len() < Ipv4Header::BYTES + UdpHeader::BYTES + Bth::BYTES {
        return None;
    }
    let (says, is) = (u32::from_le_bytes(*crc), icrc::compute(route.front(), packet));
    let wrong = icrc::change(says ^ is, packet.len() - IDENTIFICATION_AND_FLAGS.end);
    let mut word: [u8; 4] = packet[IDENTIFICATION_AND_FLAGS].try_into().ok()?;
    word.iter_mut().zip(wrong).for_each(|(byte, wrong)| *byte ^= wrong);
    match word {
        [high, low, flags @ (0 | DONT_FRAGMENT), 0] => {
            Some((u16::from_be_bytes([high, low]), flags == DONT_FRAGMENT))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::samples::{emitted, of_every_route, of_rxe};
    use crate::{Malformed, Packet};

    fn addresses_of(route: &Route) -> Option<IpPair> {
        match route {
            Route::Ipv4(_, ip, _) => Some(IpPair {
                source: Ipv4Addr::from(*ip.source_address()).into(),
                destination: Ipv4Addr::from(*ip.destination_address()).into(),
            }),
            Route::Ipv6(_, ip, _) => Some(IpPair {
                source: Ipv6Addr::from(*ip.source_gid()).into(),
                destination: Ipv6Addr::from(*ip.destination_gid()).into(),
            }),
            _ => None,
        }
    }

    /// The frame that arrives if a socket sends this one from any source address and port.
    fn received(frame: &[u8]) -> Vec<u8> {
        let (route, rest) = Route::parse_ethernet(frame).unwrap().unwrap();
        let (Route::Ipv4(ethernet, _, udp) | Route::Ipv6(ethernet, _, udp)) = route else {
            panic!("{route:?}")
        };
        let IpPair { source, destination } = addresses_of(&route).unwrap();
        let macs = [ethernet.destination, ethernet.source];
        receive(macs, (source, udp.source_port()).into(), destination, rest).unwrap()
    }

    #[test]
    fn rdma_rxe_packets_arrive_with_ip_identification() {
        let mut counted = 0;
        for (ip, opcode, frame) in of_rxe() {
            let arrived = received(&frame);
            assert!(Packet::parse_ethernet(&arrived).is_ok(), "IPv{ip} {opcode:?}");
            // A socket does not report the flow label of IPv6.
            let from = if ip == 4 { 0 } else { 18 };
            assert_eq!(arrived[from..], frame[from..], "IPv{ip} {opcode:?}");
            counted += usize::from(ip == 4 && frame[18..20] != [0, 0]);
        }
        assert!(counted > 10, "{counted}");
    }

    #[test]
    fn datagram_needs_bth_and_icrc_at_least() {
        let (_, _, whole) = of_rxe().find(|(ip, ..)| *ip == 4).unwrap();
        let headers = 14 + 20 + 8;
        for (payload, is_sent) in [(Bth::BYTES + 4, true), (Bth::BYTES + 3, false)] {
            let mut frame = whole[..headers + payload].to_vec();
            frame[16..18].copy_from_slice(&(20 + 8 + payload as u16).to_be_bytes());
            frame[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
            let checksum = !frame[14..34].chunks(2).enumerate().fold(0, |sum: u16, (at, word)| {
                let word = if at == 5 { 0 } else { u16::from_be_bytes([word[0], word[1]]) };
                let (sum, carry) = sum.overflowing_add(word);
                sum + u16::from(carry)
            });
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            let sent = send(&mut frame);
            assert_eq!(sent.map(|(_, at)| at), is_sent.then_some(headers), "{payload} bytes");
        }
    }

    #[test]
    fn sent_packet_arrives_with_socket_headers() {
        for vlan in [None, Some(crate::Vlan::default())] {
            for mut packet in of_every_route() {
                if let Route::Ipv4(ethernet, ..) | Route::Ipv6(ethernet, ..) =
                    &mut packet.headers.route
                {
                    ethernet.vlan = vlan;
                }
                let mut frame = emitted(&packet);
                let addresses = addresses_of(&packet.headers.route).filter(|_| vlan.is_none());
                let Some((sent, payload)) = send(&mut frame) else {
                    assert_eq!((addresses, frame), (None, emitted(&packet)));
                    continue;
                };
                assert_eq!(Some(sent), addresses);
                let from = (sent.source, ROCE_PORT).into();
                let macs = [Mac([1; 6]), Mac([2; 6])];
                let arrived = receive(macs, from, sent.destination, &frame[payload..]).unwrap();
                let parsed = Packet::parse_ethernet(&arrived).unwrap().unwrap();
                assert_eq!(parsed.headers.transport, packet.headers.transport);
                assert_eq!((parsed.payload, &arrived[..6]), (packet.payload, &[1; 6][..]));
                assert_eq!(addresses_of(&parsed.headers.route), addresses);
                // As sent, too: a capture after the socket would show this frame.
                let again = Packet::parse_ethernet(&frame).unwrap().unwrap();
                assert_eq!(again.headers.transport, packet.headers.transport);
            }
        }
    }

    #[test]
    fn corrupted_byte_is_detected_by_receiver() {
        let packet = of_every_route()[3];
        for at in 42..emitted(&packet).len() {
            let mut frame = emitted(&packet);
            frame[at] ^= 0x10;
            let (addresses, payload) = send(&mut frame).unwrap();
            let from = (addresses.source, ROCE_PORT).into();
            let arrived = receive([Mac([1; 6]); 2], from, addresses.destination, &frame[payload..]);
            let arrived = arrived.unwrap();
            let parsed = Packet::parse_ethernet(&arrived);
            // The BTH's fifth byte holds the congestion bits, which the ICRC does not cover.
            match at {
                46 => assert!(parsed.is_ok()),
                _ => assert!(matches!(parsed, Err(Malformed::Icrc { .. })), "{at}: {parsed:?}"),
            }
        }
    }

    #[test]
    fn frame_carries_any_payload_but_rejects_wrong_family() {
        let macs = [Mac([1; 6]); 2];
        let from: SocketAddr = ([127, 0, 0, 1], 9).into();
        let to = IpAddr::from([127, 0, 0, 2]);
        for length in [0, 1, 11, 15, 16, 17, 65507] {
            let payload = vec![0xff; length];
            let frame = receive(macs, from, to, &payload).unwrap();
            assert_eq!(frame.len(), 42 + length);
            assert!(!matches!(Packet::parse_ethernet(&frame), Ok(Some(_))), "{length}");
            send(&mut frame.clone());
        }
        assert_eq!(receive(macs, from, to, &[0; 65508]), None);
        assert_eq!(receive(macs, from, Ipv6Addr::LOCALHOST.into(), &[0; 20]), None);
    }
}
