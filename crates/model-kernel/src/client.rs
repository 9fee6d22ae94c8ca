//! The client: the process whose ioctls are answered. Its memory, descriptors, limits and
//! privileges.
//!
//! The rest of the crate accesses a client only through [`Client`], so it can be this process or
//! another one.

use std::fs;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::uio::RemoteIoVec;
use nix::unistd::Pid;
use verbless_model::memory::RemoteMemory;

use super::account::{Account, Charge, Resource};
use super::eventfds::Eventfds;
use super::mappings::check_pin;
use super::refused::io_errno;
use crate::descriptor;

/// A capability that a rule requires, with Linux's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// CAP_DAC_OVERRIDE.
    DacOverride = 1,
    /// CAP_NET_RAW.
    NetRaw = 13,
    /// CAP_IPC_LOCK.
    IpcLock = 14,
    /// CAP_SYS_RAWIO.
    SysRawio = 17,
}

/// Identity of a file: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64, pub u64);

/// Counts as one of a set until this is dropped.
#[derive(Debug, Clone, Default)]
pub struct DescriptorClaim(Arc<()>);

impl DescriptorClaim {
    /// Adds one to the claims that `self` counts; `None`: there are `most`.
    pub fn one_of(&self, most: usize) -> Option<Self> {
        let claim = self.clone();
        // The count includes the counter itself and the new claim.
        (Arc::strong_count(&claim.0) <= most.saturating_add(1)).then_some(claim)
    }
}

/// A process that uses the devices.
pub trait Client: Send + Sync {
    /// Reads the client's memory. EFAULT: unmapped.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno>;
    /// Writes the client's memory. EFAULT: not writable.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno>;
    /// Checks that a range can be pinned, for writing if `writable`. EFAULT: it cannot.
    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno>;
    /// The DMA address of a client's virtual address.
    fn dma_address(&self, address: u64) -> u64;
    /// RLIMIT_MEMLOCK in bytes.
    fn memlock(&self) -> u64;
    /// Pages that the client has pinned.
    fn pinned(&self) -> &AtomicU64;
    /// The client's eventfds that subscriptions signal.
    fn eventfds(&self) -> &Eventfds;
    /// Whether the client has a privilege.
    fn capable(&self, capability: Capability) -> bool;
    /// Installs a descriptor in the client; returns its number.
    fn install(&self, fd: OwnedFd) -> Result<i32, Errno>;
    /// Identifies the file of a client's descriptor. EBADF: closed.
    fn identify(&self, fd: i32) -> Result<FileId, Errno>;
    /// Duplicates an eventfd of the client. EBADF: closed.
    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno>;
    /// The numbers of the client's descriptors; none if the client has ended. EAGAIN: they cannot
    /// be listed at the moment.
    fn descriptors(&self) -> Result<Vec<i32>, Errno>;
    /// The client's account.
    fn account(&self) -> &Arc<Account> {
        Account::unbounded()
    }
    /// Charges a descriptor that is kept for the client. EMFILE: the client's limit is reached.
    /// ENFILE: its account's share is used up.
    fn claim(&self) -> Result<Charge, Errno> {
        self.account().charge(Resource::Descriptors, 1)
    }
    /// Runs `work`, whose duration the client controls.
    fn wait_for_client(&self, work: &mut dyn FnMut()) {
        work();
    }
    /// The calling thread, for the log.
    fn thread(&self) -> u32 {
        nix::unistd::gettid().as_raw() as u32
    }

    /// Duplicates a client's descriptor of this file. `None`: the client has none, or this process
    /// can never duplicate it. EAGAIN: it cannot be duplicated at the moment.
    fn find(&self, file: FileId) -> Result<Option<OwnedFd>, Errno> {
        let mut numbers = self.descriptors()?.into_iter();
        let Some(number) = numbers.find(|&fd| self.identify(fd) == Ok(file)) else {
            return Ok(None);
        };
        match self.borrow(number) {
            Err(Errno::EMFILE | Errno::ENFILE) => Err(Errno::EAGAIN),
            borrowed => Ok(borrowed.ok()),
        }
    }
}

