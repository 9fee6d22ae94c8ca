//! Calls with a path.

use std::ffi::CString;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{
    AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_NONBLOCK, O_RDONLY,
    O_RDWR, O_WRONLY, SYS_faccessat, SYS_faccessat2, SYS_newfstatat, SYS_openat, SYS_openat2,
    SYS_readlinkat, SYS_statx,
};
use nix::fcntl::{FcntlArg, fcntl};
use verbless_model::{Model, Profile, Side};

use super::super::rig::{HERE, InstalledFd, Program, at};
use super::super::shared::SharedRun;
use super::super::sys::CallGate;
use super::*;
use crate::captured_log::captured_log;

const ATTRIBUTE: &std::ffi::CStr = c"/sys/class/infiniband/mlx5_0/node_type";
const DEVICE: &std::ffi::CStr = c"/dev/infiniband/uverbs0";
const CLASS: &std::ffi::CStr = c"/sys/class/infiniband";
const ELSEWHERE: &std::ffi::CStr = c"/etc/passwd";

fn refused(errno: Errno) -> Answer {
    Answer::Ours(Err(errno))
}

/// A directory of this machine, as start of a path.
fn directory(path: &str) -> std::fs::File {
    std::fs::File::open(path).expect("the path exists")
}

#[test]
fn open_honours_flags_and_close_on_exec() {
    let program = Program::new();
    for (flags, close_on_exec) in [(O_RDONLY, false), (O_RDONLY | O_CLOEXEC, true)] {
        let given = program.open(ATTRIBUTE, flags);
        let InstalledFd { number, close_on_exec: closed, answer, .. } = given;
        assert_eq!((number, closed, answer), (None, close_on_exec, true));
        assert_eq!(given.text(), "1: CA\n");
        let given = program.open(DEVICE, flags | O_RDWR);
        assert!(given.number.is_some_and(|number| (960..1024).contains(&number)), "{given:?}");
        assert_eq!((given.close_on_exec, given.answer), (close_on_exec, true));
    }
    let open =
        |path: &CString, flags: i32| program.call(SYS_openat, &[HERE, at(path), flags as u64]);
    for (path, flags, expected) in [
        (ATTRIBUTE, O_WRONLY, refused(Errno::EACCES)),
        (CLASS, O_WRONLY, refused(Errno::EISDIR)),
        (c"/dev/infiniband/uverbs1", O_RDWR, refused(Errno::ENOENT)),
        (c"/dev/infiniband/..", O_RDWR, refused(Errno::EISDIR)),
        (ELSEWHERE, O_RDONLY, Answer::Kernel),
    ] {
        assert_eq!(open(&path.into(), flags), expected, "{path:?}");
    }
    program.gate.refuse(&[Errno::EMFILE]);
    assert_eq!(open(&ATTRIBUTE.into(), O_RDONLY), refused(Errno::EMFILE));
}

#[test]
fn parent_directory_is_in_tree_and_keeps_o_nonblock() {
    let program = Program::new();
    for (flags, expected) in [(0, false), (O_NONBLOCK, true)] {
        let given = program.open(c"/dev/infiniband/..", O_RDONLY | O_DIRECTORY | flags);
        let flags = fcntl(&given.file, FcntlArg::F_GETFL).expect("the file is open");
        assert_eq!(flags & O_NONBLOCK != 0, expected);
        let path = format!("/proc/self/fd/{}", given.descriptor());
        let names = std::fs::read_dir(path).expect("a directory").flatten();
        let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, ["fwctl", "infiniband"], "and nothing of this machine");
    }
}

#[test]
fn relative_path_resolves_from_its_directory() {
    let program = Program::new();
    let from = |directory: u64, path: &std::ffi::CStr| {
        program.call(SYS_openat, &[directory, at(path), O_RDONLY as u64])
    };
    let [root, dev] = ["/", "/dev"].map(directory);
    let [root, dev] = [&root, &dev].map(|it| it.as_raw_fd() as u64);
    assert_eq!(from(root, c"sys/class/infiniband/mlx5_0/node_type"), Answer::Installed);
    assert_eq!(program.last_installed().text(), "1: CA\n");
    assert_eq!(from(dev, c"infiniband/uverbs0"), Answer::Installed);
    assert_eq!(from(dev, c"infiniband/uverbs9"), refused(Errno::ENOENT));
    // Paths relative to a directory of the tree do not name the tree.
    let class = program.open(CLASS, O_RDONLY);
    assert_eq!(from(class.descriptor(), c"mlx5_0/node_type"), Answer::Installed);
    assert_eq!(from(class.descriptor(), c"../../../etc/passwd"), Answer::Kernel);
    assert_eq!(from(root, c"etc/passwd"), Answer::Kernel);
    assert_eq!(from(u64::from(u32::MAX - 9), c"infiniband/uverbs0"), Answer::Kernel);
}

