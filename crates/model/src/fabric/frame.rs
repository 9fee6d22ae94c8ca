//! Frames, the bytes that devices exchange, and their buffers.

use verbless_prm::{AethNak, Bth, Lrh};

use super::random::Random;
use crate::profile::Link;
use verbless_wire::{self as wire, Extensions, Headers, Malformed, Opcode, Packet, Route};

/// A frame on a link: from the Ethernet header or the LRH to the ICRC, without the check sequence
/// (FCS) or VCRC, which belong to the link.
///
/// An unsealed frame is a RoCE or InfiniBand packet whose ICRC is not computed yet: nothing changes
/// it between two ends in this memory. It is sealed when it leaves the memory, when a capture or
/// observer takes its bytes, and before a fault changes one of them.
#[derive(Debug)]
pub(crate) struct Frame {
    link: Link,
    sealed: bool,
    /// The transport domain of the SQ that sent the frame, if an SQ did.
    domain: Option<u32>,
    length: usize,
    /// At least `length` bytes; those after `length` are of an earlier frame.
    buffer: Vec<u8>,
}

impl Frame {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// The transport domain of the SQ that sent the frame, if an SQ did. Only the sending function
    /// knows the domain.
    pub(crate) fn domain(&self) -> Option<u32> {
        self.domain
    }

    /// The bytes of a frame that is yet to be sent.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }

    /// The packet in the frame; `None` if it is an Ethernet frame of another protocol.
    ///
    /// # Errors
    /// [`Malformed`]: a port drops it.
    pub(crate) fn packet(&self) -> Result<Option<Packet<'_>>, Malformed> {
        match self.link {
            Link::Ethernet => Packet::parse_ethernet_as(self.bytes(), self.sealed),
            Link::Infiniband => Packet::parse_infiniband_as(self.bytes(), self.sealed).map(Some),
        }
    }

    /// The frame's BTH, with the ICRC unchecked; `None` if there is none.
    pub(super) fn bth(&self) -> Option<Bth> {
        Bth::from_prefix(self.transport()?).copied()
    }

    /// Whether the frame is a NAK that fails the requester's connection: any but a PSN sequence
    /// error.
    pub(super) fn is_fatal_nak(&self) -> bool {
        let syndrome = self.transport().and_then(|rest| {
            let opcode = Opcode::of(Bth::from_prefix(rest)?.opcode())?;
            let extensions = Extensions::parse(opcode, &rest[Bth::BYTES..]).ok()?.0;
            Some(extensions.aeth?.syndrome())
        });
        syndrome.is_some_and(|it| it >> 5 & 3 == 3 && it & 0x1f != AethNak::PSN_SEQUENCE.0)
    }

    /// The bytes from the BTH on.
    fn transport(&self) -> Option<&[u8]> {
        match self.link {
            Link::Ethernet => Some(Route::parse_ethernet(self.bytes()).ok()??.1),
            Link::Infiniband => Some(Route::parse_infiniband(self.bytes()).ok()?.1),
        }
    }

    /// Inverts `bits` consecutive bits, after the Ethernet header or LRH.
    pub(super) fn corrupt(&mut self, bits: u32, seed: u64) {
        self.seal();
        let header = match self.link {
            Link::Ethernet => 14,
            Link::Infiniband => Lrh::BYTES,
        };
        let rest = self.bytes_mut().get_mut(header..).unwrap_or_default();
        let bits = rest.len().saturating_mul(8).min(bits as usize);
        let first = Random::new(&[seed]).below(rest.len() * 8 - bits + 1);
        (first..first + bits).for_each(|bit| rest[bit / 8] ^= 1 << (bit % 8));
    }

    /// Computes the ICRC of an unsealed frame.
    pub(crate) fn seal(&mut self) {
        if std::mem::replace(&mut self.sealed, true) {
            return;
        }
        let sealed = match self.link {
            Link::Ethernet => wire::seal_ethernet(self.bytes_mut()).map(|_| ()),
            Link::Infiniband => wire::seal_infiniband(self.bytes_mut()),
        };
        if let Err(malformed) = sealed {
            tracing::error!(%malformed, "the engine sent a malformed packet");
        }
    }
}

/// Free buffers. In a steady state frames take buffers from here and return them, and nothing is
/// allocated.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Vec<Vec<u8>>,
}

/// Maximum number of free buffers; further ones are deallocated.
const MAX_FREE: usize = 4096;
/// The size of a new buffer: a packet of 4 KiB and its headers.
const NEW_BUFFER_BYTES: usize = 4096 + 256;

