//! Imports a context that another library of this process, such as rdma-core, has opened.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;

use super::{Kernel, discover, sysfs};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::info::DeviceInfo;
use crate::sys::UverbsFile;

const WHAT: &str = "importing a verbs context";

impl Kernel {
    /// Imports the context of a `/dev/infiniband/uverbsN` descriptor on which another library has
    /// made one: a duplicate of `cmd_fd` of rdma-core's `struct ibv_context`. Both libraries then
    /// use one context: each may name the other's protection domains, keys and queues by number.
    /// Objects made here are destroyed here; the context ends with the last descriptor.
    ///
    /// ```no_run
    /// use std::os::fd::{AsRawFd, BorrowedFd};
    /// # fn f(cmd_fd: BorrowedFd<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// let context = verbless_devx::Kernel::new().import(cmd_fd.try_clone_to_owned()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not a file of an mlx5 device; [`ErrorKind::Refused`] if it
    /// has no context yet, or the kernel has no QUERY_CONTEXT (before Linux 5.9). A context without
    /// DevX, which old versions of rdma-core make, fails at its first command.
    pub fn import(&self, fd: OwnedFd) -> Result<Context> {
        let file = File::from(fd);
        let info = self.device_of(&file)?;
        let control = self.control_of(&info);
        Context::import(Arc::new(UverbsFile { file, control }), info)
    }

    fn device_of(&self, file: &File) -> Result<DeviceInfo> {
        let metadata = file.metadata().map_err(|error| {
            Error::new(ErrorKind::NotFound, WHAT, format!("the descriptor is not usable: {error}"))
        })?;
        let number = metadata.rdev();
        if !metadata.file_type().is_char_device() {
            let hint = "the descriptor is of no device; pass cmd_fd of a struct ibv_context";
            return Err(Error::new(ErrorKind::NotFound, WHAT, hint));
        }
        let text = format!("{}:{}", libc::major(number), libc::minor(number));
        let class = self.sysfs.join("class/infiniband_verbs");
        let found = discover::devices(&self.sysfs, &self.dev)?.into_iter().find(|info| {
            sysfs::text(class.join(&info.node).join("dev")).as_deref() == Some(text.as_str())
        });
        found.ok_or_else(|| {
            let hint = format!("the descriptor is of device {text}, not of an mlx5 uverbs node");
            Error::new(ErrorKind::NotFound, WHAT, hint)
        })
    }
}
