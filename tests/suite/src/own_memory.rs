//! Memory of this process at an address that a request names.
//!
//! Cases send wild pointers, as a hostile program would: the kernel copies the bytes, and an
//! address that is not mapped is an error and no crash.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use verbless_devx::Errno;

/// Copies `len` bytes from an address; fewer if they end at one that is not mapped.
pub(crate) fn read(address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = match read_by_call(&mut bytes, address) {
        // QEMU's user mode lacks the call, and a sandbox may refuse it.
        Err(Errno::ENOSYS | Errno::EPERM) => read_by_file(&mut bytes, address),
        read => read.ok(),
    };
    bytes.truncate(read.unwrap_or(0));
    bytes
}

/// Copies bytes to an address; returns whether all of them are there.
pub(crate) fn write(address: u64, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let Ok(base) = usize::try_from(address) else { return false };
    let to = [RemoteIoVec { base, len: bytes.len() }];
    match process_vm_writev(Pid::this(), &[IoSlice::new(bytes)], &to) {
        Err(Errno::ENOSYS | Errno::EPERM) => {
            let file = OpenOptions::new().write(true).open("/proc/self/mem");
            file.is_ok_and(|file| file.write_all_at(bytes, address).is_ok())
        }
        written => written == Ok(bytes.len()),
    }
}

/// Copies bytes from an address; returns the number of bytes up to an unmapped one.
fn read_by_call(bytes: &mut [u8], address: u64) -> Result<usize, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let from = [RemoteIoVec { base, len: bytes.len() }];
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(bytes)], &from)
}

/// Copies bytes from an address through `/proc/self/mem`.
fn read_by_file(bytes: &mut [u8], address: u64) -> Option<usize> {
    File::open("/proc/self/mem").ok()?.read_at(bytes, address).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wild_pointers_are_refused() {
        assert!(read(8, 64).is_empty());
        assert_eq!(read_by_file(&mut [0; 64], 8), None);
        assert!(!write(8, &[1]));
        assert!(write(8, &[]));
    }

    #[test]
    fn bytes_read_by_file_equal_those_read_by_call() {
        let bytes: Vec<u8> = (0..=255).collect();
        let address = bytes.as_ptr().expose_provenance() as u64;
        let (mut call, mut file) = ([0; 256], [0; 256]);
        let found = read_by_call(&mut call, address).ok();
        assert!(matches!(found, Some(256) | None), "{found:?}");
        assert_eq!(read_by_file(&mut file, address), Some(256));
        assert_eq!(file[..], bytes[..]);
        assert!(found.is_none() || call == file);
    }

    #[test]
    fn written_bytes_are_there() {
        let mut bytes = [0_u8; 4];
        assert!(write(bytes.as_mut_ptr().expose_provenance() as u64, &[1, 2, 3]));
        assert_eq!(std::hint::black_box(bytes), [1, 2, 3, 0]);
    }
}
