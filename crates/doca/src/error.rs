//! Errors (`doca_error.h`): what failed, DOCA's name for it, and what to do.

use std::borrow::Cow;
use std::fmt;

use nix::errno::Errno;
use verbless_command as lower;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Declares [`ErrorKind`] with the number, name and advice of each value.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $c:literal, $advice:literal;)*) => {
        /// The values of `doca_error_t`, but for `DOCA_SUCCESS` (0), which is `Ok`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum ErrorKind {
            $($(#[$doc])* $name = $number,)*
        }

        impl ErrorKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// DOCA's name, such as `DOCA_ERROR_AGAIN`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $c,)* }
            }

            /// General advice for this kind of error.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

kinds! {
    /// A failure without a better name.
    Unknown = 1, "DOCA_ERROR_UNKNOWN", "read the text; the error below it says more";
    /// The operation is not allowed: a permission is missing, or the object may not do this.
    NotPermitted = 2, "DOCA_ERROR_NOT_PERMITTED",
        "give the memory map the permission, or run with more rights";
    /// The object is still in use.
    InUse = 3, "DOCA_ERROR_IN_USE", "release the objects that use it first";
    /// This device, build or side does not support the operation.
    NotSupported = 4, "DOCA_ERROR_NOT_SUPPORTED",
        "ask the capability query first, or choose another device";
    /// There is nothing to retrieve, or no room, at this moment.
    Again = 5, "DOCA_ERROR_AGAIN", "retrieve completions, then try again";
    /// An argument is invalid.
    InvalidValue = 6, "DOCA_ERROR_INVALID_VALUE", "correct the argument that the text names";
    /// Memory could not be allocated or pinned.
    NoMemory = 7, "DOCA_ERROR_NO_MEMORY",
        "raise the limit of locked memory (ulimit -l), or request less";
    /// The device or a resource of it could not be set up.
    Initialization = 8, "DOCA_ERROR_INITIALIZATION",
        "check that the device exists and its kernel modules are loaded";
    /// The time ran out before the operation was known to be done: it may be done, or still in
    /// progress.
    TimeOut = 9, "DOCA_ERROR_TIME_OUT", "wait longer, or check why the other side does not respond";
    /// The object is shut down, or shutting down.
    Shutdown = 10, "DOCA_ERROR_SHUTDOWN", "create a new object";
    /// The peer reset the connection.
    ConnectionReset = 11, "DOCA_ERROR_CONNECTION_RESET", "connect again";
    /// The connection was aborted.
    ConnectionAborted = 12, "DOCA_ERROR_CONNECTION_ABORTED", "connect again";
    /// The connection is being made.
    ConnectionInProgress = 13, "DOCA_ERROR_CONNECTION_INPROGRESS", "wait until it is made";
    /// There is no connection.
    NotConnected = 14, "DOCA_ERROR_NOT_CONNECTED", "connect first";
    /// Another holder has the lock.
    NoLock = 15, "DOCA_ERROR_NO_LOCK", "try again when the holder has released it";
    /// The object does not exist.
    NotFound = 16, "DOCA_ERROR_NOT_FOUND", "list the existing objects";
    /// A job failed.
    IoFailed = 17, "DOCA_ERROR_IO_FAILED", "the event says which job, and why";
    /// The object's state does not allow this.
    BadState = 18, "DOCA_ERROR_BAD_STATE", "move it to the state that the text names first";
    /// The other side uses another version.
    UnsupportedVersion = 19, "DOCA_ERROR_UNSUPPORTED_VERSION",
        "run the same release on both sides";
    /// The operating system refused.
    OperatingSystem = 20, "DOCA_ERROR_OPERATING_SYSTEM", "the text has its error";
    /// The device's driver or firmware refused.
    Driver = 21, "DOCA_ERROR_DRIVER", "the text has status and syndrome";
    /// An impossible state.
    Unexpected = 22, "DOCA_ERROR_UNEXPECTED", "report it";
    /// The object exists already.
    AlreadyExist = 23, "DOCA_ERROR_ALREADY_EXIST", "use the existing object";
    /// There is no room left.
    Full = 24, "DOCA_ERROR_FULL", "release elements, or create it with more";
    /// There are no elements left.
    Empty = 25, "DOCA_ERROR_EMPTY", "release elements, or create it with more";
    /// The operation has begun, and is not finished.
    InProgress = 26, "DOCA_ERROR_IN_PROGRESS", "wait until it is finished";
}

impl ErrorKind {
    /// The number in `doca_error_t`.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The kind of a number; `None` for 0, which is success, and for unknown numbers.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.number() == number)
    }
}

