//! Sweeps: a doorbell of another queue may overwrite a doorbell in a mapped page before the engine
//! takes it. So after a doorbell the engine reads the records of the page's other queues, in turns
//! of their own and a few records each: the cost of a sweep depends on the queues of the page and
//! not on how often they ring.
//!
//! A page that rings during its sweep is swept once more.
//!
//! Where each access is a system call, two calls read all records of a page of memory that a turn
//! wants: drivers put many records in a page. A word that differs between the two is read again by
//! itself.

use super::cq::arm_word;
use super::doorbell;
use super::function::FunctionEngine;
use super::ring::record;
use crate::hca::doorbell::PageDoorbell;
use crate::hca::objects::Objects;
use crate::memory::{Fault, HostMemory};

/// Records that a turn reads: a doorbell that comes meanwhile waits for them. In memory of this
/// process, a record may take a cache miss or two; elsewhere, the calls cost more than the records.
const BATCH: usize = 8;
const REMOTE_BATCH: usize = 32;
/// Bytes of memory whose records are read at once.
const PAGE: u64 = 4096;

/// A record of a turn: its queue, and the address of the word.
type Wanted = (u32, u64);

/// Reads the records of a few queues of a page with a pending sweep; false if there is none.
pub(super) fn turn(function: &mut FunctionEngine, now: u64) -> bool {
    let Some(((page, doorbell), first)) = function.engine.sweeps.begin() else { return false };
    let memory = function.hca.memory.clone();
    let most = if memory.is_remote() { REMOTE_BATCH } else { BATCH };
    let objects = &mut function.hca.objects;
    let index = std::mem::take(&mut objects.by_page);
    let queues = index.by(doorbell).of(page);
    let mut rest = queues.into_iter().flat_map(|queues| queues.range(first..));
    let mut wanted = [(0, 0); REMOTE_BATCH];
    let mut count = 0;
    for &number in rest.by_ref().take(most) {
        if let Some(address) = word_of(objects, doorbell, number) {
            wanted[count] = (number, address);
            count += 1;
        }
    }
    function.engine.sweeps.stop_before(rest.next().copied());
    objects.by_page = index;
    read(&*memory, &mut wanted[..count], |number, word| match doorbell {
        PageDoorbell::Send => doorbell::producer_found(function, number, word),
        PageDoorbell::Arm => doorbell::arm_request_found(function, number, word, now),
    });
    true
}

/// Address of the word that a doorbell of queue `number` announces; `None` if it has no such queue.
fn word_of(objects: &mut Objects, doorbell: PageDoorbell, number: u32) -> Option<u64> {
    match doorbell {
        // The context of a QP without a send queue names a page as well.
        PageDoorbell::Send => Some(objects.sender(number)?.record),
        PageDoorbell::Arm => Some(arm_word(objects.cqs.get(&number)?.record)),
    }
}

