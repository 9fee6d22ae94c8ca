//! Errors of a malformed packet.

use core::fmt;

/// Why bytes are not a packet. A port drops and counts such a packet, and sends no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The packet ends within this header.
    Truncated {
        /// The header.
        header: &'static str,
        /// Bytes that the header needs.
        needs: usize,
        /// Bytes left.
        has: usize,
    },
    /// A header has an undefined version.
    Version {
        /// The header.
        header: &'static str,
        /// The version in the header.
        version: u8,
    },
    /// A length in a header is less than the header needs, or more than the bytes left.
    Length {
        /// The header.
        header: &'static str,
        /// The length in the header, in bytes.
        says: usize,
        /// Bytes left.
        has: usize,
    },
    /// An IPv4 header has options, which RoCE packets do not have.
    Options,
    /// A fragment: RoCE packets are never fragmented.
    Fragment,
    /// The checksum of an IPv4 header is wrong.
    HeaderChecksum,
    /// The checksum of a UDP datagram is wrong.
    UdpChecksum,
    /// Another header than a BTH follows.
    NextHeader {
        /// The header.
        header: &'static str,
        /// The value of the next header field.
        next: u8,
    },
    /// The BTH's opcode is reserved.
    Opcode(u8),
    /// The packet has more pad bytes than bytes after the headers, or pad bytes without payload.
    Pad {
        /// The pad count.
        count: usize,
        /// Bytes after the headers.
        has: usize,
    },
    /// The ICRC is wrong.
    Icrc {
        /// The value in the packet.
        says: u32,
        /// The correct value.
        is: u32,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { header, needs, has } => {
                write!(f, "the packet ends within its {header}: {needs} bytes needed, {has} left")
            }
            Self::Version { header, version } => {
                write!(f, "the {header} is of the unknown version {version}")
            }
            Self::Length { header, says, has } => {
                write!(f, "the {header} says {says} bytes, and there are {has}")
            }
            Self::Options => f.write_str("the IPv4 header has options"),
            Self::Fragment => f.write_str("the IPv4 packet is a fragment"),
            Self::HeaderChecksum => f.write_str("the checksum of the IPv4 header is wrong"),
            Self::UdpChecksum => f.write_str("the checksum of the UDP datagram is wrong"),
            Self::NextHeader { header, next } => {
                write!(f, "what follows the {header} is {next:#x}, and not a BTH")
            }
            Self::Opcode(opcode) => write!(f, "the BTH has the reserved opcode {opcode:#04x}"),
            Self::Pad { count, has } => {
                write!(f, "the BTH counts {count} pad bytes, with {has} bytes after the headers")
            }
            Self::Icrc { says, is } => {
                write!(f, "the ICRC is {says:#010x}, and {is:#010x} would be right")
            }
        }
    }
}

impl core::error::Error for Malformed {}
