//! Messages of `dma_copy_dpu` to `dma_copy_host`, which waits as long as progress continues:
//!
//! | message | meaning |
//! |---|---|
//! | `C`, bytes (8 in network order) | bytes copied so far |
//! | `D` | all bytes are copied, and are in the file |
//! | `E`, a text | the copy failed for this reason |
#![allow(dead_code, reason = "each program uses its side")]

use super::support::{Channel, Result};

/// Progress of the DPU.
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

    /// Waits until the DPU has copied `length` bytes. It fails if the DPU reports an error or sends
    /// another message, or if no progress comes within the channel's time limit.
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
                None => return Err("the DPU sent no progress message".into()),
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
