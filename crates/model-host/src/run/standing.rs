//! Working directories in the tree: changing into it, and reporting the current one.

#[cfg(target_arch = "x86_64")]
mod change;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;

use super::answer::{Answer, Answerer, thread};
use super::process;
use super::sys::Notification;

impl Answerer {
    /// The program's path of its working directory, if that is in the tree.
    fn stands_within(&self, call: &Notification) -> Option<PathBuf> {
        if !self.view.tree.may_be_reached_by(b"") {
            return None;
        }
        let real = std::fs::read_link(format!("/proc/{}/cwd", call.tid)).ok()?;
        self.view.tree.shown(&real)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn chdir(&self, _: &Notification) -> Answer {
        Answer::Kernel
    }

    /// The name of the place, and not of the private directory that it is in.
    pub(super) fn getcwd(&self, call: &Notification) -> Answer {
        let [buffer, room, ..] = call.arguments;
        let Some(shown) = self.stands_within(call) else { return Answer::Kernel };
        let mut bytes = shown.as_os_str().as_bytes().to_vec();
        bytes.push(0);
        if (bytes.len() as u64) > room {
            return Errno::ERANGE.into();
        }
        match process::write(thread(call), buffer, &bytes) {
            Ok(()) => Answer::Ours(Ok(bytes.len() as i64)),
            Err(_) => Errno::EFAULT.into(),
        }
    }
}
