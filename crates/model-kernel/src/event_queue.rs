//! The kernel's event queues: memory into which the device writes EQEs, and their consumer.

use std::sync::atomic::{AtomicU64, Ordering};

use verbless_prm::{CreateEqIn, Eqe};

use super::page::PAGE;

/// Bytes of an EQE, which is read in words; the last one holds the owner bit.
const EQE_BYTES: u64 = Eqe::BYTES as u64;
const WORDS: usize = Eqe::BYTES / 8;
const LAST: usize = WORDS - 1;
/// EQEs between doorbells (Linux `MLX5_EQ_POLLING_BUDGET`).
const BUDGET: u32 = 128;
/// uid of event queues that CQs of every user context may name.
const SHARED_UID: u16 = 0xffff;

/// Page-aligned memory of the kernel that the device writes.
#[derive(Debug)]
struct Pages {
    words: Box<[AtomicU64]>,
    /// Index of the first page's first word.
    first: usize,
}

impl Pages {
    fn new(bytes: u64) -> Self {
        let words = bytemuck::zeroed_slice_box::<AtomicU64>(((bytes + PAGE) / 8) as usize);
        let start = words.as_ptr() as u64;
        let first = (start.next_multiple_of(PAGE) - start) / 8;
        Self { words, first: first as usize }
    }

    fn address(&self) -> u64 {
        (&raw const self.words[self.first]) as u64
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[self.first + index]
    }
}

/// An event queue, with its consumer index.
#[derive(Debug)]
pub(super) struct EventQueue {
    pages: Pages,
    log_size: u32,
    pub number: u32,
    pub vector: u32,
    consumer: u32,
}

