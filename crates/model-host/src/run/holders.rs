//! Finds a file of `run` in any process that has it, also in one that made no call.
//!
//! A program can pass its end of a channel to another process, by `fork` or through a socket, and
//! close its own. It also keeps the end over `execve`. The other process may never call `run`. So
//! this searches the descriptors of all descendants of `run` and of the client.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::descendants;
use super::process::{Process, identify, is_file, start_of};
use super::sys;
use verbless_model_kernel::remote::{FileId, numbers};

/// Number of searches of a process that keeps moving the file to other numbers.
const TRIES: usize = 3;
/// Descriptors of all processes that one search reads, which takes a fraction of a second. Programs
/// choose how many they have.
const MAX_SEARCHED: usize = 1 << 18;
/// Descriptors of a process beyond which a search leaves it out.
const MAX_OF_PROCESS: usize = 1 << 16;

/// Duplicates a descriptor of a file that `client` (whichever program it runs by now), a descendant
/// of it or a descendant of `run` has. `None`: none of them has one, this process may not access
/// those that do, or they have too many descriptors. EAGAIN: it cannot be duplicated at the moment.
///
/// A process that gets the pid of an ended one meanwhile has no such file.
pub(super) fn find(client: &Process, file: FileId) -> Result<Option<OwnedFd>, Errno> {
    let is_running = start_of(client.pid) == Ok(client.start);
    let pids = is_running.then_some(client.pid);
    // The client's own first: others cannot use up the search.
    let below = |root: Pid| descendants::below(&[root]).map_err(|_| Errno::EAGAIN);
    let own = pids.map_or_else(|| Ok(Vec::new()), below)?;
    let mut pids: Vec<Pid> = pids.into_iter().chain(own).collect();
    let others = below(Pid::this())?.into_iter().filter(|pid| !pids.contains(pid));
    pids.extend(others.collect::<Vec<_>>());
    let mut left = MAX_SEARCHED;
    for _ in 0..TRIES {
        let mut has_moved = false;
        for &pid in &pids {
            match find_in(client, pid, file, &mut left) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // The number refers to another file by now.
                Err(Errno::EBADF | Errno::EINVAL) => has_moved = true,
                // The process has ended, or this process may not access it.
                Err(Errno::ESRCH | Errno::EPERM | Errno::ENOSYS) => {}
                Err(_) => return Err(Errno::EAGAIN),
            }
        }
        if !has_moved {
            return Ok(None);
        }
    }
    Err(Errno::EAGAIN)
}

fn find_in(
    client: &Process,
    pid: Pid,
    file: FileId,
    left: &mut usize,
) -> Result<Option<OwnedFd>, Errno> {
    let listed = match numbers(&format!("/proc/{pid}/fd")) {
        Err(errno @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => return Err(errno),
        listed => listed.unwrap_or_default(),
    };
    if listed.len() > MAX_OF_PROCESS.min(*left) {
        return Ok(None);
    }
    *left -= listed.len();
    let tid = pid.as_raw() as u32;
    let Some(number) = listed.into_iter().find(|&fd| identify(tid, fd) == Ok(file)) else {
        return Ok(None);
    };
    let pidfd = sys::pidfd(pid)?;
    client.take_from(&pidfd, number, |fd| is_file(fd, file)).map(Some)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use super::super::process::Caller;
    use super::super::process::tests::becomes_sleep;
    use super::super::processes::tests::processes;
    use super::super::rig::{Recorder, may_take};
    use super::*;
    use verbless_model_kernel::remote::Client;

    /// A connected socket, and its file.
    fn socket() -> (UnixStream, UnixStream, FileId) {
        let (theirs, ours) = UnixStream::pair().expect("a pair");
        let file = sys::status(theirs.as_fd(), "").expect("open").id();
        (theirs, ours, file)
    }

    fn may_find(process: &Process) -> bool {
        may_take(&process.reach().expect("the process is alive").pidfd)
    }

    #[test]
    fn find_sees_file_of_a_process_without_calls() {
        let processes = processes();
        let process = processes.of_thread(std::process::id(), || true).expect("this process");
        if !may_find(&process) {
            return;
        }
        let (theirs, _ours, file) = socket();
        let theirs = Stdio::from(OwnedFd::from(theirs));
        let holder = Command::new("sleep").arg("60").stdin(theirs).spawn();
        let mut holder = holder.expect("the command runs");
        let caller = Caller { process, tid: std::process::id(), call: None };
        let found =
            caller.find(file).expect("the search reaches the child").expect("the child has it");
        assert!(is_file(&found, file));
        drop(found);
        holder.kill().and_then(|()| holder.wait()).expect("the child exists");
        // A child that another test forks may hold it until `execve`.
        while !matches!(caller.find(file), Ok(None)) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn find_reads_a_bounded_number_of_descriptors() {
        let processes = processes();
        let process = processes.of_thread(std::process::id(), || true).expect("this process");
        if !may_find(&process) {
            return;
        }
        let (_theirs, _ours, file) = socket();
        let find = |left: &mut usize| find_in(&process, Pid::this(), file, left);
        let mut left = MAX_SEARCHED;
        assert!(matches!(find(&mut left), Ok(Some(_))));
        let looked_at = MAX_SEARCHED - left;
        assert!((3..MAX_OF_PROCESS).contains(&looked_at), "{looked_at}");
        assert!(matches!(find(&mut 2), Ok(None)));
    }

    #[test]
    fn find_sees_file_of_a_killed_caller() {
        let (processes, recorder) = (processes(), Arc::new(Recorder::default()));
        let process = processes.of_thread(std::process::id(), || true).expect("this process");
        if !may_find(&process) {
            return;
        }
        let (_theirs, _ours, file) = socket();
        // `execve` of another thread kills the caller.
        recorder.end();
        let caller = Caller { process, tid: std::process::id(), call: Some((recorder, 7)) };
        assert!(matches!(caller.find(file), Ok(Some(_))));
    }

    #[test]
    fn find_sees_file_kept_over_execve() {
        let processes = processes();
        let (theirs, _ours, file) = socket();
        let child = Command::new("sh")
            .args(["-c", "echo; read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(OwnedFd::from(theirs))
            .spawn();
        let mut child = child.expect("the command runs");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("the child writes");
        let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
        let process = processes.of_thread(tid, || true).expect("a child");
        if may_find(&process) {
            processes.note_execve((pid, tid), || (), || true);
            becomes_sleep(&mut child);
            processes.note_call(tid, || true);
            assert!(process.has_ended(), "the process is forgotten");
            let owner = Caller { process, tid, call: None };
            assert!(matches!(owner.find(file), Ok(Some(_))));
        }
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    }
}
