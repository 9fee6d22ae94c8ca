//! Captures in the format pcapng, which Wireshark reads.
//!
//! InfiniBand packets are in ERF records, as `ibdump` writes them: Wireshark does not support the
//! link type of InfiniBand itself (247). An ERF record ends with the VCRC, which the fabric does
//! not have: this module computes it, and Wireshark shows it unchecked.
//!
//! The file is one section, with an interface block for each physical port, written before the
//! port's first frame, and a packet block for each frame: its time in nanoseconds of the model's
//! clock, its direction, and all its bytes up to and including the ICRC. The last blocks say for
//! each interface how many frames are missing.
//!
//! Sources: the draft `draft-ietf-opsawg-pcapng`; wireshark: `wiretap/erf.h`.

use std::collections::BTreeMap;
use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::nanoseconds;
use crate::profile::Link;
use crate::watch::{SeenFrame, Unseen};

/// Types of blocks.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// The byte order of a section; the numbers here are little-endian.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Types of links: `LINKTYPE_ETHERNET` and `LINKTYPE_ERF`.
const fn link_type(link: Link) -> u16 {
    match link {
        Link::Ethernet => 1,
        Link::Infiniband => 197,
    }
}

/// Options of blocks.
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const SECTION_APPLICATION: u16 = 4;
    pub(super) const INTERFACE_NAME: u16 = 2;
    pub(super) const INTERFACE_RESOLUTION: u16 = 9;
    pub(super) const PACKET_FLAGS: u16 = 2;
    pub(super) const STATISTICS_DROPPED: u16 = 5;
}

/// Resolution of times: decimal digits after the second.
const NANOSECONDS: u8 = 9;
/// The flags of a packet: it came in, or went out.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A capture that is being written.
pub(crate) struct Pcapng<W> {
    sink: W,
    /// The number of each physical port in this capture.
    interfaces: BTreeMap<usize, u32>,
    /// The time of the last frame.
    last: u64,
    block: Vec<u8>,
}

impl<W: Write> Pcapng<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// The errors of `sink`.
    pub(crate) fn new(sink: W) -> Result<Self> {
        let mut capture = Self { sink, interfaces: BTreeMap::new(), last: 0, block: Vec::new() };
        capture.write(SECTION_HEADER, |block| {
            block.extend(BYTE_ORDER.to_le_bytes());
            // Version 1.0, of unknown length.
            block.extend([1, 0, 0, 0]);
            block.extend([0xff; 8]);
            put_option(block, option::SECTION_APPLICATION, b"verbless-model");
            put_option(block, option::END, &[]);
        })?;
        Ok(capture)
    }

    /// Writes a frame, preceded by the block of its interface if that is new.
    ///
    /// # Errors
    /// The errors of `sink`.
    pub(crate) fn frame(&mut self, seen: &SeenFrame) -> Result<()> {
        let interface = self.interface(seen)?;
        self.last = nanoseconds(seen.at);
        let (erf, vcrc) = match seen.link {
            Link::Ethernet => (&[][..], &[][..]),
            Link::Infiniband => (&erf_header(seen)[..], &vcrc(&seen.bytes)[..]),
        };
        let length = (erf.len() + seen.bytes.len() + vcrc.len()) as u32;
        self.write(ENHANCED_PACKET, |block| {
            put_time(block, interface, nanoseconds(seen.at));
            for word in [length, length] {
                block.extend(word.to_le_bytes());
            }
            for part in [erf, &seen.bytes, vcrc] {
                block.extend(part);
            }
            pad(block);
            let flags = if seen.leaving { OUTBOUND } else { INBOUND };
            put_option(block, option::PACKET_FLAGS, &flags.to_le_bytes());
            put_option(block, option::END, &[]);
        })
    }

    /// Ends a capture: writes for every interface how many of its frames are missing. `missing` has
    /// an entry for each port that misses some: their number, and one of them.
    ///
    /// # Errors
    /// The errors of `sink`.
    pub(crate) fn end(&mut self, missing: &[(u64, SeenFrame)]) -> Result<()> {
        for (_, seen) in missing {
            self.interface(seen)?;
        }
        for (port, interface) in self.interfaces.clone() {
            let of = missing.iter().find(|(_, seen)| seen.port == port);
            let (count, at) = (of.map_or(0, |(count, _)| *count), self.last);
            self.write(INTERFACE_STATISTICS, |block| {
                put_time(block, interface, at);
                put_option(block, option::STATISTICS_DROPPED, &count.to_le_bytes());
                put_option(block, option::END, &[]);
            })?;
        }
        self.sink.flush()
    }

    /// The number of the interface that saw a frame; written if it is a new one.
    fn interface(&mut self, seen: &SeenFrame) -> Result<u32> {
        match self.interfaces.get(&seen.port) {
            Some(&interface) => Ok(interface),
            None => self.add_interface(seen),
        }
    }

    fn add_interface(&mut self, seen: &SeenFrame) -> Result<u32> {
        let number = self.interfaces.len() as u32;
        self.write(INTERFACE_DESCRIPTION, |block| {
            block.extend(link_type(seen.link).to_le_bytes());
            // Reserved bytes, and frames of any length.
            block.extend([0; 6]);
            put_option(block, option::INTERFACE_NAME, seen.name.as_bytes());
            put_option(block, option::INTERFACE_RESOLUTION, &[NANOSECONDS]);
            put_option(block, option::END, &[]);
        })?;
        self.interfaces.insert(seen.port, number);
        Ok(number)
    }

    /// Writes a block: its type, its length, the bytes that `fill` adds, its length once more.
    fn write(&mut self, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend([0; 4]);
        fill(&mut self.block);
        let length = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&length);
        self.block.extend(length);
        self.sink.write_all(&self.block)
    }
}