#[test]
fn path_follows_the_rules_of_openat2() {
    let program = Program::new();
    let (sys, dev) = (directory("/sys"), directory("/dev"));
    let [sys, dev] = [&sys, &dev].map(|it| it.as_raw_fd() as u64);
    let open = |directory: u64, path: &std::ffi::CStr, rules: u64| {
        let how = [0, 0, rules];
        program.call(SYS_openat2, &[directory, at(path), how.as_ptr() as u64, 24])
    };
    let (beside, beneath) = (libc::RESOLVE_NO_XDEV, libc::RESOLVE_BENEATH);
    for (directory, path, rules, expected) in [
        (HERE, ATTRIBUTE, 0, Answer::Installed),
        (HERE, ATTRIBUTE, beside, refused(Errno::EXDEV)),
        (sys, ATTRIBUTE, beside, refused(Errno::EXDEV)),
        (sys, c"class/infiniband/mlx5_0/node_type", beside, Answer::Installed),
        (dev, c"infiniband/uverbs0", beneath, Answer::Installed),
        (dev, c"../dev/infiniband/uverbs0", beneath, refused(Errno::EXDEV)),
        (HERE, ATTRIBUTE, libc::RESOLVE_NO_SYMLINKS, refused(Errno::ELOOP)),
        (HERE, c"/sys/class/infiniband/mlx5_0/../..", 4, refused(Errno::ELOOP)),
        (HERE, ATTRIBUTE, libc::RESOLVE_CACHED, refused(Errno::EAGAIN)),
        (HERE, ATTRIBUTE, 1 << 40, Answer::Kernel),
    ] {
        assert_eq!(open(directory, path, rules), expected, "{path:?} {rules:#x}");
    }
    // Longer structures of later kernels are accepted if the rest is zero.
    let (zeros, more) = ([0u64; 513], [0u64, 0, 0, 1]);
    let (zeros, more) = (zeros.as_ptr() as u64, more.as_ptr() as u64);
    for (how, size, expected) in [
        (zeros, 32, Answer::Installed),
        (zeros, 4096, Answer::Installed),
        (zeros, 4097, Answer::Kernel),
        (zeros, 16, Answer::Kernel),
        (more, 24, Answer::Installed),
        (more, 32, Answer::Kernel),
        (0, 24, Answer::Kernel),
    ] {
        let answer = program.call(SYS_openat2, &[HERE, at(ATTRIBUTE), how, size]);
        assert_eq!(answer, expected, "{size} bytes at {how:#x}");
    }
}

#[test]
fn device_open_takes_filtered_descriptor_if_free() {
    let program = Program::new();
    let open = || program.call(SYS_openat, &[HERE, at(DEVICE), O_RDWR as u64]);
    let count = || program.answerer.shared.opens().len();
    let full = [Errno::EMFILE, Errno::EBADF, Errno::EINVAL];
    program.gate.refuse(&full[..1]);
    assert_eq!(open(), Answer::Installed);
    let second = program.last_installed();
    assert!(second.number.is_some_and(|number| (48..64).contains(&number)), "{second:?}");
    program.gate.refuse(&full[1..]);
    let said = captured_log(|| assert_eq!(open(), Answer::Installed));
    let third = program.last_installed();
    assert_eq!((third.number, count()), (None, 2));
    assert!(said.contains("fstat shows a device's descriptor as a regular file"), "{said}");
    // Errors that another number cannot avoid are returned at once.
    program.gate.refuse(&[Errno::ENOMEM]);
    assert_eq!((open(), count()), (refused(Errno::ENOMEM), 2));
    program.gate.refuse(&full);
    assert_eq!((open(), count()), (refused(Errno::EINVAL), 2));
    // The caller is killed after its path was read.
    let path = OnePage::new(DEVICE);
    program.gate.end_after(1);
    let answer = program.call(SYS_openat, &[HERE, path.at(), O_RDWR as u64]);
    assert_eq!((answer, count()), (refused(Errno::EINTR), 2));
}

/// A path within one page, which one read fetches.
#[repr(align(256))]
struct OnePage([u8; 256]);

