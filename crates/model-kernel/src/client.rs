//! The client: the process whose ioctls are answered. Its memory, its descriptors, its limits and
//! privileges.
//!
//! The rest of `uverbs` reaches a client only through [`Client`], so that it may be this process or
//! another one.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use super::eventfds::Eventfds;
use super::refused::refused;
use crate::descriptor;

/// Bytes per page, as the kernel pins and maps them.
pub const PAGE: u64 = 4096;

/// A privilege that a rule requires. The numbers are Linux's.
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

/// Which file a descriptor refers to: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64, pub u64);

/// Counts as a descriptor that is kept for a client, until this is dropped.
#[derive(Debug, Clone, Default)]
pub struct Claim(Arc<()>);

impl Claim {
    /// One more of those that `self` counts; `None`: there are `most`.
    pub fn one_of(&self, most: usize) -> Option<Self> {
        let claim = self.clone();
        // It counts itself, and the one that all are of.
        (Arc::strong_count(&claim.0) <= most.saturating_add(1)).then_some(claim)
    }
}

/// A process that uses the devices.
pub trait Client: Send + Sync {
    /// Reads the client's memory; EFAULT where there is none.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno>;
    /// Writes the client's memory; EFAULT where it may not be written.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno>;
    /// Checks that the pages of a range can be pinned, for writing too when `writable`; EFAULT
    /// otherwise.
    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno>;
    /// The DMA address at which the device reaches an address of the client.
    fn dma_address(&self, address: u64) -> u64;
    /// RLIMIT_MEMLOCK in bytes.
    fn memlock(&self) -> u64;
    /// Pages that the client has pinned so far.
    fn pinned(&self) -> &AtomicU64;
    /// The client's eventfds that subscriptions signal.
    fn eventfds(&self) -> &Eventfds;
    /// Whether the client has a privilege.
    fn capable(&self, capability: Capability) -> bool;
    /// Gives the client a descriptor; returns its number there.
    fn install(&self, fd: OwnedFd) -> Result<i32, Errno>;
    /// Identifies the file of a client's descriptor; EBADF when it is not open.
    fn identify(&self, fd: i32) -> Result<FileId, Errno>;
    /// Duplicates an eventfd of the client for us; EBADF when it is not open.
    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno>;
    /// The numbers of the client's descriptors.
    fn descriptors(&self) -> Vec<i32>;
    /// Counts a descriptor that we keep for the client, until the claim ends; EMFILE: so many are
    /// kept for it.
    fn claim(&self) -> Result<Claim, Errno> {
        Ok(Claim::default())
    }
    /// Runs `work`, which takes as long as the client wants.
    fn wait_for_client(&self, work: &mut dyn FnMut()) {
        work();
    }
    /// The thread whose call is answered, by which a log names it.
    fn thread(&self) -> u32 {
        nix::unistd::gettid().as_raw() as u32
    }

    /// Duplicates a client's descriptor that refers to a file; `None` if there is none.
    fn find(&self, file: FileId) -> Option<OwnedFd> {
        let number = self.descriptors().into_iter().find(|&fd| self.identify(fd) == Ok(file))?;
        self.borrow(number).ok()
    }
}

/// The numbers that a directory below `/proc` lists.
pub fn numbers(directory: &str) -> Vec<i32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The file that a descriptor of ours refers to.
pub fn identify(fd: &OwnedFd) -> Result<FileId, Errno> {
    let stat = nix::sys::stat::fstat(fd)?;
    Ok(FileId(stat.st_dev, stat.st_ino))
}

/// This process as a client of a model in the same process.
#[derive(Debug, Default)]
pub(crate) struct Ourselves {
    pinned: AtomicU64,
    eventfds: Eventfds,
}

impl Client for Ourselves {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        let wanted = into.len();
        let remote = remote(address, wanted)?;
        let done = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(into)], &[remote])?;
        if done == wanted { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let remote = remote(address, from.len())?;
        let done = process_vm_writev(Pid::this(), &[IoSlice::new(from)], &[remote])?;
        if done == from.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
        pin_mapped(|| {
            let maps = fs::read_to_string("/proc/self/maps").map_err(io_errno)?;
            let mounts = || fs::read_to_string("/proc/self/mountinfo").map_err(io_errno);
            check_mappings(&maps, mounts, address, length, writable)?;
            verbless_model::memory::probe(address, length, writable).map_err(|_| Errno::EFAULT)
        })
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
        // Capabilities are a thread's; the one that asks is the one that counts.
        let Ok(status) = fs::read_to_string("/proc/thread-self/status") else { return false };
        effective_capabilities(&status) >> capability as u32 & 1 == 1
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

    fn descriptors(&self) -> Vec<i32> {
        numbers("/proc/self/fd")
    }
}