/// Why a call failed.
///
/// The text states the failed operation and the remedy. Creating one on the data path allocates
/// nothing.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::{DevInfo, ErrorKind};
///
/// # fn main() {
/// # let backend = doc::backend();
/// let error = DevInfo::find_in(&backend, "mlx5_9").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!((error.kind().name(), error.kind().number()), ("DOCA_ERROR_NOT_FOUND", 16));
/// eprintln!("{error}; in general: {}", error.kind().advice());
/// # }
/// ```
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: Cow<'static, str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error with its text: what failed, and what to do.
    pub(crate) fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, what: what.into(), source: None }
    }

    /// An error with a constant text.
    pub(crate) const fn plain(kind: ErrorKind, what: &'static str) -> Self {
        Self { kind, what: Cow::Borrowed(what), source: None }
    }

    pub(crate) fn with_source(
        mut self,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// DOCA's value.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

/// Converts errors of verbless-devx, verbless-command and verbless-queue to DOCA's kinds.
impl From<lower::Error> for Error {
    fn from(error: lower::Error) -> Self {
        use lower::ErrorKind as Lower;
        let no_file = matches!(error.errno(), Some(Errno::EMFILE | Errno::ENFILE));
        let kind = match error.kind() {
            Lower::NoDevice | Lower::NotFound => ErrorKind::NotFound,
            Lower::ModuleMissing => ErrorKind::Initialization,
            Lower::Permission => ErrorKind::NotPermitted,
            Lower::MemoryLimit => ErrorKind::NoMemory,
            Lower::NoDevx | Lower::ModelOnly | Lower::NotSupported => ErrorKind::NotSupported,
            Lower::Refused if no_file => ErrorKind::OperatingSystem,
            Lower::Command | Lower::Refused => ErrorKind::Driver,
            Lower::DeviceGone => ErrorKind::Shutdown,
            Lower::EventsLost => ErrorKind::Unexpected,
            Lower::QueueFailed | Lower::PortDown => ErrorKind::IoFailed,
            Lower::InvalidInput | Lower::Peer => ErrorKind::InvalidValue,
            Lower::InvalidResponse => ErrorKind::Unexpected,
            Lower::Full => ErrorKind::Again,
            Lower::Failed => ErrorKind::IoFailed,
            Lower::Io => ErrorKind::OperatingSystem,
            _ => ErrorKind::Unknown,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}

/// Lets a callback use `?` on this crate's errors; it keeps only the kind.
impl From<Error> for ErrorKind {
    fn from(error: Error) -> Self {
        error.kind
    }
}

/// A refused call that took an argument by value; `given` returns it.
#[derive(Debug)]
pub struct Refused<T> {
    /// The reason.
    pub error: Error,
    /// The refused argument.
    pub given: T,
}

impl<T> Refused<T> {
    pub(crate) const fn new(error: Error, given: T) -> Self {
        Self { error, given }
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

/// Drops the refused argument.
impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_match_c_enumeration() {
        for (index, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(kind.number() as usize, index + 1);
            assert_eq!(ErrorKind::of_number(kind.number()), Some(*kind));
            assert!(kind.name().starts_with("DOCA_ERROR_") && !kind.advice().is_empty());
        }
        assert_eq!(ErrorKind::ALL.len(), 26);
        assert_eq!((ErrorKind::of_number(0), ErrorKind::of_number(27)), (None, None));
    }

    #[test]
    fn lower_error_maps_to_kind_and_stays_source() {
        use lower::ErrorKind as Lower;
        let kinds = [
            (Lower::NoDevice, ErrorKind::NotFound),
            (Lower::NotFound, ErrorKind::NotFound),
            (Lower::ModuleMissing, ErrorKind::Initialization),
            (Lower::Permission, ErrorKind::NotPermitted),
            (Lower::MemoryLimit, ErrorKind::NoMemory),
            (Lower::NoDevx, ErrorKind::NotSupported),
            (Lower::ModelOnly, ErrorKind::NotSupported),
            (Lower::NotSupported, ErrorKind::NotSupported),
            (Lower::Command, ErrorKind::Driver),
            (Lower::Refused, ErrorKind::Driver),
            (Lower::DeviceGone, ErrorKind::Shutdown),
            (Lower::EventsLost, ErrorKind::Unexpected),
            (Lower::QueueFailed, ErrorKind::IoFailed),
            (Lower::PortDown, ErrorKind::IoFailed),
            (Lower::InvalidResponse, ErrorKind::Unexpected),
            (Lower::InvalidInput, ErrorKind::InvalidValue),
            (Lower::Peer, ErrorKind::InvalidValue),
            (Lower::Full, ErrorKind::Again),
            (Lower::Failed, ErrorKind::IoFailed),
            (Lower::Io, ErrorKind::OperatingSystem),
        ];
        for (lower, kind) in kinds {
            let below = lower::Error::new(lower, "opening mlx5_0", "load the module");
            let text = format!("{}: {below}", kind.name());
            let error = Error::from(below);
            assert_eq!((error.kind(), error.to_string()), (kind, text), "{lower:?}");
            let source = std::error::Error::source(&error).expect("the error below");
            let below =
                source.downcast_ref::<lower::Error>().expect("the source is the original error");
            assert_eq!(below.kind(), lower);
        }
        for errno in [Errno::EMFILE, Errno::ENFILE] {
            let of = |kind| lower::Error::new(kind, "", "").with_errno(errno).into();
            let [refused, no_memory]: [Error; 2] = [Lower::Refused, Lower::MemoryLimit].map(of);
            assert_eq!(refused.kind(), ErrorKind::OperatingSystem);
            assert_eq!(no_memory.kind(), ErrorKind::NoMemory);
        }
    }

    #[test]
    fn refused_call_converts_to_its_error() {
        let below = || lower::Error::new(lower::ErrorKind::Full, "", "");
        let refused = || Refused::new(Error::from(below()), 5);
        assert_eq!(refused().to_string(), Error::from(below()).to_string());
        assert!(std::error::Error::source(&refused()).unwrap().is::<lower::Error>());
        let plain = Refused::new(Error::plain(ErrorKind::Again, "it is full"), 5);
        assert!(std::error::Error::source(&plain).is_none());
        assert_eq!(ErrorKind::from(Error::from(refused())), ErrorKind::Again);
    }

    #[test]
    fn error_display_has_name_and_text() {
        let error = Error::plain(ErrorKind::Again, "the work queue is full");
        assert_eq!(error.to_string(), "DOCA_ERROR_AGAIN: the work queue is full");
    }
}
