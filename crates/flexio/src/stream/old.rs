//! The default stream as it was before: `flexio_print_*` of 2022, and the `flexio_log_dev_*` that
//! came between. They are [`MsgStream`] in other clothes, for hosts that are still to be changed.
//!
//! In C a process keeps the stream; here whoever calls `init` has it, and gives it to the others.
#![allow(deprecated, reason = "they stand for what C has deprecated")]

use super::{MsgStream, MsgStreamConfig, Output, SyncMode};
use crate::error::Error;
use crate::process::Process;
use crate::uar::Uar;

/// Makes the default stream of `data_bytes` bytes (`flexio_print_init`). Messages come as they are
/// written, or with `is_async` when [`print_flush`] asks.
///
/// # Errors
/// As [`MsgStream::create`]; the UAR is of another process.
#[deprecated(note = "MsgStream::create with MsgStreamConfig::default_stream")]
pub fn print_init(
    process: &Process,
    uar: &Uar,
    data_bytes: u32,
    output: Output,
    is_async: bool,
) -> Result<MsgStream, Error> {
    if !uar.process().is(process) {
        return Err(Error::Failed("the UAR is of another process than what is to print".into()));
    }
    let sync_mode = if is_async { SyncMode::Async } else { SyncMode::Sync };
    let config =
        MsgStreamConfig { buffer: data_bytes, sync_mode, ..MsgStreamConfig::default_stream() };
    MsgStream::create(process, &config, output)
}

/// Takes what was printed (`flexio_print_flush`).
///
/// # Errors
/// As [`MsgStream::flush`].
#[deprecated(note = "MsgStream::flush")]
pub fn print_flush(stream: &MsgStream) -> Result<(), Error> {
    stream.flush()
}

/// Destroys the stream (`flexio_print_destroy`).
///
/// # Errors
/// As [`MsgStream::destroy`].
#[deprecated(note = "MsgStream::destroy")]
pub fn print_destroy(stream: MsgStream) -> Result<(), Error> {
    stream.destroy()
}

/// Makes the default stream (`flexio_log_dev_init`).
///
/// # Errors
/// As [`MsgStream::create`]; the configuration is not that of the default stream.
#[deprecated(note = "MsgStream::create")]
pub fn log_dev_init(
    process: &Process,
    config: &MsgStreamConfig,
    output: Output,
) -> Result<MsgStream, Error> {
    if !config.default {
        return Err(Error::Failed(format!(
            "{} is not the default stream, the only one that this makes: use MsgStream::create",
            config.name
        )));
    }
    MsgStream::create(process, config, output)
}

/// Takes what was written (`flexio_log_dev_flush`).
///
/// # Errors
/// As [`MsgStream::flush`].
#[deprecated(note = "MsgStream::flush")]
pub fn log_dev_flush(stream: &MsgStream) -> Result<(), Error> {
    stream.flush()
}

/// Destroys the stream (`flexio_log_dev_destroy`).
///
/// # Errors
/// As [`MsgStream::destroy`].
#[deprecated(note = "MsgStream::destroy")]
pub fn log_dev_destroy(stream: MsgStream) -> Result<(), Error> {
    stream.destroy()
}
