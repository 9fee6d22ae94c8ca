//! What `dma_copy_dpu` tells `dma_copy_host`, which waits as long as it hears that more was copied:
//!
//! | message | what |
//! |---|---|
//! | `C`, bytes (8 in network order) | so many are copied so far |
//! | `D` | all are, and are in the file |
//! | `E`, a text | why they are not |
#![allow(dead_code, reason = "each program uses its side")]

use super::support::{Channel, Result};

/// How far the DPU is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Copying {
    Copied(u64),
    Done,
    Failed(String),
}

impl Copying {
    pub(crate) fn send(&self, channel: &mut Channel) -> Result {
        match self {
            Self::Copied(bytes) => channel.send(&[&b"C"[..], &bytes.to_be_bytes()].concat()),
            Self::Done => channel.send(b"D"),
            Self::Failed(why) => channel.send(&[b"E", why.as_bytes()].concat()),
        }
    }

    /// Waits until the DPU has copied `length` bytes: an error comes of its own, or if it says
    /// something else, or nothing new for the time that a channel waits.
    pub(crate) fn wait(channel: &mut Channel, length: u64, mut each: impl FnMut(u64)) -> Result {
        let mut before = 0;
        loop {
            match Self::parse(&channel.receive()?) {
                Some(Self::Copied(now)) if now > before && now <= length => {
                    before = now;
                    each(now);
                }
                Some(Self::Done) => return Ok(()),
                Some(Self::Failed(why)) => return Err(format!("the DPU failed: {why}").into()),
                Some(Self::Copied(now)) => {
                    let text = format!("the DPU says {now} of {length} bytes after {before}");
                    return Err(text.into());
                }
                None => return Err("the DPU says what is no progress of a copy".into()),
            }
        }
    }

    fn parse(message: &[u8]) -> Option<Self> {
        match message {
            [b'C', bytes @ ..] => Some(Self::Copied(u64::from_be_bytes(bytes.try_into().ok()?))),
            [b'D'] => Some(Self::Done),
            [b'E', why @ ..] => Some(Self::Failed(String::from_utf8_lossy(why).into_owned())),
            _ => None,
        }
    }
}
