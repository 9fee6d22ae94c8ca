//! Delayed accesses to the memory of other processes, for batching: one system call moves many
//! stretches.
//!
//! ```text
//!   copy   -> [ sources ]  read first, all of them
//!             [ payload ]  then written, in the order in which it came
//!   write  ->      "
//!   entry  -> [ bodies  ]  then the bodies of queue entries
//!             [ owners  ]  then their last bytes, by which software knows that they are there
//! ```
//!
//! Each row is complete before the next begins, so that an entry is never visible before its body,
//! nor a body before its payload. An access that must not be reordered with the pending ones is not
//! added: the owner first carries out the pending accesses.

use super::host::Fault;

/// Maximum bytes of pending payload. With more, a message would wait long for others;
/// with half as many, messages of 64 KiB move a tenth slower.
const MAX_PAYLOAD_BYTES: usize = 256 << 10;
/// Maximum number of pending stretches of a kind; a call takes 1024 (IOV_MAX).
const MAX_PENDING: usize = 256;
/// The longest queue entry.
const MAX_ENTRY_BYTES: usize = 128;

/// The owner bit of an entry. The body, written some microseconds before the last byte, carries the
/// wrong owner bit: a program that left zeros in its ring, where they mean "done", would take the
/// half entry for a whole one. A card writes both at once.
const OWNER_BIT: u8 = 1;

/// An address without memory.
const UNMAPPED: u64 = u64::MAX;

/// Memory of other processes; one call moves many stretches.
pub(super) trait RemoteSpace {
    /// Moves all stretches, in order, from or into the bytes. Reports the index of each stretch
    /// that failed, and moves the others.
    fn move_all(&self, stretches: &[Stretch], bytes: LocalBytes<'_>, missed: &mut dyn FnMut(usize));
}

/// The local side of a move, of the total length of its stretches.
#[derive(Debug)]
pub(super) enum LocalBytes<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// A range of DMA addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub address: u64,
    pub length: usize,
}

impl Stretch {
    fn overlaps(self, other: Self) -> bool {
        let end = |of: Self| of.address.saturating_add(of.length as u64);
        self.address < end(other) && other.address < end(self)
    }
}

/// Stretches for one write call, and their bytes.
#[derive(Debug)]
struct WriteBatch {
    stretches: Vec<Stretch>,
    bytes: Box<[u8]>,
    used: usize,
}

impl WriteBatch {
    fn new(room: usize) -> Self {
        Self { stretches: Vec::with_capacity(MAX_PENDING), bytes: vec![0; room].into(), used: 0 }
    }

    fn touches(&self, stretch: Stretch) -> bool {
        self.stretches.iter().any(|other| other.overlaps(stretch))
    }

    fn room(&self) -> usize {
        if self.stretches.len() < MAX_PENDING { self.bytes.len() - self.used } else { 0 }
    }

    /// Adds a stretch and returns its bytes; the row must have room.
    fn add(&mut self, stretch: Stretch) -> &mut [u8] {
        let at = self.used;
        self.used += stretch.length;
        self.stretches.push(stretch);
        &mut self.bytes[at..self.used]
    }

    fn write(&mut self, far: &dyn RemoteSpace, missed: &mut dyn FnMut(Stretch)) {
        if !self.stretches.is_empty() {
            let bytes = LocalBytes::Write(&self.bytes[..self.used]);
            far.move_all(&self.stretches, bytes, &mut |index| missed(self.stretches[index]));
        }
        self.stretches.clear();
        self.used = 0;
    }
}

/// Delayed transfers.
#[derive(Debug)]
pub(super) struct Pending {
    /// Sources of payload that was not read so far.
    sources: Vec<Stretch>,
    /// For each source, its range in `payload` and its offset in the bytes.
    starts: Vec<(usize, usize)>,
    payload: WriteBatch,
    bodies: WriteBatch,
    owners: WriteBatch,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            sources: Vec::with_capacity(MAX_PENDING),
            starts: Vec::with_capacity(MAX_PENDING),
            payload: WriteBatch::new(MAX_PAYLOAD_BYTES),
            bodies: WriteBatch::new(MAX_PENDING * MAX_ENTRY_BYTES),
            owners: WriteBatch::new(MAX_PENDING),
        }
    }
}

impl Pending {
    /// Whether a pending access writes there: a read would return the old bytes.
    pub(super) fn writes_over(&self, address: u64, length: usize) -> bool {
        let stretch = Stretch { address, length };
        self.payload.touches(stretch) || self.is_entry(stretch)
    }

    fn is_entry(&self, stretch: Stretch) -> bool {
        self.bodies.touches(stretch) || self.owners.touches(stretch)
    }

    /// Adds a copy, as much of it as fits and as the batched order allows; returns that length. 0:
    /// carry out the pending accesses first.
    pub(super) fn copy(&mut self, from: u64, to: u64, length: u64) -> usize {
        let length = self.copyable(from, to, length);
        if length > 0 {
            self.sources.push(Stretch { address: from, length });
            self.starts.push((self.payload.stretches.len(), self.payload.used));
            self.payload.add(Stretch { address: to, length });
        }
        length
    }

