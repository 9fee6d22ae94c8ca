//! The control file of a function, `/dev/fwctl/fwctlN`; its name is in sysfs.
//!
//! Source: Linux `drivers/fwctl/main.c` and `mlx5/main.c`: the fwctl device is a child of the PCI
//! function, so its name is in the directory `fwctl` there. A sub-function has none.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::sysfs;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Errno;

/// Where to find the control file of a function; looked up when it is opened.
pub(super) struct FwctlPath {
    /// The function, in sysfs.
    function: PathBuf,
    /// The directory of nodes.
    nodes: PathBuf,
}

impl FwctlPath {
    pub(super) fn new(function: PathBuf, nodes: PathBuf) -> Self {
        Self { function, nodes }
    }

    /// Opens the file; `None` if the kernel has none for the function.
    pub(super) fn open(&self) -> Result<Option<File>> {
        let found = sysfs::names(self.function.join("fwctl"));
        let Some(name) = found.into_iter().find(|name| name.starts_with("fwctl")) else {
            return Ok(None);
        };
        let path = self.nodes.join(&name);
        let number = sysfs::text(self.function.join("fwctl").join(&name).join("dev"));
        let (metadata, file) = open_node(&path).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
            let (kind, hint) = match errno {
                Errno::EACCES | Errno::EPERM => (
                    ErrorKind::Permission,
                    "only root may open the node unless udev or chmod grants access, because it \
                     gives access to firmware settings: run as root, and in a container allow the \
                     device in its cgroup too",
                ),
                Errno::ENOENT => (
                    ErrorKind::NoDevice,
                    "the function has a fwctl device but no node here: udev has not made it yet, \
                     or this container was not given it (--device=/dev/fwctl/fwctl0)",
                ),
                Errno::ENXIO | Errno::ENODEV | Errno::EIO | Errno::ENOLINK => (
                    ErrorKind::DeviceGone,
                    "the device was removed or is being reset; enumerate again",
                ),
                _ => (
                    ErrorKind::Refused,
                    "opening it makes a user context (CREATE_UCTX), which the firmware may have \
                     refused: see the kernel log, and capability log_max_uctx",
                ),
            };
            Error::new(kind, format!("opening {}", path.display()), hint).with_errno(errno)
        })?;
        // Writes to another card's control file would change that card.
        check_number(&path, &metadata, number.as_deref())?;
        Ok(Some(file))
    }
}

/// Opens a node, and takes its attributes from the open file.
pub(super) fn open_node(path: &Path) -> io::Result<(Metadata, File)> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)?;
    Ok((file.metadata()?, file))
}

/// Refuses a node whose device number is not `number`, which sysfs has for its name. Numbers change
/// when drivers reload, and a container may have a node under another name.
pub(super) fn check_number(path: &Path, node: &Metadata, number: Option<&str>) -> Result<()> {
    let found = format!("{}:{}", libc::major(node.rdev()), libc::minor(node.rdev()));
    if node.file_type().is_char_device() && number.is_some_and(|number| number != found) {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("opening {}", path.display()),
            "the node has the device number of another device: create it again, or give this \
             container the right one",
        ));
    }
    Ok(())
}
