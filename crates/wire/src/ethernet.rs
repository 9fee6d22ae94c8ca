//! Ethernet headers, with a VLAN tag or without.

use core::fmt;

use super::malformed::Malformed;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the address is broadcast or multicast.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The type of an Ethernet frame's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// A VLAN tag, the frame's own type after it (IEEE 802.1Q).
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// RoCE v1: a GRH.
    pub const ROCE: Self = Self(0x8915);
}

/// A VLAN tag (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vlan {
    /// Priority code point, 0 to 7.
    pub priority: u8,
    /// Whether a congested link may drop the frame first.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits; 0 is a priority tag.
    pub id: u16,
}

impl Vlan {
    const fn from_bits(bits: u16) -> Self {
        Self { priority: (bits >> 13) as u8, drop_eligible: bits & 0x1000 != 0, id: bits & 0xfff }
    }

    /// The tag control information: PCP, DEI, VID.
    pub const fn bits(self) -> u16 {
        (self.priority as u16 & 7) << 13 | (self.drop_eligible as u16) << 12 | self.id & 0xfff
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// The receiver's address.
    pub destination: Mac,
    /// The sender's address.
    pub source: Mac,
    /// The VLAN tag.
    pub vlan: Option<Vlan>,
    /// The type of the payload after the tag.
    pub ether_type: EtherType,
}

impl Ethernet {
    /// Bytes without a tag.
    pub const PLAIN: usize = 14;
    const TAG: usize = 4;

    /// Bytes of the header.
    pub const fn length(&self) -> usize {
        Self::PLAIN + if self.vlan.is_some() { Self::TAG } else { 0 }
    }

    /// Parses the header at the start of a frame; returns it and the payload.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let truncated =
            |needs| Malformed::Truncated { header: "Ethernet header", needs, has: frame.len() };
        let (head, rest) =
            frame.split_first_chunk::<{ Self::PLAIN }>().ok_or(truncated(Self::PLAIN))?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *head;
        let mut header = Self {
            destination: Mac([d0, d1, d2, d3, d4, d5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            vlan: None,
            ether_type: EtherType(u16::from_be_bytes([t0, t1])),
        };
        if header.ether_type != EtherType::VLAN {
            return Ok((header, rest));
        }
        let (&[v0, v1, t0, t1], rest) =
            rest.split_first_chunk::<{ Self::TAG }>().ok_or(truncated(Self::PLAIN + Self::TAG))?;
        header.vlan = Some(Vlan::from_bits(u16::from_be_bytes([v0, v1])));
        header.ether_type = EtherType(u16::from_be_bytes([t0, t1]));
        Ok((header, rest))
    }

    /// Writes the header to the start of `frame`.
    ///
    /// # Panics
    /// If `frame` is shorter than [`length`](Self::length).
    pub fn emit(&self, frame: &mut [u8]) {
        frame[..6].copy_from_slice(&self.destination.0);
        frame[6..12].copy_from_slice(&self.source.0);
        let mut at = 12;
        if let Some(vlan) = self.vlan {
            frame[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
            frame[14..16].copy_from_slice(&vlan.bits().to_be_bytes());
            at = 16;
        }
        frame[at..at + 2].copy_from_slice(&self.ether_type.0.to_be_bytes());
    }
}
