//! Older functions for the default stream, with the feature `sdk-2022`: `flexio_print_*` of the SDK
//! of 2022, and the later `flexio_log_dev_*`. They wrap [`MsgStream`], for hosts that still use
//! them.
//!
//! In C a process holds the stream; here the caller of `init` holds it, and passes it to the other
//! functions.
#![allow(deprecated, reason = "they are counterparts of deprecated C functions")]

use super::{MsgStream, MsgStreamConfig, MsgSyncMode, Output};
use crate::error::Error;
use crate::process::Process;
use crate::uar::Uar;

/// Creates the default stream with `data_bytes` bytes (`flexio_print_init`). Messages arrive as
/// they are written, or with `is_async` at [`print_flush`]. The stream rings doorbells through the
/// process's own UAR; `uar` is checked but not used.
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
        return Err(Error::Failed("the UAR is of another process than the stream".into()));
    }
    let sync_mode = if is_async { MsgSyncMode::Async } else { MsgSyncMode::Sync };
    let config =
        MsgStreamConfig { buffer: data_bytes, sync_mode, ..MsgStreamConfig::default_stream() };
    MsgStream::create(process, &config, output)
}

/// Receives the printed messages (`flexio_print_flush`).
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

/// Creates the default stream (`flexio_log_dev_init`).
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
            "log_dev_init creates only the default stream, not {}: use MsgStream::create",
            config.name
        )));
    }
    MsgStream::create(process, config, output)
}

/// Receives the written messages (`flexio_log_dev_flush`).
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
