//! Errors, by FlexIO's kinds.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use verbless_command::DpaStatus;

/// The reason of a failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operation failed, for this reason (`FLEXIO_STATUS_FAILED`).
    Failed(String),
    /// The device or the kernel refused a command (`FLEXIO_STATUS_FAILED`).
    Device(verbless_command::Error),
    /// A call took longer than this (`FLEXIO_STATUS_TIMEOUT`) and was terminated; the process
    /// continues, with the memory as the call left it.
    Timeout(Duration),
    /// A copy to or from the heap took longer than this (`FLEXIO_STATUS_TIMEOUT`). Any of its bytes
    /// may be copied; the process continues, and the next copy starts afresh.
    CopyTimeout(Duration),
    /// A command queue had no room within this time (`FLEXIO_STATUS_TIMEOUT`), or did not become
    /// empty: the task was not added, and earlier ones continue.
    QueueTimeout(Duration),
    /// A recoverable buffer was not freed, because its bytes could not be copied to the host. The
    /// status is the copy error's.
    NotRecovered(FreeError),
    /// The process has ended with this status (`FLEXIO_STATUS_FATAL_ERR`).
    Fatal(DpaStatus),
}

/// The result of a function of the C library (`flexio_status`), by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// `FLEXIO_STATUS_SUCCESS`.
    Success = 0,
    /// `FLEXIO_STATUS_FAILED`.
    Failed = 1,
    /// `FLEXIO_STATUS_TIMEOUT`.
    Timeout = 2,
    /// `FLEXIO_STATUS_FATAL_ERR`.
    FatalError = 3,
}

impl Error {
    /// The error's number in the C library.
    pub fn status(&self) -> Status {
        match self {
            Self::Failed(_) | Self::Device(_) => Status::Failed,
            Self::Timeout(_) | Self::CopyTimeout(_) | Self::QueueTimeout(_) => Status::Timeout,
            Self::Fatal(_) => Status::FatalError,
            Self::NotRecovered(unfreed) => unfreed.error.status(),
        }
    }
}

/// A recoverable buffer that was not freed; `into_buffer` returns it for another try. A drop copies
/// once more, and frees the buffer even if the copy fails.
#[derive(Debug)]
pub struct FreeError {
    error: Box<Error>,
    /// Address and length in bytes.
    range: (u64, u64),
    pub(crate) buffer: Box<dyn Any + Send + Sync>,
}

impl FreeError {
    pub(crate) fn new(error: Error, range: (u64, u64), buffer: impl Any + Send + Sync) -> Self {
        Self { error: Box::new(error), range, buffer: Box::new(buffer) }
    }

    /// Why the buffer's bytes could not be copied.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl<T> From<&Result<T, Error>> for Status {
    fn from(result: &Result<T, Error>) -> Self {
        result.as_ref().map_or_else(Error::status, |_| Self::Success)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => f.write_str(why),
            Self::Device(error) => error.fmt(f),
            Self::Timeout(time) => write!(
                f,
                "a call did not return within {time:?} and was ended: raise ProcessConfig::timeout"
            ),
            Self::CopyTimeout(time) => write!(
                f,
                "a copy to or from the heap did not complete within {time:?}: raise \
                 ProcessConfig::timeout"
            ),
            Self::QueueTimeout(time) => write!(
                f,
                "a command queue was full, or not empty, for {time:?}: a new task was not added, \
                 earlier ones continue; raise ProcessConfig::timeout, or CmdqConfig::log_depth for \
                 more room"
            ),
            Self::NotRecovered(FreeError { error, range: (address, bytes), .. }) => write!(
                f,
                "the recoverable buffer of {bytes} bytes at {address:#x} was not freed, because \
                 its bytes could not be copied to the host ({error}): free it again"
            ),
            Self::Fatal(status) => write!(f, "the process has ended: {status}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Device(error) => error.source(),
            Self::NotRecovered(unfreed) => Some(&*unfreed.error),
            _ => None,
        }
    }
}

impl From<verbless_command::Error> for Error {
    fn from(error: verbless_command::Error) -> Self {
        Self::Device(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_status_matches_flexio_number() {
        let second = Duration::from_secs(1);
        for (error, number) in [
            (Error::Failed("no".into()), 1),
            (Error::Timeout(second), 2),
            (Error::CopyTimeout(second), 2),
            (Error::QueueTimeout(second), 2),
            (Error::Fatal(DpaStatus(9)), 3),
        ] {
            assert_eq!(error.status() as u8, number, "{error}");
            assert_eq!(Status::from(&Err::<(), _>(error)) as u8, number);
        }
        assert_eq!(Status::from(&Ok(7)) as u8, 0);
    }

    #[test]
    fn unfreed_buffer_error_has_cause_and_status() {
        use std::error::Error as _;
        let unfreed = FreeError::new(Error::Fatal(DpaStatus(9)), (0x40, 128), ());
        assert!(matches!(unfreed.error(), Error::Fatal(DpaStatus(9))));
        let error = Error::NotRecovered(unfreed);
        assert_eq!(error.status(), Status::FatalError);
        let source = error.source().and_then(|it| it.downcast_ref::<Error>());
        assert!(matches!(source, Some(Error::Fatal(DpaStatus(9)))));
        assert!(error.to_string().contains("128 bytes at 0x40"), "{error}");
    }
}
