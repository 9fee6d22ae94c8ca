//! A context that another library of this process has opened, rdma-core above all.

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
    /// The context behind a descriptor of `/dev/infiniband/uverbsN` that another library has
    /// opened and made a context on: `cmd_fd` of rdma-core's `struct ibv_context`, duplicated. Both
    /// then use one context: either may name the other's protection domains, keys and queues by
    /// number. What is made here is destroyed here; the context ends with the last descriptor.
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
    /// [`ErrorKind::NotFound`] if it is no file of an mlx5 device; [`ErrorKind::Refused`] if there
    /// is no context on it yet, or the kernel cannot tell about one (before Linux 5.9). A context
    /// without DevX, which old versions of rdma-core make, is found out by the first command.
    pub fn import(&self, fd: OwnedFd) -> Result<Context> {
        let file = File::from(fd);
        let info = self.device_of(&file)?;
        let control = self.control_of(&info);
        Context::import(Arc::new(UverbsFile { file, control }), info)
    }

    /// The device whose node has the number of this file.
    fn device_of(&self, file: &File) -> Result<DeviceInfo> {
        let metadata = file.metadata().map_err(|error| {
            Error::new(ErrorKind::NotFound, WHAT, format!("the descriptor is not usable: {error}"))
        })?;
        let number = metadata.rdev();
        if !metadata.file_type().is_char_device() {
            let hint = "the descriptor is of no device; give cmd_fd of a struct ibv_context";
            return Err(Error::new(ErrorKind::NotFound, WHAT, hint));
        }
        let text = format!("{}:{}", libc::major(number), libc::minor(number));
        let class = self.sysfs.join("class/infiniband_verbs");
        let found = discover::devices(&self.sysfs)?.into_iter().find(|info| {
            sysfs::text(class.join(&info.node).join("dev")).as_deref() == Some(text.as_str())
        });
        found.ok_or_else(|| {
            let hint = format!("the descriptor is of device {text}, which is no mlx5 uverbs node");
            Error::new(ErrorKind::NotFound, WHAT, hint)
        })
    }
}