impl OnePage {
    fn new(path: &std::ffi::CStr) -> Self {
        let mut bytes = [0; 256];
        bytes[..path.count_bytes()].copy_from_slice(path.to_bytes());
        Self(bytes)
    }

    fn at(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

#[test]
fn pending_device_open_locks_no_other_call() {
    let program = Program::new();
    let node = c"/dev/infiniband/uverbs0";
    let device = program.open(node, O_RDWR);
    let late = program.gate.delay();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| program.open(node, O_RDWR));
        while !program.gate.is_slow() {
            std::thread::yield_now();
        }
        let (sender, done) = std::sync::mpsc::channel();
        let (program, fd) = (&program, device.descriptor());
        scope.spawn(move || {
            let answer = program.call(libc::SYS_ioctl, &[fd, 0x9a00, 16]);
            sender.send((answer, program.answerer.shared.opens().len()))
        });
        let answered = done.recv_timeout(std::time::Duration::from_secs(20));
        drop(late);
        opening.join().expect("the opening thread ends");
        assert_eq!(answered, Ok((refused(Errno::ENOTTY), 2)));
    });
}

/// Checks at each NOTIF_ID_VALID whether the table of opens is locked.
struct Look {
    shared: Arc<SharedRun>,
    locked: AtomicBool,
}

impl CallGate for Look {
    fn answer(&self, _: u64, _: Result<i64, Errno>) {}

    fn continue_call(&self, _: u64) {}

    fn is_waiting(&self, _: u64) -> bool {
        let (sender, done) = std::sync::mpsc::channel();
        let shared = self.shared.clone();
        std::thread::spawn(move || {
            drop(shared.opens());
            sender.send(())
        });
        if done.recv_timeout(std::time::Duration::from_secs(5)).is_err() {
            self.locked.store(true, Ordering::Relaxed);
        }
        true
    }

    fn install_fd(
        &self,
        _: u64,
        _: BorrowedFd<'_>,
        _: Option<u32>,
        _: bool,
        _: bool,
    ) -> Result<i32, Errno> {
        Err(Errno::EMFILE)
    }
}

#[test]
fn result_is_written_with_no_device_locked() {
    let program = Program::new();
    let device = program.open(DEVICE, O_RDWR);
    let shared = program.answerer.shared.clone();
    let look = Arc::new(Look { shared, locked: AtomicBool::new(false) });
    let answerer = Answerer { gate: look.clone(), ..program.answerer.clone() };
    let mut bytes = [0u64; 18];
    let arguments = [device.descriptor(), bytes.as_mut_ptr() as u64, 0, 0, 0, 0];
    let tid = nix::unistd::gettid().as_raw() as u32;
    let call = Notification::of(tid, libc::SYS_fstat as i32, arguments);
    assert_eq!(answerer.answer(&call), Answer::Ours(Ok(0)));
    assert_eq!(stated(std::hint::black_box(&bytes)).0, libc::S_IFCHR | 0o666);
    assert!(!look.locked.load(Ordering::Relaxed), "its memory may never arrive");
}

#[test]
fn unmodelled_device_open_logs_reason() {
    let program = Program::new();
    for (name, why) in [
        ("rdma_cm", "connections by rdma_cm are not modelled"),
        ("umad0", "management datagrams (umad) are not modelled"),
        ("issm1", "subnet managers (issm) are not modelled"),
        ("uverbs7", "there is no such device"),
    ] {
        let path = CString::new(format!("/dev/infiniband/{name}")).expect("a path");
        let open = |flags: i32| {
            let call = [HERE, at(&path), flags as u64];
            captured_log(|| {
                assert!(matches!(program.call(SYS_openat, &call), Answer::Ours(Err(_))))
            })
        };
        let text = open(O_RDONLY);
        assert!(text.contains(&format!("{name} refused with ENOENT: {why}")), "{text}");
        assert_eq!(open(O_WRONLY | O_CREAT), "", "O_CREAT logs no reason");
    }
}

/// Mode, device number and inode of a `struct stat`.
fn stated(bytes: &[u64; 18]) -> (u32, u64, u64) {
    let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let word = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("room"));
    let mode = word(offset_of!(libc::stat, st_mode)) as u32;
    (mode, word(offset_of!(libc::stat, st_rdev)), word(offset_of!(libc::stat, st_ino)))
}

