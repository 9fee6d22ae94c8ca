//! The link and network headers that bring a packet to its port.

use core::net::{IpAddr, Ipv6Addr};

use verbless_prm::{Grh, IpProtocol, Ipv4Header, Lrh, LrhNextHeader, UdpHeader};

use super::ethernet::{EtherType, Ethernet};
use super::icrc::{self, Front};
use super::malformed::Malformed;

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// IP version of GRHs and IPv6 headers.
const VERSION_6: u8 = 6;
const VERSION_4: u8 = 4;
/// Length of an IPv4 header without options, in units of 4 bytes.
const HEADER_LENGTH: u8 = (Ipv4Header::BYTES / 4) as u8;

/// The GID of an IP address: an IPv4 address is mapped into IPv6 (RFC 4291, 2.5.5.2).
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Whether a GID is a multicast group's: an IPv6 multicast address, or an IPv4 one as RoCE v2 maps
/// it.
pub fn is_multicast(gid: &[u8; 16]) -> bool {
    let address = Ipv6Addr::from(*gid);
    address.is_multicast() || address.to_ipv4_mapped().is_some_and(|it| it.is_multicast())
}

/// The MAC for packets to a multicast group in RoCE (RFC 1112, 6.4; RFC 2464, 7); `None`: the GID
/// is not a group's.
pub fn multicast_mac(gid: &[u8; 16]) -> Option<[u8; 6]> {
    let [.., a, b, c, d] = *gid;
    match Ipv6Addr::from(*gid).to_ipv4_mapped() {
        _ if !is_multicast(gid) => None,
        Some(_) => Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
        None => Some([0x33, 0x33, a, b, c, d]),
    }
}

/// Headers of link and network.
///
/// [`Headers::emit`](super::Headers::emit) computes versions, lengths, protocol numbers, the
/// destination port and checksums, whatever the headers hold; it writes the other fields as they
/// are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// InfiniBand, within a subnet.
    Local(Lrh),
    /// InfiniBand, with a GRH.
    Global(Lrh, Grh),
    /// RoCE v1.
    RoceV1(Ethernet, Grh),
    /// RoCE v2 over IPv4.
    Ipv4(Ethernet, Ipv4Header, UdpHeader),
    /// RoCE v2 over IPv6, whose header has the layout of a GRH.
    Ipv6(Ethernet, Grh, UdpHeader),
}

/// A view at the start of `bytes`, and the rest.
macro_rules! split {
    ($view:ty, $name:literal, $bytes:expr) => {{
        let bytes: &[u8] = $bytes;
        match <$view>::from_prefix(bytes) {
            Some(header) => (*header, &bytes[<$view>::BYTES..]),
            None => {
                let (needs, has) = (<$view>::BYTES, bytes.len());
                return Err(Malformed::Truncated { header: $name, needs, has });
            }
        }
    }};
}

impl Route {
    /// Bytes of the headers.
    pub const fn length(&self) -> usize {
        match self {
            Self::Local(_) => Lrh::BYTES,
            Self::Global(..) => Lrh::BYTES + Grh::BYTES,
            Self::RoceV1(ethernet, _) => ethernet.length() + Grh::BYTES,
            Self::Ipv4(ethernet, ..) => ethernet.length() + Ipv4Header::BYTES + UdpHeader::BYTES,
            Self::Ipv6(ethernet, ..) => ethernet.length() + Grh::BYTES + UdpHeader::BYTES,
        }
    }

    /// Bytes of the headers that the ICRC does not cover: those of Ethernet.
    pub(super) const fn uncovered(&self) -> usize {
        match self {
            Self::Local(_) | Self::Global(..) => 0,
            Self::RoceV1(ethernet, _) | Self::Ipv4(ethernet, ..) | Self::Ipv6(ethernet, ..) => {
                ethernet.length()
            }
        }
    }

    pub(super) const fn front(&self) -> Front {
        match self {
            Self::Local(_) => Front::Local,
            Self::Global(..) => Front::Global,
            Self::RoceV1(..) => Front::Grh,
            Self::Ipv4(..) => Front::Ipv4,
            Self::Ipv6(..) => Front::Ipv6,
        }
    }

    /// Parses the headers at the start of an InfiniBand packet; returns them and their payload,
    /// from the BTH to the ICRC.
    ///
    /// # Errors
    /// [`Malformed`]; a packet without BTH (raw) is `NextHeader`.
    pub fn parse_infiniband(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (lrh, rest) = split!(Lrh, "LRH", packet);
        if lrh.link_version() != 0 {
            return Err(Malformed::Version { header: "LRH", version: lrh.link_version() });
        }
        let says = usize::from(lrh.packet_length()) * 4;
        // The link delimits a packet, and adds no padding.
        if says != packet.len() {
            return Err(Malformed::Length { header: "LRH", says, has: packet.len() });
        }
        match lrh.link_next_header() {
            LrhNextHeader::IBA_LOCAL => Ok((Self::Local(lrh), rest)),
            LrhNextHeader::IBA_GLOBAL => {
                let (grh, following) = parse_grh(rest)?;
                let (says, has) = (following.len(), rest.len() - Grh::BYTES);
                if says != has {
                    return Err(Malformed::Length { header: "GRH", says, has });
                }
                Ok((Self::Global(lrh, grh), following))
            }
            LrhNextHeader(next) => Err(Malformed::NextHeader { header: "LRH", next }),
        }
    }