impl Buffers {
    fn frame(&mut self, link: Link, length: usize, sealed: bool) -> Frame {
        let mut buffer = self.free.pop().unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length.max(NEW_BUFFER_BYTES), 0);
        }
        Frame { link, sealed, domain: None, length, buffer }
    }

    /// An unsealed packet: its headers, a payload, which `fill` writes, and the pad.
    ///
    /// # Panics
    /// If the extension headers are not those of the opcode.
    pub(crate) fn packet(
        &mut self,
        headers: &Headers,
        payload: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Frame {
        let link = match headers.route {
            Route::Local(_) | Route::Global(..) => Link::Infiniband,
            _ => Link::Ethernet,
        };
        let mut frame = self.frame(link, headers.frame_length(payload), false);
        headers.emit(payload, frame.bytes_mut());
        fill(&mut frame.bytes_mut()[headers.length()..][..payload]);
        headers.pad(payload, frame.bytes_mut());
        frame
    }

    /// An Ethernet frame of `length` bytes, which `fill` writes, without a check of its own; sent
    /// in transport domain `domain`.
    pub(crate) fn plain(
        &mut self,
        length: usize,
        domain: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Frame {
        let mut frame = self.frame(Link::Ethernet, length, true);
        frame.domain = Some(domain);
        fill(frame.bytes_mut());
        frame
    }

    /// A frame of these bytes, with the check that they end with, if any.
    pub(crate) fn of_bytes(&mut self, link: Link, bytes: &[u8]) -> Frame {
        let mut frame = self.frame(link, bytes.len(), true);
        frame.bytes_mut().copy_from_slice(bytes);
        frame
    }

    /// Copies a frame into a buffer.
    pub(crate) fn copy(&mut self, of: &Frame) -> Frame {
        let mut frame = self.frame(of.link, of.length, of.sealed);
        frame.domain = of.domain;
        frame.bytes_mut().copy_from_slice(of.bytes());
        frame
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes back a frame that was handled.
    pub(crate) fn recycle(&mut self, frame: Frame) {
        if self.free.len() < MAX_FREE {
            self.free.push(frame.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use verbless_prm::BthOpcode;

    use super::*;
    use verbless_wire::{Ethernet, Extensions, Transport};

    fn headers(route: Route) -> Headers {
        let mut bth = Bth::zeroed();
        bth.set_opcode(BthOpcode::RC_SEND_ONLY);
        Headers { route, transport: Transport { bth, extensions: Extensions::default() } }
    }

    #[test]
    fn packet_is_readable_unsealed_and_sealed_once() {
        let ethernet = Ethernet::default();
        let routes =
            [Route::Local(Lrh::zeroed()), Route::RoceV1(ethernet, verbless_prm::Grh::zeroed())];
        let mut buffers = Buffers::default();
        for route in routes {
            // Bytes of an earlier frame must not show.
            let junk = buffers.of_bytes(Link::Ethernet, &[0xa5; 200]);
            buffers.recycle(junk);
            let headers = headers(route);
            let mut frame =
                buffers.packet(&headers, 5, |payload| payload.copy_from_slice(b"hello"));
            assert_eq!(frame.bytes().len(), headers.frame_length(5));
            let payload = |frame: &Frame| frame.packet().unwrap().unwrap().payload.to_vec();
            assert_eq!(payload(&frame), b"hello");
            assert_eq!(frame.bytes()[frame.length - 7..], [0; 7], "pad and ICRC");
            frame.seal();
            assert_eq!(payload(&frame), b"hello");
            let expected = {
                let mut bytes = vec![0; frame.length];
                Packet { payload: b"hello", headers: frame.packet().unwrap().unwrap().headers }
                    .emit(&mut bytes);
                bytes
            };
            assert_eq!(frame.bytes(), expected);
            let last = frame.length - 8;
            frame.bytes_mut()[last] ^= 1;
            frame.seal();
            assert!(frame.packet().is_err(), "the frame is sealed once");
            buffers.recycle(frame);
        }
        assert_eq!(buffers.free(), 1);
    }

    #[test]
    fn corruption_flips_adjacent_bits_after_link_header() {
        let mut buffers = Buffers::default();
        let sealed = {
            let mut frame =
                buffers.packet(&headers(Route::Local(Lrh::zeroed())), 4, |it| it.fill(9));
            frame.seal();
            frame
        };
        let mut starts = std::collections::BTreeSet::new();
        for seed in 0..1000 {
            let mut frame =
                buffers.packet(&headers(Route::Local(Lrh::zeroed())), 4, |it| it.fill(9));
            frame.corrupt(3, seed);
            assert!(frame.packet().is_err() || frame.bytes()[12] != sealed.bytes()[12]);
            let flipped: Vec<_> = (0..frame.length * 8)
                .filter(|bit| {
                    (frame.bytes()[bit / 8] ^ sealed.bytes()[bit / 8]) >> (bit % 8) & 1 != 0
                })
                .collect();
            assert_eq!(flipped.len(), 3);
            assert_eq!(flipped[2] - flipped[0], 2);
            starts.insert(flipped[0]);
            buffers.recycle(frame);
        }
        assert_eq!(starts, (64..sealed.length * 8 - 2).collect());
        let mut raw = buffers.of_bytes(Link::Ethernet, &[0; 15]);
        raw.corrupt(100, 1);
        assert_eq!(raw.bytes()[13..], [0, 0xff]);
        for length in [0, 14] {
            buffers.of_bytes(Link::Ethernet, &vec![0; length]).corrupt(1, 1);
        }
    }
}
