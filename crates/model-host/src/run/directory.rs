//! The directory that holds the device tree: the root of a detached tmpfs (`detached`), or a
//! directory in the first temporary directory that accepts it.
//!
//! The owner of a temporary directory locks it. An owner that was killed leaves the directory
//! unlocked; the next owner there removes it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{env, io};

use super::detached::{self, Detached};

/// The prefix of the names of temporary directories.
const PREFIX: &str = "verbless-model-";
/// Attempts: another process may remove the new directory before it is locked.
const TRIES: u32 = 8;

/// The directory, which is removed on drop.
#[derive(Debug)]
pub(super) struct Directory {
    /// Its path on this machine; `None`: detached.
    path: Option<PathBuf>,
    /// The directory. A temporary one is locked.
    root: File,
    /// Keeps a detached tmpfs mounted.
    _namespace: Option<OwnedFd>,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

impl Directory {
    /// Creates a directory and fills it: detached, else as [`Self::create_temporary`] does.
    ///
    /// # Errors
    /// No file system accepts it; the text has each one's error.
    pub(super) fn create(fill: impl Fn(&Path) -> io::Result<()>) -> io::Result<Self> {
        match detached::filled(&fill) {
            Ok(Detached { root, namespace }) => {
                return Ok(Self { path: None, root, _namespace: Some(namespace) });
            }
            Err(error) => tracing::debug!(%error, "cannot mount a tmpfs for the devices"),
        }
        Self::create_temporary(fill)
    }

    /// Creates and fills a directory in TMPDIR if set, else in /dev/shm, else in another temporary
    /// directory.
    pub(super) fn create_temporary(fill: impl Fn(&Path) -> io::Result<()>) -> io::Result<Self> {
        let named = env::var_os("TMPDIR").filter(|path| !path.is_empty());
        let usual = ["/dev/shm", "/tmp", "/var/tmp"].map(OsString::from);
        let parents = named.into_iter().chain(usual).chain(env::var_os("XDG_RUNTIME_DIR"));
        Self::create_in(parents.map(PathBuf::from), fill)
    }

    fn create_in(
        parents: impl IntoIterator<Item = PathBuf>,
        fill: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut refusals = Vec::new();
        for parent in parents {
            let made = Self::make(&parent).and_then(|(path, made)| fill(&path).map(|()| made));
            match made {
                Ok(made) => return Ok(made),
                Err(error) => refusals.push(format!("{}: {error}", parent.display())),
            }
        }
        Err(io::Error::other(format!(
            "no directory can hold the files of the devices ({}): set TMPDIR to a writable \
             directory",
            refusals.join("; ")
        )))
    }

    /// Its path on this machine; `None`: detached.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Removes the directory. Descriptors that programs hold stay valid; a detached tmpfs ends with
    /// the last of them.
    pub(super) fn remove(&self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_dir_all(path);
        }
    }

    fn make(parent: &Path) -> io::Result<(PathBuf, Self)> {
        // The kernel reports canonical paths (/proc/PID/fd).
        let parent = parent.canonicalize()?;
        remove_stale(&parent);
        for _ in 0..TRIES {
            let path = nix::unistd::mkdtemp(&parent.join(format!("{PREFIX}XXXXXX")))?;
            let made = Self { path: Some(path.clone()), root: open(&path)?, _namespace: None };
            // Without flock, stale directories are never removed.
            let locked = !matches!(made.root.try_lock(), Err(TryLockError::WouldBlock));
            if locked && path.exists() {
                return Ok((path, made));
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.remove();
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Removes directories of this user whose owners were killed.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let path = entry.path();
        let Ok(left) = open(&path) else { continue };
        let own = left.metadata().is_ok_and(|left| left.uid() == nix::unistd::geteuid().as_raw());
        if own && left.try_lock().is_ok() {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent_named(name: &str) -> PathBuf {
        let parent = env::temp_dir().join(format!("directory-{name}-{}", std::process::id()));
        fs::create_dir(&parent).expect("a new directory");
        parent.canonicalize().expect("the path exists")
    }

    fn count(parent: &Path) -> usize {
        fs::read_dir(parent).expect("the path exists").count()
    }

    #[test]
    fn make_removes_directories_of_killed_owners() {
        let parent = parent_named("left");
        let (live_path, live) = Directory::make(&parent).expect("a directory");
        let (left, killed) = Directory::make(&parent).expect("another");
        fs::create_dir_all(left.join("sys/class")).expect("a file in it");
        killed.root.unlock().expect("unlock");
        let (next_path, next) = Directory::make(&parent).expect("a third");
        assert!(!left.exists());
        assert!(live_path.exists() && next_path.exists());
        drop((live, next, killed));
        assert_eq!(count(&parent), 0);
        fs::remove_dir(parent).expect("the parent directory is empty");
    }

    #[test]
    fn remove_stale_removes_only_own_prefixed_directories() {
        let parent = parent_named("others");
        let kept = parent.join("kept");
        fs::create_dir(&kept).expect("a directory");
        fs::write(kept.join("file"), "").expect("a file in it");
        std::os::unix::fs::symlink(&kept, parent.join("verbless-model-link")).expect("a link");
        fs::write(parent.join("verbless-model-file"), "").expect("a file");
        let left = parent.join("verbless-model-left");
        fs::create_dir(&left).expect("a directory");
        let of_another = parent.join("verbless-model-another");
        fs::create_dir(&of_another).expect("a directory");
        let chowned = std::os::unix::fs::chown(&of_another, Some(54321), None).is_ok();
        remove_stale(&parent);
        assert!(!left.exists());
        assert_eq!(of_another.exists(), chowned, "only root may chown");
        for name in ["verbless-model-link", "verbless-model-file", "kept/file"] {
            assert!(parent.join(name).symlink_metadata().is_ok(), "{name} stays");
        }
        fs::remove_dir_all(parent).expect("the path exists");
    }

    #[test]
    fn create_in_takes_first_parent_with_room() {
        let (full, good) = (parent_named("full"), parent_named("good"));
        let parents = [PathBuf::from("/no/such/directory"), full.clone(), good.clone()];
        let fill = |path: &Path| {
            fs::write(path.join("first"), "")?;
            if path.starts_with(&full) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        };
        let made = Directory::create_in(parents, fill).expect("the last parent takes it");
        assert!(made.path().is_some_and(|path| path.starts_with(&good)));
        assert_eq!(count(&full), 0, "nothing stays where it did not fit");
        drop(made);
        let error = Directory::create_in([full.clone()], fill).expect_err("no parent is left");
        let text = error.to_string();
        assert!(text.contains(&*full.to_string_lossy()), "{text}");
        assert!(text.contains("set TMPDIR"), "{text}");
        for parent in [full, good] {
            fs::remove_dir(parent).expect("the parent directory is empty");
        }
    }
}
