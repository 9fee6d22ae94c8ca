//! Host memory of this process: a DMA address is a virtual address here.
//!
//! The device uses addresses unchecked, like a PCI device with an identity IOMMU. The front end
//! makes that safe. An address reaches a page list only after [`probe`] found the whole range
//! mapped with the access that its registration grants. The registering caller promises (through
//! the `unsafe` of `umem_reg`) to keep it mapped until it is deregistered.
// Copies that race with the client's own accesses need raw pointers.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;

use super::host::{Fault, HostMemory, copy_through};
use super::remote::RemoteMemory;

/// This process's own memory, for DMA.
#[derive(Debug, Default, Clone, Copy)]
pub struct ProcessMemory;

/// Addresses below this are never memory of a user process; a null page list entry or record is
/// below it.
const USER_START: u64 = 0x1000;
/// User addresses end here on both supported architectures (47 and 48 bits; the wider one).
const USER_END: u64 = 1 << 48;

/// Refuses addresses outside user memory, so that a zeroed or wild page list is a fault and not a
/// crash.
#[inline]
fn check_user_range(address: u64, length: u64) -> Result<(), Fault> {
    let end = address.checked_add(length);
    if address >= USER_START && end.is_some_and(|end| end <= USER_END) {
        Ok(())
    } else {
        Err(Fault { address, length })
    }
}

#[inline]
fn aligned(address: u64, size: u64) -> Result<(), Fault> {
    check_user_range(address, size)?;
    if address.is_multiple_of(size) { Ok(()) } else { Err(Fault { address, length: size }) }
}

/// Copies between two ranges that other threads may be writing and that may overlap, lowest address
/// first.
///
/// # Safety
/// Both ranges are mapped, the source readable and the target writable.
#[inline]
pub(super) unsafe fn racing_copy(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    if length > 128 {
        // SAFETY: the caller guarantees both ranges. The string move is one opaque access to the
        // compiler, so that a concurrent writer changes only the bytes that arrive. The direction
        // flag is clear by the ABI.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") length => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    let mut at = 0;
    // Copies whole words where both sides allow it: the word that a client polls (at the end of a
    // message) arrives whole.
    if (from as usize | to as usize).is_multiple_of(8) {
        while at + 8 <= length {
            // SAFETY: within the ranges, and aligned as just checked; atomics, so there is no data
            // race.
            unsafe {
                let word =
                    AtomicU64::from_ptr(from.add(at).cast_mut().cast()).load(Ordering::Relaxed);
                AtomicU64::from_ptr(to.add(at).cast()).store(word, Ordering::Relaxed);
            }
            at += 8;
        }
    }
    while at < length {
        // SAFETY: within the ranges; atomics, as above.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
        }
        at += 1;
    }
}

impl HostMemory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        check_user_range(address, into.len() as u64)?;
        // SAFETY: the range was probed at registration (module doc); `into` is ours.
        unsafe { racing_copy(address as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        check_user_range(address, from.len() as u64)?;
        // SAFETY: as in `read`.
        unsafe { racing_copy(from.as_ptr(), address as *mut u8, from.len()) };
        Ok(())
    }

    fn load32(&self, address: u64) -> Result<u32, Fault> {
        aligned(address, 4)?;
        // SAFETY: aligned, probed at registration, and our side accesses it by atomics only.
        Ok(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire))
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        aligned(address, 4)?;
        // SAFETY: as in `load32`.
        unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value, Ordering::Release);
        Ok(())
    }

    fn store8(&self, address: u64, value: u8) -> Result<(), Fault> {
        check_user_range(address, 1)?;
        // SAFETY: as in `load32`.
        unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_exchange64(&self, address: u64, expected: u64, new: u64) -> Result<u64, Fault> {
        aligned(address, 8)?;
        // SAFETY: as in `load32`.
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        Ok(word
            .compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found))
    }

    fn copy_to(
        &self,
        address: u64,
        target: &dyn HostMemory,
        target_address: u64,
        length: u64,
    ) -> Result<(), Fault> {
        check_user_range(address, length)?;
        if let Some(to) = target.direct(target_address, length) {
            // SAFETY: the source was probed at registration; `direct` guarantees the target.
            unsafe { racing_copy(address as *const u8, to.as_ptr(), length as usize) };
            return Ok(());
        }
        copy_through(&mut [0; 4096], self, address, target, target_address, length)
    }

    fn direct(&self, address: u64, length: u64) -> Option<NonNull<u8>> {
        check_user_range(address, length).ok()?;
        NonNull::new(address as *mut u8)
    }
}

/// Checks that a range of this process is mapped and readable (and writable, if `writable`), and
/// faults its pages in, as the pinning of a registration does.
///
/// A range that is empty, wraps, or has a page that is missing or lacks the permission is a
/// [`Fault`] that names the range.
pub fn probe(address: u64, length: u64, writable: bool) -> Result<(), Fault> {
    let fault = Fault { address, length };
    if length == 0 {
        return Err(fault);
    }
    check_user_range(address, length)?;
    // SAFETY: sysconf has no memory effects.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let first = address & !(page - 1);
    let end = (address + length).next_multiple_of(page);
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    if !populates() {
        return probe_pages(first, end, page, writable).ok_or(fault);
    }
    // SAFETY: populating changes no contents: it faults pages in, or fails.
    let result =
        unsafe { libc::madvise(first as *mut libc::c_void, (end - first) as usize, advice) };
    if result == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // A kernel before 5.14, or a mapping that cannot be populated: probe each page instead.
        Some(libc::EINVAL) => probe_pages(first, end, page, writable).ok_or(fault),
        _ => Err(fault),
    }
}

