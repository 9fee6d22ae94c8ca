//! Command mailboxes through DevX: general commands, and objects that commands create.

use crate::abi::attr::{
    devx_obj_create, devx_obj_destroy, devx_obj_modify, devx_obj_query, devx_other, devx_query_eqn,
};
use crate::abi::{Method, method};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::handle::{DestroyError, Handle, Release};
use crate::model;
use crate::sys::{Errno, IoctlOutputs, Request};

const RELEASE: Release = Release {
    what: "devx object",
    method: method::DEVX_OBJ_DESTROY,
    attribute: devx_obj_destroy::HANDLE,
};

/// Handle of a new object in a request; the kernel replaces it.
const NEW: u32 = 0;

/// An object that a command created: a QP, a CQ, an mkey and so on. The kernel keeps the command
/// that destroys it.
#[derive(Debug)]
pub struct DevxObject {
    handle: Handle,
}

impl Context {
    /// Sends a command that creates no object, for example a query of capabilities. Mailboxes are
    /// at least 16 bytes; the kernel fills in the uid.
    ///
    /// # Errors
    /// [`ErrorKind::Command`](crate::ErrorKind::Command) with status and syndrome when the device
    /// refuses it; EINVAL when DevX does not pass the command;
    /// [`ErrorKind::ModelOnly`](crate::ErrorKind::ModelOnly) when only the model knows it and the
    /// device is not known to be the model.
    pub fn devx_other(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        exchange(
            self,
            method::DEVX_OTHER,
            None,
            (devx_other::CMD_IN, input),
            (devx_other::CMD_OUT, output),
        )
    }

    /// Sends a command that creates an object. `output` has its number, where the command's layout
    /// puts it.
    ///
    /// # Errors
    /// As [`devx_other`](Self::devx_other).
    pub fn obj_create(&self, input: &[u8], output: &mut [u8]) -> Result<DevxObject> {
        use devx_obj_create::{CMD_IN, CMD_OUT, HANDLE};
        let answer = send(
            self,
            method::DEVX_OBJ_CREATE,
            Some((HANDLE, NEW)),
            (CMD_IN, input),
            (CMD_OUT, output),
        )?;
        let number = answer
            .handle(HANDLE)
            .inspect_err(|error| self.count_leak(RELEASE.what, u32::MAX, error))?;
        // Owned before the checks: if the answer fails them, the object is destroyed.
        let handle = Handle::new(self, &RELEASE, number);
        check(&answer, method::DEVX_OBJ_CREATE, input, (CMD_OUT, output))?;
        Ok(DevxObject { handle })
    }

    /// Number of the event queue of a completion vector, for CQ contexts.
    ///
    /// # Errors
    /// The kernel refuses a vector at or above
    /// [`completion_vectors`](crate::ContextAttributes::completion_vectors).
    pub fn query_eqn(&self, vector: u32) -> Result<u32> {
        let mut eqn = 0u32;
        Request::new(method::DEVX_QUERY_EQN)
            .input_u32(devx_query_eqn::USER_VEC, vector)
            .output_of(devx_query_eqn::DEV_EQN, &mut eqn)
            .send(self.device())?
            .filled(&[devx_query_eqn::DEV_EQN])?;
        Ok(eqn)
    }
}

impl DevxObject {
    /// Sends a command that reads the object. The object's number in `input` must be its own.
    ///
    /// # Errors
    /// As [`Context::devx_other`].
    pub fn query(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        use devx_obj_query::{CMD_IN, CMD_OUT, HANDLE};
        self.exchange(method::DEVX_OBJ_QUERY, HANDLE, (CMD_IN, input), (CMD_OUT, output))
    }

    /// Sends a command that changes the object. The object's number in `input` must be its own.
    ///
    /// # Errors
    /// As [`Context::devx_other`].
    pub fn modify(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        use devx_obj_modify::{CMD_IN, CMD_OUT, HANDLE};
        self.exchange(method::DEVX_OBJ_MODIFY, HANDLE, (CMD_IN, input), (CMD_OUT, output))
    }

    fn exchange(
        &self,
        method: Method,
        id: u16,
        input: (u16, &[u8]),
        output: (u16, &mut [u8]),
    ) -> Result<()> {
        exchange(self.context(), method, Some((id, self.handle())), input, output)
    }

    /// The object's uverbs handle.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.handle.number()
    }

    /// The context in which the object was made.
    #[must_use]
    pub const fn context(&self) -> &Context {
        self.handle.context()
    }

    /// Destroys the object.
    ///
    /// # Errors
    /// EBUSY, or the device's refusal, while another object uses it; the error returns the object.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        DestroyError::attempt(self, |object| &mut object.handle)
    }
}

/// Sends an input mailbox and checks the output mailbox.
fn exchange(
    context: &Context,
    method: Method,
    object: Option<(u16, u32)>,
    input: (u16, &[u8]),
    (cmd_out, output): (u16, &mut [u8]),
) -> Result<()> {
    let answer = send(context, method, object, input, (cmd_out, output))?;
    check(&answer, method, input.1, (cmd_out, output))
}

/// Sends a mailbox. Clears status and syndrome of `output` first: after a failure they are the
/// device's or 0.
fn send(
    context: &Context,
    method: Method,
    object: Option<(u16, u32)>,
    (cmd_in, input): (u16, &[u8]),
    (cmd_out, output): (u16, &mut [u8]),
) -> Result<IoctlOutputs> {
    model::check(context, method.name(), input)?;
    let header = output.len().min(8);
    output[..header].fill(0);
    Request::new(method)
        .with(|request| match object {
            Some((id, handle)) => request.handle(id, handle),
            None => request,
        })
        .input(cmd_in, input)
        .output(cmd_out, output)
        .send(context.device())
        .map_err(|failure| failure.of_command(input, output, || context.hides_refusals()))
}

/// Checks that the output mailbox of a successful request reports success too.
fn check(
    answer: &IoctlOutputs,
    method: Method,
    input: &[u8],
    (cmd_out, output): (u16, &[u8]),
) -> Result<()> {
    answer.filled(&[cmd_out])?;
    if output.first().is_some_and(|&status| status != 0) {
        return Err(Error::from_command(method, input, output, Errno::EREMOTEIO));
    }
    Ok(())
}
