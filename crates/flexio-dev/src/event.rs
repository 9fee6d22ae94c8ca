//! EQEs and CQEs in rings of the device, and compressed CQEs.

use core::marker::PhantomData;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use verbless_prm::hot::{self, EqeCqn, EqeOwner, OpOwn, cqe_opcode};
pub use verbless_prm::{Cqe, CqeError, CqeOpcode, Eqe, EqeCompletion, EventType, MiniCqe};
use verbless_prm::{CqeFormat, MiniCqeBlock};

use crate::record::cq_set_ci;

/// Bytes of a CQE or an EQE.
pub const BYTES: usize = 64;
/// A slot of a ring: the device writes it while the program reads.
type EntryWords = [AtomicU64; BYTES / 8];
/// The word of a slot that ends with the owner bit.
const LAST: usize = BYTES / 8 - 1;
/// Offset of the CQ number in the last word of an EQE.
const CQN: usize =
    offset_of!(hot::Eqe, event_data) + offset_of!(hot::EqeCompletion, eqe_cqn) - 8 * LAST;

/// A ring of CQEs or EQEs in memory, and the program's consumer index.
///
/// The next entry is new when its owner bit equals the low bit of the count of passes through the
/// ring; a CQE that software has prepared also has opcode 0xf.
#[derive(Debug)]
pub struct Ring<'a, Entry> {
    slots: &'a [EntryWords],
    log_entries: u8,
    consumer: u32,
    entry: PhantomData<Entry>,
}

/// The CQEs of a CQ.
pub type CqRing<'a> = Ring<'a, Cqe>;
/// The EQEs of an EQ.
pub type EqRing<'a> = Ring<'a, Eqe>;

impl<'a, Entry> Ring<'a, Entry> {
    /// A ring with 8 words per entry; `consumer` entries were consumed before, modulo 2^32. `None`
    /// if the number of entries is not a power of two.
    pub fn new(words: &'a [AtomicU64], consumer: u32) -> Option<Self> {
        let (slots, rest) = words.as_chunks();
        let entries = slots.len();
        (rest.is_empty() && entries.is_power_of_two()).then(|| Self {
            slots,
            log_entries: entries.ilog2() as u8,
            consumer,
            entry: PhantomData,
        })
    }

    /// The count of consumed entries, modulo 2^32: the consumer index, also for arming.
    pub const fn consumer(&self) -> u32 {
        self.consumer
    }

    /// Takes the next entry, if `is_new` accepts its last byte in the current phase; returns its
    /// slot and its last word.
    fn next(&mut self, is_new: impl FnOnce(u8, bool) -> bool) -> Option<(&'a EntryWords, [u8; 8])> {
        let index = self.consumer & (self.slots.len() as u32 - 1);
        let slot = &self.slots[index as usize];
        let phase = self.consumer >> self.log_entries & 1 == 1;
        let last = slot[LAST].load(Ordering::Relaxed).to_ne_bytes();
        if !is_new(last[7], phase) {
            return None;
        }
        // The device wrote the rest of the entry before the owner bit.
        fence(Ordering::Acquire);
        self.consumer = self.consumer.wrapping_add(1);
        Some((slot, last))
    }
}

/// The bytes of an entry.
fn bytes(slot: &EntryWords) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(slot) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    bytes
}

/// Whether an EQE with this last byte is new.
fn is_new_eqe(last: u8, phase: bool) -> bool {
    EqeOwner::from_bits(last).owner() == phase
}

impl CqRing<'_> {
    /// Takes the next CQE, if there is one. [`set_record`](Self::set_record) returns its slot to
    /// the device.
    pub fn poll(&mut self) -> Option<Cqe> {
        let (slot, _) = self.next(|last, phase| {
            let op_own = OpOwn::from_bits(last);
            op_own.opcode() != cqe_opcode::INVALID && op_own.owner() == phase
        })?;
        Cqe::from_prefix(&bytes(slot)).copied()
    }

    /// Returns the slots of all taken CQEs to the device; `record` is the first word of the CQ's
    /// doorbell record.
    pub fn set_record(&self, record: &AtomicU32) {
        // A release store: the CQEs have been read before it.
        cq_set_ci(record, self.consumer);
    }
}

