//! Host memory that is that of other processes: a DMA address names the process and an address of its own.
//!
//! ```text
//!   63      48 47                                  0
//!   [ number ][ virtual address in that process    ]      number 0: this process
//! ```
//!
//! Bytes are moved by `process_vm_readv` and `process_vm_writev`, so that a wild address is a fault and never a crash, and
//! a process that died takes its memory with it. Each call is done before the next begins: what is written first
//! is visible first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{PoisonError, RwLock};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use super::{Fault, HostMemory, ProcessMemory};

/// Bits of a DMA address that are an address in its process.
const ADDRESS_BITS: u32 = 48;
/// Bytes that are moved at a time between two processes.
const BOUNCE: usize = 128 << 10;
/// How often a word that changes while it is read is read again.
const TRIES: u32 = 64;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BOUNCE].into());
}

/// The memories of several processes as one DMA space.
#[derive(Debug, Default)]
pub struct ClientMemory {
    processes: RwLock<Numbers>,
}

/// Who has which number.
#[derive(Debug, Default)]
struct Numbers {
    taken: BTreeMap<u16, Pid>,
    /// The last that was given. The next one is another, so that what is left of a dead process does not lead into the
    /// next that comes.
    last: u16,
}

/// The DMA address at which process `number` has `address`; `None` where no process has memory.
pub(crate) fn dma_address(number: u16, address: u64) -> Option<u64> {
    (address >> ADDRESS_BITS == 0).then_some(u64::from(number) << ADDRESS_BITS | address)
}

/// Where an address leads.
enum Place {
    Here(u64),
    There(Pid, usize),
}

impl ClientMemory {
    /// Takes a process in, and gives it a number that no other has; `None` when there are too many.
    pub(crate) fn add(&self, pid: Pid) -> Option<u16> {
        let mut processes = self.processes.write().unwrap_or_else(PoisonError::into_inner);
        let last = processes.last;
        let mut others = (last..u16::MAX).chain(0..last).map(|before| before + 1);
        let number = others.find(|number| !processes.taken.contains_key(number))?;
        processes.taken.insert(number, pid);
        processes.last = number;
        Some(number)
    }

    /// Forgets a process: its addresses are faults from now on.
    pub(crate) fn remove(&self, number: u16) {
        self.processes.write().unwrap_or_else(PoisonError::into_inner).taken.remove(&number);
    }

    fn place(&self, address: u64, length: u64) -> Result<Place, Fault> {
        let fault = Fault { address, length };
        let number = (address >> ADDRESS_BITS) as u16;
        let within = address & ((1 << ADDRESS_BITS) - 1);
        within.checked_add(length).filter(|end| end >> ADDRESS_BITS == 0).ok_or(fault)?;
        if number == 0 {
            return Ok(Place::Here(within));
        }
        let processes = self.processes.read().unwrap_or_else(PoisonError::into_inner);
        let &pid = processes.taken.get(&number).ok_or(fault)?;
        Ok(Place::There(pid, usize::try_from(within).map_err(|_| fault)?))
    }

    /// The aligned 64-bit word that holds `address`, as a client stored it whole.
    ///
    /// Nothing says how the system copies eight bytes, and a word that changes meanwhile might arrive in parts of two
    /// values. So it is read twice in one call, until both are the same.
    fn word(&self, address: u64, pid: Pid, base: usize) -> Result<u64, Fault> {
        let fault = Fault { address, length: 8 };
        let mut words = [0u8; 16];
        for _ in 0..TRIES {
            let remote = RemoteIoVec { base, len: 8 };
            let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut words)], &[remote, remote]);
            if read != Ok(16) {
                return Err(fault);
            }
            let (first, second) = words.split_at(8);
            if first == second {
                break;
            }
        }
        words.first_chunk().map(|word| u64::from_ne_bytes(*word)).ok_or(fault)
    }
}

