//! Connecting over a stream: both sides exchange addresses, connect, and wait until the other side
//! has connected.
//!
//! Each side sends one greeting and one confirmation. A greeting is, in network order: the magic
//! `vbls`, version 1, the transport service, the length of the program's data (2 bytes), the
//! [`PeerAddress`] (28), the data, and a checksum (8) over all that comes before it. The
//! confirmation is `done`, sent when the queue pair is in RTS; so no side sends to a queue pair
//! that is not ready. The checksum finds damage, not malice: a stream that others can write to
//! needs protection of its own, such as TLS.

use std::io::{self, Read, Write};

use verbless_command::{Error, ErrorKind};

use super::connect::ConnectOptions;
use super::peer::PeerAddress;
use super::protection::Domain;
use super::queues::Qp;
use verbless_ring::qp::ReceiveSide;
use verbless_ring::service::Connected;

/// The other side of a [`Domain::handshake`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the peer's queue pair.
    pub address: PeerAddress,
    /// The data that the peer's program passed to the handshake.
    pub data: Vec<u8>,
}

const MAGIC: [u8; 4] = *b"vbls";
const VERSION: u8 = 1;
pub(crate) const DONE: [u8; 4] = *b"done";
/// Magic, version, service, length, address.
pub(crate) const HEAD: usize = 4 + 1 + 1 + 2 + PeerAddress::BYTES;
/// The checksum.
pub(crate) const SUM: usize = 8;

impl Domain {
    /// Maximum length of the data that a program can send with a handshake, in bytes.
    pub const MAX_HANDSHAKE_DATA: usize = 1024;

    /// Connects `qp` with the queue pair of the program at the other end of `stream`. That program
    /// calls this too, in any order and with any options. `data` goes to that program, such as a
    /// [`RemoteRegion`](crate::RemoteRegion); the result has that program's own data.
    ///
    /// When it returns, both queue pairs are in RTS. A peer may send at once: post receives before
    /// the call. It blocks as the stream does; set a time limit there
    /// (`TcpStream::set_read_timeout`, which limits each read: the example `kv` limits all of them
    /// together).
    ///
    /// A connected peer reaches every region of this domain whose key it knows or guesses, within
    /// the key's access flags, and not only the region in `data`: the protection domain ties keys
    /// and queue pairs together. To isolate peers from each other, give each a [`Domain`].
    ///
    /// ```no_run
    /// # fn f(domain: &verbless_queue::Domain, mut qp: verbless_queue::Qp,
    /// #      region: &verbless_queue::Region) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbless_queue::RemoteRegion;
    ///
    /// let stream = std::net::TcpStream::connect("server:7471")?;
    /// let ours = region.remote_region()?.to_bytes();
    /// let peer = domain.handshake(&mut qp, &stream, &ours, &Default::default())?;
    /// let theirs = RemoteRegion::from_bytes(&peer.data)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Io`] of the stream; [`ErrorKind::Peer`] for bytes that are not a greeting, of
    /// another version, damaged, or of another transport service; [`ErrorKind::InvalidInput`] for
    /// more data than [`MAX_HANDSHAKE_DATA`](Self::MAX_HANDSHAKE_DATA); the errors of
    /// [`Domain::connect`]. The queue pair may have left RESET then: [`Qp::reset`] it before
    /// another try.
    pub fn handshake<S: Connected, R: ReceiveSide>(
        &self,
        qp: &mut Qp<S, R>,
        mut stream: impl Read + Write,
        data: &[u8],
        options: &ConnectOptions,
    ) -> Result<Peer, Error> {
        let service = S::TYPE.0;
        let greeting = greet(service, &self.address(qp, options)?, data)?;
        stream.write_all(&greeting).and_then(|()| stream.flush()).map_err(failed)?;
        let peer = read_greeting(service, &mut stream)?;
        self.connect(qp, &peer.address, options)?;
        stream.write_all(&DONE).and_then(|()| stream.flush()).map_err(failed)?;
        let mut done = [0; DONE.len()];
        stream.read_exact(&mut done).map_err(failed)?;
        confirmed(done)?;
        Ok(peer)
    }
}

/// Whether the peer has confirmed that it is connected.
pub(crate) fn confirmed(done: [u8; 4]) -> Result<(), Error> {
    match done {
        DONE => Ok(()),
        _ => Err(refuse(format!(
            "the peer confirmed with {done:02x?} instead of \"done\": it did not connect"
        ))),
    }
}

/// Our greeting.
pub(crate) fn greet(service: u8, address: &PeerAddress, data: &[u8]) -> Result<Vec<u8>, Error> {
    let most = Domain::MAX_HANDSHAKE_DATA;
    let length = u16::try_from(data.len()).ok().filter(|&length| usize::from(length) <= most);
    let Some(length) = length else {
        let hint = format!("the data has {} bytes; the limit is {most}", data.len());
        return Err(Error::new(ErrorKind::InvalidInput, ATTEMPTED, hint));
    };
    let mut bytes = Vec::with_capacity(HEAD + data.len() + SUM);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, service]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(address.to_bytes());
    bytes.extend(data);
    bytes.extend(checksum(&bytes).to_be_bytes());
    Ok(bytes)
}

/// Reads and checks the peer's greeting. It reads and allocates at most the size limit of a
/// greeting.
fn read_greeting(service: u8, stream: &mut impl Read) -> Result<Peer, Error> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).map_err(failed)?;
    let length = data_length(&head)?;
    let mut rest = [0; Domain::MAX_HANDSHAKE_DATA + SUM];
    let rest = &mut rest[..length + SUM];
    stream.read_exact(rest).map_err(failed)?;
    peer(service, &head, rest)
}

