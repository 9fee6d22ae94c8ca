//! The device tree: the files below /sys and /dev that programs see instead of the real ones.
//!
//! The tree is built once, in its own directory. It covers every directory that belongs to RDMA
//! devices, so real devices are hidden. A path is opened beneath the tree's root as if that were
//! `/`: neither `..` nor a symlink leads out. Directories and symlinks are real, so every call
//! works on their descriptors.
//!
//! From a directory's descriptor, calls that no filter traps can reach its parents. In a detached
//! tmpfs, they reach only the tree. Otherwise they reach this process's root, and only programs
//! with the same root get files of the tree ([`Tree::may_receive_files`]).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::directory::Directory;
use super::node::clean;
use super::sysfs::{self, ShownDevice};
use super::{namespaces, sys};

/// The listing of all PCI functions: the modelled ones beside the machine's. A path below it
/// belongs to the tree only if DIRECTORIES says so.
const LISTING: &[u8] = b"/sys/bus/pci/devices";

/// Paths below these belong to the tree.
const DIRECTORIES: [&str; 8] = [
    "/sys/class/infiniband",
    "/sys/class/fwctl",
    "/dev/infiniband",
    "/dev/fwctl",
    "/sys/devices/pcifb0b",
    "/sys/bus/pci/devices/fb0b",
    "/sys/bus/pci/drivers/mlx5_core",
    "/sys/module/mlx5_core",
];

/// Attempts to open a path that concurrent renames disturb; each takes a few microseconds.
const MAX_RACES: u32 = 10_000;

/// The tree, removed on drop.
#[derive(Debug)]
pub(super) struct Tree {
    directory: Directory,
    /// Whether a working directory may be in the tree or in its real counterpart: a program got a
    /// descriptor, or the machine has the real directories. A relative path may then lead there.
    within: AtomicBool,
}

/// Every path into the tree, except the listing, contains one of these.
const MARKS: [&[u8]; 4] = [b"infiniband", b"fwctl", b"fb0b", b"mlx5_core"];

fn is_marked(path: &[u8]) -> bool {
    MARKS.iter().any(|mark| path.windows(mark.len()).any(|part| part == *mark))
}

/// Whether an absolute path leads into the tree, by its text.
pub(super) fn is_ours(path: &[u8]) -> bool {
    if !is_marked(path) {
        return false;
    }
    let Some(clean) = clean(path) else { return false };
    DIRECTORIES.iter().any(|directory| clean.starts_with(directory.as_bytes()))
}

/// Whether a path names the PCI listing.
pub(super) fn is_listing(path: &[u8]) -> bool {
    let last = &LISTING[b"/sys/bus/".len()..];
    path.windows(last.len()).any(|part| part == last)
        && clean(path).is_some_and(|clean| clean == LISTING)
}

/// Whether a path leads into the tree, or through it to a directory above.
pub(super) fn leads_through(path: &[u8]) -> bool {
    is_ours(path) || is_above(path).is_some() || is_listing(path)
}

/// The normalized path, if it leads through a directory of the tree to one above, as
/// `/dev/infiniband/..` does. The kernel does not have the directory, so its parent also comes from
/// the tree, and contains only the tree's directories.
fn is_above(path: &[u8]) -> Option<Vec<u8>> {
    if !is_marked(path) {
        return None;
    }
    let clean = clean(path)?;
    let is_above = |directory: &&str| {
        let rest = directory.as_bytes().strip_prefix(&*clean);
        clean == b"/" || rest.is_some_and(|rest| rest.starts_with(b"/"))
    };
    DIRECTORIES.iter().any(is_above).then_some(clean)
}

impl Tree {
    /// Builds the tree for these devices.
    pub(super) fn new(devices: &[ShownDevice]) -> io::Result<Self> {
        Ok(Self::in_directory(Directory::create(|path| sysfs::fill(path, devices))?))
    }

    /// Builds the tree without a detached tmpfs.
    #[cfg(test)]
    pub(super) fn create_temporary(devices: &[ShownDevice]) -> io::Result<Self> {
        let fill = |path: &Path| sysfs::fill(path, devices);
        Ok(Self::in_directory(Directory::create_temporary(fill)?))
    }

    fn in_directory(directory: Directory) -> Self {
        let within = DIRECTORIES.iter().any(|directory| Path::new(directory).exists()).into();
        Self { directory, within }
    }