fn remote(address: u64, len: usize) -> Result<RemoteIoVec, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    base.checked_add(len).ok_or(Errno::EFAULT)?;
    Ok(RemoteIoVec { base, len })
}

fn io_errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The CapEff line of `/proc/PID/status`.
pub fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Attempts before a range counts as not pinnable.
const LOOKS: usize = 3;

/// Runs the check `look` of a range that a client wants to pin, until it succeeds; EFAULT only if
/// every attempt fails.
///
/// A process's other threads map, split and join mappings meanwhile, and its list is read piece by
/// piece. A range that was mapped all the time was refused once; why is not known, so that it is
/// logged if it comes again.
pub fn pin_mapped(mut look: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for missed in 0..LOOKS - 1 {
        let seen = look();
        if seen != Err(Errno::EFAULT) {
            if missed > 0 {
                tracing::warn!(missed, ?seen, "a range to pin was not there at the first look");
            }
            return seen;
        }
    }
    look()
}

/// Whether a long-term pin of the range would succeed, by the process's mappings as
/// `/proc/PID/maps` lists them, and its mounts as `/proc/PID/mountinfo` does.
///
/// As the kernel does: every page mapped and readable; for writing also writable, and then not a
/// shared mapping of a file whose dirty pages are written to a disk: the kernel would not see what
/// a device writes (`mm/gup.c`, `writeable_file_mapping_allowed`). Shared memory (memfd, tmpfs,
/// hugetlbfs) has none.
pub fn check_mappings(
    maps: &str,
    mounts: impl Fn() -> Result<String, Errno>,
    address: u64,
    length: u64,
    writable: bool,
) -> Result<(), Errno> {
    let mut next = address & !(PAGE - 1);
    let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
    for line in maps.lines() {
        let mapping = Mapping::parse(line).ok_or(Errno::EFAULT)?;
        if mapping.end <= next {
            continue;
        }
        if next >= end {
            break;
        }
        let allowed = if writable { mapping.write } else { mapping.read };
        if mapping.start > next || !allowed {
            return Err(Errno::EFAULT);
        }
        if writable && mapping.is_of_a_file() && !mapping.is_in_memory(&mounts()?) {
            let words = format!(
                "a shared mapping of a file on disk cannot be pinned for writing: {} at {next:#x}; \
                 map it MAP_PRIVATE, or a file of a tmpfs",
                mapping.path
            );
            return Err(refused(Errno::EFAULT, words));
        }
        next = mapping.end;
    }
    if next >= end { Ok(()) } else { Err(Errno::EFAULT) }
}

/// A line of `/proc/PID/maps`.
struct Mapping<'a> {
    start: u64,
    end: u64,
    read: bool,
    write: bool,
    shared: bool,
    /// The file system's device: major and minor number.
    device: (u32, u32),
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let flags = words.next()?.as_bytes();
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let path = words.nth(1).unwrap_or("").trim_start();
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            read: flags.first() == Some(&b'r'),
            write: flags.get(1) == Some(&b'w'),
            shared: flags.get(3) == Some(&b's'),
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            path,
        })
    }

    /// A shared mapping of a file that a program can open; those of the kernel's own mounts live
    /// in memory.
    fn is_of_a_file(&self) -> bool {
        let internal = ["/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage", "[anon"];
        self.shared
            && !self.path.is_empty()
            && !internal.iter().any(|prefix| self.path.starts_with(prefix))
    }

    /// Whether its file is on one of the file systems that track no dirty pages.
    fn is_in_memory(&self, mounts: &str) -> bool {
        match file_system(mounts, self.device) {
            Some(kind) => ["tmpfs", "ramfs", "hugetlbfs", "devtmpfs"].contains(&kind),
            // The file came from a process with other mounts.
            None => self.path.starts_with("/dev/shm/"),
        }
    }
}

