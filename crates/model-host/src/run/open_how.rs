//! Open modes: the flags of `open` and RESOLVE_* of `openat2`, accepted and rejected in Linux's
//! order (`build_open_flags`, `open_last_lookups` and `do_open` of 6.12).

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};

/// O_TMPFILE without O_DIRECTORY.
const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
/// The flags valid with O_PATH.
const WITH_PATH: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_PATH | libc::O_CLOEXEC;
/// The known RESOLVE_* flags.
const RESOLVE_FLAGS: u64 = libc::RESOLVE_NO_XDEV
    | libc::RESOLVE_NO_MAGICLINKS
    | libc::RESOLVE_NO_SYMLINKS
    | libc::RESOLVE_BENEATH
    | libc::RESOLVE_IN_ROOT
    | libc::RESOLVE_CACHED;
/// The RESOLVE_* flags that confine a path to its start directory.
const CONFINING_FLAGS: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;

/// Flags and RESOLVE_* of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenHow {
    flags: i32,
    resolve: u64,
}

/// The file that a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathTarget {
    Directory,
    /// A symlink as last component, not followed.
    Link,
    /// A read-only file.
    Attribute,
    Device,
}

impl OpenHow {
    /// Flags of `open` and `openat`, which ignore unknown bits.
    pub(super) fn from_flags(flags: u64) -> Self {
        let flags = flags as i32;
        let kept = if flags & libc::O_PATH != 0 { WITH_PATH } else { -1 };
        Self { flags: flags & kept, resolve: 0 }
    }

