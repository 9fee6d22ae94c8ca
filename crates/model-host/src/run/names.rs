//! The directory of the named runs' sockets.
//!
//! It has mode 0700: in XDG_RUNTIME_DIR if set, else in `/tmp`. A sandboxed program without access
//! to either finds no run, and cannot pose as one.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::proc_stat::text_of;

/// Whether a directory is private to this user. An error if it is absent or no directory.
fn is_own(directory: &Path) -> io::Result<bool> {
    let about = fs::symlink_metadata(directory)?;
    if !about.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(about.uid() == geteuid().as_raw() && about.mode() & 0o077 == 0)
}

/// Path of the directory, which may not exist.
fn directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|path| path.is_absolute() && is_own(path).unwrap_or_default()) {
        Some(path) => path.join("verbless-model"),
        None => PathBuf::from(format!("/tmp/verbless-runs-{}", geteuid())),
    }
}

/// Path of the socket of a run with this name.
///
/// # Errors
/// The directory belongs to another user, or is open to others.
pub(super) fn socket(name: &str) -> io::Result<PathBuf> {
    let directory = directory();
    match is_own(&directory) {
        Ok(false) => Err(io::Error::other(format!(
            "{} is not private to this user: remove it, or set XDG_RUNTIME_DIR to a directory of \
             mode 700",
            directory.display()
        ))),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{}: {error}", directory.display())))
        }
        _ => Ok(directory.join(name)),
    }
}

/// Creates the directory if needed, and locks it until the result is dropped.
///
/// # Errors
/// As [`socket`], and the system's error.
pub(super) fn locked() -> io::Result<File> {
    let path = directory();
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    socket("")?;
    let directory = File::open(&path)?;
    lock_within(&directory, LOCK_TIMEOUT).map_err(|error| {
        io::Error::new(error.kind(), format!("{} cannot be locked: {error}", path.display()))
    })?;
    Ok(directory)
}

/// How long another run may hold the lock. A program that sees the directory read-only can lock it,
/// too.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

fn lock_within(directory: &File, timeout: Duration) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if start.elapsed() < timeout => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => {
                let holder = "another program holds the lock; `fuser` names it";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, holder));
            }
        }
    }
}

/// Names of the runs that are live in this network namespace.
pub(super) fn taken() -> Vec<String> {
    let directory = directory();
    let table = text_of("/proc/net/unix").unwrap_or_default();
    let is_taken = |path: &Path| {
        let end = format!(" {}", path.display());
        table.lines().any(|line| line.ends_with(&end))
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_socket()));
    let mut names: Vec<String> = sockets
        .filter(|entry| is_taken(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn locked_directory_is_waited_for_within_limit() {
        let directory = std::env::temp_dir().join(format!("verbless-lock-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).expect("the path is free");
        let open = || File::open(&directory).expect("the path exists");
        let (holder, other) = (open(), open());
        holder.lock().expect("the lock is free");
        let error = lock_within(&other, Duration::from_millis(30)).expect_err("the lock is held");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(holder);
        // A child that another test has forked holds it until its `execve`.
        lock_within(&other, Duration::from_secs(10)).expect("the lock is free");
        fs::remove_dir_all(&directory).expect("this user owns the path");
    }

    #[test]
    fn names_directory_must_be_private() {
        drop(locked().expect("the lock file is made"));
        assert!(is_own(&directory()).expect("the path exists"));
        let other = std::env::temp_dir().join(format!("verbless-names-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&other).expect("the path is free");
        assert!(is_own(&other).expect("the path exists"));
        let link = other.join("link");
        std::os::unix::fs::symlink(&other, &link).expect("the path is free");
        assert!(is_own(&link).is_err(), "the link leads elsewhere");
        for mode in [0o710, 0o701, 0o770] {
            fs::set_permissions(&other, fs::Permissions::from_mode(mode))
                .expect("this user owns the path");
            assert!(!is_own(&other).expect("the path exists"), "{mode:o}");
        }
        fs::remove_dir_all(&other).expect("this user owns the path");
    }
}