    /// Parses the headers at the start of an Ethernet frame; returns them and their payload, from
    /// the BTH to the ICRC. `None` if it is no RoCE packet: another protocol, another port.
    ///
    /// # Errors
    /// [`Malformed`], for a frame that would otherwise be a RoCE packet.
    pub fn parse_ethernet(frame: &[u8]) -> Result<Option<(Self, &[u8])>, Malformed> {
        let (ethernet, rest) = Ethernet::parse(frame)?;
        match ethernet.ether_type {
            EtherType::ROCE => {
                let (grh, rest) = parse_grh(rest)?;
                Ok(Some((Self::RoceV1(ethernet, grh), rest)))
            }
            EtherType::IPV4 => parse_ipv4(ethernet, rest),
            EtherType::IPV6 => parse_ipv6(ethernet, rest),
            _ => Ok(None),
        }
    }

    /// Writes the headers of a packet to the start of `frame`; `following` bytes follow them, with
    /// the ICRC.
    pub(super) fn emit(&self, following: usize, frame: &mut [u8]) {
        match *self {
            Self::Local(lrh) => emit_lrh(lrh, LrhNextHeader::IBA_LOCAL, following, frame),
            Self::Global(lrh, grh) => {
                emit_lrh(lrh, LrhNextHeader::IBA_GLOBAL, Grh::BYTES + following, frame);
                emit_grh(grh, IpProtocol::IBA, following, &mut frame[Lrh::BYTES..]);
            }
            Self::RoceV1(ethernet, grh) => {
                let rest = emit_ethernet(ethernet, EtherType::ROCE, frame);
                emit_grh(grh, IpProtocol::IBA, following, rest);
            }
            Self::Ipv4(ethernet, ip, udp) => {
                let rest = emit_ethernet(ethernet, EtherType::IPV4, frame);
                let rest = emit_ipv4(ip, UdpHeader::BYTES + following, rest);
                emit_udp(udp, following, rest);
            }
            Self::Ipv6(ethernet, ip, udp) => {
                let rest = emit_ethernet(ethernet, EtherType::IPV6, frame);
                emit_grh(ip, IpProtocol::UDP, UdpHeader::BYTES + following, rest);
                emit_udp(udp, following, &mut rest[Grh::BYTES..]);
            }
        }
    }
}

/// A GRH in front of a BTH.
fn parse_grh(bytes: &[u8]) -> Result<(Grh, &[u8]), Malformed> {
    let (grh, rest) = parse_version_6(bytes, "GRH")?;
    if grh.next_header() != IpProtocol::IBA {
        return Err(Malformed::NextHeader { header: "GRH", next: grh.next_header().0 });
    }
    Ok((grh, rest))
}

/// Parses a header with the layout of a GRH; returns it and as many bytes as it says.
fn parse_version_6<'a>(
    bytes: &'a [u8],
    header: &'static str,
) -> Result<(Grh, &'a [u8]), Malformed> {
    let (grh, rest) = split!(Grh, "GRH or IPv6 header", bytes);
    if grh.version() != VERSION_6 {
        return Err(Malformed::Version { header, version: grh.version() });
    }
    let says = usize::from(grh.payload_length());
    let rest = rest.get(..says).ok_or(Malformed::Length { header, says, has: rest.len() })?;
    Ok((grh, rest))
}

fn parse_ipv6(ethernet: Ethernet, bytes: &[u8]) -> Result<Option<(Route, &[u8])>, Malformed> {
    match Grh::from_prefix(bytes) {
        Some(ip) if ip.next_header() == IpProtocol::UDP && is_roce(&bytes[Grh::BYTES..]) => {}
        _ => return Ok(None),
    }
    let (ip, rest) = parse_version_6(bytes, "IPv6 header")?;
    let (udp, rest) = parse_udp(|| sum(ip.source_gid()) + sum(ip.destination_gid()), rest)?;
    Ok(Some((Route::Ipv6(ethernet, ip, udp), rest)))
}

