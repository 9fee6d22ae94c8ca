//! A detached file system for the device tree: a tmpfs at the root of a mount namespace without
//! processes.
//!
//! Programs get descriptors of the tree's directories. In an ordinary file system, `..` from one of
//! them leads up to this process's root, which a sandboxed program must not reach. No filter traps
//! every call that takes a descriptor. Nothing is above the root of this tmpfs. It is read-only
//! once filled. It is mounted in a namespace, so no process of another namespace can mount it
//! elsewhere. (An unmounted file system would not do: each path lookup in it would take a lock that
//! all mounts share.)
//!
//! Mounting requires CAP_SYS_ADMIN. Without it, the forked child also creates a user namespace:
//!
//! ```text
//!   run                                       a child
//!   ---                                       ----------------------------------------
//!                                             unshare, fsopen, fsmount, move_mount onto /
//!   fills it       <-- mount, namespace --
//!                          -- a byte -->      makes it read-only, ends
//!   holds the namespace
//! ```
#![allow(unsafe_code)] // raw system calls, in a child of a process with threads

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, send, shutdown, socketpair,
};
use nix::sys::stat::{Mode, fstat};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, getegid, geteuid};

use super::sys;

/// `FSCONFIG_CMD_CREATE`.
const CREATE: libc::c_uint = 6;
const CLOEXEC: libc::c_uint = 1;
/// `MOUNT_ATTR_RDONLY`; below, `MOUNT_ATTR_NOSUID`, `NODEV` and `NOEXEC`.
const READ_ONLY: u64 = 1;
const NOSUID_NODEV_NOEXEC: libc::c_uint = 2 | 4 | 8;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// The root of a detached tmpfs, and the namespace that keeps it mounted.
#[derive(Debug)]
pub(super) struct Detached {
    pub root: File,
    pub namespace: OwnedFd,
}

/// Mounts a tmpfs and fills it: `fill` gets a path to its root.
///
/// # Errors
/// The system allows no mount, or `fill` failed.
pub(super) fn filled(fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<Detached> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    // Allocated before the fork: the child must not allocate.
    let maps = [
        (c"/proc/self/setgroups", "deny".to_string()),
        (c"/proc/self/uid_map", format!("{0} {0} 1\n", geteuid())),
        (c"/proc/self/gid_map", format!("{0} {0} 1\n", getegid())),
    ];
    // SAFETY: the child only makes system calls, on memory allocated before the fork, and exits.
    let child = match Errno::result(unsafe { libc::fork() })? {
        0 => {
            // SAFETY: closes the child's duplicate, so that the child sees its parent's end.
            unsafe { libc::close(ours.as_raw_fd()) };
            let result = serve(theirs.as_raw_fd(), &maps);
            let status = result.map_or_else(|errno| errno as i32, |()| 0);
            // SAFETY: `_exit` runs no destructor or exit handler of the parent.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::from_raw(pid),
    };
    drop(theirs);
    let receive = || sys::receive_message(ours.as_fd(), 1)?.1.pop().ok_or(Errno::EPERM);
    let made = receive().and_then(|mount| Ok((mount, receive()?))).map_err(io::Error::from);
    let made = made.and_then(|(mount, namespace)| {
        fill(&PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = openat(&mount, ".", flags, Mode::empty())?;
        if !is_its_own_parent(&root)? {
            return Err(Errno::EXDEV.into());
        }
        let root = root.into();
        send(ours.as_raw_fd(), b"r", MsgFlags::MSG_NOSIGNAL)?;
        Ok(Detached { root, namespace })
    });
    // Closing is not enough: a child of another thread may hold a duplicate.
    let _ = shutdown(ours.as_raw_fd(), Shutdown::Both);
    match (made, wait(child)) {
        (made @ Ok(_), Ok(0)) => made,
        (Err(error), Ok(0)) => Err(error),
        (_, Ok(errno)) => Err(io::Error::from_raw_os_error(errno)),
        (_, Err(errno)) => Err(errno.into()),
    }
}

/// Whether a directory is its own parent, as the root of a mount namespace is.
fn is_its_own_parent(root: &OwnedFd) -> Result<bool, Errno> {
    let parent = openat(root, "..", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let [own, up] = [fstat(root)?, fstat(&parent)?];
    Ok((own.st_dev, own.st_ino) == (up.st_dev, up.st_ino))
}

fn wait(child: Pid) -> Result<i32, Errno> {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, status)) => return Ok(status),
            Ok(_) => return Err(Errno::EINTR),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The child's part.
fn serve(socket: RawFd, maps: &[(&std::ffi::CStr, String)]) -> Result<(), Errno> {
    match unshare(libc::CLONE_NEWNS) {
        Err(Errno::EPERM) => {
            unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
            maps.iter().try_for_each(|(file, text)| write(file, text.as_bytes()))?;
        }
        done => done?,
    }
    let namespace = open(c"/proc/self/ns/mnt", libc::O_RDONLY)?;
    // In a chroot, `/` is not the root of the new namespace: a mount there would have a parent that
    // `..` reaches. `setns` moves to the namespace's root.
    // SAFETY: the arguments are integers.
    Errno::result(unsafe { libc::setns(namespace, libc::CLONE_NEWNS) })?;
    let mount = mount()?;
    unmount_others(mount);
    for fd in [mount, namespace] {
        let sent = sys::send_descriptor(socket, fd);
        sent.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    }
    let mut byte = 0u8;
    // SAFETY: the kernel writes at most one byte.
    let filled = unsafe { libc::recv(socket, (&raw mut byte).cast(), 1, 0) };
    if filled != 1 {
        return Ok(());
    }
    let attributes =
        MountAttributes { set: READ_ONLY, clear: 0, propagation: 0, user_namespace: 0 };
    let (empty, size) = (c"".as_ptr(), size_of::<MountAttributes>());
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the kernel reads one structure of this layout.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount, empty, flags, &raw const attributes, size)
    })
    .map(drop)
}