    /// Parses a `struct open_how`, of this kernel's length or longer with zeros at the end. `None`:
    /// the kernel rejects it for any path.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, later) = bytes.split_first_chunk::<24>()?;
        let (words, _) = words.as_chunks::<8>();
        let is_known = later.iter().all(|&byte| byte == 0);
        Self::of_words([0, 1, 2].map(|at| u64::from_ne_bytes(words[at]))).filter(|_| is_known)
    }

    /// The words are flags, mode, resolve.
    pub(super) fn of_words([flags, mode, resolve]: [u64; 3]) -> Option<Self> {
        let known = u64::from(OFlag::all().bits() as u32);
        let how = Self { flags: flags as i32, resolve };
        let creates = how.has(libc::O_CREAT) || how.has(TMPFILE);
        let refused = flags & !known != 0
            || resolve & !RESOLVE_FLAGS != 0
            || resolve & CONFINING_FLAGS == CONFINING_FLAGS
            || mode & !0o7777 != 0
            || (mode != 0 && !creates)
            || (how.has(libc::O_PATH) && how.flags & !WITH_PATH != 0);
        (!refused).then_some(how)
    }

    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    fn resolves(&self, flag: u64) -> bool {
        self.resolve & flag != 0
    }

    /// O_CREAT: an absent file is created.
    pub(super) fn creates(&self) -> bool {
        self.has(libc::O_CREAT)
    }

    pub(super) fn close_on_exec(&self) -> bool {
        self.has(libc::O_CLOEXEC)
    }

    /// Whether a path may not cross mounts.
    pub(super) fn no_xdev(&self) -> bool {
        self.resolves(libc::RESOLVE_NO_XDEV)
    }

    /// The RESOLVE_* flag that confines the path, if given.
    pub(super) fn scope(&self) -> ResolveFlag {
        ResolveFlag::from_bits_truncate(self.resolve & CONFINING_FLAGS)
    }

    /// RESOLVE_NO_SYMLINKS, if given.
    pub(super) fn links(&self) -> ResolveFlag {
        ResolveFlag::from_bits_truncate(self.resolve & libc::RESOLVE_NO_SYMLINKS)
    }

    /// The flags for the lookup, which opens with O_PATH.
    pub(super) fn lookup_flags(&self) -> OFlag {
        let mut flags = self.flags & (libc::O_DIRECTORY | libc::O_NOFOLLOW);
        if self.creates() && self.has(libc::O_EXCL) {
            flags |= libc::O_NOFOLLOW;
        }
        OFlag::from_bits_truncate(flags | libc::O_PATH)
    }

    /// The flags for the open after the lookup. O_PATH is not among them: the kernel passes no
    /// O_PATH descriptor to another process.
    pub(super) fn open_flags(&self) -> OFlag {
        let kept = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OFlag::from_bits_truncate(self.flags & kept)
    }

    /// The requested access, as mode bits: read (4), write (2).
    pub(super) fn accesses(&self) -> u32 {
        match self.flags & libc::O_ACCMODE {
            _ if self.has(libc::O_PATH) => 0,
            libc::O_RDONLY => 4,
            libc::O_WRONLY => 2,
            _ => 6,
        }
    }

    /// Checks that Linux makes before it looks at the path.
    pub(super) fn check(&self) -> Result<(), Errno> {
        let reads_only = self.flags & libc::O_ACCMODE == libc::O_RDONLY;
        // Since 6.4; earlier kernels created a regular file, or opened the directory.
        if self.creates() && self.has(libc::O_DIRECTORY) {
            return Err(Errno::EINVAL);
        }
        if self.has(TMPFILE) && (!self.has(libc::O_DIRECTORY) || reads_only) {
            return Err(Errno::EINVAL);
        }
        // A lookup in sysfs may always sleep.
        if self.resolves(libc::RESOLVE_CACHED) {
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// Whether the found file may be opened with these flags.
    pub(super) fn admits(&self, found: PathTarget) -> Result<(), Errno> {
        let writes = self.flags & libc::O_ACCMODE != libc::O_RDONLY || self.has(libc::O_TRUNC);
        if self.has(libc::O_PATH) {
            return Ok(());
        }
        if self.has(TMPFILE) {
            return Err(Errno::EACCES);
        }
        if self.creates() && self.has(libc::O_EXCL) {
            return Err(Errno::EEXIST);
        }
        match found {
            PathTarget::Directory if self.creates() || writes => Err(Errno::EISDIR),
            PathTarget::Link => Err(Errno::ELOOP),
            PathTarget::Attribute if writes => Err(Errno::EACCES),
            PathTarget::Directory | PathTarget::Attribute | PathTarget::Device => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use libc::{
        O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC,
        O_WRONLY,
    };

    use super::*;

    #[test]
    fn contradictory_open_flags_are_rejected() {
        for (flags, expected) in [
            (O_RDONLY | O_DIRECTORY, Ok(())),
            (O_CREAT | O_DIRECTORY, Err(Errno::EINVAL)),
            (O_CREAT | O_EXCL | O_WRONLY, Ok(())),
            (O_TMPFILE, Err(Errno::EINVAL)),
            (O_TMPFILE | O_TRUNC, Err(Errno::EINVAL)),
            (O_TMPFILE & !O_DIRECTORY | O_RDWR, Err(Errno::EINVAL)),
            (O_TMPFILE | O_RDWR, Ok(())),
            (O_PATH | O_CREAT | O_DIRECTORY, Ok(())),
        ] {
            assert_eq!(OpenHow::from_flags(flags as u64).check(), expected, "{flags:#o}");
        }
    }

    #[test]
    fn open_is_admitted_by_flags_and_file_kind() {
        use PathTarget::{Attribute, Device, Directory, Link};
        for (flags, found, expected) in [
            (O_RDONLY, Directory, Ok(())),
            (O_WRONLY, Directory, Err(Errno::EISDIR)),
            (O_RDWR, Directory, Err(Errno::EISDIR)),
            (libc::O_ACCMODE, Directory, Err(Errno::EISDIR)),
            (O_TRUNC, Directory, Err(Errno::EISDIR)),
            (O_CREAT, Directory, Err(Errno::EISDIR)),
            (O_CREAT | O_EXCL, Directory, Err(Errno::EEXIST)),
            (O_TMPFILE | O_RDWR, Directory, Err(Errno::EACCES)),
            (O_CREAT, Attribute, Ok(())),
            (O_WRONLY, Attribute, Err(Errno::EACCES)),
            (O_TRUNC, Attribute, Err(Errno::EACCES)),
            (O_CREAT | O_EXCL, Attribute, Err(Errno::EEXIST)),
            (O_NOFOLLOW, Link, Err(Errno::ELOOP)),
            (O_NOFOLLOW | O_PATH, Link, Ok(())),
            (O_CREAT | O_EXCL, Link, Err(Errno::EEXIST)),
            (O_RDWR | O_CREAT | O_TRUNC, Device, Ok(())),
            (O_CREAT | O_EXCL, Device, Err(Errno::EEXIST)),
        ] {
            assert_eq!(
                OpenHow::from_flags(flags as u64).admits(found),
                expected,
                "{flags:#o} {found:?}"
            );
        }
    }

    #[test]
    fn open_how_extension_must_be_zero() {
        let mut bytes = [[O_RDWR as u64, 0, libc::RESOLVE_BENEATH], [0, 0, 0]]
            .concat()
            .into_iter()
            .flat_map(u64::to_ne_bytes)
            .collect::<Vec<_>>();
        for length in [24, 25, 48] {
            let how = OpenHow::of_bytes(&bytes[..length]).expect("a structure of the kernel");
            assert_eq!((how.flags, how.resolve), (O_RDWR, libc::RESOLVE_BENEATH));
        }
        assert!(OpenHow::of_bytes(&bytes[..23]).is_none());
        bytes[47] = 1;
        assert!(OpenHow::of_bytes(&bytes[..47]).is_some() && OpenHow::of_bytes(&bytes).is_none());
    }

    #[test]
    fn lookup_and_open_flags_keep_path_modifiers() {
        let (path, kept) = (O_PATH, O_DIRECTORY | O_NOFOLLOW);
        for (flags, look, open) in [
            (O_RDWR | O_TRUNC | libc::O_CLOEXEC, path, 0),
            (O_DIRECTORY, path | O_DIRECTORY, O_DIRECTORY),
            (O_NOFOLLOW, path | O_NOFOLLOW, O_NOFOLLOW),
            (kept | libc::O_NONBLOCK, path | kept, kept | libc::O_NONBLOCK),
            (O_CREAT, path, 0),
            (O_EXCL, path, 0),
            (O_CREAT | O_EXCL, path | O_NOFOLLOW, 0),
            (O_CREAT | O_EXCL | O_DIRECTORY, path | kept, O_DIRECTORY),
        ] {
            let how = OpenHow::from_flags(flags as u64);
            assert_eq!(
                (how.lookup_flags().bits(), how.open_flags().bits()),
                (look, open),
                "{flags:#o}"
            );
        }
        for flag in [O_DIRECTORY, O_NOFOLLOW, libc::O_CLOEXEC] {
            let all = (flag | path | O_RDWR | O_CREAT) as u64;
            assert_eq!(OpenHow::from_flags(all).flags, flag | path, "{flag:#o} goes with O_PATH");
            assert!(OpenHow::of_words([(flag | path) as u64, 0, 0]).is_some(), "{flag:#o}");
        }
        let resolve =
            |resolve| OpenHow::of_words([0, 0, resolve]).map(|how| (how.scope(), how.links()));
        let none = ResolveFlag::empty();
        for (words, expected) in [
            (libc::RESOLVE_NO_XDEV | libc::RESOLVE_NO_MAGICLINKS, (none, none)),
            (libc::RESOLVE_BENEATH, (ResolveFlag::RESOLVE_BENEATH, none)),
            (libc::RESOLVE_IN_ROOT, (ResolveFlag::RESOLVE_IN_ROOT, none)),
            (libc::RESOLVE_NO_SYMLINKS, (none, ResolveFlag::RESOLVE_NO_SYMLINKS)),
        ] {
            assert_eq!(resolve(words), Some(expected), "{words:#x}");
        }
    }

    #[test]
    fn of_words_leaves_invalid_open_how_to_kernel() {
        let taken =
            |flags: i32, mode, resolve| OpenHow::of_words([flags as u64, mode, resolve]).is_some();
        assert!(taken(O_RDWR | O_CREAT, 0o600, 0) && taken(O_TMPFILE | O_RDWR, 0o7777, 0));
        assert!((0..6).all(|flag| taken(0, 0, 1 << flag)));
        for (flags, mode, resolve) in [
            (O_RDWR, 0o600, 0),
            (O_CREAT, 0o10000, 0),
            (O_PATH | O_CREAT, 0, 0),
            (0, 0, 1 << 6),
            (0, 0, CONFINING_FLAGS),
        ] {
            assert!(!taken(flags, mode, resolve), "{flags:#o} {mode:#o} {resolve:#x}");
        }
        assert!(OpenHow::of_words([1 << 40, 0, 0]).is_none());
        let cached = OpenHow::of_words([0, 0, libc::RESOLVE_CACHED]).map(|how| how.check());
        assert_eq!(cached, Some(Err(Errno::EAGAIN)));
    }
}