#[test]
fn newfstatat_answers_by_path_or_descriptor() {
    let program = Program::new();
    let stat = |directory: u64, path: u64, flags: i32| {
        let mut bytes = [0; 18];
        let buffer = bytes.as_mut_ptr() as u64;
        let answer = program.call(SYS_newfstatat, &[directory, path, buffer, flags as u64]);
        (answer, stated(std::hint::black_box(&bytes)))
    };
    let done = Answer::Ours(Ok(0));
    let node = (libc::S_IFCHR | 0o666, libc::makedev(231, 192));
    let device = program.open(DEVICE, O_RDWR);
    let fd = device.descriptor();
    for (directory, path, flags) in [
        (HERE, at(DEVICE), 0),
        (HERE, at(DEVICE), AT_SYMLINK_NOFOLLOW),
        (fd, at(c""), AT_EMPTY_PATH),
        (fd, 0, AT_EMPTY_PATH),
    ] {
        let (answer, (mode, number, _)) = stat(directory, path, flags);
        assert_eq!((answer, (mode, number)), (Answer::Ours(Ok(0)), node), "{path:#x} {flags:#x}");
    }
    let kind = |path: &std::ffi::CStr, flags| {
        let (answer, (mode, ..)) = stat(HERE, at(path), flags);
        (answer, mode & libc::S_IFMT)
    };
    let link = c"/sys/class/infiniband/mlx5_0";
    assert_eq!(kind(link, 0), (Answer::Ours(Ok(0)), libc::S_IFDIR));
    assert_eq!(kind(link, AT_SYMLINK_NOFOLLOW), (Answer::Ours(Ok(0)), libc::S_IFLNK));
    assert_eq!(kind(ATTRIBUTE, 0), (Answer::Ours(Ok(0)), libc::S_IFREG));
    assert_eq!(kind(c"/dev/infiniband/..", 0), (done, libc::S_IFDIR));
    let above = stat(HERE, at(c"/dev/infiniband/.."), 0).1.2;
    let inode = std::fs::metadata("/dev").expect("/dev exists").ino();
    assert_ne!(above, inode, "the inode is that of the tree");
    let missing = c"/sys/class/infiniband/mlx5_7";
    assert_eq!(stat(HERE, at(missing), 0).0, refused(Errno::ENOENT));
    assert_eq!(stat(HERE, at(ATTRIBUTE), 1 << 30).0, refused(Errno::EINVAL));
    for (directory, path, flags) in [
        (fd, at(c""), 0),
        (fd, at(c"no-such-file"), AT_EMPTY_PATH),
        (fd, 0, 0),
        (HERE, 0, 0),
        (HERE, at(c""), AT_EMPTY_PATH),
        (HERE, at(ELSEWHERE), 0),
    ] {
        assert_eq!(stat(directory, path, flags).0, Answer::Kernel, "{path:#x} {flags:#x}");
    }
    for path in [ATTRIBUTE, c"/dev/infiniband/.."] {
        let answer = program.call(SYS_newfstatat, &[HERE, at(path), 16, 0]);
        assert_eq!(answer, refused(Errno::EFAULT), "{path:?}");
    }
}

#[test]
fn path_syscall_variants_are_answered() {
    let program = Program::new();
    let device = program.open(DEVICE, O_RDWR);
    let mut room = [0u64; 64];
    let (buffer, path, fd) = (room.as_mut_ptr() as u64, at(DEVICE), device.descriptor());
    let extended = [HERE, path, 0, libc::STATX_BASIC_STATS.into(), buffer];
    assert_eq!(program.call(SYS_statx, &extended), Answer::Ours(Ok(0)));
    let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let half = &bytes[offset_of!(libc::statx, stx_mode)..][..2];
    assert_eq!(half, (libc::S_IFCHR as u16 | 0o666).to_ne_bytes());
    let numbers = &bytes[offset_of!(libc::statx, stx_rdev_major)..][..8];
    assert_eq!(numbers, [231u32.to_ne_bytes(), 192u32.to_ne_bytes()].concat());
    let reserved = [HERE, path, 0, 1 << 31, buffer];
    assert_eq!(program.call(SYS_statx, &reserved), refused(Errno::EINVAL));
    assert_eq!(program.call(libc::SYS_fstat, &[fd, buffer]), Answer::Ours(Ok(0)));
    assert_eq!(program.call(libc::SYS_fstat, &[0, buffer]), Answer::Kernel);
    #[cfg(target_arch = "x86_64")]
    {
        let link = at(c"/sys/class/infiniband/mlx5_0");
        assert_eq!(program.call(libc::SYS_stat, &[link, buffer]), Answer::Ours(Ok(0)));
        assert_eq!(stated(room.first_chunk().expect("room")).0 & libc::S_IFMT, libc::S_IFDIR);
        assert_eq!(program.call(libc::SYS_lstat, &[link, buffer]), Answer::Ours(Ok(0)));
        assert_eq!(stated(room.first_chunk().expect("room")).0 & libc::S_IFMT, libc::S_IFLNK);
        assert_eq!(program.call(libc::SYS_access, &[path, 2]), Answer::Ours(Ok(0)));
        assert_eq!(program.call(libc::SYS_access, &[path, 1]), refused(Errno::EACCES));
        assert_eq!(program.call(libc::SYS_open, &[path, O_RDWR as u64]), Answer::Installed);
        let answer = program.call(libc::SYS_readlink, &[link, buffer, 4]);
        assert_eq!((answer, room[0] as u32), (Answer::Ours(Ok(4)), u32::from_ne_bytes(*b"../.")));
    }
}