impl HostMemory for ClientMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let length = into.len();
        match self.place(address, length as u64)? {
            Place::Here(address) => ProcessMemory.read(address, into),
            Place::There(_, _) if length == 0 => Ok(()),
            Place::There(pid, base) => {
                let remote = RemoteIoVec { base, len: length };
                match process_vm_readv(pid, &mut [IoSliceMut::new(into)], &[remote]) {
                    Ok(done) if done == length => Ok(()),
                    _ => Err(Fault { address, length: length as u64 }),
                }
            }
        }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let length = from.len();
        match self.place(address, length as u64)? {
            Place::Here(address) => ProcessMemory.write(address, from),
            Place::There(_, _) if length == 0 => Ok(()),
            Place::There(pid, base) => {
                let remote = RemoteIoVec { base, len: length };
                match process_vm_writev(pid, &[IoSlice::new(from)], &[remote]) {
                    Ok(done) if done == length => Ok(()),
                    _ => Err(Fault { address, length: length as u64 }),
                }
            }
        }
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        if !address.is_multiple_of(4) {
            return Err(Fault { address, length: 4 });
        }
        match self.place(address, 4)? {
            Place::Here(address) => ProcessMemory.load32(address),
            Place::There(pid, base) => {
                let word = self.word(address, pid, base & !7)?.to_ne_bytes();
                let half = word[base & 4..].first_chunk();
                half.map(|half| u32::from_ne_bytes(*half)).ok_or(Fault { address, length: 4 })
            }
        }
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        if !address.is_multiple_of(4) {
            return Err(Fault { address, length: 4 });
        }
        match self.place(address, 4)? {
            Place::Here(address) => ProcessMemory.store32(address, value),
            Place::There(..) => self.write(address, &value.to_ne_bytes()),
        }
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        match self.place(address, 1)? {
            Place::Here(address) => ProcessMemory.store8(address, value),
            Place::There(..) => self.write(address, &[value]),
        }
    }

    /// Atomic for the devices of the model, which have one lock, and not for the client's own processors: what a device
    /// that says IB_ATOMIC_HCA promises.
    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        if !address.is_multiple_of(8) {
            return Err(Fault { address, length: 8 });
        }
        match self.place(address, 8)? {
            Place::Here(address) => ProcessMemory.compare_exchange64(address, expected, new),
            Place::There(pid, base) => {
                let found = self.word(address, pid, base)?;
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
        let fault = Fault { address, length };
        address.checked_add(length).ok_or(fault)?;
        target_address.checked_add(length).ok_or(Fault { address: target_address, length })?;
        BUFFER.with_borrow_mut(|buffer| {
            let mut done = 0;
            while done < length {
                let here = (length - done).min(BOUNCE as u64);
                let part = &mut buffer[..here as usize];
                self.read(address + done, part)?;
                target.write(target_address + done, part)?;
                done += here;
            }
            Ok(())
        })
    }

    fn direct(&self, address: u64, length: u64) -> Option<std::ptr::NonNull<u8>> {
        match self.place(address, length) {
            Ok(Place::Here(address)) => ProcessMemory.direct(address, length),
            _ => None,
        }
    }

    fn is_gone(&self, address: u64) -> bool {
        match self.place(address & !0xfff, 1) {
            Ok(Place::Here(_)) => false,
            Ok(Place::There(pid, base)) => {
                let remote = RemoteIoVec { base, len: 1 };
                let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut [0])], &[remote]);
                read == Err(Errno::ESRCH)
            }
            Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process under a number, which goes the way of all others.
    fn clients() -> (ClientMemory, u16) {
        let memory = ClientMemory::default();
        let number = memory.add(Pid::this()).expect("the first of many");
        (memory, number)
    }

    fn at<T>(number: u16, of: &[T]) -> u64 {
        dma_address(number, of.as_ptr() as u64).expect("a user address")
    }

    #[test]
    fn bytes_and_words_of_a_process_are_reached_by_its_number() {
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
    fn number_0_is_this_process_itself() {
        let (memory, _) = clients();
        let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
        let mut back = [0; 8];
        memory.read(at(0, &bytes), &mut back).unwrap();
        assert_eq!(back, bytes);
        assert!(memory.direct(at(0, &bytes), 8).is_some());
    }

    #[test]
    fn wild_addresses_and_processes_that_left_are_faults() {
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
    fn a_process_that_ended_is_gone_and_leaves_its_number_to_nobody_soon() {
        let (memory, own) = clients();
        let bytes = [0u8; 8];
        assert!(!memory.is_gone(at(own, &bytes)) && !memory.is_gone(at(0, &bytes)));
        assert!(
            !memory.is_gone(dma_address(own, 64).expect("a user address")),
            "a fault is not death"
        );
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let pid = Pid::from_raw(child.id() as i32);
        let number = memory.add(pid).expect("the second of many");
        child.wait().expect("it ends");
        assert!(memory.is_gone(at(number, &bytes)));
        memory.remove(number);
        assert!(memory.is_gone(at(number, &bytes)));
        for _ in 0..u16::MAX - 2 {
            let other = memory.add(pid).expect("there are many");
            assert_ne!(other, number);
            memory.remove(other);
        }
        assert_eq!(memory.add(pid), Some(number));
        assert_ne!(memory.add(pid), Some(own));
    }
}