impl EqRing<'_> {
    /// Takes the next EQE, if there is one. [`update_eq`](crate::outbox::Outbox::update_eq) returns
    /// its slot to the device.
    pub fn poll(&mut self) -> Option<Eqe> {
        let (slot, _) = self.next(is_new_eqe)?;
        Eqe::from_prefix(&bytes(slot)).copied()
    }

    /// Takes the next EQE of an EQ with completions only, by one load; returns the CQ's number.
    pub fn poll_cqn(&mut self) -> Option<u32> {
        let (_, last) = self.next(is_new_eqe)?;
        let (_, cqn) = last.split_at(CQN);
        cqn.first_chunk().map(|cqn| EqeCqn::from_raw(u32::from_ne_bytes(*cqn)).cqn())
    }
}

/// The CQ of a completion EQE (`flexio_dev_eqe_get_cqn`); meaningless for other EQEs.
pub fn eqe_cqn(eqe: &Eqe) -> u32 {
    EqeCompletion::from_prefix(eqe.event_data()).map_or(0, |it| it.cqn())
}

/// A block of CQEs that the device has compressed in a CQ with enhanced compression: up to seven
/// mini CQEs of 8 bytes, and instead of an eighth their number, their format and the validity
/// count. The CQ's format defines the halves of a mini CQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct CompressedCqe(MiniCqeBlock);

impl CompressedCqe {
    /// The block in a slot; `None` if the slot has one uncompressed CQE
    /// (`flexio_dev_comp_cqe_is_comp_cqe_array`).
    pub fn of(slot: &[u8; BYTES]) -> Option<Self> {
        let block = MiniCqeBlock::from_prefix(slot)?;
        (block.format() == CqeFormat::COMPRESSED).then_some(Self(*block))
    }

    /// The number of the pass through the ring in which the block was written, modulo 256
    /// (`flexio_dev_comp_cqe_get_validity_byte`): the block is new if it equals the program's own
    /// count.
    pub fn validity(slot: &[u8; BYTES]) -> u8 {
        MiniCqeBlock::from_prefix(slot).map_or(0, |block| block.validity_iteration_count())
    }

    /// Prepares a slot for the device: `count` is the program's count of passes through the ring
    /// minus 1 (`flexio_dev_comp_cq_init`).
    pub fn prepare(slot: &mut [u8; BYTES], count: u8) {
        if let Some(block) = MiniCqeBlock::from_prefix_mut(slot) {
            block.set_validity_iteration_count(count);
        }
    }

    /// The number of mini CQEs, 1 to 7 (`flexio_dev_comp_cqe_get_num_comp_cqes`).
    pub fn count(&self) -> usize {
        (usize::from(self.0.num_minis_minus_1()) + 1).min(7)
    }