    /// Adds a copy, like [`copy`](Self::copy), but lets `read` get its bytes at once.
    pub(super) fn copy_now(
        &mut self,
        from: u64,
        to: u64,
        length: u64,
        read: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<usize, Fault> {
        let length = self.copyable(from, to, length);
        if length > 0 {
            let at = self.payload.used;
            read(&mut self.payload.bytes[at..at + length])?;
            self.payload.add(Stretch { address: to, length });
        }
        Ok(length)
    }

    /// How much of a copy can be added.
    fn copyable(&self, from: u64, to: u64, length: u64) -> usize {
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.payload.room());
        let target = Stretch { address: to, length };
        if self.writes_over(from, length) || self.is_entry(target) { 0 } else { length }
    }

    /// Adds bytes, like [`copy`](Self::copy).
    pub(super) fn write(&mut self, to: u64, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.payload.room());
        let target = Stretch { address: to, length };
        if length == 0 || self.is_entry(target) {
            return 0;
        }
        self.payload.add(target).copy_from_slice(&bytes[..length]);
        length
    }

    /// Adds an entry of a queue; false: carry out the pending accesses first.
    pub(super) fn entry(&mut self, address: u64, bytes: &[u8]) -> bool {
        let Some(&owner) = bytes.last() else { return true };
        let whole = Stretch { address, length: bytes.len() };
        if self.owners.room() == 0 || self.bodies.room() < bytes.len() || self.is_entry(whole) {
            return false;
        }
        let body = self.bodies.add(whole);
        body.copy_from_slice(bytes);
        body[bytes.len() - 1] = owner ^ OWNER_BIT;
        let last = Stretch { address: address.wrapping_add(bytes.len() as u64 - 1), length: 1 };
        self.owners.add(last).copy_from_slice(&[owner]);
        true
    }

    /// Carries out the pending accesses, all of them; returns the first fault.
    pub(super) fn carry_out(&mut self, far: &dyn RemoteSpace) -> Result<(), Fault> {
        let mut fault = None;
        let mut miss = |stretch: Stretch| {
            let Stretch { address, length } = stretch;
            fault = fault.or(Some(Fault { address, length: length as u64 }));
        };
        self.fetch(far, &mut miss);
        for row in [&mut self.payload, &mut self.bodies, &mut self.owners] {
            row.write(far, &mut miss);
        }
        fault.map_or(Ok(()), Err)
    }

    /// Reads the pending sources; adjacent stretches of a row take one call. Payload that cannot be
    /// read is not written either.
    fn fetch(&mut self, far: &dyn RemoteSpace, missed: &mut dyn FnMut(Stretch)) {
        let mut first = 0;
        while first < self.sources.len() {
            let (_, start) = self.starts[first];
            let (mut last, mut end) = (first, start);
            while last < self.sources.len() && self.starts[last].1 == end {
                end += self.sources[last].length;
                last += 1;
            }
            let bytes = LocalBytes::Read(&mut self.payload.bytes[start..end]);
            far.move_all(&self.sources[first..last], bytes, &mut |index| {
                missed(self.sources[first + index]);
                let (target, _) = self.starts[first + index];
                self.payload.stretches[target].address = UNMAPPED;
            });
            first = last;
        }
        self.sources.clear();
        self.starts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A memory of 64 KiB, and a log of its calls: `r` or `w` and the first address of each
    /// stretch.
    struct Fake {
        memory: RefCell<Vec<u8>>,
        calls: RefCell<Vec<(char, Vec<u64>)>>,
    }

    impl Fake {
        fn new() -> Self {
            let memory = (0..0x1_0000).map(|at| (at % 251) as u8).collect();
            Self { memory: RefCell::new(memory), calls: RefCell::default() }
        }

        fn at(&self, address: usize, length: usize) -> Vec<u8> {
            self.memory.borrow()[address..address + length].to_vec()
        }
    }

    impl RemoteSpace for Fake {
        fn move_all(
            &self,
            stretches: &[Stretch],
            mut bytes: LocalBytes<'_>,
            missed: &mut dyn FnMut(usize),
        ) {
            let kind = if matches!(bytes, LocalBytes::Read(_)) { 'r' } else { 'w' };
            let addresses = stretches.iter().map(|stretch| stretch.address).collect();
            self.calls.borrow_mut().push((kind, addresses));
            let mut done = 0;
            for (index, stretch) in stretches.iter().enumerate() {
                let near = done..done + stretch.length;
                done = near.end;
                let mut memory = self.memory.borrow_mut();
                let far = usize::try_from(stretch.address).unwrap_or(usize::MAX);
                let end = far.saturating_add(stretch.length);
                match (memory.get_mut(far..end), &mut bytes) {
                    (Some(far), LocalBytes::Read(bytes)) => bytes[near].copy_from_slice(far),
                    (Some(far), LocalBytes::Write(bytes)) => far.copy_from_slice(&bytes[near]),
                    (None, _) => missed(index),
                }
            }
        }
    }

    #[test]
    fn messages_batch_into_one_read_and_ordered_writes() {
        let (far, mut pending) = (Fake::new(), Pending::default());
        for message in 0..4 {
            assert_eq!(pending.copy(0x100 * message, 0x8000 + 8 * message, 8), 8);
            assert!(pending.entry(0x9000 + 64 * message, &[message as u8 + 1; 64]));
        }
        pending.carry_out(&far).unwrap();
        let each = |first: u64, step: u64| (0..4).map(|i| first + step * i).collect();
        assert_eq!(
            *far.calls.borrow(),
            [
                ('r', each(0, 0x100)),
                ('w', each(0x8000, 8)),
                ('w', each(0x9000, 64)),
                ('w', each(0x903f, 64)),
            ]
        );
        assert_eq!(far.at(0x8008, 8), far.at(0x100, 8));
        assert_eq!(far.at(0x9040, 64), [2; 64]);
        pending.carry_out(&far).unwrap();
        assert_eq!(far.calls.borrow().len(), 4, "nothing waits, nothing is called");
    }

    /// Reads an entry's last byte after each call.
    struct Watched(Fake, RefCell<Vec<u8>>);

    impl RemoteSpace for Watched {
        fn move_all(&self, at: &[Stretch], bytes: LocalBytes<'_>, missed: &mut dyn FnMut(usize)) {
            self.0.move_all(at, bytes, missed);
            self.1.borrow_mut().push(self.0.at(0x903f, 1)[0]);
        }
    }

    #[test]
    fn entry_owner_byte_is_written_last() {
        let (far, mut pending) = (Watched(Fake::new(), RefCell::default()), Pending::default());
        far.0.memory.borrow_mut()[0x9000..0x9040].fill(0);
        let first_lap = 0x30;
        let mut entry = [1; 64];
        entry[63] = first_lap;
        assert!(pending.entry(0x9000, &entry));
        pending.carry_out(&far).unwrap();
        assert_eq!(*far.1.borrow(), [first_lap | 1, first_lap]);
    }

    #[test]
    fn order_dependent_access_is_not_queued() {
        let (far, mut pending) = (Fake::new(), Pending::default());
        assert_eq!(pending.copy(0, 0x8000, 16), 16);
        assert!(pending.entry(0x9000, &[1; 64]));
        assert!(pending.writes_over(0x800f, 1) && !pending.writes_over(0x8010, 1));
        assert!(pending.writes_over(0x903f, 1) && !pending.writes_over(0x9040, 1));
        assert_eq!(pending.copy(0x8008, 0xa000, 8), 0, "the source is not written so far");
        assert_eq!(pending.copy(0x100, 0x9010, 8), 0, "over an entry");
        assert_eq!(pending.write(0x903f, &[1]), 0, "over an owner byte");
        assert!(!pending.entry(0x9000, &[2; 64]), "the same entry again");
        // Payload over payload keeps its order, and a source may be overwritten once it was read.
        assert_eq!(pending.copy(0x200, 0x8000, 8), 8);
        assert_eq!(pending.write(0x200, &[7; 4]), 4);
        let (first, second) = (far.at(8, 8), far.at(0x200, 8));
        pending.carry_out(&far).unwrap();
        assert_eq!((far.at(0x8000, 8), far.at(0x8008, 8)), (second, first));
        assert_eq!(far.at(0x200, 4), [7; 4]);
    }

    #[test]
    fn unreachable_access_is_skipped_and_reported() {
        let (far, mut pending) = (Fake::new(), Pending::default());
        pending.copy(0, 0x8000, 8);
        pending.copy(0x2_0000, 0x8008, 8);
        pending.copy(0x10, 0x2_0000, 8);
        pending.write(0x8010, &[9; 8]);
        assert!(pending.entry(0x9000, &[3; 64]));
        let before = far.at(0x8008, 8);
        assert_eq!(pending.carry_out(&far), Err(Fault { address: 0x2_0000, length: 8 }));
        assert_eq!(far.at(0x8000, 8), far.at(0, 8));
        assert_eq!(far.at(0x8008, 8), before);
        assert_eq!((far.at(0x8010, 8), far.at(0x9000, 64)), (vec![9; 8], vec![3; 64]));
    }

    #[test]
    fn pending_bytes_and_entries_are_limited() {
        let mut pending = Pending::default();
        assert_eq!(
            pending.copy(0, 1 << 20, MAX_PAYLOAD_BYTES as u64 - 100),
            MAX_PAYLOAD_BYTES - 100
        );
        assert_eq!(pending.copy(0, 2 << 20, 200), 100);
        assert_eq!(pending.copy(0, 3 << 20, 1), 0);
        let mut pending = Pending::default();
        for message in 0..MAX_PENDING as u64 {
            assert_eq!(pending.write(8 * message, &[0; 8]), 8);
            assert!(pending.entry((1 << 20) + 128 * message, &[0; 128]));
        }
        assert_eq!(pending.write(1 << 21, &[0; 8]), 0);
        assert!(!pending.entry(1 << 21, &[0; 64]));
    }
}