/// A capture as a watcher, which records the lost frames when it ends.
pub(crate) struct Capture<W: Write> {
    file: Pcapng<W>,
    /// The count of events that watchers did not get, and its value when the capture began.
    unseen: Arc<Unseen>,
    before: Vec<(u64, SeenFrame)>,
    /// Number of frames that could not be written.
    pub failed: Arc<AtomicU64>,
}

impl<W: Write> Capture<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// The errors of `sink`.
    pub(crate) fn new(sink: W, unseen: Arc<Unseen>) -> Result<Self> {
        let (file, before) = (Pcapng::new(sink)?, unseen.counts());
        Ok(Self { file, unseen, before, failed: Arc::default() })
    }

    /// Writes a frame, unless one could not be written: the file may end within a block.
    pub(crate) fn frame(&mut self, seen: &SeenFrame) {
        if self.failed.load(Ordering::Relaxed) == 0 {
            let Err(error) = self.file.frame(seen) else { return };
            tracing::error!(%error, "a frame cannot be written: the capture ends");
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl<W: Write> Drop for Capture<W> {
    fn drop(&mut self) {
        let mut missing = self.unseen.counts();
        for (count, seen) in &mut missing {
            let before = self.before.iter().find(|(_, before)| before.port == seen.port);
            *count -= before.map_or(0, |(count, _)| *count);
        }
        missing.retain(|(count, _)| *count > 0);
        if self.failed.load(Ordering::Relaxed) == 0
            && let Err(error) = self.file.end(&missing)
        {
            tracing::error!(%error, "the end of a capture cannot be written");
        }
    }
}

/// Bytes of the header of an ERF record.
const ERF_HEADER: usize = 16;
/// The type of records that hold an InfiniBand packet.
const ERF_INFINIBAND: u8 = 21;
/// The record is as long as its packet.
const ERF_VARIABLE_LENGTH: u8 = 4;

/// The header of an ERF record: time in 2^-32 seconds, type, flags, length with the header, packets
/// lost, length of the packet.
fn erf_header(seen: &SeenFrame) -> [u8; ERF_HEADER] {
    let rest = u64::from(seen.at.subsec_nanos());
    let time = (seen.at.as_secs() << 32) + (rest << 32) / 1_000_000_000;
    let length = (seen.bytes.len() + VCRC) as u16;
    let mut header = [0; ERF_HEADER];
    header[..8].copy_from_slice(&time.to_le_bytes());
    header[8..10].copy_from_slice(&[ERF_INFINIBAND, ERF_VARIABLE_LENGTH]);
    header[10..12].copy_from_slice(&(ERF_HEADER as u16).saturating_add(length).to_be_bytes());
    header[14..].copy_from_slice(&length.to_be_bytes());
    header
}

/// Bytes of a VCRC.
const VCRC: usize = 2;

/// The VCRC of a packet: like the ICRC, with the polynomial 0x100b (volume 1, 7.8.2).
fn vcrc(packet: &[u8]) -> [u8; VCRC] {
    const REFLECTED: u16 = 0x100b_u16.reverse_bits();
    let crc = packet.iter().fold(!0_u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ REFLECTED }
        })
    });
    (!crc).to_le_bytes()
}

/// The number of an interface, and a time.
fn put_time(block: &mut Vec<u8>, interface: u32, at: u64) {
    for word in [interface, (at >> 32) as u32, at as u32] {
        block.extend(word.to_le_bytes());
    }
}

fn put_option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    pad(block);
}

