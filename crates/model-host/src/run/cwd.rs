//! Working directories in the tree: `chdir` into it, `getcwd` within it.

#[cfg(target_arch = "x86_64")]
mod chdir;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;

use super::answer::{Answer, Answerer};
use super::process;
use super::sys::Notification;

impl Answerer {
    /// The working directory as the program names it, if it is in the tree.
    fn cwd_in_tree(&self, call: &Notification) -> Option<PathBuf> {
        if !self.view.tree.may_be_reached_by(b"") {
            return None;
        }
        self.view.tree.directory_of(call.tid)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn chdir(&self, _: &Notification) -> Answer {
        Answer::Kernel
    }

    /// Returns the directory's name in the tree, not the private path.
    pub(super) fn getcwd(&self, call: &Notification) -> Answer {
        let [buffer, room, ..] = call.arguments;
        let Some(shown) = self.cwd_in_tree(call) else { return Answer::Kernel };
        let mut bytes = shown.as_os_str().as_bytes().to_vec();
        bytes.push(0);
        if (bytes.len() as u64) > room {
            return Errno::ERANGE.into();
        }
        let written = process::write_to_caller(&*self.gate, call, buffer, &bytes);
        Answer::Ours(written.map(|()| bytes.len() as i64))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::rig::Program;
    use super::*;

    #[test]
    fn getcwd_in_tree_checks_buffer_size() {
        let program = Program::new();
        let path = c"/sys/class/infiniband";
        let directory = program.open(path, libc::O_RDONLY | libc::O_DIRECTORY);
        // A link to the tree that also works in a child.
        let link = format!("/proc/{}/fd/{}", std::process::id(), directory.descriptor());
        let link = std::path::PathBuf::from(link);
        let bytes = path.to_bytes_with_nul().len() as u64;
        // Nothing is mapped at 16, so a path that fits fails with EFAULT.
        let answer = |directory: &std::path::Path, room: u64| {
            let mut child = Command::new("sleep")
                .arg("60")
                .current_dir(directory)
                .spawn()
                .expect("the command runs");
            let answer = program.call_of(child.id(), libc::SYS_getcwd, &[16, room]);
            child.kill().and_then(|()| child.wait()).expect("the child exists");
            answer
        };
        assert_eq!(answer(&link, bytes - 1), Errno::ERANGE.into());
        assert_eq!(answer(&link, bytes), Errno::EFAULT.into());
        assert_eq!(answer("/".as_ref(), bytes), Answer::Kernel);
    }
}
