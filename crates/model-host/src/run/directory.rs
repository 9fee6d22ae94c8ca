//! The directory that holds the device tree: the root of a detached tmpfs (`detached`), or a
//! directory in the first temporary directory that accepts it.
//!
//! The owner of a temporary directory locks it. An owner that was killed leaves the directory
//! unlocked; the next owner in the same place removes it.

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
/// Attempts to create a directory that no other process clears as stale.
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
    /// Creates a directory and fills it: detached, else in TMPDIR if set, else in /dev/shm, else in
    /// another temporary directory.
    ///
    /// # Errors
    /// No place accepts it; the text has each place's error.
    pub(super) fn filled(fill: impl Fn(&Path) -> io::Result<()>) -> io::Result<Self> {
        match detached::filled(&fill) {
            Ok(Detached { root, namespace }) => {
                return Ok(Self { path: None, root, _namespace: Some(namespace) });
            }
            Err(error) => tracing::debug!(%error, "cannot mount a tmpfs for the devices"),
        }
        Self::among_temporary_files(fill)
    }

    /// Creates one in TMPDIR if set, else in /dev/shm, else in another temporary directory.
    pub(super) fn among_temporary_files(
        fill: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let named = env::var_os("TMPDIR").filter(|place| !place.is_empty());
        let usual = ["/dev/shm", "/tmp", "/var/tmp"].map(OsString::from);
        let places = named.into_iter().chain(usual).chain(env::var_os("XDG_RUNTIME_DIR"));
        Self::filled_in(places.map(PathBuf::from), fill)
    }

    fn filled_in(
        places: impl IntoIterator<Item = PathBuf>,
        fill: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut refusals = Vec::new();
        for place in places {
            let made = Self::make(&place).and_then(|(path, made)| fill(&path).map(|()| made));
            match made {
                Ok(made) => return Ok(made),
                Err(error) => refusals.push(format!("{}: {error}", place.display())),
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

    fn make(place: &Path) -> io::Result<(PathBuf, Self)> {
        // As the kernel names files in it.
        let place = place.canonicalize()?;
        clear(&place);
        for _ in 0..TRIES {
            let path = nix::unistd::mkdtemp(&place.join(format!("{PREFIX}XXXXXX")))?;
            let made = Self { path: Some(path.clone()), root: open(&path)?, _namespace: None };
            // Some file systems have no locks; stale directories stay there.
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
fn clear(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
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

    fn place(name: &str) -> PathBuf {
        let place = env::temp_dir().join(format!("directory-{name}-{}", std::process::id()));
        fs::create_dir(&place).expect("a new directory");
        place.canonicalize().expect("it is there")
    }

    fn count(place: &Path) -> usize {
        fs::read_dir(place).expect("it is there").count()
    }

    #[test]
    fn make_removes_directories_of_killed_owners() {
        let place = place("left");
        let (live_path, live) = Directory::make(&place).expect("a directory");
        let (left, killed) = Directory::make(&place).expect("another");
        fs::create_dir_all(left.join("sys/class")).expect("a file in it");
        killed.root.unlock().expect("as by its end");
        let (next_path, next) = Directory::make(&place).expect("a third");
        assert!(!left.exists());
        assert!(live_path.exists() && next_path.exists());
        drop((live, next, killed));
        assert_eq!(count(&place), 0);
        fs::remove_dir(place).expect("it is empty");
    }

    #[test]
    fn only_own_directories_of_the_name_are_removed() {
        let place = place("others");
        let kept = place.join("kept");
        fs::create_dir(&kept).expect("a directory");
        fs::write(kept.join("file"), "").expect("a file in it");
        std::os::unix::fs::symlink(&kept, place.join("verbless-model-link")).expect("a link");
        fs::write(place.join("verbless-model-file"), "").expect("a file");
        let left = place.join("verbless-model-left");
        fs::create_dir(&left).expect("a directory");
        let of_another = place.join("verbless-model-another");
        fs::create_dir(&of_another).expect("a directory");
        let given = std::os::unix::fs::chown(&of_another, Some(54321), None).is_ok();
        clear(&place);
        assert!(!left.exists());
        assert_eq!(of_another.exists(), given, "only root can give it away");
        for name in ["verbless-model-link", "verbless-model-file", "kept/file"] {
            assert!(place.join(name).symlink_metadata().is_ok(), "{name} stays");
        }
        fs::remove_dir_all(place).expect("it is there");
    }

    #[test]
    fn filled_in_takes_first_place_with_room() {
        let (full, good) = (place("full"), place("good"));
        let places = [PathBuf::from("/no/such/place"), full.clone(), good.clone()];
        let fill = |path: &Path| {
            fs::write(path.join("first"), "")?;
            if path.starts_with(&full) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        };
        let made = Directory::filled_in(places, fill).expect("the last place takes it");
        assert!(made.path().is_some_and(|path| path.starts_with(&good)));
        assert_eq!(count(&full), 0, "nothing stays where it did not fit");
        drop(made);
        let error = Directory::filled_in([full.clone()], fill).expect_err("no place is left");
        let text = error.to_string();
        assert!(text.contains(&*full.to_string_lossy()), "{text}");
        assert!(text.contains("set TMPDIR"), "{text}");
        for place in [full, good] {
            fs::remove_dir(place).expect("it is empty");
        }
    }
}
