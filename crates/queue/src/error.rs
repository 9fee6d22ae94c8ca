//! One error for programs that use both paths: `?` converts the errors of the device and of the
//! data path into it.

use std::fmt;

use verbless_command::ErrorKind;
use verbless_ring::completion::CompletionError;
use verbless_ring::ring::{LayoutError, OutOfBounds};
use verbless_ring::wr::PostError;

use crate::region::RangeError;

/// An error of any function of this crate.
///
/// Functions that talk to the device return [`DeviceError`]; data-path functions return small
/// errors of their own. A program that returns this type uses `?` with all of them.
#[non_exhaustive]
pub enum Error {
    /// The device or the kernel failed, or an argument of a call to them is invalid.
    Device(DeviceError),
    /// A work request was not posted.
    Post(PostError),
    /// A work request failed, or its CQE is malformed or another queue's.
    Completion(CompletionError),
    /// A range of registered memory cannot be used.
    Range(RangeError),
    /// The layout of a queue or a number is invalid.
    Layout(LayoutError),
}

/// An error of the device, the kernel, or a call to them.
pub type DeviceError = verbless_command::Error;

impl Error {
    /// The error of the device or the kernel, which has an errno, a status and a syndrome.
    pub fn device(&self) -> Option<&DeviceError> {
        match self {
            Self::Device(error) => Some(error),
            _ => None,
        }
    }

    /// The kind, in the terms of [`DeviceError`]: [`ErrorKind::Full`] or
    /// [`ErrorKind::InvalidInput`] of a request that was not posted; [`ErrorKind::Failed`] of a
    /// failed request, [`ErrorKind::InvalidResponse`] of a malformed CQE,
    /// [`ErrorKind::InvalidInput`] of another queue's.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) => error.kind(),
            Self::Post(PostError::Full) => ErrorKind::Full,
            Self::Completion(CompletionError::Failed(_)) => ErrorKind::Failed,
            Self::Completion(CompletionError::InvalidCqe(_)) => ErrorKind::InvalidResponse,
            Self::Post(_) | Self::Completion(_) | Self::Range(_) | Self::Layout(_) => {
                ErrorKind::InvalidInput
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Post(error) => write!(f, "posting a work request: {error}"),
            Self::Completion(error) => write!(f, "completing a work request: {error}"),
            Self::Range(error) => error.fmt(f),
            Self::Layout(error) => error.fmt(f),
        }
    }
}

/// As `Display`: `main` prints an error by this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Device(error) => error.source(),
            // The text has all of it.
            Self::Post(_) | Self::Completion(_) | Self::Range(_) | Self::Layout(_) => None,
        }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

impl From<CompletionError> for Error {
    fn from(error: CompletionError) -> Self {
        Self::Completion(error)
    }
}

impl From<OutOfBounds> for Error {
    fn from(error: OutOfBounds) -> Self {
        Self::Range(error.into())
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        Self::Range(error)
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Self {
        Self::Layout(error)
    }
}

/// Keeps the errno; an error of ours that passed through `io::Error` comes back unchanged.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) => Self::Device(error.into()),
        }
    }
}

/// Wraps the error in an I/O error of the nearest [`ErrorKind`](std::io::ErrorKind).
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), error)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use verbless_ring::completion::InvalidCqe;

    use super::*;

    #[test]
    fn post_error_keeps_kind_and_text() {
        let full = Error::from(PostError::Full);
        assert_eq!(full.kind(), ErrorKind::Full);
        assert!(full.source().is_none(), "the text has all of it");
        assert!(full.to_string().contains("the queue is full"), "{full}");
        assert_eq!(Error::from(PostError::NotConnected).kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn kind_of_completion_tells_failure_from_malformed_cqe() {
        let malformed = CompletionError::InvalidCqe(InvalidCqe::Opcode(7));
        assert_eq!(Error::from(malformed).kind(), ErrorKind::InvalidResponse);
    }

    #[test]
    fn range_error_prints_offset_length_and_size() {
        let error = Error::from(OutOfBounds { offset: 8, length: 9, size: 16 });
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let expected = "9 bytes at offset 0x8 exceed the memory, which has 0x10 bytes";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn error_round_trips_through_io_error() {
        let io = io::Error::from(Error::from(PostError::Full));
        assert_eq!(io.kind(), io::ErrorKind::WouldBlock);
        assert!(matches!(Error::from(io), Error::Post(PostError::Full)));
        let reset = Error::from(io::Error::from_raw_os_error(104));
        assert!(matches!(&reset, Error::Device(it) if it.errno().is_some()), "{reset}");
    }
}