/// The numeric names in a directory below `/proc`.
pub fn numbers(directory: &str) -> Result<Vec<i32>, Errno> {
    let entries = fs::read_dir(directory).map_err(io_errno)?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Identifies the file of a descriptor.
pub fn identify(fd: &OwnedFd) -> Result<FileId, Errno> {
    let stat = nix::sys::stat::fstat(fd)?;
    Ok(FileId(stat.st_dev, stat.st_ino))
}

/// This process as client of its own model.
#[derive(Debug, Default)]
pub(crate) struct OwnProcess {
    pinned: AtomicU64,
    eventfds: Eventfds,
}

impl Client for OwnProcess {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let wanted = into.len();
        let remote = remote(address, wanted)?;
        let done = RemoteMemory::Process(Pid::this()).read(into, &[remote])?;
        if done == wanted { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let remote = remote(address, from.len())?;
        let done = RemoteMemory::Process(Pid::this()).write(from, &[remote])?;
        if done == from.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
        let open = |name: &str| fs::File::open(format!("/proc/self/{name}")).map_err(io_errno);
        let probe =
            || verbless_model::memory::probe(address, length, writable).map_err(|_| Errno::EFAULT);
        check_pin(open, probe, (address, length), writable)
    }

    fn dma_address(&self, address: u64) -> u64 {
        address
    }

    fn memlock(&self) -> u64 {
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK)
            .map_or(0, |(soft, _)| soft)
    }

    fn pinned(&self) -> &AtomicU64 {
        &self.pinned
    }

    fn eventfds(&self) -> &Eventfds {
        &self.eventfds
    }

    fn capable(&self, capability: Capability) -> bool {
        // Capabilities are per thread; the calling thread's count.
        let Ok(status) = fs::read("/proc/thread-self/status") else { return false };
        effective_capabilities(&String::from_utf8_lossy(&status)) >> capability as u32 & 1 == 1
    }

    fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
        Ok(fd.into_raw_fd())
    }

    fn identify(&self, fd: i32) -> Result<FileId, Errno> {
        let metadata = fs::metadata(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::EBADF)?;
        Ok(FileId(metadata.dev(), metadata.ino()))
    }

    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno> {
        descriptor::duplicate(fd)
    }

    fn descriptors(&self) -> Result<Vec<i32>, Errno> {
        numbers("/proc/self/fd").or(Err(Errno::EAGAIN))
    }
}

fn remote(address: u64, len: usize) -> Result<RemoteIoVec, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    base.checked_add(len).ok_or(Errno::EFAULT)?;
    Ok(RemoteIoVec { base, len })
}

/// Parses CapEff of `/proc/PID/status`.
pub fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn wild_pointers_of_this_process_are_efault() {
        let client = OwnProcess::default();
        let mut bytes = [0; 8];
        for address in [0, 8, 1 << 46, u64::MAX - 3, 0xffff_8000_0000_0000] {
            assert_eq!(client.read(address, &mut bytes), Err(Errno::EFAULT), "{address:#x}");
            assert_eq!(client.write(address, &bytes), Err(Errno::EFAULT), "{address:#x}");
            assert_eq!(client.pin(address, 8, false), Err(Errno::EFAULT), "{address:#x}");
        }
        let text = "read me";
        assert_eq!(client.write(text.as_ptr() as u64, b"n"), Err(Errno::EFAULT));
        assert_eq!(client.pin(text.as_ptr() as u64, 7, true), Err(Errno::EFAULT));
        assert_eq!(client.pin(text.as_ptr() as u64, 7, false), Ok(()));
    }

    #[test]
    fn descriptor_is_identified_by_its_file() {
        let client = OwnProcess::default();
        let file = OwnedFd::from(fs::File::open("/dev/null").expect("there is /dev/null"));
        let copy = client.borrow(file.as_raw_fd()).expect("the file is open");
        assert_eq!(client.identify(copy.as_raw_fd()), identify(&file));
        let first = client.borrow(0).expect("a program has its standard input");
        assert_eq!(client.identify(0), identify(&first));
        for fd in [-1, 1 << 20] {
            assert_eq!(client.identify(fd), Err(Errno::EBADF));
            assert_eq!(client.borrow(fd).map(drop), Err(Errno::EBADF));
        }
    }

    #[test]
    fn own_client_reports_thread_memlock_and_capabilities() {
        let client = OwnProcess::default();
        assert_eq!(client.thread(), nix::unistd::gettid().as_raw() as u32);
        let limits = fs::read_to_string("/proc/self/limits").expect("the limits");
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        let limit = limit.and_then(|line| line.split_whitespace().next()).expect("a limit");
        assert_eq!(client.memlock(), limit.parse().unwrap_or(u64::MAX), "{limit}");
        let status = fs::read_to_string("/proc/self/status").expect("the status");
        let has = effective_capabilities(&status);
        for (capability, bit) in [
            (Capability::NetRaw, 0x2000),
            (Capability::IpcLock, 0x4000),
            (Capability::SysRawio, 0x2_0000),
        ] {
            assert_eq!(client.capable(capability), has & bit != 0, "{capability:?} of {has:#x}");
        }
    }

    #[test]
    fn effective_capabilities_parse_cap_eff_line() {
        let status = "Name:\tx\nCapInh:\t0000000000000001\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_capabilities(status), 0x1ff_ffff_ffff);
        for none in ["", "CapEff:\tx\n", "CapInh:\t0000000000000001\n"] {
            assert_eq!(effective_capabilities(none), 0, "{none}");
        }
    }
}
