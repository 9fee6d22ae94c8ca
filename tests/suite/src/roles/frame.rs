//! Frames over a stream: one byte of kind, four of length, then as many bytes. Lengths are bounded
//! before anything is allocated, and every wait on a network has a limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest frame, if its reader gives no other limit.
pub(super) const MAX_BYTES: usize = 1 << 16;
/// How long a frame may take from its first byte to its last, and how long a write may take.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// A frame: its kind and its bytes.
pub(super) type Frame = (u8, Vec<u8>);

/// Writes a frame by a single write.
pub(super) fn write(stream: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut frame = vec![kind];
    frame.extend((bytes.len() as u32).to_be_bytes());
    frame.extend(bytes);
    stream.write_all(&frame)
}

/// Reads a frame of at most `max` bytes.
pub(super) fn read(stream: &mut impl Read, max: usize) -> io::Result<Frame> {
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    read_rest(stream, kind[0], max)
}

fn read_rest(stream: &mut impl Read, kind: u8, max: usize) -> io::Result<Frame> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > max {
        let text = format!("a frame of {length} bytes; the limit is {max}");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok((kind, bytes))
}

/// Reads a frame from a network: its first byte arrives within `idle`, the rest within [`LIMIT`].
pub(super) fn read_within(stream: &TcpStream, idle: Duration, max: usize) -> io::Result<Frame> {
    let mut kind = [0];
    Timed::new(stream, idle).read_exact(&mut kind)?;
    read_rest(&mut Timed::new(stream, LIMIT), kind[0], max)
}

/// A stream whose reads all end by one point in time, however slowly bytes arrive.
pub(super) struct Timed<'a> {
    stream: &'a TcpStream,
    end: Instant,
    limit: Duration,
}

impl<'a> Timed<'a> {
    pub(super) fn new(stream: &'a TcpStream, limit: Duration) -> Self {
        Self { stream, end: Instant::now() + limit, limit }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let late = || {
            let text = format!("nothing arrived within {} s", self.limit.as_secs());
            io::Error::new(ErrorKind::TimedOut, text)
        };
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.stream.read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(late()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn frame_above_limit_is_refused_before_its_bytes() {
        let mut bytes = vec![b'm'];
        bytes.extend(u32::MAX.to_be_bytes());
        let error = read(&mut &bytes[..], MAX_BYTES).expect_err("the frame is too long");
        assert!(error.to_string().contains("4294967295"), "{error}");
    }

    #[test]
    fn slow_bytes_do_not_extend_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut sender = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
        let (receiver, _) = listener.accept().expect("a connection");
        let slow = std::thread::spawn(move || {
            // Each byte arrives soon after the one before.
            while sender.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let mut timed = Timed::new(&receiver, Duration::from_millis(200));
        let error = timed.read_exact(&mut [0; 4096]).expect_err("the sender is too slow");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(receiver);
        slow.join().expect("the thread ends");
    }
}
