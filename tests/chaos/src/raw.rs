//! System calls with any arguments whatever, and memory that may be pointed to by them.
#![allow(
    unsafe_code,
    reason = "calls that no sane program makes; this module is the place for them"
)]

use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use verbless_conformance::Stop;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Where the arena lies: far from all else, so that a pointer into it with a wrong bit leads to
/// nothing of this program's.
const BASE: u64 = 1 << 36;
/// Pages of an arena that can be written; then come one that can only be read, and one that is not
/// there.
const WRITABLE: u64 = 32;

/// Calls that say no directory. Architectures that are newer than those lack them; [`call`] makes
/// the ones with a directory there.
#[cfg(target_arch = "x86_64")]
pub(crate) mod plain {
    pub(crate) const OPEN: libc::c_long = libc::SYS_open;
    pub(crate) const STAT: libc::c_long = libc::SYS_stat;
    pub(crate) const LSTAT: libc::c_long = libc::SYS_lstat;
    pub(crate) const ACCESS: libc::c_long = libc::SYS_access;
    pub(crate) const READLINK: libc::c_long = libc::SYS_readlink;
    pub(crate) const DUP2: libc::c_long = libc::SYS_dup2;
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod plain {
    pub(crate) const OPEN: libc::c_long = -1;
    pub(crate) const STAT: libc::c_long = -2;
    pub(crate) const LSTAT: libc::c_long = -3;
    pub(crate) const ACCESS: libc::c_long = -4;
    pub(crate) const READLINK: libc::c_long = -5;
    pub(crate) const DUP2: libc::c_long = -6;
}

/// The call that there is for one of [`plain`].
#[cfg(target_arch = "x86_64")]
fn existing(number: libc::c_long, arguments: [u64; 6]) -> (libc::c_long, [u64; 6]) {
    (number, arguments)
}
#[cfg(not(target_arch = "x86_64"))]
fn existing(number: libc::c_long, arguments: [u64; 6]) -> (libc::c_long, [u64; 6]) {
    const HERE: u64 = libc::AT_FDCWD as u64;
    let [a, b, c, ..] = arguments;
    match number {
        plain::OPEN => (libc::SYS_openat, [HERE, a, b, c, 0, 0]),
        plain::STAT => (libc::SYS_newfstatat, [HERE, a, b, 0, 0, 0]),
        plain::LSTAT => {
            (libc::SYS_newfstatat, [HERE, a, b, libc::AT_SYMLINK_NOFOLLOW as u64, 0, 0])
        }
        plain::ACCESS => (libc::SYS_faccessat, [HERE, a, b, 0, 0, 0]),
        plain::READLINK => (libc::SYS_readlinkat, [HERE, a, b, c, 0, 0]),
        plain::DUP2 => (libc::SYS_dup3, [a, b, 0, 0, 0, 0]),
        other => (other, arguments),
    }
}

/// A system call.
///
/// Its arguments are for the caller to choose so that the process lives: pointers into an
/// [`Arena`], or to nowhere.
pub(crate) fn call(number: libc::c_long, arguments: [u64; 6]) -> Result<u64, Errno> {
    let (number, [a, b, c, d, e, f]) = existing(number, arguments);
    // SAFETY: what the kernel may write is in an arena, as the callers in this program promise;
    // nobody borrows from that.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    Errno::result(result).map(|value| value as u64)
}

/// Memory of which anything may become at any time.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    base: u64,
}

impl Arena {
    pub(crate) fn new() -> Result<Self, Stop> {
        Self::with(&[0])
    }

