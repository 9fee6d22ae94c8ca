//! Checks the buffers of a job and builds its request (chapter 4 of the guide).

use verbless_queue::{Lkey, RemoteAddr, Rkey, Sge};

use super::job::{JobOperation, RdmaJob};
use super::properties::{MAX_MESSAGE_BYTES, MAX_SGES};
use crate::buffer::{Buf, Link};
use crate::context::job_type::JobType;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// The refusal of a job, for the data path.
pub(super) const fn refuse(kind: ErrorKind, text: &'static str) -> Error {
    Error::plain(kind, text)
}

const fn invalid(text: &'static str) -> Error {
    refuse(ErrorKind::InvalidValue, text)
}

/// Local memory of a request.
pub(super) struct Sges {
    list: [Sge; MAX_SGES],
    count: usize,
    /// Bytes of the buffers; the entries cover at most [`MAX_MESSAGE_BYTES`] of them.
    bytes: u64,
}

impl Sges {
    pub(super) fn as_slice(&self) -> &[Sge] {
        &self.list[..self.count]
    }

    const NONE: Self = Self { list: [Sge::new(0, 0, Lkey(0)); MAX_SGES], count: 0, bytes: 0 };

    /// Adds a buffer.
    fn add(&mut self, address: u64, length: u64, lkey: Lkey) -> Result<()> {
        let named = length.min(MAX_MESSAGE_BYTES.saturating_sub(self.bytes));
        self.bytes = self.bytes.saturating_add(length);
        self.push(address, named, lkey)
    }

    fn push(&mut self, address: u64, length: u64, lkey: Lkey) -> Result<()> {
        // The maximum of an entry.
        const MAX_SGE_BYTES: u64 = 0x7fff_ffff;
        if length > MAX_SGE_BYTES {
            self.push(address, MAX_SGE_BYTES, lkey)?;
            return self.push(address + MAX_SGE_BYTES, length - MAX_SGE_BYTES, lkey);
        }
        if length > 0 {
            let Some(slot) = self.list.get_mut(self.count) else {
                return Err(invalid("the chain has more buffers than a request has entries for"));
            };
            *slot = Sge::new(address, length as u32, lkey);
            self.count += 1;
        }
        Ok(())
    }
}

/// The part of a local buffer that a job uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BufferPart {
    /// The dataroom.
    Data,
    /// From the start of the dataroom to the end of the buffer.
    Rest,
}

/// The limits of an instance.
pub(super) struct RdmaLimits {
    pub(super) send_chain: u32,
    pub(super) receive_chain: u32,
    /// Maximum of a read's chain; no property sets it.
    pub(super) read_chain: u32,
    /// Bytes of a message.
    pub(super) longest: u64,
}

/// The memory of a job on `dev`, on this side and at the peer.
pub(super) fn check(job: &RdmaJob, dev: &Dev, limits: &RdmaLimits) -> Result<(Sges, RemoteAddr)> {
    let (local, remote) = (job.local.as_ref(), job.remote.as_ref());
    for buffer in local.into_iter().chain(remote) {
        if !buffer.is_sole() {
            let text = "a buffer with several references can be in no job: drop the others first";
            return Err(invalid(text));
        }
    }
    let rule = match job.operation {
        JobOperation::Receive => BufferRule {
            part: BufferPart::Rest,
            written: true,
            max_chain: limits.receive_chain,
            too_long: "the chain has more buffers than a receive takes: recv_buf_chain_len",
        },
        JobOperation::CompareSwap { .. } | JobOperation::FetchAdd(_) => BufferRule {
            part: BufferPart::Data,
            written: true,
            max_chain: 1,
            too_long: "the result of an atomic is one buffer, and no chain",
        },
        JobOperation::Read if limits.send_chain > limits.read_chain => BufferRule {
            part: BufferPart::Data,
            written: true,
            max_chain: limits.read_chain,
            too_long: "the chain has more buffers than a read takes: max_read_buf_chain_len",
        },
        operation => BufferRule {
            part: BufferPart::Data,
            written: operation == JobOperation::Read,
            max_chain: limits.send_chain,
            too_long: "the chain has more buffers than a job takes: send_buf_chain_len",
        },
    };
    let sges = gather(local, dev, &rule)?;
    let bytes = sges.bytes;
    // A receive may be longer than the longest message.
    if bytes > limits.longest && job.operation != JobOperation::Receive {
        let text = "the job has more bytes than a message may have: max_message_size, or 2 GiB";
        return Err(invalid(text));
    }
    let remote = match job.operation {
        JobOperation::Receive | JobOperation::Send | JobOperation::SendImm(_) => None,
        JobOperation::CompareSwap { .. } | JobOperation::FetchAdd(_) => {
            if bytes != 8 {
                return Err(invalid("the data of an atomic's result buffer must be of 8 bytes"));
            }
            let Some(word) = peer(remote, dev, bytes)? else {
                return Err(invalid("an atomic needs a destination"));
            };
            if !word.address.is_multiple_of(8) {
                return Err(invalid("the data of an atomic's destination must be aligned to 8"));
            }
            Some(word)
        }
        operation => {
            let remote = peer(remote, dev, bytes)?;
            if remote.is_none() && bytes > 0 {
                let text = match operation.job_type() {
                    JobType::RdmaRead => {
                        "a read without a source reads nothing, and its \
                                          destination has data: give it a source"
                    }
                    _ => {
                        "a write without a destination writes nothing, and its source has data: \
                          give it a destination"
                    }
                };
                return Err(invalid(text));
            }
            remote
        }
    };
    Ok((sges, remote.unwrap_or(RemoteAddr::new(0, Rkey(0)))))
}

