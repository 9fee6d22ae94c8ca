//! The interface between this crate and a device: the kernel and the software model implement it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use nix::errno::Errno;

use super::mapping::{Mapping, Protection};
use crate::error::{Error, ErrorKind};
use crate::info::{DeviceInfo, RepresentorInfo};

/// A source of devices: the kernel, or a software model.
pub trait Backend: Send + Sync {
    /// Short name for messages: `kernel`, `model`.
    fn name(&self) -> &str;

    /// The devices, in a stable order; never an empty list. Those that have a node
    /// ([`DeviceInfo::has_node`]) come first, so that a program that takes the first device gets
    /// one that it can open, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`](crate::ErrorKind::NoDevice) or
    /// [`ErrorKind::ModuleMissing`](crate::ErrorKind::ModuleMissing) when there is none, with a
    /// hint.
    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error>;

    /// The device of this name (`mlx5_0`), or the first one at this PCI address (`0000:08:00.0`).
    ///
    /// # Errors
    /// The errors of [`enumerate`](Self::enumerate), and
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) with the names that exist.
    fn find(&self, name: &str) -> Result<DeviceInfo, Error> {
        let devices = self.enumerate()?;
        let called =
            |info: &&DeviceInfo| info.name == name || info.pci_address.as_deref() == Some(name);
        if let Some(found) = devices.iter().find(called) {
            return Ok(found.clone());
        }
        let name_of = |info: &DeviceInfo| match &info.pci_address {
            Some(address) => format!("{} ({address})", info.name),
            None => info.name.clone(),
        };
        let known: Vec<_> = devices.iter().map(name_of).collect();
        Err(Error::new(
            ErrorKind::NotFound,
            format!("looking for the device {name}"),
            format!("the {} has {}", self.name(), known.join(", ")),
        ))
    }

    /// The representors of the functions behind the embedded switch that a device manages, at the
    /// time of the call, in a stable order; empty if it manages no switch, or the switch is not in
    /// switchdev mode.
    ///
    /// # Errors
    /// The device was removed.
    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        let _ = device;
        Ok(Vec::new())
    }

    /// Opens a device that [`enumerate`](Self::enumerate) named. No context is made yet.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`](crate::ErrorKind::Permission) and others.
    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error>;
}

/// An open device: the file of `/dev/infiniband/uverbsN`, or its equivalent. Dropping it
/// releases everything made through it.
///
/// # Safety
/// This crate relies on an implementation's answers when it frees memory and closes files. An
/// implementation therefore makes the kernel's promises:
/// - It accesses memory of this process only where a request's pointers lead, within their lengths
///   and during the call, and where memory is registered (UMEM_REG).
/// - No device accesses registered memory once UMEM_DEREG has succeeded, the ring of a queue once
///   its destroy has, and any of them once this value is dropped.
/// - A descriptor that it writes back is newly opened, and belongs to the caller.
/// - Its mappings belong to the device: no Rust reference to these bytes is used while the
///   [`Mapping`] lives, except to atomics.
///
/// Safe code therefore cannot implement it:
///
/// ```compile_fail,E0200
/// use verbless_devx::{Errno, Mapping, OpenDevice, Protection};
///
/// struct Silent;
///
/// impl OpenDevice for Silent {
///     unsafe fn ioctl(&self, _: &mut [u64]) -> Result<(), Errno> {
///         Ok(())
///     }
///     fn mmap(&self, _: u64, _: usize, _: Protection) -> Result<Mapping, Errno> {
///         Err(Errno::EINVAL)
///     }
///     fn page_size(&self) -> usize {
///         4096
///     }
/// }
/// ```
pub unsafe trait OpenDevice: Send + Sync {
    /// Executes one request. `request` is the whole [`Header`](crate::abi::Header) with its
    /// attributes as the kernel sees it; new handles, new descriptors and
    /// [`VALID_OUTPUT`](crate::abi::request::VALID_OUTPUT) flags are written back in place.
    ///
    /// An implementation must not trust the header or the attributes: lengths, counts and ids may
    /// be anything.
    ///
    /// # Errors
    /// The errno that the kernel would return. EREMOTEIO: the device refused the command, and the
    /// command's output holds its status and syndrome.
    ///
    /// # Safety
    /// Every pointer in the request is valid for the length that its attribute states: inputs
    /// longer than 8 bytes for reads, outputs for writes, with no other access during the call.
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno>;

    /// Maps `length` bytes at `offset`, shared. The offset is one that a request returned, or is
    /// made by [`mmap_offset`](crate::abi::mlx5::mmap_offset).
    ///
    /// # Errors
    /// The errno of mmap.
    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno>;

    /// Bytes of a page of the kernel that has the device: a power of two from 4 KiB. It maps a UAR
    /// in one such page, and pins memory in such pages. A kernel's own processes have the same
    /// pages ([`page_size`](crate::page_size)); a model's kernel may have others. A device that
    /// wraps another one forwards this.
    fn page_size(&self) -> usize;

    /// Reads one record of a channel that this device has opened, as read(2) of that file does. A
    /// device that wraps another one forwards this.
    ///
    /// # Errors
    /// The errno of read.
    fn read_channel(&self, channel: BorrowedFd<'_>, record: &mut [u8]) -> Result<usize, Errno> {
        nix::unistd::read(channel, record)
    }

    /// Opens the control file of the same function, `/dev/fwctl/fwctlN` or its equivalent; `None`
    /// if there is none, as in a kernel without CONFIG_FWCTL_MLX5 or for a sub-function.
    ///
    /// # Errors
    /// The file exists but cannot be opened, mostly [`ErrorKind::Permission`].
    fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
        Ok(None)
    }
}

/// An open `/dev/fwctl/fwctlN`: it passes firmware commands that DevX does not. Dropping it
/// releases everything that the device holds for it.
///
/// # Safety
/// An implementation accesses memory of this process only where a request's addresses lead, within
/// their lengths and during the call.
pub unsafe trait OpenFwctl: Send + Sync {
    /// Executes [`FWCTL_INFO`](crate::abi::fwctl::FWCTL_INFO) or
    /// [`FWCTL_RPC`](crate::abi::fwctl::FWCTL_RPC). `argument` is the whole structure of `request`;
    /// answers are written back in place. As with [`OpenDevice::ioctl`], an implementation must not
    /// trust it.
    ///
    /// # Errors
    /// The errno that the kernel would return. A refusal by the device is not an error here: its
    /// status is in the output mailbox.
    ///
    /// # Safety
    /// Every address in the argument is valid for the length stated with it: inputs for reads,
    /// outputs for writes, with no other access during the call.
    unsafe fn ioctl(&self, request: u32, argument: &mut [u64]) -> Result<(), Errno>;
}
