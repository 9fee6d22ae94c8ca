//! The log of refused ioctls: the ioctl by name, the errno, and the reason from [`refused`].

use nix::errno::Errno;
use tracing::Level;
use verbless_devx::abi::fwctl::{FWCTL_INFO, FWCTL_RPC};

use super::client::Client;
use super::describe::describe;
use super::refused;

/// Answers an ioctl; logs a refusal.
pub(super) fn logged(
    client: &dyn Client,
    words: &mut [u64],
    answer: impl FnOnce(&mut [u64]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    refused::take();
    let result = answer(words);
    if let Err(errno) = result {
        // A refused ioctl changes none of its attributes.
        log(client, words, errno);
    }
    result
}

/// Logs a refused ioctl of a control file.
pub(super) fn logged_fwctl(
    client: &dyn Client,
    request: u32,
    answer: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    refused::take();
    let result = answer();
    if let Err(errno) = result {
        let (level, words) = refused::take().unwrap_or_else(|| (Level::INFO, errno.desc().into()));
        let (thread, name) = (client.thread(), fwctl_request(request));
        match level {
            Level::INFO => {
                tracing::info!("thread {thread}: {name} refused with {errno:?}: {words}")
            }
            _ => tracing::debug!("thread {thread}: {name} refused with {errno:?}: {words}"),
        }
    }
    result
}

/// The name of an ioctl of a control file.
pub fn fwctl_request(request: u32) -> String {
    match request {
        FWCTL_INFO => "FWCTL_INFO".into(),
        FWCTL_RPC => "FWCTL_RPC".into(),
        other => format!("ioctl {other:#x} of fwctl"),
    }
}

/// Logs a refused request; at least its header is readable.
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
    let (level, words) = refused::take().unwrap_or_else(|| (Level::INFO, errno.desc().into()));
    (level, format!("thread {thread}: {name} refused with {errno:?}: {words}"))
}

#[cfg(test)]
mod tests {
    use super::super::client::OwnProcess;
    use super::super::refused::{probe, refused};
    use super::*;

    #[test]
    fn refusal_log_names_ioctl_and_reason() {
        let client = OwnProcess::default();
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