#[test]
fn faccessat_checks_file_mode_bits() {
    use libc::{F_OK, R_OK, W_OK, X_OK};
    let program = Program::new();
    let (allowed, no) = (Answer::Ours(Ok(0)), refused(Errno::EACCES));
    for (path, modes, expected) in [
        (DEVICE, &[F_OK, R_OK, W_OK, R_OK | W_OK][..], &allowed),
        (DEVICE, &[X_OK, R_OK | X_OK], &no),
        (ATTRIBUTE, &[F_OK, R_OK], &allowed),
        (ATTRIBUTE, &[W_OK, X_OK, R_OK | W_OK, W_OK | X_OK], &no),
        (CLASS, &[F_OK, R_OK, X_OK, R_OK | X_OK], &allowed),
        (CLASS, &[W_OK, W_OK | X_OK], &no),
        (CLASS, &[8, -1, R_OK | 8], &refused(Errno::EINVAL)),
        (c"/dev/infiniband/uverbs1", &[F_OK], &refused(Errno::ENOENT)),
        (ELSEWHERE, &[F_OK], &Answer::Kernel),
    ] {
        for &mode in modes {
            let answer = program.call(SYS_faccessat, &[HERE, at(path), mode as u64]);
            assert_eq!(answer, *expected, "{path:?} {mode}");
        }
    }
    for flags in [0, libc::AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH] {
        let call = [HERE, at(DEVICE), W_OK as u64, flags as u64];
        assert_eq!(program.call(SYS_faccessat2, &call), allowed, "{flags:#x}");
    }
    for flags in [1, libc::AT_SYMLINK_FOLLOW, libc::AT_EACCESS | 1] {
        let call = [HERE, at(DEVICE), W_OK as u64, flags as u64];
        assert_eq!(program.call(SYS_faccessat2, &call), refused(Errno::EINVAL), "{flags:#x}");
        // `faccessat` has no flags argument.
        assert_eq!(program.call(SYS_faccessat, &call), allowed, "{flags:#x}");
    }
}

#[test]
fn files_have_no_xattrs() {
    let profile = Profile::load("bluefield3").expect("a profile");
    let model = Model::builder().device_with_topology(profile).build();
    let program = Program::of(&model, Side::Dpu);
    let leaf = program.open(c"/sys/class/infiniband/mlx5_2/device", O_RDONLY | O_DIRECTORY);
    let real = std::fs::read_link(format!("/proc/self/fd/{}", leaf.descriptor())).expect("open");
    let shown = program.answerer.view.tree.shown(real);
    // The driver's directory is not modelled.
    let link = CString::new(format!("{}/driver", shown.display())).expect("a path");
    for (path, of_one, of_all) in [
        (ATTRIBUTE, refused(Errno::ENODATA), Answer::Ours(Ok(0))),
        (&link, refused(Errno::ENODATA), Answer::Ours(Ok(0))),
        (c"/dev/infiniband/none", refused(Errno::ENOENT), refused(Errno::ENOENT)),
        (ELSEWHERE, Answer::Kernel, Answer::Kernel),
    ] {
        for number in [libc::SYS_getxattr, libc::SYS_lgetxattr] {
            assert_eq!(program.call(number, &[at(path)]), of_one, "{path:?}");
        }
        for number in [libc::SYS_listxattr, libc::SYS_llistxattr] {
            assert_eq!(program.call(number, &[at(path)]), of_all, "{path:?}");
        }
    }
}