/// Pads a block: everything in it begins at a multiple of 4 bytes.
fn pad(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen(port: usize, link: Link, at: u64, leaving: bool, bytes: &[u8]) -> SeenFrame {
        let at = Duration::from_nanos(at);
        SeenFrame { port, name: "a".into(), link, at, leaving, bytes: bytes.into() }
    }

    #[test]
    fn capture_holds_section_interfaces_and_frames() {
        let mut bytes = Vec::new();
        let mut capture = Pcapng::new(&mut bytes).unwrap();
        let at = 0x1_0000_0002;
        capture.frame(&seen(7, Link::Ethernet, at, true, b"hello")).unwrap();
        capture.frame(&seen(3, Link::Ethernet, at, false, b"four")).unwrap();
        capture.frame(&seen(7, Link::Ethernet, at, false, b"")).unwrap();
        let words: Vec<_> =
            bytes.chunks(4).map(|it| u32::from_le_bytes(it.try_into().unwrap())).collect();
        let text = |text: &[u8; 4]| u32::from_le_bytes(*text);
        let interface = || vec![1, 40, 1, 0, 1 << 16 | 2, text(b"a\0\0\0"), 1 << 16 | 9, 9, 0, 40];
        let packet = |interface, data: &[u8; 8], bytes: u32, direction| {
            let mut block = vec![6, 0, interface, 1, 2, bytes, bytes];
            let data = data.chunks(4).map(|it| u32::from_le_bytes(it.try_into().unwrap()));
            block.extend(data.take(bytes.div_ceil(4) as usize));
            block.extend([4 << 16 | 2, direction, 0, 0]);
            let length = block.len() as u32 * 4;
            block[1] = length;
            *block.last_mut().unwrap() = length;
            block
        };
        let section = [
            vec![0x0a0d_0d0a, 52, 0x1a2b_3c4d, 1, !0, !0, 14 << 16 | 4],
            [b"verb", b"less", b"-mod", b"el\0\0"].map(text).to_vec(),
            vec![0, 52],
        ]
        .concat();
        let expected = [
            section,
            interface(),
            packet(0, b"hello\0\0\0", 5, 2),
            interface(),
            packet(1, b"four\0\0\0\0", 4, 1),
            packet(0, &[0; 8], 0, 1),
        ]
        .concat();
        assert_eq!(words, expected);
    }

    #[test]
    fn ib_packet_becomes_erf_record_with_vcrc() {
        let mut bytes = Vec::new();
        let mut capture = Pcapng::new(&mut bytes).unwrap();
        capture.frame(&seen(0, Link::Infiniband, 3_500_000_000, true, b"12345678")).unwrap();
        // After the blocks of the section and the interface: the block's header and its numbers.
        let block = &bytes[52 + 40..];
        let record = &block[28..28 + 16 + 8 + 2];
        assert_eq!(bytes[52 + 8..][..2], [197, 0]);
        assert_eq!(block[20..28], [26, 0, 0, 0, 26, 0, 0, 0]);
        assert_eq!(record[..8], [0, 0, 0, 0x80, 3, 0, 0, 0]);
        assert_eq!(record[8..16], [21, 4, 0, 26, 0, 0, 0, 10]);
        assert_eq!(record[16..24], *b"12345678");
        // A CRC over any bytes and their CRC is the same for all bytes.
        let rest = |bytes: &[u8]| vcrc(&[bytes, &vcrc(bytes)].concat());
        assert_eq!(record[24..], vcrc(b"12345678"));
        assert_eq!(rest(b"12345678"), rest(b"something else"));
    }

    #[test]
    fn capture_counts_frames_that_are_missing() {
        let (mut bytes, unseen) = (Vec::new(), Arc::<Unseen>::default());
        let lost = seen(3, Link::Ethernet, 9, true, b"lost");
        unseen.add(lost.clone());
        let mut capture = Capture::new(&mut bytes, unseen.clone()).unwrap();
        capture.frame(&seen(7, Link::Ethernet, 0x1_0000_0002, true, b"here"));
        unseen.add(lost.clone());
        unseen.add(lost);
        drop(capture);
        let words: Vec<_> =
            bytes.chunks(4).map(|it| u32::from_le_bytes(it.try_into().unwrap())).collect();
        let statistics = |interface, count| [5, 40, interface, 1, 2, 8 << 16 | 5, count, 0, 0, 40];
        // By ports: number 3 is the second interface.
        let expected = [statistics(1, 2), statistics(0, 0)].concat();
        assert_eq!(words[words.len() - 20..], expected);
    }

    #[test]
    fn capture_ends_at_the_first_write_that_fails() {
        let mut room = [0; 170];
        let mut capture = Capture::new(&mut room[..], Arc::default()).unwrap();
        capture.frame(&seen(0, Link::Ethernet, 0, true, &[1; 64]));
        capture.frame(&seen(0, Link::Ethernet, 0, true, &[]));
        assert_eq!(capture.failed.load(Ordering::Relaxed), 2);
        drop(capture);
        assert!(room.ends_with(&[1; 8]), "nothing follows what is cut");
    }

    #[test]
    fn sink_error_reaches_the_caller() {
        let mut room = [0; 60];
        let mut capture = Pcapng::new(&mut room[..]).unwrap();
        assert!(capture.frame(&seen(0, Link::Ethernet, 0, true, &[0; 64])).is_err());
    }
}
