//! System calls with arbitrary arguments, and memory that they may point to.
#![allow(unsafe_code, reason = "calls that no sane program makes; this module holds them")]

use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use verbless_conformance::Stop;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Address of the arena: far from all other memory, so that a pointer into it with a wrong bit
/// reaches no memory of this program.
const BASE: u64 = 1 << 36;
/// Writable pages of an arena; a read-only page and an unmapped page follow.
const WRITABLE: u64 = 32;

/// Calls without a directory argument. Newer architectures lack them; [`call`] uses the calls with
/// a directory there.
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

/// The existing call for one of [`plain`].
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
/// The caller must choose arguments that keep the process alive: pointers into an [`Arena`], or to
/// unmapped memory.
pub(crate) fn call(number: libc::c_long, arguments: [u64; 6]) -> Result<u64, Errno> {
    let (number, [a, b, c, d, e, f]) = existing(number, arguments);
    // SAFETY: the kernel may write only to an arena, as the callers in this program promise; no
    // reference borrows from an arena.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    Errno::result(result).map(|value| value as u64)
}

/// Memory whose contents may change at any time.
#[derive(Clone, Copy)]
pub(crate) struct Arena {
    base: u64,
}

impl Arena {
    pub(crate) fn new() -> Result<Self, Stop> {
        Self::with(&[0])
    }

    /// An arena with these words, repeated, in its read-only page.
    pub(crate) fn with(constants: &[u64]) -> Result<Self, Stop> {
        let length = (WRITABLE + 2) * PAGE;
        let fixed = libc::MAP_FIXED_NOREPLACE;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed) as u64;
        let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let base = call(libc::SYS_mmap, [BASE, length, both, flags, u64::MAX, 0])?;
        let arena = Self { base };
        let protect =
            |at, length, what: i32| call(libc::SYS_mprotect, [at, length, what as u64, 0, 0, 0]);
        for (at, constant) in
            (arena.read_only()..arena.unmapped()).step_by(8).zip(constants.iter().cycle())
        {
            word(at).store(*constant, Ordering::Relaxed);
        }
        protect(arena.read_only(), PAGE, libc::PROT_READ)?;
        protect(arena.unmapped(), PAGE, libc::PROT_NONE)?;
        Ok(arena)
    }

    /// Unmaps the arena. Neither it nor its copies may be used afterwards.
    pub(crate) fn free(self) -> Result<(), Stop> {
        call(libc::SYS_munmap, [self.base, (WRITABLE + 2) * PAGE, 0, 0, 0, 0])?;
        Ok(())
    }

    /// The address of byte `offset`, without a bounds check.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        self.base + offset % (WRITABLE * PAGE)
    }

    /// Bytes that are writable.
    pub(crate) fn len(&self) -> u64 {
        WRITABLE * PAGE
    }

    /// A read-only page.
    pub(crate) fn read_only(&self) -> u64 {
        self.base + WRITABLE * PAGE
    }

    /// An unmapped page, after a mapped one.
    pub(crate) fn unmapped(&self) -> u64 {
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

/// The input bytes of a request of this program's own driver.
pub(crate) fn bytes_of(address: u64, length: usize) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the caller of `OpenDevice::ioctl` promises `length` readable bytes here for the
    // duration of the call.
    unsafe { std::slice::from_raw_parts(from, length) }.to_vec()
}

/// Forwards a request of this program's own driver.
pub(crate) fn forward(
    to: &dyn verbless_devx::OpenDevice,
    request: &mut [u64],
) -> Result<(), Errno> {
    // SAFETY: the caller received it with the same promise.
    unsafe { to.ioctl(request) }
}

/// A page of doorbells, or any other mapping at an offset of a descriptor.
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
        // SAFETY: the address is aligned and within the page, which is mapped while this lives; it
        // is a device's page, which no reference borrows from.
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

/// Forks a child that makes these calls and ends. The caller need not wait for it.
pub(crate) fn fork(calls: &[(libc::c_long, [u64; 6])], end: End) {
    let program = c"/bin/true".as_ptr();
    let arguments = [program, std::ptr::null()];
    // SAFETY: the child makes system calls only, with memory from before the fork.
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

/// Ignores the end of children.
pub(crate) fn ignore_children() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}
