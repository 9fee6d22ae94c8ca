//! Files under names that others can guess.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens an empty file for writing: a new one is its owner's alone, and what is there is emptied.
/// In a directory where others may write, it may be a link of theirs, which is refused (ELOOP).
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW.bits();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags);
    options.open(path)
}