/// The type of the file system with a device number, by the lines of `/proc/PID/mountinfo`.
fn file_system(mounts: &str, (major, minor): (u32, u32)) -> Option<&str> {
    let number = format!("{major}:{minor}");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const MAPS: &str = "\
1000-3000 r--p 00000000 00:00 0
3000-5000 rw-p 00000000 00:00 0 [heap]
5000-6000 rw-s 00000000 fe:01 77                         /tmp/on disk
6000-7000 rw-s 00000000 00:01 78                         /memfd:ring (deleted)
7000-8000 ---p 00000000 00:00 0
a000-b000 rw-p 00000000 00:00 0
c000-d000 rw-s 00000000 00:1f 79                         /run/user/1000/ring
d000-e000 rw-s 00000000 00:20 80                         /dev/shm/on disk
e000-f000 rw-s 00000000 00:21 81                         /dev/shm/of another's mounts
f000-10000 rw-s 00000000 fe:01 82                        /dev/zero (deleted)";

    /// `fe:01` is 254:1, `00:1f` is 0:31; the last has optional fields.
    const MOUNTS: &str = "\
27 1 254:1 / / rw,relatime - ext4 /dev/vda rw
31 27 0:31 / /run/user/1000 rw,nosuid shared:7 master:2 - tmpfs tmpfs rw,size=4k
32 27 0:32 / /dev/shm rw - overlay overlay rw";

    #[test]
    fn pin_follows_mapping_permissions() {
        let cases = [
            (0x1000, 0x4000, false, Ok(())),
            (0x1000, 0x4000, true, Err(Errno::EFAULT)),
            (0x3000, 0x2000, true, Ok(())),
            (0x3fff, 1, true, Ok(())),
            (0x5000, 0x1000, false, Ok(())),
            (0x5000, 0x1000, true, Err(Errno::EFAULT)),
            (0x6000, 0x1000, true, Ok(())),
            (0x6fff, 2, false, Err(Errno::EFAULT)),
            (0x8000, 1, false, Err(Errno::EFAULT)),
            (0xa000, 0x1001, true, Err(Errno::EFAULT)),
            (0xfff, 2, false, Err(Errno::EFAULT)),
            (0xc000, 0x1000, true, Ok(())),
            (0xd000, 0x1000, true, Err(Errno::EFAULT)),
            (0xd000, 0x1000, false, Ok(())),
            (0xe000, 0x2000, true, Ok(())),
            (u64::MAX, 2, false, Err(Errno::EFAULT)),
        ];
        for (address, length, writable, expected) in cases {
            let mounts = || Ok(MOUNTS.into());
            let got = check_mappings(MAPS, mounts, address, length, writable);
            assert_eq!(got, expected, "{address:#x}+{length:#x} writable={writable}");
        }
    }

    #[test]
    fn pin_of_a_file_on_disk_names_the_rule() {
        let mounts = || Ok(MOUNTS.into());
        crate::refused::take();
        assert_eq!(check_mappings(MAPS, mounts, 0x5000, 8, true), Err(Errno::EFAULT));
        let (_, words) = crate::refused::take().expect("a reason");
        let rule = "a shared mapping of a file on disk cannot be pinned for writing: /tmp/on disk";
        assert!(words.starts_with(rule), "{words}");
        assert_eq!(check_mappings(MAPS, mounts, 0x7000, 8, true), Err(Errno::EFAULT));
        assert_eq!(crate::refused::take(), None);
    }

    #[test]
    fn pin_fails_after_three_failed_lookups() {
        let fault = Err(Errno::EFAULT);
        for (answers, expected, left) in [
            (vec![Ok(()), fault], Ok(()), 1),
            (vec![fault, Ok(()), fault], Ok(()), 1),
            (vec![fault, fault, Ok(()), fault], Ok(()), 1),
            (vec![fault, fault, fault, Ok(())], fault, 1),
            (vec![fault, Err(Errno::ESRCH), Ok(())], Err(Errno::ESRCH), 1),
        ] {
            let mut answers = answers.into_iter();
            let got = pin_mapped(|| answers.next().expect("no more looks than needed"));
            assert_eq!((got, answers.len()), (expected, left));
        }
    }

    #[test]
    fn wild_pointers_of_this_process_are_efault() {
        let client = Ourselves::default();
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
        let client = Ourselves::default();
        let file = OwnedFd::from(fs::File::open("/dev/null").expect("there is /dev/null"));
        let copy = client.borrow(file.as_raw_fd()).expect("it is open");
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
        let client = Ourselves::default();
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
