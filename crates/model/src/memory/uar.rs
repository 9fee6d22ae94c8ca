//! The UAR pages of a function: doorbell registers that clients map and the engine reads.
//!
//! The pages are one memfd. A front end maps a page of it into its client; the engine maps all of
//! it. A register is memory here: the client stores into it, and the engine takes the value by an
//! atomic swap with 0, so that two stores of one value count twice.
// Raw pointers to registers that another mapping of the same memory writes.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::mapping::Mapping;

/// Bytes of one UAR page.
pub const UAR_PAGE: u64 = 4096;

/// Offset of the 64-bit CQ arm doorbell in a page.
pub(crate) const CQ_ARM: u64 = 0x20;
/// EQ consumer index with arming: the first half of the register is significant.
pub(crate) const EQ_ARM: u64 = 0x40;
/// EQ consumer index without arming, as at [`EQ_ARM`].
pub(crate) const EQ_CONSUMER: u64 = 0x48;
/// First BlueFlame buffer, of [`BLUEFLAME_BUFFERS`], [`BLUEFLAME_STRIDE`] apart. The first 64 bits
/// of each are the doorbell of an SQ.
pub(crate) const BLUEFLAME: u64 = 0x800;
pub(crate) const BLUEFLAME_STRIDE: u64 = 0x100;
pub(crate) const BLUEFLAME_BUFFERS: u64 = 8;

/// The UAR pages of one function.
#[derive(Debug)]
pub struct UarSpace {
    /// The memory of all pages that nothing else backs.
    file: Mutex<Arc<OwnedFd>>,
    /// Accessed by atomics only.
    mapping: Mapping,
    pages: u32,
    /// One bit per page: whether it is allocated, so that the engine must read it.
    allocated: Box<[AtomicU64]>,
    /// One bit per word of `allocated`: whether a page of it was ever allocated.
    used: Box<[AtomicU64]>,
}

impl UarSpace {
    /// A space of `pages` pages (at least one) of zeros.
    ///
    /// # Panics
    /// When the system provides no memfd, or cannot map it.
    pub fn new(pages: u32) -> Self {
        Self::try_new(pages.max(1)).expect("a memfd for the UAR pages")
    }

    fn try_new(pages: u32) -> io::Result<Self> {
        let file = new_file(pages)?;
        let mapping = Mapping::of(&file, 0, pages as usize * UAR_PAGE as usize, true)?;
        let bits = |count: u32| (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (allocated, used) = (bits(pages), bits(pages.div_ceil(64)));
        Ok(Self { file: Mutex::new(Arc::new(file)), mapping, pages, allocated, used })
    }

    /// Gives all pages new memory of zeros, those with a backing too; returns its file. Stores into
    /// mappings of the old memory have no effect from here on.
    pub(crate) fn renew(&self) -> io::Result<Arc<OwnedFd>> {
        let new = Arc::new(new_file(self.pages)?);
        let mut file = self.lock_file();
        self.replace(0..self.pages, new.as_fd(), 0)?;
        *file = new.clone();
        Ok(new)
    }

    fn lock_file(&self) -> MutexGuard<'_, Arc<OwnedFd>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The file; a client maps its page from offset page × [`UAR_PAGE`].
    pub fn file(&self) -> Arc<OwnedFd> {
        self.lock_file().clone()
    }

    /// Replaces a page by a page of another file, at `offset`: a client maps it from there.
    ///
    /// The file must be sealed against shrinking, or its owner could take the page away from under
    /// the engine.
    pub fn back(&self, page: u32, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate)?;
        let size = nix::sys::stat::fstat(file)?.st_size;
        let end = offset.checked_add(UAR_PAGE).and_then(|end| i64::try_from(end).ok());
        let within = end.is_some_and(|end| end <= size);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || !within || page >= self.pages {
            return Err(Errno::EINVAL);
        }
        self.replace(page..page + 1, file, offset as i64)
    }

    /// Restores a page to this space's own file.
    pub fn unback(&self, page: u32) -> Result<(), Errno> {
        if page >= self.pages {
            return Err(Errno::EINVAL);
        }
        let file = self.lock_file();
        self.replace(page..page + 1, file.as_fd(), (u64::from(page) * UAR_PAGE) as i64)
    }

    /// Maps `pages`, which exist, from `offset` of a file on.
    fn replace(&self, pages: Range<u32>, file: BorrowedFd<'_>, offset: i64) -> Result<(), Errno> {
        let at = self.mapping.as_ptr() as usize + (u64::from(pages.start) * UAR_PAGE) as usize;
        let length = pages.len() as u64 * UAR_PAGE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: this replaces pages within our own mapping by other shared ones, atomically for
        // every reader. Our side accesses their words by atomics only. `back` accepts only a sealed
        // file that holds the page, and `new_file` makes such files, so the pages exist as long as
        // they are mapped. It avoids libc's function, which the thread sanitizer takes for a write
        // of the pages' words.
        Errno::result(unsafe {
            libc::syscall(libc::SYS_mmap, at, length, protection, flags, file.as_raw_fd(), offset)
        })?;
        Ok(())
    }