    /// Mini CQE `index`, if there is one (`flexio_dev_comp_cqe_get_comp_cqe`).
    pub fn get(&self, index: usize) -> Option<MiniCqe> {
        let mini = (index < self.count()).then(|| self.0.minis(index).to_be_bytes())?;
        MiniCqe::from_prefix(&mini).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of `N` words with all bytes 0xff: prepared, as software does with a CQ.
    fn words<const N: usize>() -> [AtomicU64; N] {
        [const { AtomicU64::new(u64::MAX) }; N]
    }

    /// Writes an entry like a device: the word with the owner bit last.
    fn write(words: &[AtomicU64], index: usize, bytes: &[u8; BYTES]) {
        let (parts, _) = bytes.as_chunks();
        for (word, part) in words[8 * index..][..8].iter().zip(parts) {
            word.store(u64::from_ne_bytes(*part), Ordering::Release);
        }
    }

    fn cqe(counter: u8, owner: u8) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0x3d] = counter;
        bytes[0x3f] = 0x20 | owner;
        bytes
    }

    #[test]
    fn cqes_are_polled_in_order_across_wrap() {
        let words = words::<32>();
        let mut ring = CqRing::new(&words, 0).unwrap();
        assert!(ring.poll().is_none());
        for counter in 0..10 {
            write(&words, usize::from(counter % 4), &cqe(counter, (counter / 4) & 1));
            let taken = ring.poll().unwrap();
            assert_eq!(taken.wqe_counter(), counter.into());
            assert!(ring.poll().is_none(), "after {counter}");
        }
        let record = AtomicU32::new(0);
        ring.set_record(&record);
        assert_eq!((ring.consumer(), record.into_inner()), (10, 10_u32.to_be()));
    }

    #[test]
    fn prepared_slot_is_not_new_in_either_round() {
        let words = words::<16>();
        assert!(CqRing::new(&words, 0).unwrap().poll().is_none());
        assert!(CqRing::new(&words, 2).unwrap().poll().is_none());
    }

    #[test]
    fn eqe_carries_cqn() {
        let words = words::<16>();
        let mut ring = EqRing::new(&words, 0).unwrap();
        assert!(ring.poll().is_none());
        let mut bytes = [0; BYTES];
        bytes[0x38..0x3c].copy_from_slice(&[0xff, 0x12, 0x34, 0x56]);
        write(&words, 0, &bytes);
        let eqe = ring.poll().unwrap();
        assert_eq!(
            (eqe.event_type(), eqe_cqn(&eqe), eqe.owner()),
            (EventType(0), 0x12_3456, false)
        );
        assert!(ring.poll().is_none());
    }

    #[test]
    fn poll_cqn_yields_each_eqe_once() {
        let words = words::<16>();
        let mut ring = EqRing::new(&words, 0).unwrap();
        for number in 0..6_u8 {
            let mut bytes = [0; BYTES];
            bytes[0x38..0x3c].copy_from_slice(&[0xff, 0x12, 0x34, number]);
            bytes[0x3f] = number >> 1 & 1;
            assert_eq!(ring.poll_cqn(), None, "before {number}");
            write(&words, usize::from(number & 1), &bytes);
            assert_eq!(ring.poll_cqn(), Some(0x12_3400 | u32::from(number)));
            assert_eq!(ring.consumer(), u32::from(number) + 1);
        }
    }

    #[test]
    fn ring_requires_power_of_two_entries() {
        assert!(CqRing::new(&words::<24>(), 0).is_none());
        assert!(CqRing::new(&words::<12>(), 0).is_none());
        assert!(CqRing::new(&[], 0).is_none());
        assert!(CqRing::new(&words::<8>(), 0).is_some());
    }

    #[test]
    fn compressed_block_has_at_most_seven_mini_cqes() {
        let mut slot: [u8; BYTES] = core::array::from_fn(|at| at as u8);
        slot[0x3f] = 2 << 4 | 3 << 2;
        CompressedCqe::prepare(&mut slot, 0x77);
        assert_eq!(CompressedCqe::validity(&slot), 0x77);
        let block = CompressedCqe::of(&slot).unwrap();
        assert_eq!(block.count(), 3);
        let mini = block.get(2).unwrap();
        assert_eq!(*mini.as_bytes(), [16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!((mini.rx_hash_result(), mini.byte_cnt()), (0x1011_1213, 0x1415_1617));
        assert!(block.get(3).is_none());
        slot[0x3f] = 0xf << 4 | 3 << 2;
        let block = CompressedCqe::of(&slot).unwrap();
        assert_eq!((block.count(), block.get(7)), (7, None));
        slot[0x3f] = 0x20;
        assert_eq!(CompressedCqe::of(&slot), None);
    }
}
