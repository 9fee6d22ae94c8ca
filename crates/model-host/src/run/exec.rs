//! Processes that may be about to run another program: between `execve` and the news of how it
//! went.
//!
//! Memory is that of a program and not of its process. A device that is kept open over `execve` has
//! registered what is no more, and the next program has other things at the same addresses. Nobody
//! says when a process is past that point, so from the call on its memory is reached as that of the
//! old program ([`Reach::Program`]), which is right however the call goes, and whenever. A call
//! that failed shows when its thread makes another call; one that succeeded shows when the old
//! memory is gone, or is another's: what a process shared with its parent (`vfork`) lives on
//! without it.

use std::fs;
use std::fs::File;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::Pid;

use verbless_model::memory::Reach;

/// A process whose threads called `execve`, before it is known whether that succeeded.
#[derive(Debug)]
pub(super) struct Exec {
    program: Reach,
    /// The kernel's data on the program's stack at its start, whose random addresses another
    /// program would match only by chance.
    told: Vec<u8>,
    threads: Vec<u32>,
}

impl Exec {
    /// A thread waits in `execve`.
    pub(super) fn new(pid: Pid, tid: u32) -> Result<Self, Errno> {
        let program = memory_of(pid)?;
        Ok(Self { program, told: told(pid)?, threads: vec![tid] })
    }

    pub(super) fn program(&self) -> Reach {
        self.program.clone()
    }

    /// Adds a thread of the same process that waits with such a call.
    pub(super) fn and(&mut self, tid: u32) {
        if !self.threads.contains(&tid) {
            self.threads.push(tid);
        }
    }

    pub(super) fn is_of(&self, tid: u32) -> bool {
        self.threads.contains(&tid)
    }

    /// The call of a thread failed; whether that was the last.
    pub(super) fn failed(&mut self, tid: u32) -> bool {
        self.threads.retain(|&other| other != tid);
        self.threads.is_empty()
    }

    /// Whether the process runs another program by now.
    pub(super) fn succeeded(&self, pid: Pid) -> bool {
        self.program.is_gone() || told(pid).as_ref() != Ok(&self.told)
    }
}

fn told(pid: Pid) -> Result<Vec<u8>, Errno> {
    fs::read(format!("/proc/{pid}/auxv")).map_err(|_| Errno::ESRCH)
}

/// The memory of the program that a process runs now.
pub(super) fn memory_of(pid: Pid) -> Result<Reach, Errno> {
    let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
    let file = file.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE | Errno::ENFILE) => Errno::ENFILE,
        _ => Errno::ESRCH,
    })?;
    Ok(Reach::Program(Arc::new(file)))
}
