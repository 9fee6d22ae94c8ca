//! Commands to a function's firmware through its control file, `/dev/fwctl/fwctlN`: those that DevX
//! does not pass, ACCESS_REGISTER above all.
//!
//! The kernel creates a user context for each open file, writes its uid into every command, and
//! passes few commands other than queries and register accesses. A [`Context`] opens the file on
//! first use and closes it when it is dropped.

use std::fmt;

use verbless_prm::UctxCapBits;

use crate::abi::fwctl::{DEVICE_TYPE_MLX5, MAILBOX_BYTES, scope};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::model;
use crate::sys::{Errno, OpenFwctl, fwctl_info, fwctl_rpc};

const INFO: &str = "FWCTL_INFO";
const RPC: &str = "FWCTL_RPC";

/// The declared purpose of a command. The kernel passes each command only in certain scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FwctlScope {
    /// Settings that a user may change: register writes and a few queries.
    Configuration,
    /// Looking at the device: register reads and all queries.
    DebugReadOnly,
}

impl FwctlScope {
    const fn code(self) -> u32 {
        match self {
            Self::Configuration => scope::CONFIGURATION,
            Self::DebugReadOnly => scope::DEBUG_READ_ONLY,
        }
    }
}

/// The device's user context for an open control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FwctlInfo {
    /// The uid of the user context.
    pub uid: u32,
    /// Capabilities of the user context (values in prm's `uctx_cap`).
    pub uctx_caps: u32,
}

impl FwctlInfo {
    /// Whether the file may access resources of the whole device, such as registers. Firmware
    /// without this privilege gives the file the rights of any DevX context.
    #[must_use]
    pub const fn has_tools_resources(self) -> bool {
        self.uctx_caps & UctxCapBits::TOOLS_RESOURCES.0 != 0
    }
}

/// The control file of a context's function.
#[derive(Clone, Copy)]
pub struct Fwctl<'a> {
    context: &'a Context,
    file: &'a dyn OpenFwctl,
}

impl Context {
    /// The control file of the function, opened on the first call. `None` if there is none: the
    /// kernel is older than Linux 6.15 or lacks CONFIG_FWCTL_MLX5, or the function is a
    /// sub-function.
    ///
    /// # Errors
    /// The file cannot be opened: [`ErrorKind::Permission`] for all but root, unless the machine
    /// grants access; [`ErrorKind::NoDevice`] if the device node does not exist.
    pub fn fwctl(&self) -> Result<Option<Fwctl<'_>>> {
        let file = self.fwctl_file()?;
        Ok(file.map(|file| Fwctl { context: self, file }))
    }
}

impl Fwctl<'_> {
    /// FWCTL_INFO: the device's user context of this file.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`]; [`ErrorKind::InvalidResponse`] if the file is of another driver.
    pub fn info(self) -> Result<FwctlInfo> {
        let (info, data) = fwctl_info(self.file).map_err(|errno| refused(INFO, errno, None))?;
        let wrong = match (info.out_device_type, info.device_data_len as usize) {
            (DEVICE_TYPE_MLX5, bytes) if bytes >= size_of_val(&data) => None,
            (DEVICE_TYPE_MLX5, bytes) => Some(format!("{bytes} bytes of driver data")),
            (kind, _) => Some(format!("a device of type {kind}, not mlx5 ({DEVICE_TYPE_MLX5})")),
        };
        match wrong {
            None => Ok(FwctlInfo { uid: data.uid, uctx_caps: data.uctx_caps }),
            Some(what) => Err(Error::new(
                ErrorKind::InvalidResponse,
                format!("{INFO}: {what}"),
                "the kernel, or the software that answers in its place, violates the ABI of \
                 fwctl; try another kernel",
            )),
        }
    }

    /// FWCTL_RPC: sends a command. A mailbox has 16 bytes to 2 MiB; the kernel fills in the uid.
    ///
    /// # Errors
    /// [`ErrorKind::Command`] with status and syndrome when the device refuses it; EBADMSG when the
    /// kernel does not pass the command in this scope; [`ErrorKind::ModelOnly`] when only the model
    /// knows it and the device is not known to be the model.
    pub fn rpc(self, scope: FwctlScope, input: &[u8], output: &mut [u8]) -> Result<()> {
        for (what, bytes) in [("input", input.len()), ("output", output.len())] {
            if !MAILBOX_BYTES.contains(&bytes) {
                let hint = format!("the {what} mailbox has {bytes} bytes; it must have {}", SIZES);
                return Err(Error::new(ErrorKind::InvalidInput, RPC, hint).with_command(input));
            }
        }
        model::check(self.context, RPC, input)?;
        output[..8].fill(0);
        let written = fwctl_rpc(self.file, scope.code(), input, output)
            .map_err(|errno| refused(RPC, errno, Some(scope)).with_command(input))?;
        if written < *MAILBOX_BYTES.start() {
            let what = format!("{RPC}: an answer of {written} bytes, which has no status");
            let hint = "the kernel, or what answers in its place, violates the ABI of fwctl";
            return Err(Error::new(ErrorKind::InvalidResponse, what, hint).with_command(input));
        }
        match output[0] {
            0 => Ok(()),
            _ => Err(Error::refused_by_device(RPC, input, output)),
        }
    }
}

