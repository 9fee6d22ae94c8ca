//! Processes in `execve`: from the call until its outcome is known.
//!
//! Memory belongs to a program, not to its process. If a device stays open over `execve`, its
//! registered memory is gone, and the next program has other data at the same addresses. The kernel
//! does not report when `execve` passes that point. From the call on, the model uses the old
//! program's memory ([`RemoteMemory::Program`]). That is correct whether or not the call succeeds,
//! and at any time.
//!
//! The call failed if its thread makes another call, or if the thread ended and another thread of
//! the process makes a call. It succeeded if the old memory is gone or belongs to another process.
//! With `vfork`, the parent's memory survives the child's `execve`.
//!
//! The process can delay the check without limit. So only a call of the same process runs it:
//! another process whose thread reused the tid must not wait.

use std::collections::HashSet;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::call_threads::in_program;
use super::proc_stat::ProcStat;
use verbless_model::memory::RemoteMemory;

/// A process with threads in `execve`, before the outcome is known.
#[derive(Debug)]
pub(super) struct Exec {
    program: RemoteMemory,
    layout: Vec<String>,
}

impl Exec {
    /// `program`: the program that runs while a thread of the process waits in `execve`.
    pub(super) fn new(pid: Pid, program: RemoteMemory) -> Result<Self, Errno> {
        Ok(Self { program, layout: layout(pid)? })
    }

    /// Whether the process runs another program. May wait for the program's memory: the caller must
    /// hold no lock, and must be answering a call of this process.
    pub(super) fn succeeded(&self, pid: Pid) -> bool {
        in_program(|| layout(pid).as_ref() != Ok(&self.layout) || self.program.is_gone())
    }
}

/// Limit of threads in `execve` per process.
const MAX_THREADS: usize = 64;

/// Threads of a process that called `execve` and whose call is not known to have failed.
#[derive(Debug, Default)]
pub(super) struct Threads {
    all: HashSet<u32>,
    /// The limit was exceeded, so that [`Threads::all_failed`] is unknown and returns false.
    too_many: bool,
}

impl Threads {
    /// Adds a thread; returns the threads that it evicts.
    pub(super) fn add(&mut self, tid: u32, is_there: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut gone = Vec::new();
        if self.too_many {
            return vec![tid];
        }
        if self.all.len() >= MAX_THREADS && !self.all.contains(&tid) {
            gone = self.all.iter().copied().filter(|&tid| !is_there(tid)).collect();
            self.all.retain(|tid| !gone.contains(tid));
        }
        self.all.insert(tid);
        if self.all.len() > MAX_THREADS {
            self.too_many = true;
            gone.extend(self.all.drain());
        }
        gone
    }

    pub(super) fn remove(&mut self, tid: u32) {
        self.all.remove(&tid);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        self.all.iter().copied()
    }

    /// Whether every call has failed.
    pub(super) fn all_failed(&self) -> bool {
        self.all.is_empty() && !self.too_many
    }
}

/// Fields of `/proc/PID/stat` by proc(5): startcode to startstack, and start_data to env_end.
/// They locate a program's code, stack, data, heap, arguments and environment. Most are randomized,
/// so another program has the same ones only by chance. Unlike `auxv`, the file can be read during
/// `execve`.
const LAYOUT_FIELDS: [std::ops::RangeInclusive<usize>; 2] = [26..=28, 45..=51];

fn layout(pid: Pid) -> Result<Vec<String>, Errno> {
    let stat = ProcStat::read(pid).map_err(|_| Errno::ESRCH)?;
    let fields = LAYOUT_FIELDS.into_iter().flatten().filter_map(|number| stat.field(number));
    Ok(fields.map(str::to_string).collect())
}
