//! What went wrong, by the kinds that FlexIO has.

use std::fmt;
use std::time::Duration;

use verbless_command::DpaStatus;

/// Why something could not be done.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It failed, for this reason (`FLEXIO_STATUS_FAILED`).
    Failed(String),
    /// The device or the kernel refused a command (`FLEXIO_STATUS_FAILED`).
    Device(verbless_command::Error),
    /// It took longer than this (`FLEXIO_STATUS_TIMEOUT`).
    Timeout(Duration),
    /// The process has ended, and how (`FLEXIO_STATUS_FATAL_ERR`).
    Fatal(DpaStatus),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => f.write_str(why),
            Self::Device(error) => error.fmt(f),
            Self::Timeout(time) => write!(
                f,
                "a call did not return within {time:?} and was ended; ProcessConfig::timeout gives \
                 it longer"
            ),
            Self::Fatal(status) => write!(f, "the process has ended: {status}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Device(error) => error.source(),
            _ => None,
        }
    }
}

impl From<verbless_command::Error> for Error {
    fn from(error: verbless_command::Error) -> Self {
        Self::Device(error)
    }
}