fn unshare(what: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the argument is an integer.
    Errno::result(unsafe { libc::unshare(what) }).map(drop)
}

/// Mounts a tmpfs at the root of this process's mount namespace, so `..` of its root is its root.
fn mount() -> Result<RawFd, Errno> {
    const FROM_EMPTY: libc::c_uint = 4;
    let (root, empty) = (c"/".as_ptr(), c"".as_ptr());
    let (none, no_text) = (0, std::ptr::null::<libc::c_char>());
    // SAFETY: the strings are NUL-terminated; the other arguments are integers.
    unsafe {
        // Keeps the mount out of the parent's namespace.
        let slave = libc::MS_REC | libc::MS_SLAVE;
        let nothing = std::ptr::null::<libc::c_void>();
        Errno::result(libc::mount(no_text, root, no_text, slave, nothing))?;
        let context = Errno::result(libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), CLOEXEC))?;
        let number = libc::SYS_fsconfig;
        Errno::result(libc::syscall(number, context, CREATE, no_text, no_text, none))?;
        let mount = libc::syscall(libc::SYS_fsmount, context, CLOEXEC, NOSUID_NODEV_NOEXEC);
        let mount = Errno::result(mount)? as RawFd;
        let number = libc::SYS_move_mount;
        let here = libc::AT_FDCWD;
        Errno::result(libc::syscall(number, mount, empty, here, root, FROM_EMPTY))?;
        Ok(mount)
    }
}

/// Releases the mounts that this namespace inherited: they would keep file systems busy that are
/// unmounted elsewhere. If `/` is the kernel's rootfs, which cannot be released, they stay hidden
/// below the tmpfs.
fn unmount_others(mount: RawFd) {
    let here = c".".as_ptr();
    // SAFETY: the string is NUL-terminated, and the descriptor is ours.
    unsafe {
        if libc::fchdir(mount) == 0 && libc::syscall(libc::SYS_pivot_root, here, here) == 0 {
            libc::umount2(here, libc::MNT_DETACH);
        }
    }
}

fn open(file: &std::ffi::CStr, flags: libc::c_int) -> Result<RawFd, Errno> {
    // SAFETY: the string is NUL-terminated.
    Errno::result(unsafe { libc::open(file.as_ptr(), flags | libc::O_CLOEXEC) })
}

