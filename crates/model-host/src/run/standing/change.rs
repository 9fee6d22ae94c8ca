//! Changing a working directory into the tree, which takes ptrace of this processor.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::run::answer::{Answer, Answerer};
use crate::run::ptrace::Seized;
use crate::run::sys::Notification;
use crate::run::{node, tree};

impl Answerer {
    /// The directory that a path of a call's leads to, if the kernel would not find it: it is in
    /// the tree, or beside it from within.
    fn directory(&self, call: &Notification) -> Result<Option<File>, Errno> {
        let [path, ..] = call.arguments;
        let Some(whole) = self.whole_path(call, libc::AT_FDCWD as u64, path) else {
            return Ok(None);
        };
        if tree::is_ours(&whole) {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
            return self.view.tree.open(&whole, flags).map(|fd| Some(fd.into()));
        }
        let within = self.stands_within(call).is_some();
        let Some(clean) = node::clean(&whole).filter(|_| within) else { return Ok(None) };
        let root = PathBuf::from(format!("/proc/{}/root/", call.tid));
        let beside = root.join(std::ffi::OsStr::from_bytes(&clean[1..]));
        File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(beside)
            .map(Some)
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }

    /// Changes a process's working directory into the tree. Only a process can change its own
    /// directory, and it cannot find those of the tree, so it is made to change to a descriptor
    /// that it is given.
    pub(in super::super) fn chdir(&self, call: &Notification) -> Answer {
        let directory = match self.directory(call) {
            Ok(Some(directory)) => directory,
            Ok(None) => return Answer::Kernel,
            Err(errno) => return errno.into(),
        };
        self.view.tree.given();
        let mut given = Err(Errno::ESRCH);
        let seized = Seized::new(call.tid, || {
            given = self.gate.give(call.id, directory.as_fd(), None, true, false);
            self.gate.answer(call.id, Ok(0));
        });
        match seized {
            Ok(mut thread) => {
                let changed = given.and_then(|fd| {
                    let changed = thread.call(libc::SYS_fchdir, fd as u64);
                    let _ = thread.call(libc::SYS_close, fd as u64);
                    changed
                });
                thread.let_go(changed);
                Answer::Given
            }
            // Somebody traces it.
            Err(errno) => {
                tracing::warn!(tid = call.tid, %errno, "a program cannot be made to change its \
                                                        directory");
                errno.into()
            }
        }
    }
}
