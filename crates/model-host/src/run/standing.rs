//! Working directories in the tree: changing into it, and reporting the current one.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::answer::{Answer, Answerer, thread};
use super::sys::Notification;
use super::{node, process, tree};

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

    /// The program's path of its working directory, if that is in the tree.
    fn stands_within(&self, call: &Notification) -> Option<PathBuf> {
        if !self.view.tree.may_be_reached_by(b"") {
            return None;
        }
        let real = std::fs::read_link(format!("/proc/{}/cwd", call.tid)).ok()?;
        self.view.tree.shown(&real)
    }

    /// Changes a process's working directory into the tree. Only a process can change its own
    /// directory, and it cannot find those of the tree, so it is made to change to a descriptor
    /// that it is given.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn chdir(&self, call: &Notification) -> Answer {
        use super::ptrace::Seized;
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