impl EventQueue {
    /// A queue of 2^`log_size` entries, all owned by the device, before CREATE_EQ.
    pub(super) fn new(log_size: u32, vector: u32) -> Self {
        let pages = Pages::new(EQE_BYTES << log_size);
        let mut fresh = Eqe::zeroed();
        fresh.set_owner(true);
        let mut last = [0; 8];
        last.copy_from_slice(&fresh.as_bytes()[LAST * 8..]);
        for entry in 0..1usize << log_size {
            pages.word(entry * WORDS + LAST).store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        Self { pages, log_size, number: 0, vector, consumer: 0 }
    }

    /// The CREATE_EQ command. A queue without events is a completion EQ, which users' CQs may name.
    pub(super) fn create(&self, uar_page: u32, events: [u64; 4]) -> Vec<u8> {
        let pages = (EQE_BYTES << self.log_size).div_ceil(PAGE);
        let uid = if events == [0; 4] { SHARED_UID } else { 0 };
        let mut input = CreateEqIn::new();
        input.set_uid(uid);
        let context = input.eq_context_entry_mut();
        context.set_log_eq_size(self.log_size as u8).set_uar_page(uar_page);
        context.set_intr(self.vector as u16);
        for (index, mask) in events.into_iter().enumerate() {
            input.set_event_bitmask(index, mask);
        }
        let addresses = (0..pages).map(|page| self.pages.address() + page * PAGE);
        input.as_bytes().iter().copied().chain(addresses.flat_map(u64::to_be_bytes)).collect()
    }

    /// Takes the next EQE that the device has written; the owner bit flips with each pass through
    /// the queue.
    fn next(&mut self) -> Option<Eqe> {
        let mask = (1u32 << self.log_size) - 1;
        let entry = (self.consumer & mask) as usize * WORDS;
        let round = self.consumer >> self.log_size & 1;
        let mut eqe = Eqe::zeroed();
        let read = |eqe: &mut Eqe, word, order| {
            let value = self.pages.word(entry + word).load(order);
            eqe.as_bytes_mut()[word * 8..][..8].copy_from_slice(&value.to_ne_bytes());
        };
        read(&mut eqe, LAST, Ordering::Acquire);
        if eqe.owner() != (round == 1) {
            return None;
        }
        (0..LAST).for_each(|word| read(&mut eqe, word, Ordering::Relaxed));
        self.consumer = self.consumer.wrapping_add(1);
        Some(eqe)
    }

    /// Calls `handle` for the EQEs that the device has written, at most as many as the queue has
    /// entries; true if there may be more. Every [`BUDGET`] EQEs, `ring` gets the doorbell word, so
    /// that the device can reuse their slots.
    #[must_use]
    pub(super) fn serve(
        &mut self,
        mut handle: impl FnMut(&Eqe),
        mut ring: impl FnMut([u8; 4]),
    ) -> bool {
        for served in 1..=1_u32 << self.log_size {
            let Some(eqe) = self.next() else { return false };
            handle(&eqe);
            if served % BUDGET == 0 {
                ring(self.doorbell());
            }
        }
        true
    }

    /// The doorbell word: EQN and consumer index.
    pub(super) fn doorbell(&self) -> [u8; 4] {
        ((self.consumer & 0xff_ffff) + (self.number << 24)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, OwnProcess};

    fn write(queue: &EventQueue, index: usize, kind: u8, owner: u64) {
        queue
            .pages
            .word(index * 8)
            .store(u64::from_ne_bytes([0, kind, 0, 0, 0, 0, 0, 0]), Ordering::Relaxed);
        queue.pages.word(index * 8 + 7).store(owner.to_be(), Ordering::Release);
    }

    #[test]
    fn eqe_ownership_alternates_per_round() {
        let mut queue = EventQueue::new(1, 3);
        assert_eq!(queue.next(), None);
        for round in 0..4u64 {
            for index in 0..2 {
                assert_eq!(queue.next(), None);
                write(&queue, index, 0x10 + index as u8, round & 1);
                let eqe = queue.next().expect("the entry is ours");
                assert_eq!(eqe.event_type().0, 0x10 + index as u8);
            }
        }
        queue.number = 5;
        assert_eq!(queue.doorbell(), [5, 0, 0, 8]);
    }

    #[test]
    fn eq_doorbell_is_due_every_128_entries() {
        let mut queue = EventQueue::new(9, 3);
        queue.number = 5;
        (0..300).for_each(|index| write(&queue, index, 0x10, 0));
        let (handled, mut rung) = (std::cell::Cell::new(0_u32), Vec::new());
        let handle = |_: &Eqe| handled.set(handled.get() + 1);
        assert!(!queue.serve(handle, |word| rung.push((handled.get(), word))));
        assert_eq!(rung, [(128, [5, 0, 0, 128]), (256, [5, 0, 1, 0])]);
        assert_eq!((handled.get(), queue.doorbell()), (300, [5, 0, 1, 44]));
    }

    #[test]
    fn serve_ends_after_one_round_of_entries() {
        let mut queue = EventQueue::new(2, 3);
        let own = OwnProcess::default();
        (0..4).for_each(|index| write(&queue, index, 0x10, 0));
        // The device refills each entry as soon as it is free.
        let (first, mut handled) = (queue.pages.address(), 0_u64);
        let mut refill = |_: &Eqe| {
            let last = first + handled % 4 * EQE_BYTES + EQE_BYTES - 8;
            handled += 1;
            own.write(last, &1_u64.to_be_bytes()).unwrap();
        };
        assert!(queue.serve(&mut refill, |_| {}));
        assert_eq!(handled, 4);
        assert!(queue.serve(|_| {}, |_| {}));
        assert!(!queue.serve(|_| {}, |_| {}));
    }

    #[test]
    fn create_eq_lists_page_aligned_pas() {
        let queue = EventQueue::new(7, 9);
        let input = queue.create(0x1234, [1 << 9, 0, 0, 0]);
        assert_eq!(input.len(), 0x110 + 16);
        let first = u64::from_be_bytes(*input[0x110..].first_chunk().expect("a page address"));
        assert_eq!((first % PAGE, first), (0, queue.pages.address()));
        assert_eq!(input[0x118..], (first + PAGE).to_be_bytes());
        assert_eq!(input[..4], [0x03, 0x01, 0, 0]);
        assert_eq!(input[0x1c..0x20], [7, 0, 0x12, 0x34]);
        assert_eq!(input[0x24..0x28], [0, 0, 0, 9]);
        assert_eq!(input[0x58..0x60], (1u64 << 9).to_be_bytes());
        assert_eq!(queue.create(0, [0; 4])[..4], [0x03, 0x01, 0xff, 0xff]);
    }
}
