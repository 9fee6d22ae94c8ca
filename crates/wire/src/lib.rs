//! Parses and emits packets; keeps no state of connections.
//!
//! ```text
//!   RoCE v2      Ethernet [VLAN]  IPv4 or IPv6  UDP  BTH  extensions  payload  pad  ICRC
//!   RoCE v1      Ethernet [VLAN]  GRH                BTH  extensions  payload  pad  ICRC
//!   InfiniBand   LRH              [GRH]              BTH  extensions  payload  pad  ICRC
//! ```
//!
//! [`Packet`] covers all three. The layouts are in `prm/packet.toml`, and a header is a value of
//! its generated view, such as [`Bth`](verbless_prm::Bth); [`Opcode`] says which extension headers
//! a packet has, [`icrc`] protects the fields that no router may change. The frame check sequence
//! of Ethernet and the VCRC of InfiniBand belong to the link and are not here.
//!
//! **Parsing** takes any bytes: its result is consistent (lengths, versions, checksums, pad, ICRC),
//! or [`Malformed`] says what was wrong. **Emitting** writes every byte of the frame that
//! [`Headers::frame_length`] counts, and computes the dependent fields: lengths, protocol numbers,
//! checksums, pad count, ICRC. It panics if the buffer is not of that size, or if the extension
//! headers are not those of the opcode: the builder of a packet knows both.
//!
//! An **unsealed** frame has room for its ICRC, which is not computed yet, like a checksum that a
//! driver offloads to its NIC. Frames that never leave the process need none. [`seal_ethernet`] and
//! [`seal_infiniband`] compute it.
//!
//! Sources: InfiniBand specification, volume 1, chapters 7 to 9, annexes 14 (XRC), 16 (RoCE) and 17
//! (RoCE v2); RFC 768, 791, 1071, 8200; IEEE 802.1Q.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod crc;
pub mod datagram;
mod ethernet;
pub mod icrc;
mod malformed;
mod opcode;
mod packet;
mod route;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
#[cfg(test)]
mod tests;
mod transport;

pub use ethernet::{EtherType, Ethernet, Mac, Vlan};
pub use malformed::Malformed;
pub use opcode::{Message, Opcode, Position, Service};
pub use packet::{Headers, Packet, seal_ethernet, seal_infiniband};
pub use route::{ROCE_PORT, Route, gid_of, is_multicast, multicast_mac};
pub use transport::{Extensions, Transport};
