//! Reasons for refused ioctls: an errno does not explain a refusal.
//!
//! Code that refuses a request gives the reason there:
//!
//! ```text
//!   return Err(refused(Errno::EOPNOTSUPP, "on-demand paging is not modelled"));
//! ```
//!
//! The thread that answers the ioctl keeps the text. Once the ioctl has failed and all locks are
//! released, the log gets the text with the ioctl's name at level INFO: `verbless-model -v run`
//! shows it, and so does a subscriber in a test. Calls that libraries make to probe for a feature
//! ([`probe`]) are logged at level DEBUG (`-vv`).

use std::borrow::Cow;
use std::cell::RefCell;

use nix::errno::Errno;
use tracing::Level;

thread_local! {
    static REASON: RefCell<Option<(Level, Cow<'static, str>)>> = const { RefCell::new(None) };
}

/// Returns the errno; keeps `reason` for the log: the refused item, and the value or limit.
pub(super) fn refused(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Errno {
    REASON.set(Some((Level::INFO, reason.into())));
    errno
}

/// Like [`refused`], for a call that libraries make in every program to learn what is supported:
/// its refusal is not a mistake.
pub(super) fn probe(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Errno {
    REASON.set(Some((Level::DEBUG, reason.into())));
    errno
}

/// The errno for a client's descriptor number that is not open, or not usable.
pub(super) fn no_descriptor(errno: Errno, fd: i32) -> Errno {
    refused(errno, format!("descriptor {fd} cannot be used: {}", errno.desc()))
}

/// Why a context with only dynamic UARs cannot have the object.
pub(super) const NO_REGISTERS: &str =
    "no registers came with the context (dynamic UARs): the driver must name a UAR page";

/// Takes the text of this thread's last refusal.
pub(super) fn take() -> Option<(Level, Cow<'static, str>)> {
    REASON.take()
}

/// The errno of an input or output error; EIO if it has none.
pub(super) fn io_errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