/// Reads words and calls `each` with them, those of one page of memory together.
fn read(
    memory: &dyn HostMemory,
    wanted: &mut [Wanted],
    mut each: impl FnMut(u32, Result<u32, Fault>),
) {
    if !memory.is_remote() {
        wanted.iter().for_each(|&(number, address)| each(number, record(memory, address)));
        return;
    }
    let page = |&(_, address): &Wanted| address / PAGE;
    wanted.sort_unstable_by_key(|&(_, address)| address);
    for of_page in wanted.chunk_by(|one, other| page(one) == page(other)) {
        let (Some(&(_, low)), Some(&(_, high))) = (of_page.first(), of_page.last()) else {
            continue;
        };
        // The system may copy a word byte by byte while the program stores it.
        let [mut first, mut second] = [[0; PAGE as usize]; 2];
        // A record that is not at a multiple of 4 may reach into the next page.
        let length = (high - low + 4) as usize;
        let read = |bytes: &mut [u8]| {
            bytes.get_mut(..length).is_some_and(|bytes| memory.read(low, bytes).is_ok())
        };
        let together = of_page.len() > 1 && read(&mut first) && read(&mut second);
        for &(number, address) in of_page {
            let at = (address - low) as usize;
            let [one, other] = [&first, &second].map(|bytes| bytes[at..].first_chunk());
            let settled = one.filter(|_| together && one == other && address % 4 == 0);
            let word = settled.map(|it| Ok(u32::from_be_bytes(*it)));
            each(number, word.unwrap_or_else(|| record(memory, address)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Memory whose word at an address is the address. Page 5 is missing.
    #[derive(Default)]
    struct Counted {
        reads: std::sync::Mutex<Vec<(u64, usize)>>,
        /// Address of a word that the first read tears.
        torn: Option<u64>,
    }

    impl HostMemory for Counted {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
            let mut reads = self.reads.lock().unwrap();
            reads.push((address, into.len()));
            if address / PAGE == 5 {
                return Err(Fault { address, length: into.len() as u64 });
            }
            for (at, word) in (address..).step_by(4).zip(into.chunks_mut(4)) {
                word.copy_from_slice(&(at as u32).to_be_bytes()[..word.len()]);
            }
            if let Some(torn) = self.torn.filter(|_| reads.len() == 1) {
                into[(torn - address) as usize + 3] = 0xee;
            }
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), Fault> {
            unreachable!("a sweep writes nothing")
        }
        fn load32(&self, address: u64) -> Result<u32, Fault> {
            let mut word = [0; 4];
            self.read(address, &mut word)?;
            Ok(u32::from_ne_bytes(word))
        }
        fn store32(&self, _: u64, _: u32) -> Result<(), Fault> {
            unreachable!("a sweep writes nothing")
        }
        fn store8(&self, _: u64, _: u8) -> Result<(), Fault> {
            unreachable!("a sweep writes nothing")
        }
        fn compare_exchange64(&self, _: u64, _: u64, _: u64) -> Result<u64, Fault> {
            unreachable!("a sweep writes nothing")
        }
        fn copy_to(&self, _: u64, _: &dyn HostMemory, _: u64, _: u64) -> Result<(), Fault> {
            unreachable!("a sweep copies nothing")
        }
        fn direct(&self, _: u64, _: u64) -> Option<std::ptr::NonNull<u8>> {
            None
        }
        fn is_remote(&self) -> bool {
            true
        }
    }

    #[test]
    fn torn_record_is_read_again() {
        let expected = [(7, 0x1004), (9, 0x1800), (8, 0x1ffc)];
        let memory = Counted { torn: Some(0x1800), ..Counted::default() };
        read(&memory, &mut expected.clone(), |number, word| {
            let word = word.expect("memory").into();
            assert!(expected.contains(&(number, word)), "{number} {word:#x}");
        });
        assert_eq!(memory.reads.into_inner().unwrap().len(), 3, "two together, one by itself");
    }

    #[test]
    fn records_of_a_page_take_two_reads() {
        let memory = Counted::default();
        let mut wanted =
            [(7, 0x1004), (3, 0x3040), (8, 0x1ffc), (9, 0x1800), (4, 0x5000), (5, 0x5008)];
        let (seen, missing) = (Cell::new(0), Cell::new(0));
        read(&memory, &mut wanted, |number, word| match word {
            Ok(word) => {
                let expected = [(7, 0x1004), (3, 0x3040), (8, 0x1ffc), (9, 0x1800)];
                assert!(expected.contains(&(number, word)), "{number} {word:#x}");
                seen.set(seen.get() + 1);
            }
            Err(_) => missing.set(missing.get() + 1),
        });
        assert_eq!((seen.get(), missing.get()), (4, 2), "each queue is seen");
        let reads = memory.reads.into_inner().unwrap();
        assert_eq!(reads[..3], [(0x1004, 0xffc), (0x1004, 0xffc), (0x3040, 4)]);
        assert_eq!(reads.len(), 6, "and records of a missing page one by one: {reads:x?}");
    }
}
