//! Changes a working directory into the tree with ptrace (x86-64).

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::run::answer::{Answer, Answerer};
use crate::run::ptrace::{self, Seized};
use crate::run::sys::Notification;
use crate::run::tree;

impl Answerer {
    /// The target directory of a `chdir`, if it is in the tree, unless the working directory is
    /// already there: the kernel then resolves relative paths.
    fn directory(&self, call: &Notification) -> Result<Option<File>, Errno> {
        let [path, ..] = call.arguments;
        let Some(whole) = self.whole_path(call, libc::AT_FDCWD as u64, path) else {
            return Ok(None);
        };
        // In the PCI listing, relative paths would resolve to the machine's own functions.
        if !tree::leads_through(&whole) || tree::is_listing(&whole) {
            return Ok(None);
        }
        self.check_may_receive_files(call)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        self.view.tree.open(&whole, flags).map(|fd| Some(fd.into()))
    }

    /// Changes a process's working directory into the tree. Only the process can do that, and it
    /// cannot look up the tree. So it gets a descriptor and is made to call `fchdir` on it.
    pub(in super::super) fn chdir(&self, call: &Notification) -> Answer {
        let directory = match self.directory(call) {
            Ok(Some(directory)) => directory,
            Ok(None) => return Answer::Kernel,
            Err(errno) => return errno.into(),
        };
        self.view.tree.record_use();
        match ptrace::in_own_thread(|| self.change(call, &directory)) {
            Ok(answer) => answer,
            Err(errno) => errno.into(),
        }
    }

    fn change(&self, call: &Notification, directory: &File) -> Answer {
        let mut installed = Err(Errno::ESRCH);
        let waits = || self.gate.is_waiting(call.id);
        let seized = Seized::new(call.tid, waits, || {
            installed = self.gate.install_fd(call.id, directory.as_fd(), None, true, false);
            // The answer if the thread does not stop in time; else [`Seized::detach_with`] gives
            // another.
            self.gate.answer(call.id, Err(Errno::EIO));
        });
        match seized {
            Ok(mut thread) => {
                let changed = installed.and_then(|fd| {
                    let changed = thread.call(libc::SYS_fchdir, fd as u64);
                    let _ = thread.call(libc::SYS_close, fd as u64);
                    changed
                });
                thread.detach_with(changed);
                Answer::Installed
            }
            // It has another tracer.
            Err(errno) => {
                tracing::warn!(tid = call.tid, %errno, "cannot seize the thread to change its \
                                                        working directory");
                errno.into()
            }
        }
    }
}