/// [`MAILBOX_BYTES`] as text.
const SIZES: &str = "16 bytes to 2 MiB";

/// The error for an errno of a request, with a hint.
fn refused(request: &'static str, errno: Errno, scope: Option<FwctlScope>) -> Error {
    let (kind, hint) = match errno {
        Errno::EBADMSG => (
            ErrorKind::Refused,
            match scope {
                Some(FwctlScope::Configuration) => {
                    "the kernel does not pass this command through fwctl, or only in scope \
                     DebugReadOnly"
                }
                _ => "the kernel does not pass this command through fwctl",
            },
        ),
        Errno::EMSGSIZE => (
            ErrorKind::InvalidInput,
            "a mailbox is too long, or too short for its header (16 bytes to 2 MiB)",
        ),
        Errno::EPERM | Errno::EACCES => (
            ErrorKind::Permission,
            "a security module or a seccomp filter forbids it: the kernel asks for no privilege \
             after open",
        ),
        Errno::EOPNOTSUPP => (ErrorKind::Refused, "the kernel does not know the scope"),
        Errno::ENODEV | Errno::ENXIO | Errno::EIO | Errno::ENOLINK => (
            ErrorKind::DeviceGone,
            "the device was removed or reset, or its firmware did not answer: see the kernel \
             log, and open it again",
        ),
        Errno::ENOTTY => (
            ErrorKind::Refused,
            "the file is not a fwctl device, or the kernel has another version of the ABI",
        ),
        Errno::EINVAL | Errno::E2BIG => (
            ErrorKind::Refused,
            "the kernel has another version of the request: it is newer or older",
        ),
        Errno::EFAULT => (ErrorKind::Refused, "a mailbox is not readable or writable"),
        Errno::ENOMEM => (ErrorKind::Refused, "the kernel is out of memory"),
        _ => (ErrorKind::Refused, "the kernel log may say more"),
    };
    Error::new(kind, request, hint).with_errno(errno)
}

impl fmt::Debug for Fwctl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fwctl").field(self.context).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fwctl_errno_maps_to_kind_and_hint() {
        let cases = [
            (Errno::EBADMSG, ErrorKind::Refused, "does not pass this command through fwctl"),
            (Errno::EMSGSIZE, ErrorKind::InvalidInput, "too long, or too short"),
            (Errno::EPERM, ErrorKind::Permission, "a security module"),
            (Errno::EACCES, ErrorKind::Permission, "a security module"),
            (Errno::EOPNOTSUPP, ErrorKind::Refused, "does not know the scope"),
            (Errno::ENODEV, ErrorKind::DeviceGone, "removed or reset"),
            (Errno::ENXIO, ErrorKind::DeviceGone, "removed or reset"),
            (Errno::EIO, ErrorKind::DeviceGone, "removed or reset"),
            (Errno::ENOLINK, ErrorKind::DeviceGone, "removed or reset"),
            (Errno::ENOTTY, ErrorKind::Refused, "not a fwctl device"),
            (Errno::EINVAL, ErrorKind::Refused, "another version of the request"),
            (Errno::E2BIG, ErrorKind::Refused, "another version of the request"),
            (Errno::EFAULT, ErrorKind::Refused, "not readable or writable"),
            (Errno::ENOMEM, ErrorKind::Refused, "out of memory"),
            (Errno::EDOM, ErrorKind::Refused, "the kernel log may say more"),
        ];
        for (errno, kind, hint) in cases {
            let error = refused("FWCTL_RPC", errno, None);
            assert_eq!((error.kind(), error.errno()), (kind, Some(errno)), "{errno}");
            assert!(error.hint().contains(hint), "{errno}: {}", error.hint());
            assert_eq!(error.attempted(), "FWCTL_RPC");
        }
        let configuration = Some(FwctlScope::Configuration);
        let error = refused("FWCTL_RPC", Errno::EBADMSG, configuration);
        assert!(error.hint().contains("DebugReadOnly"), "{}", error.hint());
    }
}
