//! The processes that are known, and which thread belongs to which.
//!
//! What may wait for a process, as opening files of its below `/proc` does while it is in `execve`,
//! is done with nothing locked.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::unistd::Pid;

use super::exec::{Exec, Threads};
use super::file_closer::FileClosers;
use super::guardian::GuardedProcesses;
use super::process::{Claims, ProcFiles, Process, process_of, start_of};
use super::shared::{Wake, Wakes};
use super::sys;
use verbless_model::memory::ClientMemory;

/// The number of processes between two programs from which on ended ones are removed.
const MANY: usize = 256;

/// The processes that are known, and which thread belongs to which.
#[derive(Debug)]
pub(super) struct Processes {
    memory: Arc<ClientMemory>,
    /// Wakes the supervisor when a known process ends.
    wakes: Arc<Wakes>,
    table: Mutex<ProcessTable>,
    /// Kills the known processes if we are killed.
    wards: OnceLock<GuardedProcesses>,
}

#[derive(Debug, Default)]
struct ProcessTable {
    known: HashMap<Pid, Arc<Process>>,
    threads: HashMap<u32, Pid>,
    /// Known processes that may be about to run another program.
    leaving: HashMap<Pid, PendingExec>,
    /// Threads of these that may be in `execve`.
    execs: HashMap<u32, Pid>,
    /// When processes began that run another program by now, which is not known yet, and what they
    /// took of `run`.
    before: HashMap<Pid, (u64, Arc<Claims>)>,
    /// The number of these from which on those that have ended are removed.
    many: usize,
}

/// A process that may be about to run another program, and the threads by which.
#[derive(Debug)]
struct PendingExec {
    exec: Arc<Exec>,
    threads: Threads,
}

/// A known process, and what it may be about to leave.
struct FoundProcess {
    process: Arc<Process>,
    leaving: Option<Arc<Exec>>,
}

impl FoundProcess {
    /// Whether it still runs the program that is known. To find that out can take as long as the
    /// process wants: it must be the one whose call is answered.
    fn is_there(&self) -> bool {
        let left = self.leaving.as_ref().is_some_and(|exec| exec.succeeded(self.process.pid));
        !self.process.has_ended() && !left
    }
}

impl ProcessTable {
    fn find(&self, pid: Pid) -> Option<FoundProcess> {
        let process = self.known.get(&pid)?.clone();
        let leaving = self.leaving.get(&pid).map(|leaving| leaving.exec.clone());
        Some(FoundProcess { process, leaving })
    }

    /// What a process is about to leave, if that is this.
    fn leaving(&mut self, pid: Pid, exec: &Arc<Exec>) -> Option<&mut PendingExec> {
        self.leaving.get_mut(&pid).filter(|leaving| Arc::ptr_eq(&leaving.exec, exec))
    }

    /// The `execve` of a thread of a process is over.
    fn ended(&mut self, tid: u32, pid: Pid) {
        if self.execs.get(&tid) == Some(&pid) {
            self.execs.remove(&tid);
        }
    }

    /// The process stays if no thread of its may be in `execve`.
    fn stays(&mut self, pid: Pid) {
        if self.leaving.get(&pid).is_some_and(|leaving| leaving.threads.have_failed()) {
            self.leaving.remove(&pid);
            if let Some(process) = self.known.get(&pid) {
                process.stays();
            }
        }
    }
}

impl Processes {
    pub(super) fn new(memory: Arc<ClientMemory>, wakes: Arc<Wakes>) -> Self {
        Self { memory, wakes, table: Mutex::default(), wards: OnceLock::new() }
    }

    /// Makes processes that become known from now on be killed together with us.
    pub(super) fn guarded_as(&self, wards: GuardedProcesses) {
        let _ = self.wards.set(wards);
    }

    fn table(&self) -> MutexGuard<'_, ProcessTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`behind`](Self::behind), for a process that is alone behind its filter.
    #[cfg(test)]
    pub(super) fn of_thread(
        &self,
        tid: u32,
        waits: impl Fn() -> bool,
    ) -> Result<Arc<Process>, Errno> {
        self.behind(tid, &Arc::default(), waits)
    }