#[test]
fn readlink_truncates_to_buffer_size() {
    let program = Program::new();
    let mut room = [b'-'; 100];
    let to = room.as_mut_ptr() as u64;
    let link = c"/sys/class/infiniband/mlx5_0/device/driver";
    let read =
        |path, to, room: i64| program.call(SYS_readlinkat, &[HERE, at(path), to, room as u64]);
    let target = b"../../../bus/pci/drivers/mlx5_core";
    assert_eq!(read(link, to, 100), Answer::Ours(Ok(target.len() as i64)));
    assert!(std::hint::black_box(&room).starts_with(&[&target[..], b"--"].concat()));
    assert_eq!(read(link, to, target.len() as i64), Answer::Ours(Ok(target.len() as i64)));
    assert_eq!(read(link, to, 1), Answer::Ours(Ok(1)));
    for (path, to, room, expected) in [
        (link, to, 0, refused(Errno::EINVAL)),
        (link, to, -1, refused(Errno::EINVAL)),
        (link, 16, 100, refused(Errno::EFAULT)),
        (ATTRIBUTE, to, 100, refused(Errno::EINVAL)),
        (c"/dev/infiniband/none", to, 100, refused(Errno::ENOENT)),
        (ELSEWHERE, to, 100, Answer::Kernel),
    ] {
        assert_eq!(read(path, to, room), expected, "{path:?} {room}");
    }
}

#[test]
#[allow(unsafe_code, reason = "a page behind which nothing is mapped")]
fn path_is_read_up_to_nul() {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let bytes = std::num::NonZeroUsize::new(4 * 4096).expect("not zero");
    let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
    // SAFETY: fresh memory.
    let memory = unsafe { mmap_anonymous(None, bytes, access, flags) }.expect("memory");
    let start = memory.cast::<u8>();
    // SAFETY: no code uses the last page.
    unsafe { munmap(memory.byte_add(3 * 4096), 4096) }.expect("the mapping exists");
    let program = Program::new();
    let call = Notification::of(std::process::id(), 0, [0; 6]);
    let read = |at: usize, length: usize, end: u8| {
        // SAFETY: within the mapped pages, to which no reference exists.
        unsafe {
            start.add(at).write_bytes(b'a', length);
            start.add(at + length).write(end);
        }
        let text = program.answerer.text(&call, start.as_ptr() as u64 + at as u64);
        text.map(|text| text.len())
    };
    for length in [0, 1, 255, 256, 257, 4095] {
        assert_eq!(read(0, length, 0), Ok(length));
        assert_eq!(read(100, length, 0), Ok(length));
        assert_eq!(read(3 * 4096 - 1 - length, length, 0), Ok(length), "at the end");
    }
    assert_eq!(read(0, 4096, 0), Err(Errno::ENAMETOOLONG));
    assert_eq!(read(3 * 4096 - 10, 9, b'a'), Err(Errno::EFAULT), "there is no zero");
}

#[test]
fn path_of_a_killed_caller_is_not_used() {
    let program = Program::new();
    let (attribute, device) = (at(ATTRIBUTE), at(DEVICE));
    let mut room = [0_u64; 32];
    let buffer = room.as_mut_ptr() as u64;
    let how = [0_u64; 3];
    let calls: [(libc::c_long, Vec<u64>); 8] = [
        (SYS_openat, vec![HERE, attribute]),
        (SYS_openat, vec![HERE, device, O_RDWR as u64]),
        (SYS_openat2, vec![HERE, attribute, how.as_ptr() as u64, 24]),
        (SYS_newfstatat, vec![HERE, attribute, buffer]),
        (SYS_faccessat, vec![HERE, attribute]),
        (SYS_readlinkat, vec![HERE, at(c"/sys/class/infiniband/mlx5_0"), buffer, 100]),
        (libc::SYS_getxattr, vec![attribute]),
        (libc::SYS_listxattr, vec![attribute]),
    ];
    for (number, call) in &calls {
        // The caller is killed, and its tid reused, before its path is read.
        program.gate.end();
        assert_eq!(program.call(*number, call), Answer::Kernel, "call {number}");
        assert!(program.gate.last().is_none(), "call {number}");
    }
    // The same for the start directory of a relative path.
    program.gate.end_after(-1);
    let class = program.open(CLASS, O_DIRECTORY);
    program.gate.end_after(1);
    let path = OnePage::new(c"mlx5_0/node_type");
    let call = [class.descriptor(), path.at()];
    assert_eq!(program.call(SYS_faccessat, &call), Answer::Kernel);
    program.gate.end_after(2);
    assert_eq!(program.call(SYS_faccessat, &call), Answer::Ours(Ok(0)));
    assert_eq!(room, [0; 32]);
}
