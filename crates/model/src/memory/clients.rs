//! Host memory that belongs to other processes: a DMA address names the process and an address in
//! it.
//!
//! ```text
//!   63      48 47                                  0
//!   [ number ][ virtual address in that process    ]      number 0: this process
//! ```
//!
//! Bytes are moved by `process_vm_readv` and `process_vm_writev`, or by `/proc/PID/mem`
//! ([`remote`](super::remote)), so that a wild address is a fault and never a crash, and a process
//! that died takes its memory with it. Each call is done before the next begins, so writes become
//! visible in their order. A call costs more than the bytes of most messages; so accesses between
//! `hold` and `release` are batched ([`pending`](super::pending)). A fault then comes too late to
//! fail the message: unreachable memory is skipped. A process on hardware that unmaps registered
//! memory does not see such writes either. But data from one process for another is read at once,
//! so that a message never arrives without its bytes.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use nix::errno::Errno;
use nix::sys::uio::RemoteIoVec;

use super::host::{Fault, HostMemory, IOVA, copy_through};
use super::mover;
use super::pending::{LocalBytes, Pending, RemoteSpace, Stretch};
use super::process::ProcessMemory;
use super::remote::{RemoteMemory, settled_word};
use crate::numbered::Numbered;

/// The bits of a DMA address that hold the address in the process.
const ADDRESS_BITS: u32 = 48;
/// The last process number: higher numbers are for IOMMU addresses, and for memory on the
/// card.
const MAX_PROCESS: u16 = (IOVA >> ADDRESS_BITS) as u16 - 1;
/// Maximum number of stretches that a call moves (IOV_MAX).
const MAX_STRETCHES: usize = 1024;

/// The memories of several processes as one DMA space.
#[derive(Debug, Default)]
pub struct ClientMemory {
    processes: RwLock<ClientTable>,
    /// Delayed transfers, by the thread of the engine that made them.
    waiting: [Mutex<DelayedTransfers>; mover::ALL],
}

/// The processes by number.
#[derive(Debug, Default)]
struct ClientTable {
    /// `None`: the process has ended, and memory keys still name its number.
    by_number: Numbered<u16, Option<RemoteMemory>>,
    /// The last number given. The next one differs, so that a leftover reference to a dead process
    /// does not reach a new one.
    last: u16,
}

/// Delayed transfers, and whether transfers may be delayed.
#[derive(Debug, Default)]
struct DelayedTransfers {
    held: bool,
    pending: Box<Pending>,
}

/// The DMA address at which process `number` has `address`; `None` where no process has memory.
pub fn dma_address(number: u16, address: u64) -> Option<u64> {
    (address >> ADDRESS_BITS == 0).then_some(u64::from(number) << ADDRESS_BITS | address)
}

/// The memory at a DMA address: of this process or of another.
enum Backing {
    Local(u64),
    Remote(RemoteMemory, usize),
}

impl ClientMemory {
    /// Adds a process under an unused number; `None` when there are too many.
    pub fn add(&self, access: RemoteMemory) -> Option<u16> {
        let mut processes = self.processes.write().unwrap_or_else(PoisonError::into_inner);
        let last = processes.last;
        let mut others =
            (last..MAX_PROCESS).chain(0..last.min(MAX_PROCESS)).map(|before| before + 1);
        let number = others.find(|number| !processes.by_number.contains_key(number))?;
        processes.by_number.insert(number, Some(access));
        processes.last = number;
        Some(number)
    }

    /// Ends the memory of a process: its addresses are faults from now on. The number stays taken
    /// until [`ClientMemory::free`], so that a memory key that still names it reaches no other
    /// process.
    pub fn remove(&self, number: u16) {
        let mut processes = self.processes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = processes.by_number.get_mut(&number) {
            *known = None;
        }
    }

    /// Frees the number of a process, which no memory key names any more.
    pub fn free(&self, number: u16) {
        self.processes.write().unwrap_or_else(PoisonError::into_inner).by_number.remove(&number);
    }