    /// Marks a page as allocated or free; clears its registers in both cases.
    pub(crate) fn set_allocated(&self, page: u32, allocated: bool) {
        if page >= self.pages {
            return;
        }
        let index = page as usize / 64;
        let (word, bit) = (&self.allocated[index], 1 << (page % 64));
        if allocated {
            self.clear(page);
            word.fetch_or(bit, Ordering::AcqRel);
            self.used[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
            self.clear(page);
        }
    }

    fn clear(&self, page: u32) {
        for offset in (0..UAR_PAGE).step_by(8) {
            self.register64(page, offset).store(0, Ordering::Relaxed);
        }
    }

    /// Calls `visit` with each allocated page, in order.
    #[inline]
    pub(crate) fn for_each_allocated(&self, mut visit: impl FnMut(u32)) {
        for_each_bit(&self.used, |word| {
            for_each_bit(&self.allocated[word..=word], |bit| visit((word * 64 + bit) as u32));
        });
    }

    /// Whether any doorbell of an allocated page is set. Needs no lock.
    pub(crate) fn rung(&self) -> bool {
        let mut rung = false;
        self.for_each_allocated(|page| rung = rung || self.page_rung(page));
        rung
    }

    /// Whether any doorbell of this page is set.
    #[inline]
    pub(crate) fn page_rung(&self, page: u32) -> bool {
        let waiting = |offset| self.register64(page, offset).load(Ordering::Relaxed) != 0;
        (0..BLUEFLAME_BUFFERS).any(|k| waiting(BLUEFLAME + k * BLUEFLAME_STRIDE))
            || waiting(CQ_ARM)
            || waiting(EQ_ARM)
            || waiting(EQ_CONSUMER)
    }

    /// Takes a 64-bit register: returns its value as big-endian and clears it. 0 means that no
    /// client rang.
    #[inline]
    pub(crate) fn take64(&self, page: u32, offset: u64) -> u64 {
        let register = self.register64(page, offset);
        if register.load(Ordering::Relaxed) == 0 {
            return 0; // the idle scan must not dirty the line
        }
        u64::from_be(register.swap(0, Ordering::AcqRel))
    }

    /// Clears a register if `which` holds for its value; true if it did.
    pub(crate) fn clear64_if(&self, page: u32, offset: u64, which: impl Fn(u64) -> bool) -> bool {
        if page >= self.pages {
            return false;
        }
        let register = self.register64(page, offset);
        let value = register.load(Ordering::Relaxed);
        value != 0
            && which(u64::from_be(value))
            && register.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Stores a register as a client would, without a mapping.
    #[cfg(any(test, fuzzing))]
    pub fn store64(&self, page: u32, offset: u64, value: u64) {
        self.register64(page, offset).store(value.to_be(), Ordering::Release);
    }

    #[inline]
    fn register64(&self, page: u32, offset: u64) -> &AtomicU64 {
        assert!(page < self.pages && offset < UAR_PAGE && offset.is_multiple_of(8));
        // SAFETY: within the mapping and aligned, as just checked; accessed by atomics only.
        unsafe {
            AtomicU64::from_ptr(
                self.mapping.as_ptr().add((u64::from(page) * UAR_PAGE + offset) as usize).cast(),
            )
        }
    }
}

/// A file of `pages` UAR pages of zeros.
fn new_file(pages: u32) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(c"verbless-uar", flags)?;
    let length = u64::from(pages) * UAR_PAGE;
    nix::unistd::ftruncate(&file, i64::try_from(length).map_err(io::Error::other)?)?;
    // Clients get the file to map a page of it: no client may shrink it under the engine.
    let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(size))?;
    Ok(file)
}

/// Calls `visit` with the number of each set bit, in order.
#[inline]
fn for_each_bit(words: &[AtomicU64], mut visit: impl FnMut(usize)) {
    for (index, word) in words.iter().enumerate() {
        let mut bits = word.load(Ordering::Acquire);
        while bits != 0 {
            visit(index * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_doorbell_store_counts_twice() {
        let space = UarSpace::new(4);
        space.set_allocated(2, true);
        assert!(!space.rung());
        for _ in 0..2 {
            space.store64(2, BLUEFLAME + 0x100, 0x1234_5678_9abc_def0);
            assert!(space.rung());
            assert_eq!(space.take64(2, BLUEFLAME + 0x100), 0x1234_5678_9abc_def0);
            assert_eq!(space.take64(2, BLUEFLAME + 0x100), 0);
            assert!(!space.rung());
        }
    }

    #[test]
    fn sealed_file_page_backs_a_uar_page() {
        let space = UarSpace::new(4);
        let file = memfd_create(c"client", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, 0x3000).unwrap();
        assert_eq!(space.back(1, file.as_fd(), 0x1000), Err(Errno::EINVAL), "not sealed");
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        for (page, offset) in [(1, 0x3000), (1, u64::MAX - 0xfff), (4, 0x1000)] {
            assert!(space.back(page, file.as_fd(), offset).is_err(), "{page} {offset:#x}");
        }
        space.set_allocated(1, true);
        space.back(1, file.as_fd(), 0x1000).unwrap();
        nix::sys::uio::pwrite(&file, &7u64.to_be_bytes(), 0x1000 + CQ_ARM as i64).unwrap();
        assert_eq!(space.take64(1, CQ_ARM), 7);
        nix::sys::uio::pwrite(&file, &7u64.to_be_bytes(), 0x1000 + CQ_ARM as i64).unwrap();
        space.unback(1).unwrap();
        assert_eq!(space.take64(1, CQ_ARM), 0);
    }

    #[test]
    fn unallocated_page_is_ignored_and_returns_clean() {
        let space = UarSpace::new(5000);
        for page in [0, 64, 129, 4999] {
            space.store64(page, CQ_ARM, 7);
            assert!(!space.rung());
            space.set_allocated(page, true);
            assert!(!space.rung(), "the stale value is gone");
            space.store64(page, EQ_ARM, 7 << 32);
            assert!(space.rung());
            assert_eq!(space.take64(page, EQ_ARM), 7 << 32);
            space.set_allocated(page, false);
        }
        let mut seen = vec![];
        space.set_allocated(63, true);
        space.set_allocated(65, true);
        space.set_allocated(4998, true);
        space.for_each_allocated(|page| seen.push(page));
        assert_eq!(seen, [63, 65, 4998]);
    }
}
