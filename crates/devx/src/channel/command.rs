//! Asynchronous object queries, answered through a file.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, Ordering};

use super::file::{Channel, channel};
use crate::abi::attr::{devx_async_cmd_fd_alloc as alloc, devx_obj_async_query as query};
use crate::abi::method;
use crate::abi::mlx5::AsyncCommandHeader;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::model;
use crate::object::DevxObject;
use crate::sys::{Errno, Request};

/// A file from which answers to asynchronous queries are read.
#[derive(Debug)]
pub struct CommandChannel {
    channel: Channel,
    longest: AtomicU16,
}

channel!(CommandChannel);

/// The answer to an asynchronous query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncQueryResponse {
    /// The `wr_id` of the query.
    pub wr_id: u64,
    /// The command's output.
    pub output: Vec<u8>,
}

impl AsyncQueryResponse {
    /// Checks the status in the output. `input` is the command that was sent, for the error's text.
    ///
    /// # Errors
    /// [`ErrorKind::Command`](crate::ErrorKind::Command) when the device refused it.
    pub fn check(&self, input: &[u8]) -> Result<()> {
        match self.output.first() {
            Some(0) => Ok(()),
            _ => Err(Error::from_command(
                method::DEVX_OBJ_ASYNC_QUERY,
                input,
                &self.output,
                Errno::EREMOTEIO,
            )),
        }
    }
}

impl Context {
    /// Creates a channel for asynchronous queries.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn command_channel(&self) -> Result<CommandChannel> {
        let method = method::DEVX_ASYNC_CMD_FD_ALLOC;
        let answer = Request::new(method).new_handle(alloc::HANDLE).send(self.device())?;
        let channel =
            Channel::new(self, "an async command channel", method, &answer, alloc::HANDLE)?;
        Ok(CommandChannel { channel, longest: AtomicU16::new(0) })
    }
}

impl CommandChannel {
    /// Starts a query of `object`; the answer has `output_length` bytes.
    ///
    /// # Errors
    /// As [`DevxObject::query`], but a refusal by the device comes with the answer. EAGAIN while 1
    /// MiB of answers is unread.
    pub fn query(
        &self,
        object: &DevxObject,
        input: &[u8],
        output_length: u16,
        wr_id: u64,
    ) -> Result<()> {
        model::check(self.context(), method::DEVX_OBJ_ASYNC_QUERY.name(), input)?;
        // Before the request: another thread may read the answer at once.
        self.longest.fetch_max(output_length, Ordering::Relaxed);
        Request::new(method::DEVX_OBJ_ASYNC_QUERY)
            .handle(query::HANDLE, object.handle())
            .input(query::CMD_IN, input)
            .input_u64(query::OUT_LEN, u64::from(output_length))
            .input_u64(query::WR_ID, wr_id)
            .descriptor(query::FD, self.as_fd())
            .send(self.context().device())
            // A refusal arrives with the answer, also on kernels that hide others.
            .map_err(|failure| failure.of_command(input, &[], || false))?;
        Ok(())
    }

    /// Takes the next answer; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`](crate::ErrorKind::DeviceGone) at end of file.
    pub fn read(&self) -> Result<Option<AsyncQueryResponse>> {
        const HEADER: usize = size_of::<AsyncCommandHeader>();
        let mut record = vec![0; HEADER + usize::from(self.longest.load(Ordering::Relaxed))];
        let Some(length) = self.channel.read(&mut record)? else { return Ok(None) };
        record.truncate(length);
        let Some((wr_id, output)) = record.split_first_chunk::<HEADER>() else {
            return Err(self.channel.malformed(format_args!("a record of {length} bytes")));
        };
        Ok(Some(AsyncQueryResponse { wr_id: u64::from_ne_bytes(*wr_id), output: output.to_vec() }))
    }
}