    /// One with these words, again and again, where it can only be read.
    pub(crate) fn with(constants: &[u64]) -> Result<Self, Stop> {
        let length = (WRITABLE + 2) * PAGE;
        let place = libc::MAP_FIXED_NOREPLACE;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | place) as u64;
        let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let base = call(libc::SYS_mmap, [BASE, length, both, flags, u64::MAX, 0])?;
        let arena = Self { base };
        let protect =
            |at, length, what: i32| call(libc::SYS_mprotect, [at, length, what as u64, 0, 0, 0]);
        for (at, constant) in
            (arena.read_only()..arena.nowhere()).step_by(8).zip(constants.iter().cycle())
        {
            word(at).store(*constant, Ordering::Relaxed);
        }
        protect(arena.read_only(), PAGE, libc::PROT_READ)?;
        protect(arena.nowhere(), PAGE, libc::PROT_NONE)?;
        Ok(arena)
    }

    /// Gives it back. Nobody may use it any more, or its copies.
    pub(crate) fn free(self) -> Result<(), Stop> {
        call(libc::SYS_munmap, [self.base, (WRITABLE + 2) * PAGE, 0, 0, 0, 0])?;
        Ok(())
    }

    /// The address of a byte of it, if there were no end to it.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        self.base + offset % (WRITABLE * PAGE)
    }

    /// Bytes that can be written.
    pub(crate) fn len(&self) -> u64 {
        WRITABLE * PAGE
    }

    /// A page that can only be read.
    pub(crate) fn read_only(&self) -> u64 {
        self.base + WRITABLE * PAGE
    }

    /// A page that is not there, behind one that is.
    pub(crate) fn nowhere(&self) -> u64 {
        self.base + (WRITABLE + 1) * PAGE
    }

    fn word(&self, offset: u64) -> &'static AtomicU64 {
        word(self.at(offset & !7))
    }

    /// Stores a word, at a multiple of 8.
    pub(crate) fn put(&self, offset: u64, word: u64) {
        self.word(offset).store(word, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// Stores bytes from a multiple of 8 on, and zeros up to the next one.
    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.put(offset + 8 * index as u64, u64::from_ne_bytes(word));
        }
    }
}

/// The word of an arena at an address.
fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: an arena is not unmapped while it is used, `at` is within one and aligned, and all
    // access is by atomics or by the kernel.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(at as usize)) }
}

/// The bytes that a request of this program's own driver points to.
pub(crate) fn bytes_of(address: u64, length: usize) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: an input that `OpenDevice::ioctl` was called with, which promises so many readable
    // bytes for as long as the call lasts.
    unsafe { std::slice::from_raw_parts(from, length) }.to_vec()
}

/// Forwards a request of this program's own driver.
pub(crate) fn forward(
    to: &dyn verbless_devx::OpenDevice,
    request: &mut [u64],
) -> Result<(), Errno> {
    // SAFETY: the caller was given it with the same promise.
    unsafe { to.ioctl(request) }
}

/// A page of doorbells, or of whatever is mapped at an offset of a descriptor.
pub(crate) struct Window(u64);

impl Window {
    /// Maps one page, where a page can be.
    pub(crate) fn new(descriptor: u64, offset: u64) -> Result<Self, Errno> {
        let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let arguments = [0, PAGE, both, libc::MAP_SHARED as u64, descriptor, offset];
        call(libc::SYS_mmap, arguments).map(Self)
    }

    /// Stores a word of 8 or of 4 bytes.
    pub(crate) fn store(&self, offset: u64, word: u64, whole: bool) {
        let at = (self.0 + (offset & (PAGE - 8))) as usize;
        let to = std::ptr::with_exposed_provenance_mut::<u64>(at);
        // SAFETY: within the page, which is mapped for as long as this lives, and aligned; it is a
        // device's page, which nothing is borrowed from.
        unsafe {
            match whole {
                true => to.write_volatile(word),
                false => to.cast::<u32>().write_volatile(word as u32),
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = call(libc::SYS_munmap, [self.0, PAGE, 0, 0, 0, 0]);
    }
}

/// How a child ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Exit,
    Kill,
    Exec,
}

/// Forks a child that makes these calls and ends. Nobody needs to wait for it.
pub(crate) fn fork(calls: &[(libc::c_long, [u64; 6])], end: End) {
    let program = c"/bin/true".as_ptr();
    let arguments = [program, std::ptr::null()];
    // SAFETY: the child makes system calls only, with memory that was there before.
    unsafe {
        if libc::fork() == 0 {
            for &(number, arguments) in calls {
                let (number, [a, b, c, d, e, f]) = existing(number, arguments);
                libc::syscall(number, a, b, c, d, e, f);
            }
            match end {
                End::Exit => {}
                End::Kill => {
                    libc::kill(libc::getpid(), libc::SIGKILL);
                }
                End::Exec => {
                    libc::execv(program, arguments.as_ptr());
                }
            }
            libc::_exit(0);
        }
    }
}

/// Children that end are nobody's business.
pub(crate) fn ignore_children() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}
