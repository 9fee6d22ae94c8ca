//! Checks a copy and splits it into requests.

use crate::buffer::{Buf, Link};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::CachedKey;

/// Maximum number of buffers in the chain of a source or destination.
pub(super) const MAX_LIST: u32 = 64;
/// Maximum bytes of one request: no SGE has 2 GiB.
pub(super) const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// The refusal of a job, for the data path.
pub(super) const fn refuse(kind: ErrorKind, text: &'static str) -> Error {
    Error::plain(kind, text)
}

/// Bytes and requests of a copy, if `dev` supports it: `longest` bytes at most.
pub(super) fn check(
    (source, destination): (&Buf, &Buf),
    dev: &Dev,
    max_bytes: u64,
) -> Result<(u64, u32)> {
    if !source.is_sole() || !destination.is_sole() {
        let text = "a buffer with several references can be in no job: drop the others first";
        return Err(refuse(ErrorKind::InvalidValue, text));
    }
    // The lengths of an import are only its owner's claim: their sum may overflow.
    let (mut bytes, mut room, mut links) = (0u64, 0u64, (0, 0));
    for link in source.chain() {
        checked_key(link, dev, false)?;
        bytes = bytes.saturating_add(link.data().1);
        links.0 += 1;
    }
    for link in destination.chain() {
        checked_key(link, dev, true)?;
        room = room.saturating_add(link.tail().1);
        links.1 += 1;
    }
    if bytes > room {
        let text = "the destination's tailroom is shorter than the source's data";
        return Err(refuse(ErrorKind::InvalidValue, text));
    }
    if bytes > max_bytes {
        let text = "the source has more data than the device copies at a time: max_buf_size";
        return Err(refuse(ErrorKind::InvalidValue, text));
    }
    if links.0 > MAX_LIST || links.1 > MAX_LIST {
        let text = "a chain has more buffers than a copy takes: max_list_buf_num_elem";
        return Err(refuse(ErrorKind::InvalidValue, text));
    }
    Ok((bytes, (segments(source, destination, bytes).count() as u32).max(1)))
}

/// The key of a buffer for `dev`; an error if the job lacks the permission.
pub(super) fn checked_key(link: Link<'_>, dev: &Dev, written: bool) -> Result<CachedKey> {
    let chunk = link.chunk();
    if written && !chunk.is_writable() {
        let text = "the map of the destination may not be written: give it LOCAL_READ_WRITE, or \
                    DPU_READ_WRITE before it is exported";
        return Err(refuse(ErrorKind::NotPermitted, text));
    }
    let Some(key) = chunk.key(dev) else {
        let text = "the map of a buffer does not have the context's device: add it to the map";
        return Err(refuse(ErrorKind::NotPermitted, text));
    };
    if key.lkey().is_none() {
        let text = "DMA reaches memory of this machine and of its host; this is a peer's: use RDMA";
        return Err(refuse(ErrorKind::NotPermitted, text));
    }
    Ok(chunk.cached_key(key))
}

/// A segment of a copy, from one buffer to one buffer.
pub(super) struct CopySegment<'b> {
    pub(super) source: Link<'b>,
    pub(super) destination: Link<'b>,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) length: u64,
}

/// The segments of a copy of `bytes`, none of them empty.
pub(super) fn segments<'b>(
    source: &'b Buf,
    destination: &'b Buf,
    bytes: u64,
) -> impl Iterator<Item = CopySegment<'b>> {
    let (mut from, mut to) = (source.first(), destination.first());
    let (mut taken, mut put, mut left) = (0, 0, bytes);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        // The rest fits, so a next one exists whenever one is used up.
        while taken == from.data().1 {
            (from, taken) = (from.next()?, 0);
        }
        while put == to.tail().1 {
            (to, put) = (to.next()?, 0);
        }
        let length =
            (from.data().1 - taken).min(to.tail().1 - put).min(left).min(MAX_SEGMENT_BYTES);
        let segment = CopySegment {
            source: from,
            destination: to,
            from: from.data().0 + taken,
            to: to.tail().0 + put,
            length,
        };
        (taken, put, left) = (taken + length, put + length, left - length);
        Some(segment)
    })
}
