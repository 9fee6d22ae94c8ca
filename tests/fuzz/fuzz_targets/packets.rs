//! What comes over a link: parsed, and emitted as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use verbless_model::wire::{Mac, Malformed, Packet, ROCE_PORT, Route, datagram};

/// What a buffer is filled with, so that a byte that is left unwritten shows.
const FILL: u8 = 0xa5;

fn parse(infiniband: bool, frame: &[u8]) -> Result<Option<Packet<'_>>, Malformed> {
    if infiniband {
        Packet::parse_infiniband(frame).map(Some)
    } else {
        Packet::parse_ethernet(frame)
    }
}

/// A datagram of a socket, and the frame that it becomes sent on.
fn datagram(payload: &[u8]) {
    let (from, to) = (([192, 0, 2, 1], ROCE_PORT).into(), [192, 0, 2, 2].into());
    let Some(mut frame) = datagram::receive([Mac([2; 6]); 2], from, to, payload) else { return };
    let before = Packet::parse_ethernet(&frame).ok().flatten().map(|it| it.headers.transport);
    if datagram::send(&mut frame).is_some() {
        let after = Packet::parse_ethernet(&frame).ok().flatten();
        assert_eq!(after.map(|it| it.headers.transport), before);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, frame)) = data.split_first() else { return };
    if kind & 2 != 0 {
        return datagram(frame);
    }
    let infiniband = kind & 1 != 0;
    let mut frame = frame.to_vec();
    // No fuzzer guesses a CRC: a packet that lacks nothing else gets it.
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
                // Ours have no checksum of UDP.
                Route::Ipv4(.., udp) | Route::Ipv6(.., udp) if udp.checksum() != 0 => {}
                // A sender may fill the pad with anything; ours is 0.
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
