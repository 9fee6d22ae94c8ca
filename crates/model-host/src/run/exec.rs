//! Processes that may be about to run another program: between `execve` and the news of how it
//! went.
//!
//! Memory belongs to a program, not to its process. A device that stays open over `execve` has
//! registered memory that is gone, and the next program has other data at the same addresses. The
//! kernel does not report when a process passes that point. From the call on, the model therefore
//! reaches the memory as that of the old program ([`RemoteMemory::Program`]), which is right
//! whether and whenever the call succeeds. A call that failed shows when its thread makes another
//! call, or has ended while another thread of the process makes one. A call that succeeded shows
//! when the old memory is gone, or belongs to another process: memory that a process shared with
//! its parent (`vfork`) lives on without it.
//!
//! To find that out can take as long as the process wants, so it is asked at a call of its own, and
//! of no other process, whose thread may have got the number of an ended one.

use std::collections::HashSet;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::call_threads::in_program;
use super::process::text_of;
use verbless_model::memory::RemoteMemory;

/// A process whose threads called `execve`, before it is known whether that succeeded.
#[derive(Debug)]
pub(super) struct Exec {
    program: RemoteMemory,
    places: Vec<String>,
}

impl Exec {
    /// A thread of the process, which runs this program, waits in `execve`.
    pub(super) fn new(pid: Pid, program: RemoteMemory) -> Result<Self, Errno> {
        Ok(Self { program, places: places(pid)? })
    }

    /// Whether the process runs another program by now. May wait for memory of the program: no
    /// lock may be held, and this is for a call of the process itself.
    pub(super) fn succeeded(&self, pid: Pid) -> bool {
        in_program(|| places(pid).as_ref() != Ok(&self.places) || self.program.is_gone())
    }
}

/// Threads of one process that are known to have called `execve`.
const MOST: usize = 64;

/// The threads of a process that called `execve`, of which it is not known whether that failed.
#[derive(Debug, Default)]
pub(super) struct Threads {
    all: HashSet<u32>,
    /// There were too many: that all calls failed is not found out.
    too_many: bool,
}

impl Threads {
    /// Adds a thread; gives those that are none of these any more.
    pub(super) fn add(&mut self, tid: u32, is_there: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut gone = Vec::new();
        if self.too_many {
            return vec![tid];
        }
        if self.all.len() >= MOST && !self.all.contains(&tid) {
            gone = self.all.iter().copied().filter(|&tid| !is_there(tid)).collect();
            self.all.retain(|tid| !gone.contains(tid));
        }
        self.all.insert(tid);
        if self.all.len() > MOST {
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

    /// Whether all calls have failed.
    pub(super) fn have_failed(&self) -> bool {
        self.all.is_empty() && !self.too_many
    }
}

/// Fields of `/proc/PID/stat` that tell where a program's code, stack, data, heap, arguments and
/// environment are, counted from 0 behind its name: numbers 26 to 28 and 45 to 51 of proc(5). Most
/// are random: those of another program are the same only by chance. Unlike `auxv`, the file is
/// read while an `execve` of the process goes on.
const PLACES: [std::ops::RangeInclusive<usize>; 2] = [23..=25, 42..=48];

fn places(pid: Pid) -> Result<Vec<String>, Errno> {
    let stat = text_of(&format!("/proc/{pid}/stat")).map_err(|_| Errno::ESRCH)?;
    let (_, fields) = stat.rsplit_once(") ").ok_or(Errno::ESRCH)?;
    let is_place = |at: &usize| PLACES.iter().any(|places| places.contains(at));
    let fields = fields.split_whitespace().enumerate();
    Ok(fields.filter(|(at, _)| is_place(at)).map(|(_, field)| field.to_string()).collect())
}
