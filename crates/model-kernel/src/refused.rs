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

use super::client::Client;
use super::describe::describe;

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

/// Answers an ioctl; a refusal is logged.
pub(super) fn logged(
    client: &dyn Client,
    words: &mut [u64],
    answer: impl FnOnce(&mut [u64]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    WORDS.set(None);
    let result = answer(words);
    if let Err(errno) = result {
        // A refused ioctl changes none of its attributes.
        log(client, words, errno);
    }
    result
}

/// Logs that a request was refused, of which the header at least is there.
pub fn log(client: &dyn Client, request: &[u64], errno: Errno) {
    if !tracing::enabled!(Level::INFO) {
        return;
    }
    match line(client, request, errno) {
        (Level::INFO, line) => tracing::info!("{line}"),
        (_, line) => tracing::debug!("{line}"),
    }
}

fn line(client: &dyn Client, request: &[u64], errno: Errno) -> (Level, String) {
    let name = describe(request, request, client).name;
    let thread = client.thread();
    let (level, words) = WORDS.take().unwrap_or_else(|| (Level::INFO, errno.desc().into()));
    (level, format!("thread {thread}: {name} refused with {errno:?}: {words}"))
}

#[cfg(test)]
mod tests {
    use super::super::client::Ourselves;
    use super::*;

    #[test]
    fn a_refusal_is_logged_with_the_ioctl_and_the_words_that_belong_to_it() {
        let client = Ourselves::default();
        let mut request = [24 | 77 << 16 | 3 << 32, 0, 1];
        let answer = logged(&client, &mut request, |_| {
            Err(refused(Errno::EOPNOTSUPP, "memory windows of type 2 are not modelled"))
        });
        assert_eq!(answer, Err(Errno::EOPNOTSUPP));
        let (level, said) = line(&client, &request, Errno::EOPNOTSUPP);
        let expected = "object 0x4d, method 0x3 refused with EOPNOTSUPP: memory windows of type 2 \
                        are not modelled";
        assert!(level == Level::INFO && said.ends_with(expected), "{said}");
        let _ = logged(&client, &mut request, |_| Err(probe(Errno::ENODATA, "nothing there")));
        let _ = probe(Errno::ENODATA, "of an ioctl that went well in the end");
        assert_eq!(line(&client, &request, Errno::ENODATA).0, Level::DEBUG);
        let _ = refused(Errno::EINVAL, "of an ioctl that went well in the end");
        let _ = logged(&client, &mut request, |_| Err(Errno::EFAULT));
        let (level, said) = line(&client, &request, Errno::EFAULT);
        assert!(level == Level::INFO && said.ends_with("EFAULT: Bad address"), "{said}");
    }
}
