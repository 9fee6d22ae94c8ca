//! The protocol of `rdma_get` and `rdma_serve`: messages over TCP, each after its length (4 bytes
//! in network order); RDMA READ transfers the bytes of files.
//!
//! | from | message | bytes |
//! |---|---|---|
//! | client | `C`, connection descriptor | [`Hello`] |
//! | server | `C`, connection descriptor, export descriptor of the window | [`Hello`] |
//! | client | `O`, a name | open this file for the next requests |
//! | server | `O`, length, identity (8 bytes each) | [`Opened`] |
//! | client | `F`, slot (1), offset (8) | fill a slot with the file's bytes from this offset on |
//! | server | `F`, slot (1), offset (8), bytes (4), SHA-256 of them (32) | [`Filled`] |
//! | server | `E`, a text | instead of any answer: the error; the connection ends |
//!
//! All numbers are in network order. The window has [`SLOTS`] slots of [`SLOT`] bytes: while the
//! client reads one, the server fills the next. A slot is filled to its end, or to the file's.
#![allow(dead_code, reason = "each program uses its side")]

use sha2::{Digest, Sha256};
use verbless_doca::rdma::ConnectionDescriptor;

use super::support::{Channel, Result};

/// Bytes of a slot.
pub(crate) const SLOT: u64 = 4 << 20;
/// Slots of a window.
pub(crate) const SLOTS: u8 = 2;
/// Maximum bytes of a name.
pub(crate) const MAX_NAME_BYTES: usize = 4096;

/// The digest of some bytes.
pub(crate) type Sum = [u8; 32];

pub(crate) fn sum(bytes: &[u8]) -> Sum {
    Sha256::digest(bytes).into()
}

/// A server's description of a file: two with different descriptions are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) length: u64,
    /// A hash of its inode, its device and its times of modification and change.
    pub(crate) identity: u64,
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) slot: u8,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) sum: Sum,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Open(String),
    Fill { slot: u8, offset: u64 },
}

/// A connection descriptor, and for the server the export descriptor of its window.
pub(crate) struct Hello {
    pub(crate) connection: [u8; ConnectionDescriptor::BYTES],
    pub(crate) window: Vec<u8>,
}

/// The expected answer, or an error.
pub(crate) enum Answer<T> {
    Is(T),
    /// The server's error text.
    Refused(String),
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Hello {
    pub(crate) fn send(&self, channel: &mut Channel) -> Result {
        channel.send(&[b"C", &self.connection[..], &self.window].concat())
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let Some((connection, window)) = bytes.split_first_chunk() else {
            return Err("a greeting has no connection descriptor".into());
        };
        Ok(Self { connection: *connection, window: window.to_vec() })
    }

    pub(crate) fn receive(channel: &mut Channel) -> Result<Answer<Self>> {
        answer(channel, b'C', Self::parse)
    }
}

impl Opened {
    pub(crate) fn send(&self, channel: &mut Channel) -> Result {
        let (length, identity) = (self.length.to_be_bytes(), self.identity.to_be_bytes());
        channel.send(&[&b"O"[..], &length, &identity].concat())
    }

    pub(crate) fn receive(channel: &mut Channel) -> Result<Answer<Self>> {
        answer(channel, b'O', |bytes| match bytes.len() {
            16 => Ok(Self { length: number(&bytes[..8]), identity: number(&bytes[8..]) }),
            other => Err(format!("a description of a file has {other} bytes, not 16").into()),
        })
    }
}

impl Filled {
    pub(crate) fn send(&self, channel: &mut Channel) -> Result {
        let (offset, bytes) = (self.offset.to_be_bytes(), self.bytes.to_be_bytes());
        channel.send(&[&[b'F', self.slot][..], &offset, &bytes, &self.sum].concat())
    }

    pub(crate) fn receive(channel: &mut Channel) -> Result<Answer<Self>> {
        answer(channel, b'F', |bytes| {
            let Some((head, sum)) = bytes.split_last_chunk().filter(|(head, _)| head.len() == 13)
            else {
                return Err(
                    format!("a description of a slot has {} bytes, not 45", bytes.len()).into()
                );
            };
            let (offset, bytes) = (number(&head[1..9]), number(&head[9..]) as u32);
            Ok(Self { slot: head[0], offset, bytes, sum: *sum })
        })
    }
}

impl Request {
    pub(crate) fn send(&self, channel: &mut Channel) -> Result {
        match self {
            Self::Open(name) => channel.send(&[b"O", name.as_bytes()].concat()),
            Self::Fill { slot, offset } => {
                channel.send(&[&[b'F', *slot][..], &offset.to_be_bytes()].concat())
            }
        }
    }

    /// Parses a client's request, which may have any contents.
    pub(crate) fn parse(message: &[u8]) -> std::result::Result<Self, String> {
        match message {
            [b'O', name @ ..] if name.len() <= MAX_NAME_BYTES => match str::from_utf8(name) {
                Ok(name) => Ok(Self::Open(name.to_owned())),
                Err(_) => Err("a name is not UTF-8".into()),
            },
            [b'O', name @ ..] => Err(format!("a name of {} bytes is too long", name.len())),
            [b'F', slot, offset @ ..] if offset.len() == 8 && *slot < SLOTS => {
                Ok(Self::Fill { slot: *slot, offset: number(offset) })
            }
            _ => Err(format!("a message of {} bytes is not a request", message.len())),
        }
    }
}

fn answer<T>(
    channel: &mut Channel,
    tag: u8,
    parse: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<Answer<T>> {
    let message = channel.receive()?;
    match message.split_first() {
        Some((first, rest)) if *first == tag => Ok(Answer::Is(parse(rest)?)),
        Some((b'E', text)) => Ok(Answer::Refused(String::from_utf8_lossy(text).into_owned())),
        _ => Err("the other side sent an unexpected answer".into()),
    }
}

/// Sends the client an error text.
pub(crate) fn refuse(channel: &mut Channel, text: &str) {
    // The client may be disconnected.
    let _ = channel.send(&[b"E", text.as_bytes()].concat());
}