/// The requirements for a job's local buffer.
struct BufferRule {
    part: BufferPart,
    /// The device writes there.
    written: bool,
    /// Maximum number of buffers in the chain.
    max_chain: u32,
    /// The refusal of a longer chain.
    too_long: &'static str,
}

/// The memory of this side.
fn gather(buffer: Option<&Buf>, dev: &Dev, rule: &BufferRule) -> Result<Sges> {
    let mut sges = Sges::NONE;
    for (number, link) in buffer.iter().flat_map(|buffer| buffer.chain()).enumerate() {
        if number as u32 == rule.max_chain {
            return Err(invalid(rule.too_long));
        }
        let lkey = local(link, dev, rule.written)?;
        let (address, length) = match rule.part {
            BufferPart::Data => link.data(),
            BufferPart::Rest => link.rest(),
        };
        sges.add(address, length, lkey)?;
    }
    Ok(sges)
}

/// The key of local memory, if the job has the permission.
fn local(link: Link<'_>, dev: &Dev, written: bool) -> Result<Lkey> {
    let chunk = link.chunk();
    let Some(key) = chunk.key(dev) else {
        let text = "the map of a buffer does not have the instance's device: add it to the map";
        return Err(refuse(ErrorKind::NotPermitted, text));
    };
    let Some(lkey) = key.lkey() else {
        let text = "the buffer is in a peer's memory, where one of this side is needed";
        return Err(refuse(ErrorKind::NotPermitted, text));
    };
    if written && !chunk.is_writable() {
        let text = "the map of a buffer that is written may only be read: give it LOCAL_READ_WRITE";
        return Err(refuse(ErrorKind::NotPermitted, text));
    }
    Ok(lkey)
}

/// The memory of the peer, which must have room for `bytes` bytes. The peer's device checks the
/// peer's permissions.
fn peer(buffer: Option<&Buf>, dev: &Dev, bytes: u64) -> Result<Option<RemoteAddr>> {
    let Some(buffer) = buffer else { return Ok(None) };
    let link = buffer.first();
    if link.next().is_some() {
        return Err(invalid("a buffer in a peer's memory must not be chained"));
    }
    let Some(key) = link.chunk().key(dev) else {
        let text = "the map of the peer's memory is another device's: import it for this one";
        return Err(refuse(ErrorKind::NotPermitted, text));
    };
    let (Some(rkey), None) = (key.rkey(), key.lkey()) else {
        let text = "the buffer is in memory of this side: make a map of the peer's export";
        return Err(refuse(ErrorKind::NotPermitted, text));
    };
    let (address, room) = link.rest();
    if bytes > room {
        return Err(invalid("the buffer in the peer's memory ends before the data does"));
    }
    Ok(Some(RemoteAddr::new(address, rkey)))
}

/// Caches the key of `dev` in each unchained buffer of the job.
pub(super) fn cache_keys(job: &RdmaJob, dev: &Dev) {
    for buffer in job.local.as_ref().into_iter().chain(job.remote.as_ref()) {
        let chunk = buffer.first().chunk();
        if let Some(key) = chunk.key(dev) {
            buffer.cache_key(chunk.cached_key(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sges_cover_2_gib_at_most() {
        const LONG: u64 = 3 << 30;
        for lengths in [&[LONG][..], &[60, LONG, LONG], &[LONG, 60], &[0, LONG, 1], &[1 << 31]] {
            let mut sges = Sges::NONE;
            for &length in lengths {
                sges.add(0x1000, length, Lkey(7)).unwrap();
            }
            let named: u64 = sges.as_slice().iter().map(|sge| u64::from(sge.length)).sum();
            assert_eq!(named, MAX_MESSAGE_BYTES, "{lengths:?}");
            assert_eq!(sges.bytes, lengths.iter().sum::<u64>());
            assert!(sges.as_slice().len() <= lengths.len().max(2), "{lengths:?}");
            let longest = sges.as_slice().iter().map(|sge| sge.length).max();
            assert!(longest < Some(1 << 31), "no entry has 2 GiB: {lengths:?}");
        }
    }
}
