//! Conversions of system errors into [`Error`], and of [`Error`] into `std::io::Error`, for `?`.

use nix::errno::Errno;

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

/// Wraps the error in an I/O error of the nearest [`ErrorKind`](std::io::ErrorKind).
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), error)
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
            ErrorKind::InvalidInput => Self::InvalidInput,
            ErrorKind::InvalidResponse | ErrorKind::Peer => Self::InvalidData,
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
    fn error_round_trips_through_io_error() {
        let error = Error::new(ErrorKind::NotFound, "looking for mlx5_9", "there is mlx5_0");
        let io = io::Error::from(error);
        assert_eq!(io.kind(), io::ErrorKind::NotFound);
        let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).expect("ours");
        assert_eq!(inner.to_string(), "looking for mlx5_9 failed; there is mlx5_0");
        assert_eq!(Error::from(io).kind(), ErrorKind::NotFound, "and back");
    }
}
