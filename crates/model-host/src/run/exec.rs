//! Processes in `execve`: from the call until its outcome is known.
//!
//! Memory belongs to a program, not to its process. If a device stays open over `execve`, its
//! registered memory is gone, and the next program has other data at the same addresses. The kernel
//! does not report when `execve` passes that point. From the call on, the model therefore accesses
//! the memory as the old program's ([`RemoteMemory::Program`]), which is right whether and whenever
//! the call succeeds.
//!
//! A call failed if its thread makes another call, or has ended while another thread of the process
//! makes one. A call succeeded if the old memory is gone or belongs to another process. With
//! `vfork`, the parent's memory survives the child's `execve`.
//!
//! The check can take as long as the process wants. It therefore runs at a call of this process,
//! and of no other process whose thread may have reused a number.

use std::collections::HashSet;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::call_threads::in_program;
use super::process::text_of;
use verbless_model::memory::RemoteMemory;

/// A process with threads in `execve`, before the outcome is known.
#[derive(Debug)]
pub(super) struct Exec {
    program: RemoteMemory,
    places: Vec<String>,
}

impl Exec {
    /// `program`: the program that runs while a thread of the process waits in `execve`.
    pub(super) fn new(pid: Pid, program: RemoteMemory) -> Result<Self, Errno> {
        Ok(Self { program, places: places(pid)? })
    }

    /// Whether the process runs another program. May wait for the program's memory: the caller must
    /// hold no lock, and must be answering a call of this process.
    pub(super) fn succeeded(&self, pid: Pid) -> bool {
        in_program(|| places(pid).as_ref() != Ok(&self.places) || self.program.is_gone())
    }
}

/// Limit of threads in `execve` per process.
const MAX_THREADS: usize = 64;

/// Threads of a process that called `execve` and whose call is not known to have failed.
#[derive(Debug, Default)]
pub(super) struct Threads {
    all: HashSet<u32>,
    /// The limit was exceeded: failure of all calls cannot be detected.
    too_many: bool,
}

impl Threads {
    /// Adds a thread; returns those that this removes from the table.
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
    pub(super) fn have_failed(&self) -> bool {
        self.all.is_empty() && !self.too_many
    }
}

/// Fields of `/proc/PID/stat`, counted from 0 after the name: numbers 26 to 28 and 45 to 51 of
/// proc(5). They locate a program's code, stack, data, heap, arguments and environment. Most are
/// randomized, so another program has the same ones only by chance. Unlike `auxv`, the file can be
/// read during `execve`.
const PLACES: [std::ops::RangeInclusive<usize>; 2] = [23..=25, 42..=48];

fn places(pid: Pid) -> Result<Vec<String>, Errno> {
    let stat = text_of(&format!("/proc/{pid}/stat")).map_err(|_| Errno::ESRCH)?;
    let (_, fields) = stat.rsplit_once(") ").ok_or(Errno::ESRCH)?;
    let is_place = |at: &usize| PLACES.iter().any(|places| places.contains(at));
    let fields = fields.split_whitespace().enumerate();
    Ok(fields.filter(|(at, _)| is_place(at)).map(|(_, field)| field.to_string()).collect())
}
