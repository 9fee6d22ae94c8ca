//! Path lookup in the tree under the RESOLVE_* rules of `openat2`.
//!
//! The host's kernel follows symlinks and `..` within the tree. Mounts are decided by the path's
//! text: `/sys` and `/dev` are separate file systems, and the tree is one.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};

use super::node::clean;
use super::open_how::{OpenHow, PathTarget};
use super::tree::{self, Tree};

/// Mount points of the file systems that the tree covers.
const MOUNTS: [&[u8]; 2] = [b"/sys", b"/dev"];

/// A path in the tree, with its start.
#[derive(Debug)]
pub(super) struct PathWalk {
    /// The absolute path.
    pub whole: Vec<u8>,
    /// The directory in the tree that the path must not leave.
    from: Vec<u8>,
    /// The path relative to it.
    path: Vec<u8>,
    rules: ResolveFlag,
    /// The path crosses mounts, which the caller forbids.
    pub crosses: bool,
}

impl PathWalk {
    /// A path without a scope, which starts in `start`.
    pub(super) fn from_root(whole: Vec<u8>, start: &[u8], how: &OpenHow) -> Self {
        let (mut from, mut path) = (b"/".to_vec(), whole.clone());
        let mut rules = ResolveFlag::RESOLVE_IN_ROOT;
        let crosses = how.no_xdev() && !is_one_mount(start, &whole);
        if let Some(mount) = mount(start).filter(|_| how.no_xdev()) {
            // EXDEV for leaving the mount, as RESOLVE_BENEATH gives.
            from = mount.to_vec();
            path = [b".", whole.strip_prefix(mount).unwrap_or_default()].concat();
            rules = ResolveFlag::RESOLVE_BENEATH;
        }
        Self { whole, from, path, rules: rules | how.links(), crosses }
    }

    /// A path that must stay in `base`. `None`: the path does not lead into the tree, or leads out
    /// of `base`; the kernel then resolves it.
    pub(super) fn within(base: Vec<u8>, path: Vec<u8>, how: &OpenHow) -> Option<Self> {
        let scope = how.scope();
        let beneath = scope.contains(ResolveFlag::RESOLVE_BENEATH);
        if path.is_empty() || beneath && path.starts_with(b"/") {
            return None;
        }
        let whole = if beneath {
            clean(&joined(&base, &path))?
        } else {
            joined(&base, &clean(&joined(b"/", &path))?[1..])
        };
        let rest = whole.strip_prefix(&*base)?;
        if !tree::is_ours(&whole) || !(rest.is_empty() || base == b"/" || rest[0] == b'/') {
            return None;
        }
        let crosses = how.no_xdev() && !is_one_mount(&base, &whole);
        Some(Self { whole, from: base, path, rules: scope | how.links(), crosses })
    }

    /// Opens the path.
    pub(super) fn open(&self, tree: &Tree, flags: OFlag) -> Result<OwnedFd, Errno> {
        tree.open_from(&self.from, &self.path, flags, self.rules)
    }

    /// The kind of file at the path, or the lookup's error.
    pub(super) fn lookup(
        &self,
        tree: &Tree,
        how: &OpenHow,
        device: bool,
    ) -> Result<PathTarget, Errno> {
        let (parent, last) = parts(&self.path);
        let directory = || {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
            tree.open_from(&self.from, &parent, flags, self.rules)
        };
        if how.creates() && self.path.ends_with(b"/") && ![&b"."[..], b".."].contains(&last) {
            return directory().and(Err(Errno::EISDIR));
        }
        let file = match self.open(tree, how.lookup_flags()) {
            // No program can create a file here.
            Err(Errno::ENOENT) if how.creates() => return directory().and(Err(Errno::EACCES)),
            opened => opened?,
        };
        Ok(match nix::sys::stat::fstat(&file)?.st_mode & libc::S_IFMT {
            libc::S_IFDIR => PathTarget::Directory,
            libc::S_IFLNK => PathTarget::Link,
            _ if device => PathTarget::Device,
            _ => PathTarget::Attribute,
        })
    }
}

/// Resolves a path relative to a directory.
pub(super) fn joined(base: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path.to_vec();
    }
    let between: &[u8] = if base.ends_with(b"/") { b"" } else { b"/" };
    [base, between, path].concat()
}

/// Splits a path into its directory and its last component.
fn parts(path: &[u8]) -> (Vec<u8>, &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (path[..=at].to_vec(), &path[at + 1..]),
        None => (b".".to_vec(), path),
    }
}

/// The mount point, of MOUNTS, that a path is below.
fn mount(path: &[u8]) -> Option<&'static [u8]> {
    let path = clean(path)?;
    let is_in = |mount: &&[u8]| {
        path.strip_prefix(*mount).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    MOUNTS.into_iter().find(is_in)
}

