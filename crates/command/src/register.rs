//! Registers, by the access that the device and the kernel offer: ACCESS_REGISTER_USER through
//! DevX, or ACCESS_REGISTER through the control file (`/dev/fwctl/fwctlN`).

use std::fmt;

use verbless_devx::{Error, ErrorKind, FwctlScope};
use verbless_prm::{
    AccessRegisterIn, AccessRegisterOut, AccessRegisterUserIn, AccessRegisterUserOut, RegisterId,
    Structure,
};

use crate::device::Device;

/// How a program reaches registers of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegisterAccess {
    /// The command ACCESS_REGISTER_USER, which DevX passes: capability access_register_user.
    User,
    /// The command ACCESS_REGISTER, which the kernel passes through `/dev/fwctl/fwctlN`.
    Fwctl,
}

impl fmt::Display for RegisterAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "ACCESS_REGISTER_USER through DevX",
            Self::Fwctl => "ACCESS_REGISTER through /dev/fwctl",
        })
    }
}

/// Read or write of a register, as op_mod of both commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegisterOp {
    Write,
    Read,
}

const WHAT: &str = "reaching registers of the device";

impl Device {
    /// The access to this device's registers: ACCESS_REGISTER_USER if the device has it, else the
    /// control file if this user may open it.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if neither exists, or if the firmware gives users of the control
    /// file no access to registers; [`ErrorKind::Permission`] if this user may not open the file.
    pub fn register_access(&self) -> Result<RegisterAccess, Error> {
        if self.caps().general.access_register_user() {
            return Ok(RegisterAccess::User);
        }
        let none = |of_control: String| {
            let hint = format!(
                "the device has no ACCESS_REGISTER_USER (capability access_register_user is 0), \
                 and {of_control}"
            );
            Error::new(ErrorKind::NotSupported, WHAT, hint)
        };
        let Some(control) = self.fwctl()? else {
            return Err(none(
                "the function has no /dev/fwctl/fwctlN either, which Linux has from 6.15 on with \
                 CONFIG_FWCTL_MLX5 (`modprobe mlx5_fwctl`), but not for a sub-function"
                    .into(),
            ));
        };
        let info = control.info()?;
        if !info.has_tools_resources() {
            return Err(none(format!(
                "its firmware lets /dev/fwctl reach no register: TOOLS_RESOURCES is not among the \
                 privileges of its user context ({:#x}); newer firmware may",
                info.uctx_caps
            )));
        }
        Ok(RegisterAccess::Fwctl)
    }

    pub(crate) fn read_register<R: Structure>(
        &self,
        id: RegisterId,
        register: &mut R,
    ) -> Result<(), Error> {
        self.access_register(RegisterOp::Read, id, register)
    }

    pub(crate) fn write_register<R: Structure>(
        &self,
        id: RegisterId,
        register: &mut R,
    ) -> Result<(), Error> {
        self.access_register(RegisterOp::Write, id, register)
    }

    /// Sends the register and replaces it by the device's response.
    fn access_register<R: Structure>(
        &self,
        access: RegisterOp,
        id: RegisterId,
        register: &mut R,
    ) -> Result<(), Error> {
        match self.register_access()? {
            RegisterAccess::User => {
                let mut head = AccessRegisterUserIn::new();
                head.set_register_id(id).set_op_mod(match access {
                    RegisterOp::Write => AccessRegisterUserIn::WRITE,
                    RegisterOp::Read => AccessRegisterUserIn::READ,
                });
                let bytes = AccessRegisterUserOut::BYTES;
                exchange(head.as_bytes(), bytes, register, |input, output| {
                    self.devx_other(input, output)
                })
            }
            RegisterAccess::Fwctl => {
                let mut head = AccessRegisterIn::new();
                let (op_mod, scope) = match access {
                    RegisterOp::Write => (AccessRegisterIn::WRITE, FwctlScope::Configuration),
                    RegisterOp::Read => (AccessRegisterIn::READ, FwctlScope::DebugReadOnly),
                };
                head.set_register_id(id).set_op_mod(op_mod);
                exchange(head.as_bytes(), AccessRegisterOut::BYTES, register, |input, output| {
                    let control = self.fwctl()?.ok_or_else(|| {
                        Error::new(ErrorKind::DeviceGone, WHAT, "its control file no longer exists")
                    })?;
                    control.rpc(scope, input, output)
                })
            }
        }
    }
}

/// Sends a command whose input and output end with the register's bytes.
fn exchange<R: Structure>(
    head: &[u8],
    answer: usize,
    register: &mut R,
    send: impl FnOnce(&[u8], &mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let input = [head, register.as_bytes()].concat();
    let mut output = vec![0; answer + R::BYTES];
    send(&input, &mut output)?;
    register.as_mut_bytes().copy_from_slice(&output[answer..]);
    Ok(())
}
