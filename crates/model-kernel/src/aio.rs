//! Signals an eventfd from within the kernel: an asynchronous read of an empty file signals it on
//! completion (`IOCB_FLAG_RESFD` of `io_submit`).
//!
//! A `write` blocks while the counter is full, for as long as the eventfd's owner likes. The owner
//! can clear O_NONBLOCK at any time.
#![allow(unsafe_code)] // system calls that no dependency wraps

use std::ffi::c_long;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;

/// A read, of `io_submit`.
const PREAD: u16 = 0;
/// Signals an eventfd when the read ends.
const RESFD: u32 = 1;

/// `struct iocb`: a request.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_flags: u64,
    code: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`: the end of a request.
#[repr(C)]
struct IoEvent([u64; 4]);

/// Maximum number of completions that one call reaps: a signal may leave its completion to the next
/// call.
const MAX_COMPLETIONS: usize = 4;

/// A context for requests, and the empty file that they read.
#[derive(Debug)]
struct AioContext {
    /// `aio_context_t`: an address in this process; only the kernel uses it.
    number: u64,
    empty: OwnedFd,
    /// The owning process: a forked child has no context.
    process: u32,
}

impl AioContext {
    fn new() -> Result<Self, Errno> {
        let empty = super::descriptor::empty_file()?;
        let mut number = 0u64;
        // SAFETY: the kernel writes the number into a variable of its size.
        Errno::result(unsafe {
            libc::syscall(libc::SYS_io_setup, MAX_COMPLETIONS, &raw mut number)
        })?;
        Ok(Self { number, empty, process: std::process::id() })
    }

    fn context(&self) -> *mut libc::c_void {
        without_provenance_mut(self.number as usize)
    }

    fn add_one(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let request = Iocb {
            code: PREAD,
            file: self.empty.as_raw_fd() as u32,
            flags: RESFD,
            eventfd: eventfd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        let (list, mut ends) = ([&raw const request], [const { IoEvent([0; 4]) }; MAX_COMPLETIONS]);
        // SAFETY: the kernel reads a list of one request of this layout, which reads zero bytes. It
        // is done when the call returns.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context(), 1, list.as_ptr()) };
        Errno::result(taken)?;
        // SAFETY: the kernel writes at most `MAX_COMPLETIONS` structures of this layout; it does
        // not wait for any.
        unsafe {
            let (least, most, forever): (c_long, _, _) =
                (0, MAX_COMPLETIONS as c_long, null_mut::<libc::timespec>());
            let (context, ends) = (self.context(), ends.as_mut_ptr());
            libc::syscall(libc::SYS_io_getevents, context, least, most, ends, forever);
        }
        Ok(())
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: this is the context's only user.
            unsafe { libc::syscall(libc::SYS_io_destroy, self.context()) };
        }
    }
}

/// This process's context, from its first use on.
static CONTEXT: Mutex<Option<AioContext>> = Mutex::new(None);

fn with_context<T>(use_it: impl FnOnce(&AioContext) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut context = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
    context.take_if(|context| context.process != std::process::id());
    match &mut *context {
        Some(context) => use_it(context),
        none => use_it(none.insert(AioContext::new()?)),
    }
}

/// Whether this process can signal eventfds. ENOSYS, EPERM: asynchronous I/O is not available.
/// EAGAIN: `fs.aio-max-nr` is exhausted.
pub(super) fn check() -> Result<(), Errno> {
    with_context(|_| Ok(()))
}

/// Adds one to the counter of an eventfd, or nothing if it is full; never waits for a reader.
///
/// # Errors
/// EBADF, EINVAL: the descriptor is not an eventfd. Others: asynchronous I/O is not available.
pub fn signal_eventfd(eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
    with_context(|context| context.add_one(eventfd))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    #[test]
    fn full_eventfd_is_signalled_without_a_wait() {
        let eventfd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an eventfd");
        for _ in 0..300 {
            signal_eventfd(eventfd.as_fd()).expect("it is one");
        }
        assert_eq!(eventfd.read(), Ok(300));
        // A blocking eventfd, with its counter as full as a program can make it.
        let eventfd = EventFd::from_flags(EfdFlags::empty()).expect("an eventfd");
        eventfd.write(u64::MAX - 1).expect("there is room");
        for _ in 0..3 {
            signal_eventfd(eventfd.as_fd()).expect("it is one");
        }
        assert_eq!(eventfd.read(), Ok(u64::MAX));
        let other = super::super::descriptor::empty_file().expect("a file");
        assert_eq!(signal_eventfd(other.as_fd()), Err(Errno::EINVAL));
    }
}
