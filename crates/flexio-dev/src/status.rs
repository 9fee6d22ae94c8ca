//! Results of calls.

use core::fmt;

/// The call failed and changed nothing (`FLEXIO_DEV_STATUS_FAILED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the thread has no such outbox, window or address")
    }
}

impl core::error::Error for Failed {}

/// The result type of functions of older versions (`flexio_dev_status_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[must_use]
pub enum Status {
    /// Success (`FLEXIO_DEV_STATUS_SUCCESS`).
    Success = 0,
    /// Failure (`FLEXIO_DEV_STATUS_FAILED`).
    Failed = 1,
}

impl From<Result<(), Failed>> for Status {
    fn from(result: Result<(), Failed>) -> Self {
        match result {
            Ok(()) => Self::Success,
            Err(Failed) => Self::Failed,
        }
    }
}
