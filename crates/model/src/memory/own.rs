//! This process's own memory through a pipe, where the kernel has no `process_vm_readv`: QEMU's
//! user mode, which emulates Linux's system calls, lacks it.
//!
//! `write` takes bytes from any address, and `read` brings them to any: the kernel checks the
//! address, so that an unmapped one is EFAULT and no signal. A pipe lasts for one access.
#![allow(unsafe_code)] // system calls on addresses that may not be mapped

use std::io::{self, Read, Write, pipe};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::uio::RemoteIoVec;

/// Maximum bytes in the pipe: every pipe has room for them, so that no call blocks. A part does not
/// cross a multiple of it, as a call that crosses into an unmapped page may move nothing.
const PAGE: usize = 4096;

/// Reads stretches in order; returns the number of bytes before the first unmapped one.
pub(super) fn read(into: &mut [u8], from: &[RemoteIoVec]) -> Result<usize, Errno> {
    let (mut end, start) = pipe().map_err(errno_of)?;
    parts(from, into.len(), |at, address, length| {
        // SAFETY: the kernel checks the address, and reads the bytes only.
        let result = unsafe { libc::write(start.as_raw_fd(), address as *const _, length) };
        let moved = Errno::result(result)? as usize;
        end.read_exact(&mut into[at..at + moved]).map_err(|_| Errno::EIO)?;
        Ok(moved)
    })
}

/// Writes stretches in order; returns the number of bytes before the first that cannot be written.
/// As for `process_vm_writev`, the caller vouches for the stretches: a device was told to write
/// them.
pub(super) fn write(from: &[u8], to: &[RemoteIoVec]) -> Result<usize, Errno> {
    let (end, mut start) = pipe().map_err(errno_of)?;
    parts(to, from.len(), |at, address, length| {
        start.write_all(&from[at..at + length]).map_err(|_| Errno::EIO)?;
        // SAFETY: the kernel checks the address; the caller vouches for what is there.
        let result = unsafe { libc::read(end.as_raw_fd(), address as *mut _, length) };
        Ok(Errno::result(result)? as usize)
    })
}

/// The system call's own error: EMFILE of the process or ENFILE of the machine.
fn errno_of(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Calls `go` for each part of stretches with the bytes before it, its address and its length.
fn parts(
    stretches: &[RemoteIoVec],
    limit: usize,
    mut go: impl FnMut(usize, usize, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    for stretch in stretches {
        let mut within = 0;
        while within < stretch.len && done < limit {
            let address = stretch.base.checked_add(within).ok_or(Errno::EFAULT)?;
            let length = (PAGE - address % PAGE).min(stretch.len - within).min(limit - done);
            match go(done, address, length) {
                Ok(moved) if moved == length => (within, done) = (within + moved, done + moved),
                Ok(moved) => return Ok(done + moved),
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(base: u64, len: usize) -> RemoteIoVec {
        RemoteIoVec { base: base as usize, len }
    }

    #[test]
    fn error_of_pipe_is_kept() {
        for errno in [Errno::EMFILE, Errno::ENFILE] {
            assert_eq!(errno_of(io::Error::from(errno)), errno);
        }
    }

    #[test]
    fn stretches_are_moved_up_to_first_unmapped_page() {
        let source: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        let base = source.as_ptr() as u64;
        let mut into = vec![0; 19_000];
        let from = [stretch(base + 7, 10_000), stretch(base, 9_000), stretch(base, 100)];
        assert_eq!(read(&mut into, &from), Ok(19_000));
        assert!(into[..10_000] == source[7..10_007] && into[10_000..] == source[..9_000]);
        let none = stretch(8, 4);
        assert_eq!(read(&mut into, &[stretch(base, 50), none]), Ok(50));
        assert_eq!(read(&mut into, &[none]), Err(Errno::EFAULT));

        let mut target = vec![0xa5u8; 20_000];
        let to = stretch(target.as_mut_ptr() as u64 + 3, 9_001);
        assert_eq!(write(&source, &[to, none]), Ok(9_001));
        assert_eq!(write(&source, &[none]), Err(Errno::EFAULT));
        assert!(target[3..9_004] == source[..9_001]);
        assert!(target[..3].iter().chain(&target[9_004..]).all(|&byte| byte == 0xa5));
        let text = b"code is mapped, but no data is written to it";
        let refused = write(b"x", &[stretch(text.as_ptr() as u64, 1)]);
        assert_eq!(refused, Err(Errno::EFAULT));
    }
}