    /// Whether a thread may get descriptors of the tree's files: they lead only to the tree, or to
    /// this process's root, which is also the thread's.
    pub(super) fn may_receive_files(&self, tid: u32) -> bool {
        self.directory.path().is_none() || namespaces::has_our_root(tid)
    }

    /// Opens a path with the tree as `/`. EAGAIN: concurrent renames did not end.
    pub(super) fn open(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
        self.open_from(b"/", path, flags, ResolveFlag::RESOLVE_IN_ROOT)
    }

    /// As [`Tree::open`], but `path` starts in `from` and stays there. `rules`: RESOLVE_IN_ROOT or
    /// RESOLVE_BENEATH, optionally with RESOLVE_NO_SYMLINKS.
    pub(super) fn open_from(
        &self,
        from: &[u8],
        path: &[u8],
        flags: OFlag,
        rules: ResolveFlag,
    ) -> Result<OwnedFd, Errno> {
        let start;
        let directory = if from == b"/" {
            self.directory.as_fd()
        } else {
            start = self.open(from, OFlag::O_PATH)?;
            start.as_fd()
        };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(rules | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        for _ in 0..MAX_RACES {
            match openat2(directory, OsStr::from_bytes(path), how) {
                // A concurrent rename or mount disturbed a `..` or a symlink; programs do not
                // expect EAGAIN.
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                opened => return opened,
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Removes the directory. Descriptors that programs hold stay valid.
    pub(super) fn remove(&self) {
        self.directory.remove();
    }

    /// Records that a process gets a file of the tree.
    pub(super) fn record_use(&self) {
        self.within.store(true, Ordering::Relaxed);
    }

    /// Whether a relative path may lead into the tree, from any working directory.
    pub(super) fn may_be_reached_by(&self, path: &[u8]) -> bool {
        self.within.load(Ordering::Relaxed) || is_marked(path)
    }

    /// The program's name for a real path. In a detached tmpfs both are the same.
    pub(super) fn shown(&self, real: PathBuf) -> PathBuf {
        self.within_directory(&real).unwrap_or(real)
    }

    fn within_directory(&self, real: &Path) -> Option<PathBuf> {
        let rest = real.strip_prefix(self.directory.path()?).ok()?;
        Some(Path::new("/").join(rest))
    }

    /// The program's name for a thread's working directory, if it is in the tree.
    pub(super) fn directory_of(&self, tid: u32) -> Option<PathBuf> {
        let link = format!("/proc/{tid}/cwd");
        let real = std::fs::read_link(&link).ok()?;
        if self.directory.path().is_some() {
            return self.within_directory(&real);
        }
        let device = |status: sys::Status| status.device;
        let own = sys::status(self.directory.as_fd(), "").ok().map(device);
        let its = sys::status_at(&link).ok().map(device);
        (own.is_some() && own == its).then_some(real)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    fn tree() -> Tree {
        let model =
            Model::builder().device(Profile::load("bluefield3").expect("a profile")).build();
        Tree::new(&sysfs::shown(&InProcess::of(&model))).expect("a tree")
    }

    fn temporary() -> Tree {
        let model =
            Model::builder().device(Profile::load("bluefield3").expect("a profile")).build();
        let shown = sysfs::shown(&InProcess::of(&model));
        Tree::create_temporary(&shown).expect("a tree")
    }

    fn text(tree: &Tree, path: &str) -> Result<String, Errno> {
        let mut text = String::new();
        let mut file = File::from(tree.open(path.as_bytes(), OFlag::O_RDONLY)?);
        file.read_to_string(&mut text).map_err(|_| Errno::EIO)?;
        Ok(text.trim_end().to_string())
    }

    #[test]
    fn is_ours_matches_normalized_device_paths() {
        for ours in [
            "/sys/class/infiniband",
            "//sys/./class/infiniband_verbs/uverbs0",
            "/dev/infiniband/uverbs0",
            "/sys/class/net/../infiniband",
            "/sys/class/fwctl/fwctl0",
            "/dev/fwctl",
        ] {
            assert!(is_ours(ours.as_bytes()) && leads_through(ours.as_bytes()), "{ours}");
        }
        for other in
            ["/sys/class/net", "sys/class/infiniband", "/dev", "/sys/class/infiniband/../net", ""]
        {
            assert!(!is_ours(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn is_above_matches_parents_of_device_paths() {
        for (path, above) in [
            ("/dev/infiniband/..", "/dev"),
            ("/sys/class/infiniband/../..", "/sys"),
            ("/sys/class/infiniband/mlx5_0/../../../..", "/"),
        ] {
            assert_eq!(is_above(path.as_bytes()).as_deref(), Some(above.as_bytes()), "{path}");
            assert!(leads_through(path.as_bytes()), "{path}");
        }
        for path in
            ["/dev", "/dev/infiniband", "/dev/infiniband/../null", "/dev/infiniband/../../etc"]
        {
            assert_eq!(is_above(path.as_bytes()), None, "{path}");
        }
        for path in ["/etc/passwd", "/home/infiniband", "/dev/infiniband/../null", "/dev"] {
            assert!(!leads_through(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn tree_has_sysfs_attributes_of_device() {
        let tree = tree();
        for (path, expected) in [
            ("/sys/class/infiniband_verbs/abi_version", "6"),
            ("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
            ("/sys/class/infiniband_verbs/uverbs0/dev", "231:192"),
            ("/sys/class/infiniband_verbs/uverbs0/device/vendor", "0x15b3"),
            ("/sys/class/infiniband/mlx5_0/node_type", "1: CA"),
            ("/sys/class/infiniband/mlx5_0/device/fwctl/fwctl0/dev", "240:0"),
            ("/sys/class/fwctl/fwctl0/device/vendor", "0x15b3"),
            ("/sys/class/fwctl/fwctl0/subsystem/fwctl0/dev", "240:0"),
            ("/sys/class/infiniband/mlx5_0/board_id", "VBL0000000001"),
            ("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("/sys/class/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff"),
            ("/sys/class/infiniband/mlx5_0/device/../fb0b:00:01.0/device", "0xa2dc"),
        ] {
            assert_eq!(text(&tree, path).as_deref(), Ok(expected), "{path}");
        }
        assert_eq!(text(&tree, "/sys/class/infiniband/mlx5_1/node_type"), Err(Errno::ENOENT));
    }

    #[test]
    fn relative_path_may_reach_tree_after_first_open() {
        let tree = tree();
        let real = DIRECTORIES.iter().any(|directory| Path::new(directory).exists());
        assert_eq!(tree.may_be_reached_by(b"mlx5_0/node_type"), real);
        for path in [&b"dev/infiniband"[..], b"../fwctl0", b"devices/pcifb0b:00"] {
            assert!(tree.may_be_reached_by(path));
        }
        tree.record_use();
        assert!(tree.may_be_reached_by(b"mlx5_0/node_type"));
    }

    #[test]
    fn path_is_found_during_renames() {
        let tree = tree();
        let fill = |path: &Path| std::fs::write(path.join("a"), "");
        let others = Directory::create_temporary(fill).expect("a file");
        let path = others.path().expect("a temporary one");
        let (one, other) = (path.join("a"), path.join("b"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::fs::rename(&one, &other).expect("the path exists");
                    std::fs::rename(&other, &one).expect("the path exists");
                }
            });
            let up = "/sys/class/infiniband/mlx5_0/device/../fb0b:00:01.0/device";
            let failed = (0..20_000).find_map(|_| tree.open(up.as_bytes(), OFlag::O_PATH).err());
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
    }

    #[test]
    fn tree_lookup_cannot_escape_root() {
        let temporary = temporary();
        let inside = temporary.directory.path().expect("a temporary one").to_path_buf();
        for tree in [&tree(), &temporary] {
            for path in
                ["/../../../../etc/passwd", "/sys/class/infiniband/../../../../../etc/passwd"]
            {
                assert_eq!(text(tree, path), Err(Errno::ENOENT), "{path}");
            }
        }
        symlink("/etc/passwd", inside.join("sys/trap")).expect("a link");
        assert_eq!(text(&temporary, "/sys/trap"), Err(Errno::ENOENT));
        temporary.remove();
        assert!(!inside.exists(), "though somebody has it still");
        drop(temporary);
        assert!(!inside.exists());
    }

    #[test]
    fn tree_file_is_shown_by_program_path() {
        use std::os::fd::AsRawFd;
        let known = Path::new("/dev/infiniband");
        let real = |tree: &Tree| {
            let fd = tree.open(b"/dev/infiniband", OFlag::O_PATH).expect("a directory");
            std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
                .expect("the file is open")
        };
        for tree in [tree(), temporary()] {
            assert_eq!(tree.shown(real(&tree)), known);
            assert_eq!(tree.shown("/etc".into()), Path::new("/etc"));
            assert_eq!(tree.directory_of(std::process::id()), None, "we are elsewhere");
        }
    }
}
