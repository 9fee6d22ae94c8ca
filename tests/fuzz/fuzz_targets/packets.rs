//! Packets from a link: parsed, and emitted unchanged.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use verbless_wire::{Mac, Malformed, Packet, ROCE_PORT, Route, datagram, seal_ethernet};

/// The fill of a buffer, which shows a byte that stays unwritten.
const FILL: u8 = 0xa5;

fn parse(infiniband: bool, frame: &[u8]) -> Result<Option<Packet<'_>>, Malformed> {
    if infiniband {
        Packet::parse_infiniband(frame).map(Some)
    } else {
        Packet::parse_ethernet(frame)
    }
}

/// A datagram of a socket, and the frame made from it. With `sealed` its ICRC is valid for some
/// IPv4 identification, as a peer's is; no fuzzer guesses it.
fn datagram(payload: &[u8], ipv6: bool, sealed: bool) {
    let ends: [IpAddr; 2] = match ipv6 {
        true => [1, 2].map(|host: u16| [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into()),
        false => [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
    };
    let (from, to) = ((ends[0], ROCE_PORT).into(), ends[1]);
    let mut payload = payload.to_vec();
    let receive = |payload: &[u8]| datagram::receive([Mac([2; 6]); 2], from, to, payload);
    if sealed && let Some(mut frame) = receive(&payload) {
        let identification = [frame[18], frame[19]];
        if !ipv6 && let [first, second, ..] = payload[..] {
            frame[18..20].copy_from_slice(&[first, second]);
            checksum(&mut frame[14..34]);
        }
        if seal_ethernet(&mut frame).is_ok_and(|it| it) {
            let start = frame.len() - payload.len();
            payload.copy_from_slice(&frame[start..]);
            let again = receive(&payload).expect("the packet is as long as before");
            // The value that the sender's kernel wrote is recovered.
            assert_eq!(again, frame, "identification {identification:?} before");
        }
    }
    let Some(mut frame) = receive(&payload) else { return };
    let before = Packet::parse_ethernet(&frame).ok().flatten().map(|it| it.headers.transport);
    if datagram::send(&mut frame).is_some() {
        let after = Packet::parse_ethernet(&frame).ok().flatten();
        assert_eq!(after.map(|it| it.headers.transport), before);
    }
}

/// Corrects the checksum of an IPv4 header.
fn checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let words = header.chunks_exact(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, frame)) = data.split_first() else { return };
    if kind & 2 != 0 {
        return datagram(frame, kind & 1 != 0, kind & 4 != 0);
    }
    let infiniband = kind & 1 != 0;
    let mut frame = frame.to_vec();
    // No fuzzer guesses a CRC: a packet that is otherwise valid gets one.
    if let Err(Malformed::Icrc { is, .. }) = parse(infiniband, &frame)
        && let Some(crc) = frame.last_chunk_mut()
    {
        *crc = is.to_le_bytes();
    }
    match parse(infiniband, &frame) {
        Ok(Some(packet)) => {
            let mut again = vec![FILL; packet.frame_length()];
            packet.emit(&mut again);
            match packet.headers.route {
                // The model's datagrams have no UDP checksum.
                Route::Ipv4(.., udp) | Route::Ipv6(.., udp) if udp.checksum() != 0 => {}
                // A sender may fill the pad with any bytes; the model's pad is 0.
                _ => {
                    let end = packet.headers.length() + packet.payload.len();
                    assert_eq!(again[..end], frame[..end]);
                }
            }
            assert!(parse(infiniband, &again).is_ok_and(|it| it.is_some()));
        }
        Ok(None) => {}
        Err(why) => assert!(!why.to_string().is_empty()),
    }
});
