//! Creates files whose names other users can guess.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::Uid;

/// Creates or empties a file for writing that only its owner may open. Refuses a symlink, and an
/// existing file that is not regular, has another owner or has several hard links, so that no other
/// user can plant the file. The directory's mode is not checked.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    options.write(true).mode(0o600).custom_flags(flags.bits());
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        created => return created,
    }
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != Uid::effective().as_raw() || found.nlink() != 1 {
        let why = "a file of this name exists that is not a regular file of this user with a \
                   single hard link: remove it, or give another name";
        return Err(Error::new(ErrorKind::AlreadyExists, why));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn created_file_is_owner_only_and_regular() {
        let directory = std::env::temp_dir().join(format!("verbless-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("file");
        fs::write(&path, "what was there, and is longer").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        create(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        let (linked, fifo) = (directory.join("linked"), directory.join("fifo"));
        fs::hard_link(&path, &linked).unwrap();
        assert_eq!(create(&linked).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        // Without a reader the open fails with ENXIO; with one, the file is not regular.
        assert!(create(&fifo).is_err());
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let _reader = options.open(&fifo).unwrap();
        assert_eq!(create(&fifo).unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::remove_dir_all(&directory).unwrap();
    }
}
