//! Conversions of data-path and system errors into [`Error`], and of it into `std::io::Error`: `?`
//! works for all of them.

use nix::errno::Errno;
use verbless_ring::CompletionError;
use verbless_ring::ring::{LayoutError, OutOfBounds};
use verbless_ring::wr::PostError;

use super::{Error, ErrorKind};

/// Converts an I/O error and keeps its errno.
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        // An error of ours that passed through `io::Error` comes back unchanged.
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) => {
                let failed = Self::new(ErrorKind::Io, error.to_string(), "");
                let failed = match error.raw_os_error() {
                    Some(errno) => failed.with_errno(Errno::from_raw(errno)),
                    None => failed,
                };
                failed.with_source(error)
            }
        }
    }
}

/// Wraps the error in one of the nearest [`ErrorKind`](std::io::ErrorKind).
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), error)
    }
}

/// A range outside its memory.
impl From<OutOfBounds> for Error {
    fn from(error: OutOfBounds) -> Self {
        Self::new(ErrorKind::Input, error.to_string(), "").with_source(error)
    }
}

/// An invalid queue layout or number.
impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Self {
        Self::new(ErrorKind::Input, error.to_string(), "").with_source(error)
    }
}

/// A request that was not posted: [`ErrorKind::Full`] or [`ErrorKind::Input`].
impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        let kind = if error == PostError::Full { ErrorKind::Full } else { ErrorKind::Input };
        Self::new(kind, format!("posting a work request: {error}"), "").with_source(error)
    }
}

/// A failed request ([`ErrorKind::Failed`]), a malformed completion ([`ErrorKind::Answer`]), or a
/// completion given to the wrong queue ([`ErrorKind::Input`]).
impl From<CompletionError> for Error {
    fn from(error: CompletionError) -> Self {
        let kind = match error {
            CompletionError::Failed(_) => ErrorKind::Failed,
            CompletionError::Malformed(_) => ErrorKind::Answer,
            CompletionError::Shared(_)
            | CompletionError::OtherQueue(_)
            | CompletionError::OtherFrame(_) => ErrorKind::Input,
        };
        Self::new(kind, format!("completing a work request: {error}"), "").with_source(error)
    }
}

impl From<ErrorKind> for std::io::ErrorKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NoDevice
            | ErrorKind::NotFound
            | ErrorKind::ModuleMissing
            | ErrorKind::NotProbed => Self::NotFound,
            ErrorKind::Permission => Self::PermissionDenied,
            ErrorKind::MemoryLimit => Self::OutOfMemory,
            ErrorKind::NoDevx | ErrorKind::ModelOnly | ErrorKind::NotSupported => Self::Unsupported,
            ErrorKind::DeviceGone => Self::NotConnected,
            ErrorKind::Input => Self::InvalidInput,
            ErrorKind::Answer | ErrorKind::Peer => Self::InvalidData,
            ErrorKind::Full => Self::WouldBlock,
            ErrorKind::Command
            | ErrorKind::Refused
            | ErrorKind::EventsLost
            | ErrorKind::QueueFailed
            | ErrorKind::PortDown
            | ErrorKind::Failed
            | ErrorKind::Io => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use verbless_ring::completion::Malformed;

    use super::*;

    #[test]
    fn io_error_keeps_errno_and_text_once() {
        let error = Error::from(io::Error::from_raw_os_error(libc::ECONNRESET));
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Io, Some(Errno::ECONNRESET)));
        let text = error.to_string();
        assert_eq!(text.matches("reset by peer").count(), 1, "{text}");
        assert!(!text.ends_with("; "), "{text}");
    }

    #[test]
    fn data_path_error_keeps_text_and_source() {
        let full = Error::from(PostError::Full);
        assert_eq!(full.kind(), ErrorKind::Full);
        assert_eq!(Error::from(PostError::NotConnected).kind(), ErrorKind::Input);
        let source = std::error::Error::source(&full).and_then(|source| source.downcast_ref());
        assert_eq!(source, Some(&PostError::Full));
        assert!(full.to_string().contains("the queue is full"), "{full}");
        let error = Error::from(OutOfBounds { offset: 8, length: 9, size: 16 });
        assert_eq!(error.kind(), ErrorKind::Input);
        assert_eq!(
            error.to_string(),
            "9 bytes at offset 0x8 exceed the memory, which has 0x10 bytes"
        );
        let kind = |error: CompletionError| Error::from(error).kind();
        let malformed = Malformed::Opcode(7);
        assert_eq!(kind(CompletionError::Malformed(malformed)), ErrorKind::Answer);
    }

    #[test]
    fn error_round_trips_through_io_error() {
        let error = Error::new(ErrorKind::NotFound, "looking for mlx5_9", "there is mlx5_0");
        let io = io::Error::from(error);
        assert_eq!(io.kind(), io::ErrorKind::NotFound);
        let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).expect("ours");
        assert_eq!(inner.to_string(), "looking for mlx5_9 failed; there is mlx5_0");
        assert_eq!(Error::from(io).kind(), ErrorKind::NotFound, "and back");
    }
}