    /// The process of a thread whose call waits; `waits`: whether it does still. EINTR: not any
    /// more, and nothing is known of a process that has the thread's number instead. `pool`: that
    /// of its filter.
    pub(super) fn behind(
        &self,
        tid: u32,
        pool: &Arc<FileClosers>,
        waits: impl Fn() -> bool,
    ) -> Result<Arc<Process>, Errno> {
        self.looked_at(tid, pool, waits, ProcFiles::of)
    }

    /// `open`: what may take for ever.
    fn looked_at(
        &self,
        tid: u32,
        pool: &Arc<FileClosers>,
        waits: impl Fn() -> bool,
        open: impl FnOnce(Pid, u32) -> Result<ProcFiles, Errno>,
    ) -> Result<Arc<Process>, Errno> {
        let of = |table: &ProcessTable| table.threads.get(&tid).and_then(|&pid| table.find(pid));
        let found = of(&self.table());
        if let Some(found) = found.filter(|it| sys::is_thread_of(tid, it.process.pid))
            && self.is_there(&found, &waits)?
        {
            return Ok(found.process);
        }
        let pid = process_of(tid)?;
        let found = self.table().find(pid);
        if let Some(found) = &found
            && self.is_there(found, &waits)?
        {
            self.table().threads.insert(tid, pid);
            return Ok(found.process.clone());
        }
        if !waits() {
            return Err(Errno::EINTR);
        }
        let opened = open(pid, tid)?;
        // The thread waited all the time, so that these are of its process.
        if !waits() {
            return Err(Errno::EINTR);
        }
        let mut table = self.table();
        let judged = found.as_ref().map(|it| &it.process);
        if let Some(known) = table.known.get(&pid).cloned()
            && judged.is_none_or(|judged| !Arc::ptr_eq(judged, &known))
        {
            // Another thread of the process was as quick.
            table.threads.insert(tid, pid);
            return Ok(known);
        }
        self.forget_in(&mut table, pid);
        let before = table.before.get(&pid).filter(|&&(start, _)| start == opened.start);
        let claims = before.map(|(_, claims)| claims.clone());
        let claims = claims.unwrap_or_else(|| Arc::new(Claims::behind(pool)));
        let process = Arc::new(opened.into_client(&self.memory, claims)?);
        let pidfd = process.pidfd().as_fd();
        if let Err(errno) = self.wakes.on_input(pidfd, Wake::Death(pid)) {
            process.forget();
            return Err(errno);
        }
        if let Some(wards) = self.wards.get() {
            wards.add(pidfd);
        }
        table.before.remove(&pid);
        table.known.insert(pid, process.clone());
        table.threads.insert(tid, pid);
        Ok(process)
    }

    /// Whether a process still runs the program that is known, of which a thread is whose call
    /// waits; EINTR: not any more, so that the thread's number may have been another's.
    fn is_there(&self, found: &FoundProcess, waits: &impl Fn() -> bool) -> Result<bool, Errno> {
        let still = || if waits() { Ok(()) } else { Err(Errno::EINTR) };
        let Some(exec) = &found.leaving else {
            let is_there = found.is_there();
            return if is_there { still().map(|()| true) } else { Ok(false) };
        };
        // No other process is asked whose thread has the number by now.
        still()?;
        if !found.is_there() {
            return Ok(false);
        }
        let pid = found.process.pid;
        let threads: Vec<u32> = match self.table().leaving(pid, exec) {
            Some(leaving) => leaving.threads.all().collect(),
            None => Vec::new(),
        };
        let ended: Vec<u32> =
            threads.into_iter().filter(|&tid| !sys::is_thread_of(tid, pid)).collect();
        still()?;
        // This thread is there after the others' end, so their calls have failed.
        let mut table = self.table();
        if let Some(leaving) = table.leaving(pid, exec) {
            ended.iter().for_each(|&tid| leaving.threads.remove(tid));
            ended.into_iter().for_each(|tid| table.ended(tid, pid));
            table.stays(pid);
        }
        Ok(true)
    }