fn write(file: &std::ffi::CStr, text: &[u8]) -> Result<(), Errno> {
    let fd = open(file, libc::O_WRONLY)?;
    // SAFETY: the length is that of the buffer.
    let written = Errno::result(unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) });
    // SAFETY: no other code has this descriptor.
    unsafe { libc::close(fd) };
    written.map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::super::proc_stat::ProcStat;
    use super::*;

    /// A tmpfs with a file in a directory. `None`: mounting is forbidden here, and the test is
    /// skipped.
    fn made() -> Option<File> {
        let made = filled(|root| {
            fs::create_dir(root.join("a"))?;
            fs::write(root.join("a/file"), "text")
        });
        made.inspect_err(|error| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a test");
            let line = format!("skipped: {name}: no file system can be mounted: {error}\n");
            io::Write::write_all(&mut io::stderr(), line.as_bytes()).expect("stderr is open");
        })
        .ok()
        .map(|made| made.root)
    }

    fn path(root: &File, at: &str) -> String {
        format!("/proc/self/fd/{}/{at}", root.as_raw_fd())
    }

    #[test]
    fn tmpfs_root_is_its_own_parent() {
        let Some(root) = made() else { return };
        let inode = |at: &str| fs::metadata(path(&root, at)).expect("a directory").ino();
        assert_eq!(fs::read(path(&root, "a/file")).expect("a file"), b"text");
        assert_eq!(inode(".."), inode("."));
        assert_eq!(inode("a/../../../../.."), inode("."));
        let other = fs::metadata("/").expect("a directory");
        assert_ne!(fs::metadata(path(&root, "..")).expect("a directory").dev(), other.dev());
    }

    #[test]
    fn tmpfs_root_in_chroot_is_its_own_parent() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can make a chroot");
        }
        let chroot = std::env::temp_dir().join(format!("verbless-chroot-{}", std::process::id()));
        fs::create_dir(&chroot).expect("a new directory");
        // A root that is a mount point, as in schroot and debootstrap.
        let script = "mount --rbind / \"$1\" && exec chroot \"$1\" \"$2\" --nocapture --exact \
                      run::detached::tests::tmpfs_root_is_its_own_parent";
        let program = std::env::current_exe().expect("this test");
        let output = std::process::Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
            .args([&chroot, &program])
            .output()
            .expect("the command starts");
        fs::remove_dir(&chroot).expect("nothing is mounted there");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if !output.status.success() && text.contains("permission denied") {
            return eprintln!("skipped: root may mount nothing here");
        }
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        assert!(!text.contains("skipped"), "{text}");
    }

    #[test]
    fn filled_tmpfs_is_read_only() {
        let Some(root) = made() else { return };
        let read_only = |done: io::Result<()>| {
            let errno = done.expect_err("the tree is read-only").raw_os_error();
            assert_eq!(errno, Some(Errno::EROFS as i32));
        };
        read_only(fs::write(path(&root, "a/file"), "other"));
        read_only(fs::write(path(&root, "a/new"), "other"));
        read_only(fs::remove_file(path(&root, "a/file")));
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        read_only(fs::set_permissions(path(&root, "a/file"), all));
    }

    #[test]
    fn tmpfs_cannot_be_moved() {
        const MOVE_FROM_EMPTY: libc::c_int = 4;
        let Some(root) = made() else { return };
        let target = std::env::temp_dir();
        let target = std::ffi::CString::new(target.to_str().expect("text")).expect("no zero");
        let (fd, empty, here) = (root.as_raw_fd(), c"".as_ptr(), libc::AT_FDCWD);
        // SAFETY: the strings are NUL-terminated; the refused call changes nothing.
        let moved = Errno::result(unsafe {
            let target = target.as_ptr();
            libc::syscall(libc::SYS_move_mount, fd, empty, here, target, MOVE_FROM_EMPTY)
        });
        assert!(matches!(moved, Err(Errno::EINVAL | Errno::EPERM)), "{moved:?}");
    }

    #[test]
    fn namespace_holds_no_other_mount() {
        let own = fs::read_to_string("/proc/self/mountinfo").expect("our own");
        let listed = filled(|_| {
            // The child waits in the namespace meanwhile.
            let child = |pid: &u32| {
                let parent = ProcStat::read(pid).ok().and_then(|stat| stat.parent());
                parent == Some(std::process::id() as i32)
            };
            let pids = fs::read_dir("/proc")?.flatten();
            let pids = pids.filter_map(|it| it.file_name().to_str()?.parse().ok()).filter(child);
            let mounts = pids.map(|pid| fs::read_to_string(format!("/proc/{pid}/mountinfo")));
            let least = mounts.flatten().map(|it| it.lines().count()).min().unwrap_or_default();
            Err(io::Error::other(format!("{least} mounts")))
        });
        let text = listed.expect_err("`fill` fails").to_string();
        if !text.contains("mounts") {
            return drop(made());
        }
        // If `/` is the kernel's rootfs, the inherited mounts are still there.
        let is_first = own.lines().any(|line| line.contains(" / / ") && line.contains(" rootfs "));
        assert!(text == "1 mounts" || is_first, "{text}");
    }

    #[test]
    fn fill_error_is_returned() {
        if made().is_none() {
            return;
        }
        let error = filled(|_| Err(io::ErrorKind::StorageFull.into()))
            .expect_err("the file system is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn map_write_error_is_returned() {
        assert_eq!(write(c"/no/such/file", b"x"), Err(Errno::ENOENT));
        assert_eq!(wait(Pid::this()), Err(Errno::ECHILD));
    }
}
