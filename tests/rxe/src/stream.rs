//! The messages of the two sides over TCP. We are the server: we read first, then answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use verbless::prelude::PeerAddress;

use crate::job::Result;

/// How long the client may be silent: as long as it sends, receives and retransmits.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The last word of a pingpong's client.
const DONE: &[u8; 5] = b"done\0";
/// Length of a text, which ends with a zero byte.
const PINGPONG: usize = 52;
const PERFTEST: usize = 108;
const VERSION: usize = 16;

/// A conversation with a client.
pub(crate) struct Stream(TcpStream);

/// The address of a pingpong's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PingpongPeer {
    pub qpn: u32,
    pub psn: u32,
    pub gid: [u8; 16],
}

/// The keys of a perftest side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub peer: PingpongPeer,
    /// READs and atomics that it answers concurrently.
    pub reads: u8,
    pub rkey: u32,
    pub address: u64,
}

/// The measurements of a perftest side, as far as we can check them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub size: u64,
    pub iterations: u64,
}

impl From<&PeerAddress> for PingpongPeer {
    fn from(address: &PeerAddress) -> Self {
        Self { qpn: address.qpn.0, psn: address.psn, gid: address.gid.0 }
    }
}

impl Stream {
    /// The next client.
    pub(crate) fn accept(listener: &TcpListener) -> Result<Self> {
        let stream = listener.accept()?.0;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        Ok(Self(stream))
    }

    fn read<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let read = self.0.read_exact(&mut bytes);
        read.map_err(|error| format!("waiting for the client's {what}: {error}"))?;
        Ok(bytes)
    }

    /// The address of a pingpong's client: `lid:qpn:psn:gid` in hexadecimal.
    pub(crate) fn receive_address(&mut self) -> Result<PingpongPeer> {
        let text = self.read::<PINGPONG>("address")?;
        Ok(parse_address(&text).ok_or_else(|| unreadable(&text))?)
    }

    /// Sends ours once we are connected; the client confirms it.
    pub(crate) fn send_address(mut self, peer: &PingpongPeer) -> Result {
        let gid: String = peer.gid.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{:04x}:{:06x}:{:06x}:{gid}\0", 0, peer.qpn, peer.psn);
        self.0.write_all(text.as_bytes())?;
        let said = self.read::<{ DONE.len() }>("\"done\"")?;
        if said != *DONE {
            return Err(unreadable(&said).into());
        }
        Ok(())
    }

    /// Reads the greeting of a perftest client: its version, the size of a page, that of a cache
    /// line, and the code of its path MTU. Ours has the same values.
    pub(crate) fn greet(&mut self) -> Result<u8> {
        let version = self.read::<VERSION>("version")?;
        self.0.write_all(&version)?;
        for what in ["page size", "cache line"] {
            let number = self.read::<4>(what)?;
            self.0.write_all(&number)?;
        }
        let mtu = self.read::<2>("path MTU")?;
        self.0.write_all(&mtu)?;
        match mtu {
            [code @ b'1'..=b'5', 0] => Ok(code - b'0'),
            other => Err(unreadable(&other).into()),
        }
    }

    /// Reads the client's keys and sends ours; perftest also synchronizes this way.
    pub(crate) fn keys(&mut self, ours: &Keys) -> Result<Keys> {
        let text = self.read::<PERFTEST>("keys")?;
        let theirs = parse_keys(&text).ok_or_else(|| unreadable(&text))?;
        self.0.write_all(&emit_keys(ours))?;
        Ok(theirs)
    }

    /// Reads the client's report, and sends ours: a rate of 1, in three numbers.
    pub(crate) fn report(&mut self, ours: Report) -> Result<Report> {
        let size = u64::from_be_bytes(self.read("size")?);
        self.0.write_all(&ours.size.to_be_bytes())?;
        let iterations = u64::from_be_bytes(self.read("iterations")?);
        self.0.write_all(&ours.iterations.to_be_bytes())?;
        for what in ["peak rate", "average rate", "rate of messages"] {
            self.read::<8>(what)?;
            self.0.write_all(&1f64.to_be_bytes())?;
        }
        Ok(Report { size, iterations })
    }

    /// Ends a conversation of perftest; its older versions send one more word, which is not read.
    pub(crate) fn close(mut self, ours: &Keys) -> Result {
        self.keys(ours).map(drop)
    }
}

fn unreadable(text: &[u8]) -> String {
    format!("unexpected text from the client: {:?}", String::from_utf8_lossy(text))
}

/// The fields of a text up to its zero byte.
fn fields(text: &[u8]) -> Option<Vec<&str>> {
    let end = text.iter().position(|&byte| byte == 0)?;
    Some(std::str::from_utf8(&text[..end]).ok()?.split(':').collect())
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

fn parse_address(text: &[u8]) -> Option<PingpongPeer> {
    let [_lid, qpn, psn, gid] = fields(text)?.try_into().ok()?;
    let gid = u128::from_str_radix(gid, 16).ok()?.to_be_bytes();
    Some(PingpongPeer { qpn: hex(qpn)?, psn: hex(psn)?, gid })
}

/// `lid:reads:qpn:psn:rkey:address`, the 16 bytes of the GID, the number of an SRQ.
fn parse_keys(text: &[u8]) -> Option<Keys> {
    let fields = fields(text)?;
    let [_lid, reads, qpn, psn, rkey, address, rest @ ..] = &fields[..] else { return None };
    let mut gid = [0; 16];
    for (into, text) in gid.iter_mut().zip(rest.get(..16)?) {
        *into = u8::from_str_radix(text, 16).ok()?;
    }
    Some(Keys {
        peer: PingpongPeer { qpn: hex(qpn)?, psn: hex(psn)?, gid },
        reads: hex(reads)?.try_into().ok()?,
        rkey: hex(rkey)?,
        address: u64::from_str_radix(address, 16).ok()?,
    })
}

fn emit_keys(keys: &Keys) -> Vec<u8> {
    let Keys { peer: PingpongPeer { qpn, psn, gid }, reads, rkey, address } = keys;
    let gid: String = gid.iter().map(|byte| format!("{byte:02x}:")).collect();
    let text = format!(
        "{:04x}:{reads:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{address:016x}:{gid}{:08x}:\0",
        0, 0
    );
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PingpongPeer = PingpongPeer {
        qpn: 0x11,
        psn: 0xa1b2c3,
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56],
    };

    #[test]
    fn pingpong_text_is_parsed() {
        let text = b"0000:000011:a1b2c3:fe80000000000000505400fffe123456\0";
        assert_eq!(text.len(), PINGPONG);
        assert_eq!(parse_address(text), Some(PEER));
        assert_eq!(parse_address(&text[..PINGPONG - 1]), None);
    }

    #[test]
    fn perftests_text_is_understood_and_spoken() {
        let keys = Keys { peer: PEER, reads: 16, rkey: 0x55aa, address: 0x7f00_1234_5000 };
        let text = emit_keys(&keys);
        assert_eq!(text.len(), PERFTEST);
        assert_eq!(
            text,
            b"0000:0010:000011:a1b2c3:000055aa:00007f0012345000:fe:80:00:00:00:00:00:00:50:54:00:\
              ff:fe:12:34:56:00000000:\0"
        );
        assert_eq!(parse_keys(&text), Some(keys));
    }
}