/// Reads one byte of each page through the kernel; checks write permission in the list of mappings.
fn probe_pages(first: u64, end: u64, page: u64, writable: bool) -> Option<()> {
    if writable && !mapped_writable(first, end) {
        return None;
    }
    let own = RemoteMemory::Process(Pid::this());
    let mut byte = [0u8; 256];
    let mut at = first;
    while at < end {
        let count = ((end - at) / page).min(byte.len() as u64) as usize;
        let bytes: Vec<RemoteIoVec> = (0..count as u64)
            .map(|i| RemoteIoVec { base: (at + i * page) as usize, len: 1 })
            .collect();
        if own.read(&mut byte[..count], &bytes) != Ok(count) {
            return None;
        }
        at += count as u64 * page;
    }
    Some(())
}

/// Whether madvise populates pages. QEMU's user mode takes every advice and does nothing.
fn populates() -> bool {
    static POPULATES: OnceLock<bool> = OnceLock::new();
    // SAFETY: nothing is mapped at these addresses, so that the call changes nothing, and must
    // fail.
    *POPULATES.get_or_init(|| unsafe {
        libc::madvise(std::ptr::null_mut(), USER_START as usize, libc::MADV_POPULATE_READ) != 0
    })
}

/// Whether /proc/self/maps shows the whole range as writable.
fn mapped_writable(first: u64, end: u64) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut covered = first;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(permissions)) = (words.next(), words.next()) else { continue };
        let Some((low, high)) = range.split_once('-') else { continue };
        let (Ok(low), Ok(high)) = (u64::from_str_radix(low, 16), u64::from_str_radix(high, 16))
        else {
            continue;
        };
        if low <= covered && covered < high && permissions.as_bytes().get(1) == Some(&b'w') {
            covered = high;
        }
        if covered >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address<T>(of: &T) -> u64 {
        std::ptr::from_ref(of) as u64
    }

    #[test]
    fn copies_of_every_length_and_alignment_arrive_whole() {
        let memory = ProcessMemory;
        let source: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
        for offset in [0usize, 1, 3, 8, 13] {
            for length in [0usize, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 500, 1000] {
                let mut target = vec![0xa5u8; 1024];
                let to = target.as_mut_ptr() as u64 + offset as u64;
                memory.copy_to(source.as_ptr() as u64, &memory, to, length as u64).unwrap();
                assert_eq!(target[offset..offset + length], source[..length]);
                assert!(target[offset + length..].iter().all(|&byte| byte == 0xa5));
                let mut back = vec![0; length];
                memory.read(to, &mut back).unwrap();
                assert_eq!(back, source[..length]);
            }
        }
    }

    #[test]
    fn words_keep_their_byte_order() {
        let memory = ProcessMemory;
        let word = AtomicU64::new(0);
        memory.store32(address(&word), 0x1122_3344u32.to_be()).unwrap();
        assert_eq!(u32::from_be(memory.load32(address(&word)).unwrap()), 0x1122_3344);
        memory.store8(address(&word) + 3, 0x55).unwrap();
        assert_eq!(u32::from_be(memory.load32(address(&word)).unwrap()), 0x1122_3355);
        word.store(5, Ordering::Relaxed);
        assert_eq!(memory.compare_exchange64(address(&word), 4, 9), Ok(5));
        assert_eq!(memory.compare_exchange64(address(&word), 5, 9), Ok(5));
        assert_eq!(word.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn impossible_addresses_fault() {
        let memory = ProcessMemory;
        for address in [0, 8, 0xfff, 1 << 48, u64::MAX, u64::MAX - 7] {
            assert!(memory.read(address, &mut [0; 8]).is_err(), "{address:#x}");
            assert!(memory.write(address, &[0; 8]).is_err(), "{address:#x}");
            assert!(memory.load32(address & !3).is_err(), "{address:#x}");
            assert!(memory.direct(address, 8).is_none(), "{address:#x}");
        }
        let word = 0u64;
        assert!(memory.load32(address(&word) + 1).is_err(), "misaligned");
    }

    #[test]
    fn probe_checks_mapping_and_write_permission() {
        // SAFETY: a fresh anonymous mapping, unmapped below.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                3 * 4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let base = at as u64;
        assert_eq!(probe(base + 5, 2 * 4096, true), Ok(()));
        // SAFETY: our own mapping; nothing borrows it.
        unsafe { libc::mprotect((base + 4096) as *mut libc::c_void, 4096, libc::PROT_READ) };
        assert_eq!(probe(base, 3 * 4096, false), Ok(()));
        assert_eq!(probe(base, 3 * 4096, true), Err(Fault { address: base, length: 3 * 4096 }));
        assert!(probe_pages(base, base + 3 * 4096, 4096, false).is_some());
        assert!(probe_pages(base, base + 3 * 4096, 4096, true).is_none());
        // SAFETY: as above.
        unsafe { libc::munmap((base + 4096) as *mut libc::c_void, 4096) };
        assert!(probe(base, 3 * 4096, false).is_err());
        assert!(probe_pages(base, base + 3 * 4096, 4096, false).is_none());
        assert_eq!(probe(base, 4096, true), Ok(()));
        assert!(probe(base, 0, false).is_err(), "empty");
        assert!(probe(u64::MAX - 100, 4096, false).is_err(), "wraps");
        // SAFETY: as above.
        unsafe { libc::munmap(at, 3 * 4096) };
    }
}