    /// Changes the access path to a process's memory. A caller that has locked all functions knows
    /// that no access is in progress.
    pub fn set_remote_memory(&self, number: u16, access: RemoteMemory) {
        let mut processes = self.processes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known @ Some(_)) = processes.by_number.get_mut(&number) {
            *known = Some(access);
        }
    }

    /// The access path to the memory of a known process.
    pub fn remote(&self, number: u16) -> Option<RemoteMemory> {
        let processes = self.processes.read().unwrap_or_else(PoisonError::into_inner);
        processes.by_number.get(&number)?.clone()
    }

    fn resolve(&self, address: u64, length: u64) -> Result<Backing, Fault> {
        let fault = Fault { address, length };
        let number = (address >> ADDRESS_BITS) as u16;
        let within = address & ((1 << ADDRESS_BITS) - 1);
        within.checked_add(length).filter(|end| end >> ADDRESS_BITS == 0).ok_or(fault)?;
        if number == 0 {
            return Ok(Backing::Local(within));
        }
        let access = self.remote(number).ok_or(fault)?;
        Ok(Backing::Remote(access, usize::try_from(within).map_err(|_| fault)?))
    }

    /// Whether it is memory of another process.
    fn is_remote_process(&self, address: u64) -> bool {
        address >> ADDRESS_BITS != 0
    }

    fn waiting(&self) -> MutexGuard<'_, DelayedTransfers> {
        self.waiting[mover::current()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `take` to add pending accesses until it returns true; carries out the pending accesses
    /// whenever it returns false, and at the end unless they may wait.
    fn put(&self, mut take: impl FnMut(&mut Pending) -> bool) -> Result<(), Fault> {
        let mut waiting = self.waiting();
        let mut result = Ok(());
        while !take(&mut waiting.pending) {
            result = result.and(waiting.pending.carry_out(self));
        }
        match waiting.held {
            true => Ok(()),
            false => result.and(waiting.pending.carry_out(self)),
        }
    }

    /// Reads another process's memory at once, without carrying out the pending accesses.
    fn read_now(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let fault = Fault { address, length: into.len() as u64 };
        let Backing::Remote(access, base) = self.resolve(address, fault.length)? else {
            return Err(fault);
        };
        let remote = RemoteIoVec { base, len: into.len() };
        match access.read(into, &[remote]) {
            Ok(done) if done as u64 == fault.length => Ok(()),
            _ => Err(fault),
        }
    }

    /// Carries out the pending accesses.
    fn flush_pending(&self) {
        let mut waiting = self.waiting();
        if let Err(fault) = waiting.pending.carry_out(self) {
            tracing::info!(
                %fault,
                "registered memory of a program was unmapped, or is shared and was made read-only"
            );
        }
    }

    /// Carries out the pending accesses if one of them writes to the range that is about to be
    /// read.
    fn flush_before_reading(&self, address: u64, length: usize) {
        if self.waiting().pending.writes_over(address, length) {
            self.flush_pending();
        }
    }
}

impl RemoteSpace for ClientMemory {
    fn move_all(
        &self,
        stretches: &[Stretch],
        mut bytes: LocalBytes<'_>,
        missed: &mut dyn FnMut(usize),
    ) {
        let (mut first, mut done) = (0, 0);
        while let Some(stretch) = stretches.get(first) {
            let Ok(Backing::Remote(access, _)) =
                self.resolve(stretch.address, stretch.length as u64)
            else {
                missed(first);
                first += 1;
                done += stretch.length;
                continue;
            };
            // The following stretches of the same process go into the same call.
            let number = stretch.address >> ADDRESS_BITS;
            let remote: Vec<RemoteIoVec> = stretches[first..]
                .iter()
                .take(MAX_STRETCHES)
                .map_while(|of| match self.resolve(of.address, of.length as u64) {
                    Ok(Backing::Remote(_, base)) if of.address >> ADDRESS_BITS == number => {
                        Some(RemoteIoVec { base, len: of.length })
                    }
                    _ => None,
                })
                .collect();
            let length: usize = remote.iter().map(|stretch| stretch.len).sum();
            let near = done..done + length;
            let moved = match &mut bytes {
                LocalBytes::Read(bytes) => access.read(&mut bytes[near], &remote),
                LocalBytes::Write(bytes) => access.write(&bytes[near], &remote),
            };
            // The stretch at which it stopped is skipped, and the next call begins after it.
            let mut rest = match moved {
                Ok(moved) => moved,
                Err(Errno::EFAULT) => 0,
                Err(_) => {
                    (first..first + remote.len()).for_each(&mut *missed);
                    first += remote.len();
                    done += length;
                    continue;
                }
            };
            for stretch in remote {
                first += 1;
                done += stretch.len;
                match rest.checked_sub(stretch.len) {
                    Some(left) => rest = left,
                    None => {
                        missed(first - 1);
                        break;
                    }
                }
            }
        }
    }
}

