//! Memory for the requests of a cell: a slot each, with the bytes in one, two or three ranges.

use std::sync::Arc;

use verbless_command::KeyAccess;
use verbless_queue::domain::IndirectKey;
use verbless_queue::{Domain, Region, RemoteAddr, Sge};

use super::cell::{Form, REQUESTS};
use crate::{Stop, ensure, pattern};

/// Bytes of a slot; room for the longest message in any form, and some around it.
const SLOT: usize = 16 << 10;
/// Offset of a slot's bytes if they are contiguous; atomics need an alignment of 8.
const START: usize = 8;

/// The slots of one side.
pub(super) struct Memory {
    region: Arc<Region>,
    /// Offset and length of each range of a slot, in the order of the bytes.
    ranges: Vec<(usize, usize)>,
    /// An indirect key over the ranges of each slot.
    keys: Vec<IndirectKey>,
}

impl Memory {
    /// Slots for messages of `length` bytes in this form. The memory that the peer names is
    /// contiguous, or the target of an indirect key.
    pub(super) fn new(
        domain: &Domain,
        form: Form,
        length: usize,
        is_remote: bool,
    ) -> Result<Self, Stop> {
        let region = Arc::new(domain.region(SLOT * REQUESTS, KeyAccess::ALL)?);
        let ranges = match form {
            Form::ThreeSges if !is_remote => {
                let third = length / 3;
                vec![(8000, third), (16, third), (12_001, length - 2 * third)]
            }
            Form::IndirectKey => {
                let first = length.min(5000);
                vec![(9000, first), (104, length - first)]
            }
            _ => vec![(START, length)],
        };
        let mut keys = Vec::new();
        if form == Form::IndirectKey {
            for at in 0..REQUESTS {
                // A key spans at least one byte, even for an empty message.
                let ranges = [(9000, 5000), (104, 6000)];
                let ranges =
                    ranges.map(|(offset, bytes)| (region.clone(), at * SLOT + offset, bytes));
                keys.push(domain.indirect_key(&ranges, KeyAccess::ALL)?);
            }
        }
        Ok(Self { region, ranges, keys })
    }

    /// The SGEs of a slot.
    pub(super) fn sges(&self, at: usize) -> Result<Vec<Sge>, Stop> {
        if let Some(key) = self.keys.get(at) {
            let length: usize = self.ranges.iter().map(|&(_, length)| length).sum();
            return Ok(vec![Sge::new(0, length as u32, key.lkey())]);
        }
        let sge =
            |&(offset, length): &(usize, usize)| Ok(self.region.sge(at * SLOT + offset, length)?);
        self.ranges.iter().map(sge).collect()
    }

    /// A slot as the peer names it.
    pub(super) fn remote(&self, at: usize) -> Result<RemoteAddr, Stop> {
        match self.keys.get(at) {
            Some(key) => Ok(RemoteAddr::new(0, key.rkey())),
            None => Ok(self.region.remote(at * SLOT + self.ranges[0].0, 0)?),
        }
    }

    /// Puts bytes into the ranges of a slot.
    pub(super) fn fill(&self, at: usize, mut data: &[u8]) -> Result<(), Stop> {
        for &(offset, length) in &self.ranges {
            let (part, rest) = data.split_at(length);
            self.region.write_at(at * SLOT + offset, part)?;
            data = rest;
        }
        Ok(())
    }

    /// Fails unless the ranges of a slot have these bytes after `skipped` others, and all bytes
    /// around them are unchanged.
    pub(super) fn holds(&self, at: usize, skipped: usize, data: &[u8]) -> Result<(), Stop> {
        let mut slot = vec![0; SLOT];
        self.region.read_at(at * SLOT, &mut slot)?;
        let mut found = Vec::new();
        for &(offset, length) in &self.ranges {
            let range = &mut slot[offset..offset + length];
            found.extend_from_slice(range);
            range.fill(0);
        }
        ensure!(found[skipped..] == *data, "other data in message {at}");
        ensure!(slot.iter().all(|&byte| byte == 0), "bytes around message {at} have changed");
        Ok(())
    }
}

/// The bytes of a message.
pub(super) fn data(at: usize, length: usize) -> Vec<u8> {
    pattern(0x40 + at as u8, length)
}

/// 8 bytes as an atomic's number.
pub(super) fn number(data: &[u8]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|at| data[at]))
}
