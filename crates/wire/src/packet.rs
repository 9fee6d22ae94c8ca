//! Complete packets.

use verbless_prm::Bth;

use super::icrc;
use super::malformed::Malformed;
use super::route::{Route, route_payload};
use super::transport::Transport;

/// All headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Link and network.
    pub route: Route,
    /// BTH and extensions.
    pub transport: Transport,
}

/// A packet: headers and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The packet's headers.
    pub headers: Headers,
    /// The packet's payload, without the pad.
    pub payload: &'a [u8],
}

impl Headers {
    /// Offset of the payload in the frame.
    pub fn length(&self) -> usize {
        self.route.length() + self.transport.length()
    }

    /// Bytes of the frame with `payload` bytes of payload.
    pub fn frame_length(&self, payload: usize) -> usize {
        self.route.length() + route_payload(self.transport.length(), payload)
    }

    /// Writes the headers of a frame with `payload` bytes of payload. The caller then writes the
    /// payload after them ([`length`](Self::length)), and [`seal`](Self::seal) completes the
    /// frame. So a payload is copied only once, into the frame.
    ///
    /// # Panics
    /// If `frame` is not [`frame_length`](Self::frame_length) bytes long, or the extension headers
    /// are not those of the opcode.
    pub fn emit(&self, payload: usize, frame: &mut [u8]) {
        assert_eq!(frame.len(), self.frame_length(payload), "a frame of another size");
        self.route.emit(route_payload(self.transport.length(), payload), frame);
        self.transport.emit(payload, &mut frame[self.route.length()..]);
    }

    /// Writes the bytes after a payload of `payload` bytes: pad and ICRC.
    ///
    /// # Panics
    /// If `frame` is not [`frame_length`](Self::frame_length) bytes long.
    pub fn seal(&self, payload: usize, frame: &mut [u8]) {
        self.pad(payload, frame);
        seal(self.route, frame.len(), frame);
    }

    /// Writes the bytes after a payload of `payload` bytes, with zeros for the ICRC: the frame is
    /// unsealed.
    ///
    /// # Panics
    /// If `frame` is not [`frame_length`](Self::frame_length) bytes long.
    pub fn pad(&self, payload: usize, frame: &mut [u8]) {
        assert_eq!(frame.len(), self.frame_length(payload), "a frame of another size");
        frame[self.length() + payload..].fill(0);
    }
}

/// Writes the ICRC of an unsealed RoCE packet; false if the frame is no RoCE packet.
///
/// # Errors
/// [`Malformed`]: a RoCE packet that a port drops. Its ICRC stays as it is.
pub fn seal_ethernet(frame: &mut [u8]) -> Result<bool, Malformed> {
    let Some((route, rest)) = Route::parse_ethernet(frame)? else { return Ok(false) };
    seal_parsed(route, rest.len(), frame)?;
    Ok(true)
}

/// Writes the ICRC of an unsealed InfiniBand packet.
///
/// # Errors
/// [`Malformed`]: a packet that a port drops. Its ICRC stays as it is.
pub fn seal_infiniband(packet: &mut [u8]) -> Result<(), Malformed> {
    let (route, rest) = Route::parse_infiniband(packet)?;
    seal_parsed(route, rest.len(), packet)
}

fn seal_parsed(route: Route, following: usize, frame: &mut [u8]) -> Result<(), Malformed> {
    let needs = Bth::BYTES + icrc::LENGTH;
    if following < needs {
        return Err(Malformed::Truncated { header: "BTH and ICRC", needs, has: following });
    }
    seal(route, route.length() + following, frame);
    Ok(())
}

/// Writes the ICRC of a packet that ends at `end`.
fn seal(route: Route, end: usize, frame: &mut [u8]) {
    let (covered, crc) =
        frame[route.uncovered()..end].split_at_mut(end - route.uncovered() - icrc::LENGTH);
    crc.copy_from_slice(&icrc::compute(route.front(), covered).to_le_bytes());
}

impl<'a> Packet<'a> {
    /// Parses an Ethernet frame without its FCS; `None` if it is no RoCE packet.
    ///
    /// # Errors
    /// [`Malformed`]: a RoCE packet that a port drops.
    pub fn parse_ethernet(frame: &'a [u8]) -> Result<Option<Self>, Malformed> {
        Self::parse_ethernet_as(frame, true)
    }

    /// Parses a frame. The ICRC of a frame that is not `sealed` is not computed, and not checked.
    ///
    /// # Errors
    /// As for [`parse_ethernet`](Self::parse_ethernet).
    pub fn parse_ethernet_as(frame: &'a [u8], sealed: bool) -> Result<Option<Self>, Malformed> {
        match Route::parse_ethernet(frame)? {
            Some((route, rest)) => Self::parse(route, rest, frame, sealed).map(Some),
            None => Ok(None),
        }
    }

    /// Parses an InfiniBand packet without its VCRC.
    ///
    /// # Errors
    /// [`Malformed`]: a packet that a port drops, or a raw packet (one without BTH).
    pub fn parse_infiniband(packet: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_infiniband_as(packet, true)
    }

    /// Parses a packet. The ICRC of a packet that is not `sealed` is not computed, and not checked.
    ///
    /// # Errors
    /// As for [`parse_infiniband`](Self::parse_infiniband).
    pub fn parse_infiniband_as(packet: &'a [u8], sealed: bool) -> Result<Self, Malformed> {
        let (route, rest) = Route::parse_infiniband(packet)?;
        Self::parse(route, rest, packet, sealed)
    }

    fn parse(route: Route, rest: &'a [u8], frame: &[u8], sealed: bool) -> Result<Self, Malformed> {
        let (bytes, crc) = rest.split_last_chunk().ok_or(Malformed::Truncated {
            header: "ICRC",
            needs: icrc::LENGTH,
            has: rest.len(),
        })?;
        Transport::bth_of(bytes)?;
        if sealed {
            let covered = &frame[route.uncovered()..route.length() + bytes.len()];
            let (says, is) = (u32::from_le_bytes(*crc), icrc::compute(route.front(), covered));
            if says != is {
                return Err(Malformed::Icrc { says, is });
            }
        }
        // These bytes are as the sender wrote them.
        let (transport, payload) = Transport::parse(bytes)?;
        Ok(Self { headers: Headers { route, transport }, payload })
    }

    /// Bytes of the frame.
    pub fn frame_length(&self) -> usize {
        self.headers.frame_length(self.payload.len())
    }

    /// Writes the frame: headers, payload, pad and ICRC.
    ///
    /// # Panics
    /// As [`Headers::emit`] does.
    pub fn emit(&self, frame: &mut [u8]) {
        let length = self.payload.len();
        self.headers.emit(length, frame);
        frame[self.headers.length()..][..length].copy_from_slice(self.payload);
        self.headers.seal(length, frame);
    }
}