impl HostMemory for ClientMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let length = into.len();
        match self.resolve(address, length as u64)? {
            Backing::Local(address) => ProcessMemory.read(address, into),
            Backing::Remote(_, _) if length == 0 => Ok(()),
            Backing::Remote(..) => {
                self.flush_before_reading(address, length);
                self.read_now(address, into)
            }
        }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        match self.resolve(address, from.len() as u64)? {
            Backing::Local(address) => {
                self.flush_pending();
                ProcessMemory.write(address, from)
            }
            Backing::Remote(..) => {
                let mut done = 0;
                self.put(|pending| {
                    done += pending.write(address + done as u64, &from[done..]);
                    done == from.len()
                })
            }
        }
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        if !address.is_multiple_of(4) {
            return Err(Fault { address, length: 4 });
        }
        match self.resolve(address, 4)? {
            Backing::Local(address) => ProcessMemory.load32(address),
            Backing::Remote(access, base) => {
                self.flush_before_reading(address, 4);
                let fault = Fault { address, length: 4 };
                let word = settled_word(&access, base & !7).ok_or(fault)?.to_ne_bytes();
                let half = word[base & 4..].first_chunk();
                half.map(|half| u32::from_ne_bytes(*half)).ok_or(fault)
            }
        }
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        if !address.is_multiple_of(4) {
            return Err(Fault { address, length: 4 });
        }
        self.flush_pending();
        match self.resolve(address, 4)? {
            Backing::Local(address) => ProcessMemory.store32(address, value),
            Backing::Remote(..) => self.write(address, &value.to_ne_bytes()),
        }
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        self.flush_pending();
        match self.resolve(address, 1)? {
            Backing::Local(address) => ProcessMemory.store8(address, value),
            Backing::Remote(..) => self.write(address, &[value]),
        }
    }

    fn write_entry(&self, address: u64, entry: &[u8]) -> Result<(), Fault> {
        match self.resolve(address, entry.len() as u64)? {
            Backing::Local(address) => {
                self.flush_pending();
                ProcessMemory.write_entry(address, entry)
            }
            Backing::Remote(..) => self.put(|pending| pending.entry(address, entry)),
        }
    }

    /// Atomic among the function's accesses, and not for the client's own processors, as a device
    /// with IB_ATOMIC_HCA promises.
    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        if !address.is_multiple_of(8) {
            return Err(Fault { address, length: 8 });
        }
        self.flush_pending();
        match self.resolve(address, 8)? {
            Backing::Local(address) => ProcessMemory.compare_exchange64(address, expected, new),
            Backing::Remote(access, base) => {
                let found = settled_word(&access, base).ok_or(Fault { address, length: 8 })?;
                if found == expected {
                    self.write(address, &new.to_ne_bytes())?;
                }
                Ok(found)
            }
        }
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        self.resolve(address, length)?;
        let same = std::ptr::addr_eq(self, target);
        if !same || !self.is_remote_process(address) || !self.is_remote_process(target_address) {
            return copy_through(&mut [0; 4096], self, address, target, target_address, length);
        }
        self.resolve(target_address, length)?;
        // A program must not get a message without its bytes: its sender may have ended by the time
        // of a later read.
        let same_process = address >> ADDRESS_BITS == target_address >> ADDRESS_BITS;
        let (mut done, mut read) = (0, Ok(()));
        self.put(|pending| {
            let (from, to, rest) = (address + done, target_address + done, length - done);
            if same_process {
                done += pending.copy(from, to, rest) as u64;
            } else {
                match pending.copy_now(from, to, rest, |bytes| self.read_now(from, bytes)) {
                    Ok(here) => done += here as u64,
                    Err(fault) => read = Err(fault),
                }
            }
            done == length || read.is_err()
        })
        .and(read)
    }

    fn direct(&self, address: u64, length: u64) -> Option<std::ptr::NonNull<u8>> {
        match self.resolve(address, length) {
            Ok(Backing::Local(address)) => ProcessMemory.direct(address, length),
            _ => None,
        }
    }

    fn is_gone(&self, address: u64) -> bool {
        match self.resolve(address & !0xfff, 1) {
            Ok(Backing::Local(_)) => false,
            Ok(Backing::Remote(access, base)) => {
                let remote = RemoteIoVec { base, len: 1 };
                let read = access.read(&mut [0], &[remote]);
                read == Err(Errno::ESRCH)
            }
            Err(_) => true,
        }
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn hold(&self) {
        self.waiting().held = true;
    }

    fn release(&self) {
        self.flush_pending();
        self.waiting().held = false;
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::Pid;

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A client memory with this process under a number, accessed like any other process.
    fn clients() -> (ClientMemory, u16) {
        let memory = ClientMemory::default();
        let number = memory.add(RemoteMemory::Process(Pid::this())).expect("the first of many");
        (memory, number)
    }

    fn at<T>(number: u16, of: &[T]) -> u64 {
        dma_address(number, of.as_ptr() as u64).expect("a user address")
    }

    #[test]
    fn process_memory_is_reached_by_its_number() {
        let (memory, number) = clients();
        let source: Vec<u64> = (0..40_000).collect();
        let target = vec![0u64; 40_000];
        let length = source.len() as u64 * 8;
        memory.copy_to(at(number, &source), &memory, at(number, &target), length).unwrap();
        let mut back = vec![0; length as usize];
        memory.read(at(number, &target), &mut back).unwrap();
        assert!(back.chunks_exact(8).zip(&source).all(|(word, n)| word == n.to_ne_bytes()));
        let word = at(number, &target[1..]);
        assert_eq!(memory.load32(word), Ok(1));
        memory.store32(word + 4, 0x1122_3344).unwrap();
        assert_eq!(memory.load32(word + 4), Ok(0x1122_3344));
        memory.store8(word + 7, 0x55).unwrap();
        assert_eq!(memory.load32(word + 4), Ok(0x5522_3344));
        assert_eq!(memory.compare_exchange64(word, 7, 8), Ok(0x5522_3344_0000_0001));
        assert_eq!(
            memory.compare_exchange64(word, 0x5522_3344_0000_0001, 8),
            Ok(0x5522_3344_0000_0001)
        );
        assert_eq!(memory.load32(word), Ok(8));
        assert!(memory.load32(word + 2).is_err());
        assert!(memory.compare_exchange64(word + 4, 0, 0).is_err());
    }

    #[test]
    fn process_number_0_is_this_process() {
        let (memory, _) = clients();
        let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
        let mut back = [0; 8];
        memory.read(at(0, &bytes), &mut back).unwrap();
        assert_eq!(back, bytes);
        assert!(memory.direct(at(0, &bytes), 8).is_some());
    }

    #[test]
    fn wild_addresses_and_removed_processes_fault() {
        let (memory, number) = clients();
        let bytes = [0u8; 8];
        let wild = dma_address(number, 64).expect("a user address");
        assert!(memory.read(wild, &mut [0; 8]).is_err());
        assert!(memory.write(wild, &[0; 8]).is_err());
        assert!(memory.load32(wild).is_err());
        assert!(memory.read((1 << 48) - 4, &mut [0; 8]).is_err(), "into the next number");
        assert!(memory.copy_to(u64::MAX - 3, &memory, at(number, &bytes), 8).is_err());
        assert!(memory.direct(at(number, &bytes), 8).is_none());
        memory.remove(number);
        assert!(memory.read(at(number, &bytes), &mut [0; 8]).is_err());
        assert_eq!(dma_address(1, 1 << 48), None);
    }

    #[test]
    fn number_of_ended_process_is_not_reused_soon() {
        let (memory, own) = clients();
        let bytes = [0u8; 8];
        assert!(!memory.is_gone(at(own, &bytes)) && !memory.is_gone(at(0, &bytes)));
        assert!(
            !memory.is_gone(dma_address(own, 64).expect("a user address")),
            "a fault is not death"
        );
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let pid = Pid::from_raw(child.id() as i32);
        let number = memory.add(RemoteMemory::Process(pid)).expect("the second of many");
        child.wait().expect("the child ends");
        assert!(memory.is_gone(at(number, &bytes)));
        memory.free(number);
        assert!(memory.is_gone(at(number, &bytes)));
        for _ in 0..u16::MAX - 4 {
            let other = memory.add(RemoteMemory::Process(pid)).expect("there are many");
            assert_ne!(other, number);
            memory.free(other);
        }
        assert_eq!(memory.add(RemoteMemory::Process(pid)), Some(number));
        assert_ne!(memory.add(RemoteMemory::Process(pid)), Some(own));
    }

    #[test]
    fn number_of_ended_process_stays_taken_while_registered() {
        let (memory, own) = clients();
        let bytes = [0u8; 8];
        let number = memory.add(RemoteMemory::Process(Pid::this())).expect("the second of many");
        memory.remove(number);
        assert!(memory.is_gone(at(number, &bytes)) && !memory.is_gone(at(own, &bytes)));
        // Every other number comes once, and this one does not.
        let others = std::iter::from_fn(|| memory.add(RemoteMemory::Process(Pid::this())));
        assert!(others.into_iter().all(|other| other != number));
        memory.set_remote_memory(number, RemoteMemory::Process(Pid::this()));
        assert!(memory.read(at(number, &bytes), &mut [0; 8]).is_err());
        memory.free(number);
        assert_eq!(memory.add(RemoteMemory::Process(Pid::this())), Some(number));
    }

    #[test]
    fn pending_writes_are_visible_to_reads() {
        let (memory, number) = clients();
        let words: Vec<AtomicU64> = (0..64).map(AtomicU64::new).collect();
        let [from, to, entry] = [1, 9, 17].map(|word| at(number, &words[word..]));
        memory.hold();
        memory.copy_to(from, &memory, to, 16).unwrap();
        memory.write_entry(entry, &[0xab; 64]).unwrap();
        let now = |word: usize| words[word].load(Ordering::Relaxed);
        assert_eq!((now(9), now(17)), (9, 17), "nothing is written yet");
        assert_eq!(memory.load32(to), Ok(1));
        assert_eq!((now(9), now(10)), (1, 2), "a read writes pending data first");
        memory.copy_to(from, &memory, at(number, &words[40..]), 8).unwrap();
        assert_eq!(now(40), 40);
        memory.release();
        assert_eq!((now(40), now(17), now(24)), (1, 0xabab_abab_abab_abab, 0xabab_abab_abab_abab));
        memory.copy_to(from, &memory, at(number, &words[41..]), 8).unwrap();
        assert_eq!(now(41), 1, "nothing is delayed after release");
    }

    #[test]
    fn visible_entry_implies_visible_payload() {
        const MESSAGES: usize = 2000;
        let (memory, number) = clients();
        let source: Vec<u64> = (1..=MESSAGES as u64).collect();
        let fresh = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (payload, entries) = (fresh(MESSAGES), fresh(8 * MESSAGES));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for message in 0..MESSAGES {
                    let seen = |word: usize| entries[8 * message + word].load(Ordering::Acquire);
                    while seen(7) >> 56 == 0 {
                        std::hint::spin_loop();
                    }
                    assert_eq!(seen(0), 0x0101_0101_0101_0101, "the body of entry {message}");
                    assert_eq!(payload[message].load(Ordering::Acquire), message as u64 + 1);
                }
            });
            for some in (0..MESSAGES).collect::<Vec<_>>().chunks(50) {
                memory.hold();
                for &message in some {
                    let [from, to] =
                        [at(number, &source[message..]), at(number, &payload[message..])];
                    memory.copy_to(from, &memory, to, 8).unwrap();
                    memory.write_entry(at(number, &entries[8 * message..]), &[1; 64]).unwrap();
                }
                memory.release();
            }
        });
    }

    #[test]
    fn copy_to_other_process_reads_source_at_once() {
        let (memory, here) = clients();
        let there = memory
            .add(RemoteMemory::Process(Pid::this()))
            .expect("another number for the same process");
        let words: Vec<AtomicU64> = (0..8).map(AtomicU64::new).collect();
        memory.hold();
        memory.copy_to(at(here, &words[1..]), &memory, at(there, &words[5..]), 8).unwrap();
        words[1].store(77, Ordering::Relaxed);
        let wild = dma_address(here, 64).expect("a user address");
        assert!(memory.copy_to(wild, &memory, at(there, &words[6..]), 8).is_err());
        memory.release();
        let now = |word: usize| words[word].load(Ordering::Relaxed);
        assert_eq!((now(5), now(6)), (1, 6));
    }

    #[test]
    fn unreachable_stretches_are_skipped() {
        let (memory, number) = clients();
        let words: Vec<AtomicU64> = (0..8).map(AtomicU64::new).collect();
        let wild = dma_address(number, 64).expect("a user address");
        let absent = dma_address(number + 1, 64).expect("a user address");
        for bad in [wild, absent] {
            memory.hold();
            for (word, to) in [(1, 5), (2, 6)] {
                let [from, to] = [word, to].map(|word: usize| at(number, &words[word..]));
                let fourth = at(number, &words[4..]);
                for (from, to) in [(from, bad), (bad, fourth), (from, to)] {
                    let known = memory.copy_to(from, &memory, to, 8).is_err();
                    assert_eq!(known, bad == absent && (from == bad || to == bad));
                }
            }
            memory.release();
            let now: Vec<u64> = words.iter().map(|word| word.swap(7, Ordering::Relaxed)).collect();
            assert_eq!(now[4..7], [4, 1, 2]);
            words.iter().zip(0..).for_each(|(word, n)| word.store(n, Ordering::Relaxed));
        }
        assert!(memory.copy_to(at(number, &words), &memory, wild, 8).is_err());
    }
}