fn is_one_mount(start: &[u8], end: &[u8]) -> bool {
    mount(start).is_some() && mount(start) == mount(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(rules: u64) -> OpenHow {
        OpenHow::of_words([0, 0, rules]).expect("rules that Linux has")
    }

    #[test]
    fn no_xdev_walk_crosses_from_other_file_system() {
        let rule = how(libc::RESOLVE_NO_XDEV);
        let crosses = |start: &str, whole: &str| {
            PathWalk::from_root(whole.into(), start.as_bytes(), &rule).crosses
        };
        for (start, whole) in [
            ("/", "/sys/class/infiniband"),
            ("/system", "/sys/class/infiniband"),
            ("/dev", "/dev/../sys/class/infiniband"),
            ("/dev/infiniband", "/dev/infiniband/../.."),
        ] {
            assert!(crosses(start, whole), "{whole} from {start}");
        }
        for (start, whole) in [
            ("/sys", "/sys/class/infiniband/mlx5_0/node_type"),
            ("/dev/infiniband", "/dev/infiniband/uverbs0"),
            ("/sys/class/net", "/sys/class/net/../infiniband"),
        ] {
            assert!(!crosses(start, whole), "{whole} from {start}");
            assert!(!PathWalk::from_root(whole.into(), b"/", &how(0)).crosses);
        }
        let walk = PathWalk::from_root(b"/sys/class/fwctl".to_vec(), b"/sys", &rule);
        assert_eq!((&*walk.from, &*walk.path), (&b"/sys"[..], &b"./class/fwctl"[..]));
    }

    #[test]
    fn scoped_path_enters_tree_only_from_its_base() {
        let beneath = how(libc::RESOLVE_BENEATH);
        let within = how(libc::RESOLVE_IN_ROOT);
        let whole = |base: &str, path: &str, how: &OpenHow| {
            let walk = PathWalk::within(base.into(), path.into(), how)?;
            Some(String::from_utf8(walk.whole).expect("text"))
        };
        let device = Some("/dev/infiniband/uverbs0".to_string());
        for (base, path, by_beneath, by_within) in [
            ("/", "dev/infiniband/uverbs0", true, true),
            ("/", "/dev/infiniband/uverbs0", false, true),
            ("/dev", "infiniband/uverbs0", true, true),
            ("/dev", "/infiniband/../infiniband/uverbs0", false, true),
            ("/dev", "../infiniband/uverbs0", false, true),
            ("/dev/infiniband", "uverbs0", true, true),
            ("/dev/infini", "../infiniband/uverbs0", false, false),
            ("/dev/shm", "../infiniband/uverbs0", false, false),
            ("/home", "/dev/infiniband/uverbs0", false, false),
            ("/dev/infiniband/uverbs0", "", false, false),
        ] {
            let expected = |holds: bool| device.clone().filter(|_| holds);
            assert_eq!(whole(base, path, &beneath), expected(by_beneath), "{path} beneath {base}");
            assert_eq!(whole(base, path, &within), expected(by_within), "{path} in {base}");
        }
        // The base itself.
        assert_eq!(whole("/dev/infiniband", ".", &beneath).as_deref(), Some("/dev/infiniband"));
    }

    #[test]
    fn walk_keeps_resolve_rules_of_call() {
        use libc::{RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV};
        let bits = |rules: u64| ResolveFlag::from_bits_truncate(rules);
        for (rules, expected) in
            [(0, RESOLVE_IN_ROOT), (RESOLVE_NO_SYMLINKS, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS)]
        {
            let walk = PathWalk::from_root(b"/dev/fwctl".to_vec(), b"/", &how(rules));
            assert_eq!(walk.rules, bits(expected));
        }
        for rules in [RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS] {
            for (base, stays) in [(&b"/"[..], false), (b"/dev", true)] {
                let path = b"/dev/fwctl".strip_prefix(base).expect("a part");
                let path = path.strip_prefix(b"/").unwrap_or(path);
                for (rule, crosses) in [(0, false), (RESOLVE_NO_XDEV, !stays)] {
                    let walk = PathWalk::within(base.into(), path.into(), &how(rules | rule));
                    let walk = walk.expect("the path leads into the tree");
                    assert_eq!((walk.rules, walk.crosses), (bits(rules), crosses), "{rules:#x}");
                }
            }
        }
    }

    #[test]
    fn path_splits_into_directory_and_name() {
        for (path, parent, last) in [
            ("/sys/class/fwctl", "/sys/class/", "fwctl"),
            ("/sys//class//", "/sys//", "class"),
            ("uverbs0", ".", "uverbs0"),
            ("./a/..", "./a/", ".."),
            ("/", ".", ""),
        ] {
            let (directory, rest) = parts(path.as_bytes());
            assert_eq!((&*directory, rest), (parent.as_bytes(), last.as_bytes()), "{path}");
        }
    }
}
