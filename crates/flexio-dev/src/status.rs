//! What could not be done.

use core::fmt;

/// It could not be done, and nothing has changed (`FLEXIO_DEV_STATUS_FAILED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the outbox, window or address is none that the thread can have, or there is none",
        )
    }
}

impl core::error::Error for Failed {}

/// What the functions of older versions return (`flexio_dev_status_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[must_use]
pub enum Status {
    /// It is done (`FLEXIO_DEV_STATUS_SUCCESS`).
    Success = 0,
    /// It could not be done (`FLEXIO_DEV_STATUS_FAILED`).
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