/// Checks the greeting up to its data, and returns the length of the data.
pub(crate) fn data_length(head: &[u8; HEAD]) -> Result<usize, Error> {
    let [m0, m1, m2, m3, version, _, l0, l1, ..] = *head;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(refuse(
            "the peer sent no verbless greeting: check that it is a program that calls `handshake`"
                .into(),
        ));
    }
    if version != VERSION {
        return Err(refuse(format!(
            "its version is {version}, not {VERSION}: run the same release on both sides"
        )));
    }
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    if length > Domain::MAX_HANDSHAKE_DATA {
        let most = Domain::MAX_HANDSHAKE_DATA;
        return Err(refuse(format!("it announces {length} bytes of data; the limit is {most}")));
    }
    Ok(length)
}

/// Decodes the peer from its greeting; `rest` is the data and the checksum.
pub(crate) fn peer(service: u8, head: &[u8; HEAD], rest: &[u8]) -> Result<Peer, Error> {
    let [_, _, _, _, _, theirs, _, _, address @ ..] = *head;
    let (data, sum) = rest.split_at(rest.len().saturating_sub(SUM));
    if checksum(&[head, data].concat()).to_be_bytes() != *sum {
        return Err(refuse("its checksum is wrong: the greeting was damaged in transit".into()));
    }
    if theirs != service {
        return Err(refuse(format!(
            "its queue pair is of service {theirs}, ours of {service} (0 is RC, 1 UC): use the same"
        )));
    }
    Ok(Peer { address: PeerAddress::from_bytes(&address)?, data: data.to_vec() })
}

const ATTEMPTED: &str = "shaking hands with a peer";

fn refuse(why: String) -> Error {
    Error::new(ErrorKind::Peer, ATTEMPTED, why)
}

/// The stream failed, or ended.
pub(crate) fn failed(error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer closed the connection: its log may say why",
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the peer did not answer in time",
        _ => "check whether the peer is still running",
    };
    Error::new(ErrorKind::Io, format!("{ATTEMPTED}: {error}"), hint).with_source(error)
}

/// 64 bits of FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use verbless_command::{Gid, Mtu};

    use super::*;
    use crate::types::Qpn;

    const ADDRESS: PeerAddress = PeerAddress {
        qpn: Qpn(0x12_3456),
        psn: 0xab_cdef,
        ethernet: false,
        lid: 7,
        gid: Gid([0x20; 16]),
        grh_required: true,
        service_level: 5,
        mtu: Mtu::B2048,
        reads: 16,
    };

    fn read(mut bytes: &[u8]) -> Result<Peer, Error> {
        read_greeting(0, &mut bytes)
    }

    /// A greeting with one byte changed, and a checksum that fits the change.
    fn with(at: usize, value: u8) -> Vec<u8> {
        let mut bytes = greet(0, &ADDRESS, b"data").expect("the greeting fits");
        bytes[at] = value;
        let end = bytes.len() - 8;
        let sum = checksum(&bytes[..end]).to_be_bytes();
        bytes[end..].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn stream_error_maps_to_text_with_cause() {
        use io::ErrorKind::{BrokenPipe, TimedOut, UnexpectedEof, WouldBlock};
        for (kind, expected) in [
            (UnexpectedEof, "closed the connection"),
            (WouldBlock, "did not answer in time"),
            (TimedOut, "did not answer in time"),
            (BrokenPipe, "is still running"),
        ] {
            let error = failed(kind.into());
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn greeting_round_trips() {
        for data in [&b""[..], b"data", &[0xa5; Domain::MAX_HANDSHAKE_DATA]] {
            let peer = read(&greet(0, &ADDRESS, data).expect("the greeting fits"))
                .expect("the greeting is whole");
            assert_eq!(peer, Peer { address: ADDRESS, data: data.to_vec() });
        }
        let error = greet(0, &ADDRESS, &[0; Domain::MAX_HANDSHAKE_DATA + 1]).expect_err("too long");
        assert!(error.to_string().contains("1025 bytes"), "{error}");
    }

    #[test]
    fn truncated_greeting_is_stream_error() {
        let whole = greet(0, &ADDRESS, b"data").expect("the greeting fits");
        for length in 0..whole.len() {
            let error = read(&whole[..length]).expect_err("the greeting is cut");
            assert_eq!(error.kind(), ErrorKind::Io, "{length} bytes");
            assert!(error.to_string().contains("closed the connection"), "{error}");
        }
    }

    #[test]
    fn every_altered_greeting_bit_is_detected() {
        let whole = greet(0, &ADDRESS, b"data").expect("the greeting fits");
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A longer length makes it read on.
            bytes.extend([0; 1024]);
            assert_eq!(read(&bytes).map_err(|e| e.kind()), Err(ErrorKind::Peer), "bit {bit}");
        }
    }

    #[test]
    fn invalid_greeting_is_rejected_with_reason() {
        for (at, value, reason) in [
            (0, b'V', "no verbless greeting"),
            (4, 0, "version is 0"),
            (4, 2, "version is 2"),
            (5, 1, "of service 1, ours of 0"),
            (6, 4, "announces 1028 bytes"),
            (6, 0xff, "announces 65284 bytes"),
            (8, 9, "version is 9"),
            (19, 0, "MTU code is 0"),
        ] {
            let error = read(&with(at, value)).expect_err(reason);
            assert_eq!(error.kind(), ErrorKind::Peer, "{reason}");
            assert!(error.to_string().contains(reason), "{error} does not say {reason:?}");
        }
    }
}