fn parse_ipv4(ethernet: Ethernet, bytes: &[u8]) -> Result<Option<(Route, &[u8])>, Malformed> {
    const HEADER: &str = "IPv4 header";
    let ip = match Ipv4Header::from_prefix(bytes) {
        // Only the first fragment has the port.
        Some(ip) if ip.protocol() == IpProtocol::UDP && ip.fragment_offset() == 0 => *ip,
        _ => return Ok(None),
    };
    let following = bytes.get(usize::from(ip.header_length()) * 4..);
    if !following.is_some_and(is_roce) {
        return Ok(None);
    }
    if ip.version() != VERSION_4 {
        return Err(Malformed::Version { header: HEADER, version: ip.version() });
    }
    if ip.header_length() != HEADER_LENGTH {
        return Err(Malformed::Options);
    }
    if checksum(sum(ip.as_bytes())) != 0 {
        return Err(Malformed::HeaderChecksum);
    }
    let says = usize::from(ip.total_length());
    // Ethernet pads a short frame.
    let rest = bytes.get(Ipv4Header::BYTES..says).ok_or(Malformed::Length {
        header: HEADER,
        says,
        has: bytes.len(),
    })?;
    if ip.more_fragments() {
        return Err(Malformed::Fragment);
    }
    let (udp, rest) = parse_udp(|| sum(ip.source_address()) + sum(ip.destination_address()), rest)?;
    Ok(Some((Route::Ipv4(ethernet, ip, udp), rest)))
}

/// Whether the payload of an IP header is for the port of RoCE v2.
fn is_roce(bytes: &[u8]) -> bool {
    UdpHeader::from_prefix(bytes).is_some_and(|udp| udp.destination_port() == ROCE_PORT)
}

/// `addresses`: the sum of the words of both addresses, for the checksum, which few senders of RoCE
/// packets compute.
fn parse_udp(
    addresses: impl FnOnce() -> u32,
    bytes: &[u8],
) -> Result<(UdpHeader, &[u8]), Malformed> {
    let (udp, rest) = split!(UdpHeader, "UDP header", bytes);
    let (says, has) = (usize::from(udp.length()), bytes.len());
    // The ICRC ends the IP packet: nothing may follow.
    if says != has {
        return Err(Malformed::Length { header: "UDP header", says, has });
    }
    let pseudo = || addresses() + u32::from(IpProtocol::UDP.0) + u32::from(udp.length());
    if udp.checksum() != 0 && checksum(pseudo() + sum(bytes)) != 0 {
        return Err(Malformed::UdpChecksum);
    }
    Ok((udp, rest))
}

fn emit_lrh(mut lrh: Lrh, next: LrhNextHeader, following: usize, packet: &mut [u8]) {
    lrh.set_link_version(0)
        .set_link_next_header(next)
        .set_packet_length(((Lrh::BYTES + following) / 4) as u16);
    packet[..Lrh::BYTES].copy_from_slice(lrh.as_bytes());
}

fn emit_ethernet(mut header: Ethernet, of: EtherType, frame: &mut [u8]) -> &mut [u8] {
    header.ether_type = of;
    header.emit(frame);
    &mut frame[header.length()..]
}

fn emit_grh(grh: Grh, next: IpProtocol, following: usize, bytes: &mut [u8]) {
    bytes[..Grh::BYTES].copy_from_slice(complete_grh(grh, next, following).as_bytes());
}

fn emit_ipv4(ip: Ipv4Header, following: usize, bytes: &mut [u8]) -> &mut [u8] {
    let (header, rest) = bytes.split_at_mut(Ipv4Header::BYTES);
    header.copy_from_slice(complete_ipv4(ip, following).as_bytes());
    rest
}

/// Completes a GRH or IPv6 header: `following` bytes follow it, which begin with a `next` header.
pub(crate) fn complete_grh(mut grh: Grh, next: IpProtocol, following: usize) -> Grh {
    grh.set_version(VERSION_6).set_next_header(next).set_payload_length(following as u16);
    grh
}

/// Completes an IPv4 header: `following` bytes follow it, which are UDP and its payload.
pub(crate) fn complete_ipv4(mut ip: Ipv4Header, following: usize) -> Ipv4Header {
    ip.set_version(VERSION_4)
        .set_header_length(HEADER_LENGTH)
        .set_total_length((Ipv4Header::BYTES + following) as u16)
        .set_more_fragments(false)
        .set_fragment_offset(0)
        .set_protocol(IpProtocol::UDP)
        .set_header_checksum(0);
    ip.set_header_checksum(checksum(sum(ip.as_bytes())));
    ip
}

fn emit_udp(mut udp: UdpHeader, following: usize, bytes: &mut [u8]) {
    udp.set_destination_port(ROCE_PORT)
        .set_length((UdpHeader::BYTES + following) as u16)
        .set_checksum(0);
    bytes[..UdpHeader::BYTES].copy_from_slice(udp.as_bytes());
}

/// The sum of big-endian 16-bit words (RFC 1071); an odd byte at the end is the high half of a
/// word. 64 KiB do not overflow it.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum()
}

/// The Internet checksum of a sum of 16-bit words: the complement of the sum with its carries.
fn checksum(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Bytes after the link and network headers: transport headers, payload, pad, ICRC.
pub(crate) const fn route_payload(transport: usize, payload: usize) -> usize {
    transport + payload.next_multiple_of(4) + icrc::LENGTH
}
