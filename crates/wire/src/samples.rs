//! Packets for tests: of every opcode, of every route, and some that Linux's rdma_rxe sent.

use alloc::vec;
use alloc::vec::Vec;

use verbless_prm::{
    Bth, BthOpcode, Grh, IpProtocol, Ipv4Header, Lrh, LrhNextHeader, Reth, UdpHeader,
};

use crate::{
    EtherType, Ethernet, Extensions, Headers, Mac, Opcode, Packet, ROCE_PORT, Route, Transport,
    Vlan,
};

/// The fill byte of buffers, so that an unwritten byte shows.
const FILL: u8 = 0xa5;

/// Frames that Linux's rdma_rxe sent; the file names the versions.
const RXE: &str = include_str!("rxe.txt");

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)).map(|it| it as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The frame of a packet, emitted into a buffer in which an unwritten byte shows.
pub fn emitted(packet: &Packet<'_>) -> Vec<u8> {
    let mut frame = vec![FILL; packet.frame_length()];
    packet.emit(&mut frame);
    frame
}

pub(crate) fn ethernet(vlan: Option<Vlan>, ether_type: EtherType) -> Ethernet {
    let (destination, source) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    Ethernet { destination, source, vlan, ether_type }
}

pub(crate) fn gid(last: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

pub(crate) fn grh(next: IpProtocol, length: usize) -> Grh {
    let mut grh = Grh::zeroed();
    grh.set_version(6)
        .set_traffic_class(0x6a)
        .set_flow_label(0x12345)
        .set_payload_length(length as u16)
        .set_next_header(next)
        .set_hop_limit(64)
        .set_source_gid(&gid(1))
        .set_destination_gid(&gid(2));
    grh
}

pub(crate) fn lrh(next: LrhNextHeader, length: usize) -> Lrh {
    let mut lrh = Lrh::zeroed();
    lrh.set_virtual_lane(1)
        .set_service_level(2)
        .set_link_next_header(next)
        .set_destination_lid(7)
        .set_packet_length((length / 4) as u16)
        .set_source_lid(6);
    lrh
}

pub(crate) fn udp(length: usize) -> UdpHeader {
    let mut udp = UdpHeader::zeroed();
    udp.set_source_port(0xc123).set_destination_port(ROCE_PORT).set_length(length as u16);
    udp
}

pub(crate) fn bth(opcode: BthOpcode, pad: usize) -> Bth {
    let mut bth = Bth::zeroed();
    bth.set_opcode(opcode)
        .set_solicited(true)
        .set_migrated(true)
        .set_pad_count(pad as u8)
        .set_partition_key(0xffff)
        .set_destination_qp(0x12_3456)
        .set_acknowledge(true)
        .set_psn(0xab_cdef);
    bth
}

pub(crate) fn write() -> Transport {
    let mut reth = Reth::zeroed();
    reth.set_virtual_address(0x1122_3344_5566_7788).set_rkey(0x99aa_bbcc).set_dma_length(5);
    let extensions = Extensions { reth: Some(reth), ..Extensions::default() };
    Transport { bth: bth(BthOpcode::RC_WRITE_ONLY, 3), extensions }
}

/// A packet with 5 bytes of payload for every kind of route. Lengths, checksums and the other
/// computed fields are set.
pub fn of_every_route() -> [Packet<'static>; 6] {
    let following = 12 + 16 + 8 + 4;
    let mut ip = Ipv4Header::zeroed();
    ip.set_version(4)
        .set_header_length(5)
        .set_type_of_service(0x6a)
        .set_total_length(28 + following as u16)
        .set_identification(0x1234)
        .set_dont_fragment(true)
        .set_time_to_live(64)
        .set_protocol(IpProtocol::UDP)
        .set_header_checksum(0xa407)
        .set_source_address(&[192, 0, 2, 1])
        .set_destination_address(&[192, 0, 2, 2]);
    let vlan = Some(Vlan { priority: 3, drop_eligible: true, id: 100 });
    [
        Route::Local(lrh(LrhNextHeader::IBA_LOCAL, 8 + following)),
        Route::Global(
            lrh(LrhNextHeader::IBA_GLOBAL, 48 + following),
            grh(IpProtocol::IBA, following),
        ),
        Route::RoceV1(ethernet(None, EtherType::ROCE), grh(IpProtocol::IBA, following)),
        Route::Ipv4(ethernet(None, EtherType::IPV4), ip, udp(8 + following)),
        Route::Ipv4(ethernet(vlan, EtherType::IPV4), ip, udp(8 + following)),
        Route::Ipv6(
            ethernet(vlan, EtherType::IPV6),
            grh(IpProtocol::UDP, 8 + following),
            udp(8 + following),
        ),
    ]
    .map(|route| Packet { headers: Headers { route, transport: write() }, payload: b"hello" })
}

/// The first frame in [`RXE`] of each IP version and opcode.
pub fn of_rxe() -> impl Iterator<Item = (u8, BthOpcode, Vec<u8>)> {
    RXE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let [ip, opcode, frame] = bytes_of_words(line);
        (ip[0], BthOpcode(opcode[0]), frame)
    })
}

pub(crate) fn bytes_of_words(line: &str) -> [Vec<u8>; 3] {
    let words: Vec<_> = line.split(' ').map(bytes).collect();
    words.try_into().unwrap()
}

/// Every opcode with the extension headers that it has, each filled with a pattern.
pub fn of_every_opcode() -> impl Iterator<Item = Transport> {
    (0..=255).filter_map(|bits| {
        let opcode = Opcode::of(BthOpcode(bits))?;
        let headers = [0x5a; 128];
        let mut bytes = [0; 128];
        bytes[..Bth::BYTES].copy_from_slice(bth(BthOpcode(bits), 0).as_bytes());
        bytes[Bth::BYTES..].copy_from_slice(&headers[Bth::BYTES..]);
        // A payload follows the longest headers, which not every opcode allows.
        let length = (Bth::BYTES..=128).step_by(4).find(|&length| {
            Transport::parse(&bytes[..length]).is_ok_and(|(_, payload)| payload.is_empty())
        })?;
        let (transport, _) = Transport::parse(&bytes[..length]).ok()?;
        assert!(transport.extensions.are_those_of(opcode), "{opcode:?}");
        assert_eq!(transport.length(), length);
        Some(transport)
    })
}
