//! Refusals in words: what the errno of a refused ioctl cannot say.
//!
//! Code that refuses something that a user may expect to be supported gives the reason there:
//!
//! ```text
//!   return Err(refused(Errno::EOPNOTSUPP, "on-demand paging is not modelled"));
//! ```
//!
//! The text is kept in the thread that answers the ioctl, and logged with the ioctl's name when it
//! has failed and all locks are released, at level INFO: `verbless-model -v run` shows it, and so
//! does a subscriber in a test. Calls that libraries make to probe for a feature ([`probe`]) are
//! logged at level DEBUG (`-vv`).

use std::borrow::Cow;
use std::cell::RefCell;

use nix::errno::Errno;
use tracing::Level;

thread_local! {
    static WORDS: RefCell<Option<(Level, Cow<'static, str>)>> = const { RefCell::new(None) };
}

/// The errno itself; `words` are kept for the log: what is refused, and the value or limit.
pub(super) fn refused(errno: Errno, words: impl Into<Cow<'static, str>>) -> Errno {
    WORDS.set(Some((Level::INFO, words.into())));
    errno
}

/// As [`refused`], for a call that libraries make in every program to learn what is supported: its
/// refusal is not a mistake.
pub(super) fn probe(errno: Errno, words: impl Into<Cow<'static, str>>) -> Errno {
    WORDS.set(Some((Level::DEBUG, words.into())));
    errno
}

/// The text of this thread's last refusal; returned once.
pub(super) fn take() -> Option<(Level, Cow<'static, str>)> {
    WORDS.take()
}