    /// The process of a thread, if it is known.
    pub(super) fn known(&self, tid: u32) -> Option<Pid> {
        if self.table().known.is_empty() {
            return None;
        }
        if let Ok(pid) = process_of(tid) {
            return Some(pid).filter(|pid| self.table().known.contains_key(pid));
        }
        // Without a free descriptor.
        let all: Vec<Pid> = self.table().known.keys().copied().collect();
        all.into_iter().find(|&pid| sys::is_thread_of(tid, pid))
    }

    /// A thread of a known process waits with a call that may be the last of its program. No access
    /// to its memory is under way.
    pub(super) fn may_leave(&self, pid: Pid, tid: u32) {
        let mut table = self.table();
        let Some(process) = table.known.get(&pid).cloned() else { return };
        if !table.leaving.contains_key(&pid) {
            let Ok(exec) = Exec::new(pid, process.program()) else {
                // Rather none than the next program's.
                return self.forget_in(&mut table, pid);
            };
            process.may_leave();
            let leaving = PendingExec { exec: Arc::new(exec), threads: Threads::default() };
            table.leaving.insert(pid, leaving);
        }
        table.execs.insert(tid, pid);
        if let Some(leaving) = table.leaving.get_mut(&pid) {
            let gone = leaving.threads.add(tid, |tid| sys::is_thread_of(tid, pid));
            gone.into_iter().for_each(|tid| table.ended(tid, pid));
        }
    }

    /// Whether a process may be about to run another program.
    #[cfg(test)]
    pub(super) fn may_be_leaving(&self, pid: Pid) -> bool {
        self.table().leaving.contains_key(&pid)
    }

    /// A thread made a call, so whatever program it may have been about to leave for, it is there
    /// or stayed. `waits`: whether the call still waits.
    pub(super) fn heard(&self, tid: u32, waits: impl Fn() -> bool) {
        let of = |table: &ProcessTable| {
            let &pid = table.execs.get(&tid)?;
            Some((pid, table.leaving.get(&pid)?.exec.clone()))
        };
        let Some((pid, exec)) = of(&self.table()) else { return };
        let is_its = sys::is_thread_of(tid, pid);
        if !waits() {
            return;
        }
        // Another's thread that has the number by now waits for no memory of this process. How the
        // call of the first went shows at a call of its process.
        let left = is_its && exec.succeeded(pid);
        let mut table = self.table();
        let Some(leaving) = table.leaving(pid, &exec) else { return };
        if left {
            return self.forget_in(&mut table, pid);
        }
        leaving.threads.remove(tid);
        table.ended(tid, pid);
        if is_its {
            table.stays(pid);
        }
    }

    /// Forgets a process if it has ended.
    pub(super) fn bury(&self, pid: Pid) {
        let mut table = self.table();
        if table.known.get(&pid).is_some_and(|process| process.has_ended()) {
            self.forget_in(&mut table, pid);
        }
    }

    /// A process, or its program, is no more: its memory is none from now on.
    fn forget_in(&self, table: &mut ProcessTable, pid: Pid) {
        if let Some(process) = table.known.remove(&pid) {
            self.wakes.forget(process.pidfd().as_fd());
            process.forget();
            if !process.has_ended() {
                table.before.insert(pid, (process.start, process.claims.clone()));
                if table.before.len() > table.many {
                    // Those of which nothing can be found out may be there.
                    table.before.retain(|&pid, &mut (start, _)| match start_of(pid) {
                        Ok(now) => now == start,
                        Err(errno) => errno == Errno::ENFILE,
                    });
                    table.many = MANY.max(2 * table.before.len());
                }
            }
        }
        if let Some(leaving) = table.leaving.remove(&pid) {
            leaving.threads.all().for_each(|tid| table.ended(tid, pid));
        }
        table.threads.retain(|_, of| *of != pid);
    }
}

#[cfg(test)]
pub(super) mod tests;
