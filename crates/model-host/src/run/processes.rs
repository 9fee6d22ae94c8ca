//! Table of known processes and their threads.
//!
//! Operations that may wait for a process run without a lock. Opening its files below `/proc`, for
//! example, waits while it is in `execve`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::unistd::Pid;

use super::exec::{Exec, Threads};
use super::file_closer::FileClosers;
use super::guardian::GuardedProcesses;
use super::process::{Claims, ProcFiles, Process, process_of, start_of};
use super::sys;
use super::wakes::{Wake, Wakes};
use verbless_model::memory::{ClientMemory, RemoteMemory};

/// Size of `ProcessTable::before` and `early_of` from which ended processes are purged.
const MIN_PURGE: usize = 256;

/// Threads of one unknown process whose `execve` is tracked.
const MAX_EARLY: usize = 64;

/// Known processes and their threads.
#[derive(Debug)]
pub(super) struct Processes {
    memory: Arc<ClientMemory>,
    /// Wakes the supervisor when a known process ends.
    wakes: Arc<Wakes>,
    table: Mutex<ProcessTable>,
    /// Registers known processes with the guardian.
    guarded: OnceLock<GuardedProcesses>,
}

#[derive(Debug, Default)]
struct ProcessTable {
    known: HashMap<Pid, Arc<Process>>,
    threads: HashMap<u32, Pid>,
    /// Known processes that may be in `execve`.
    leaving: HashMap<Pid, PendingExec>,
    /// Their threads that may be in `execve`.
    execs: HashMap<u32, Pid>,
    /// Threads of unknown processes that called `execve` and no other call since. (`execs` has
    /// those of known processes.)
    early: HashMap<u32, Pid>,
    /// The threads in `early`, by process: at most [`MAX_EARLY`] each.
    early_of: HashMap<Pid, HashSet<u32>>,
    /// Size of `early_of` at the next purge.
    early_purge_size: usize,
    /// Processes that run another program after `execve` and are not known again yet: start time
    /// and claims.
    before: HashMap<Pid, (u64, Arc<Claims>)>,
    /// Size of `before` at the next purge.
    before_purge_size: usize,
}

/// A process in `execve`, and the threads that called it.
#[derive(Debug)]
struct PendingExec {
    exec: Arc<Exec>,
    threads: Threads,
}

/// A known process, and its `execve` if it is in one.
struct FoundProcess {
    process: Arc<Process>,
    leaving: Option<Arc<Exec>>,
}

impl FoundProcess {
    /// Whether the process still runs the known program. The process can delay the check without
    /// limit, so the caller must be answering a call of this process.
    fn runs_known_program(&self) -> bool {
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

    /// The process's `PendingExec`, if it is for this `exec`.
    fn leaving(&mut self, pid: Pid, exec: &Arc<Exec>) -> Option<&mut PendingExec> {
        self.leaving.get_mut(&pid).filter(|leaving| Arc::ptr_eq(&leaving.exec, exec))
    }

    /// Adds a thread to its process's `PendingExec`. False: the process has none.
    fn add_exec(&mut self, pid: Pid, tid: u32) -> bool {
        let Some(leaving) = self.leaving.get_mut(&pid) else { return false };
        let gone = leaving.threads.add(tid, |tid| sys::is_thread_of(tid, pid));
        self.remove_early(tid);
        self.execs.insert(tid, pid);
        gone.into_iter().for_each(|tid| self.ended(tid, pid));
        true
    }

    /// The threads of a process in `early`, without one that makes another call.
    fn early_of(&self, pid: Pid, caller: u32) -> Vec<u32> {
        let is_its = |tid: &u32| *tid != caller && sys::is_thread_of(*tid, pid);
        self.early_of.get(&pid).into_iter().flatten().copied().filter(is_its).collect()
    }

    /// Adds a thread to `early`, unless [`MAX_EARLY`] of its process are there.
    fn add_early(&mut self, pid: Pid, tid: u32) {
        self.remove_early(tid);
        let of_process = self.early_of.entry(pid).or_default();
        if of_process.len() >= MAX_EARLY {
            let ended = of_process.extract_if(|&tid| !sys::is_thread_of(tid, pid));
            for tid in ended {
                self.early.remove(&tid);
            }
        }
        if of_process.len() < MAX_EARLY {
            of_process.insert(tid);
            self.early.insert(tid, pid);
        }
    }

    fn remove_early(&mut self, tid: u32) {
        if let Some(pid) = self.early.remove(&tid)
            && let Some(of_process) = self.early_of.get_mut(&pid)
        {
            of_process.remove(&tid);
            if of_process.is_empty() {
                self.early_of.remove(&pid);
            }
        }
    }

    /// Ends a thread's `execve`.
    fn ended(&mut self, tid: u32, pid: Pid) {
        if self.execs.get(&tid) == Some(&pid) {
            self.execs.remove(&tid);
        }
    }

    /// Restores the process if all its `execve` calls have failed.
    fn exec_failed(&mut self, pid: Pid) {
        if self.leaving.get(&pid).is_some_and(|leaving| leaving.threads.all_failed()) {
            self.leaving.remove(&pid);
            if let Some(process) = self.known.get(&pid) {
                process.exec_failed();
            }
        }
    }
}

impl Processes {
    pub(super) fn new(memory: Arc<ClientMemory>, wakes: Arc<Wakes>) -> Self {
        Self { memory, wakes, table: Mutex::default(), guarded: OnceLock::new() }
    }

    /// Registers processes that become known with the guardian.
    pub(super) fn set_guarded(&self, guarded: GuardedProcesses) {
        let _ = self.guarded.set(guarded);
    }

    fn table(&self) -> MutexGuard<'_, ProcessTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`behind`](Self::behind), for the only process behind its filter.
    #[cfg(test)]
    pub(super) fn of_thread(
        &self,
        tid: u32,
        waits: impl Fn() -> bool,
    ) -> Result<Arc<Process>, Errno> {
        self.behind(tid, &Arc::default(), waits)
    }

    /// The process of a thread whose call waits. `waits`: whether it still does. EINTR: it no
    /// longer does; a process that reused the tid is not registered. `pool`: the pool of its
    /// filter.
    pub(super) fn behind(
        &self,
        tid: u32,
        pool: &Arc<FileClosers>,
        waits: impl Fn() -> bool,
    ) -> Result<Arc<Process>, Errno> {
        self.find_or_register(tid, pool, waits, ProcFiles::of)
    }

    /// `open`: may block forever.
    fn find_or_register(
        &self,
        tid: u32,
        pool: &Arc<FileClosers>,
        waits: impl Fn() -> bool,
        open: impl FnOnce(Pid, u32) -> Result<ProcFiles, Errno>,
    ) -> Result<Arc<Process>, Errno> {
        let of = |table: &ProcessTable| table.threads.get(&tid).and_then(|&pid| table.find(pid));
        let found = of(&self.table());
        if let Some(found) = found.filter(|it| sys::is_thread_of(tid, it.process.pid))
            && self.runs_known_program(&found, &waits)?
        {
            return Ok(found.process);
        }
        let pid = process_of(tid)?;
        let found = self.table().find(pid);
        if let Some(found) = &found
            && self.runs_known_program(found, &waits)?
        {
            self.table().threads.insert(tid, pid);
            return Ok(found.process.clone());
        }
        if !waits() {
            return Err(Errno::EINTR);
        }
        let opened = open(pid, tid)?;
        let mut exec = None;
        let (mut table, early) = loop {
            // The thread waited throughout, so the files belong to its process, and `exec` is of
            // the program that it runs.
            if !waits() {
                return Err(Errno::EINTR);
            }
            let table = self.table();
            let early = table.early_of(pid, tid);
            if early.is_empty() || exec.is_some() {
                break (table, early);
            }
            drop(table);
            let program = RemoteMemory::Program(opened.reach.memory.clone());
            exec = Some(Exec::new(pid, program).map_err(|_| Errno::ENFILE)?);
        };
        let judged = found.as_ref().map(|it| &it.process);
        if let Some(known) = table.known.get(&pid).cloned()
            && judged.is_none_or(|judged| !Arc::ptr_eq(judged, &known))
        {
            // Another thread of the process registered it meanwhile.
            table.threads.insert(tid, pid);
            return Ok(known);
        }
        self.forget_in(&mut table, pid);
        let before = table.before.get(&pid).filter(|&&(start, _)| start == opened.start);
        let claims = before.map(|(_, claims)| claims.clone());
        // Its pidfd was sent before it ran another program.
        let is_guarded = claims.is_some();
        let claims = claims.unwrap_or_else(|| Arc::new(Claims::behind(pool)));
        let process = Arc::new(opened.into_client(&self.memory, claims)?);
        let reach = process.reach().ok_or(Errno::ESRCH)?;
        let pidfd = reach.pidfd.as_fd();
        if let Err(errno) = self.wakes.on_input(pidfd, Wake::Death(pid)) {
            process.forget();
            return Err(errno);
        }
        table.before.remove(&pid);
        table.known.insert(pid, process.clone());
        table.threads.insert(tid, pid);
        if let Some(exec) = exec.filter(|_| !early.is_empty()) {
            // It has no registrations yet, so no access to its memory is in progress.
            process.note_execve();
            let leaving = PendingExec { exec: Arc::new(exec), threads: Threads::default() };
            table.leaving.insert(pid, leaving);
            for tid in early {
                table.add_exec(pid, tid);
            }
        }
        drop(table);
        // Unlocked: a guardian that does not receive delays only this call. Only for a process that
        // is registered: a call that fails here could be repeated until the guardian is full.
        if !is_guarded && let Some(guarded) = self.guarded.get() {
            guarded.add(pidfd);
        }
        Ok(process)
    }

    /// Whether a process of a waiting thread still runs the known program. EINTR: the call no
    /// longer waits, so the tid may have been reused.
    fn runs_known_program(
        &self,
        found: &FoundProcess,
        waits: &impl Fn() -> bool,
    ) -> Result<bool, Errno> {
        let still = || if waits() { Ok(()) } else { Err(Errno::EINTR) };
        let Some(exec) = &found.leaving else {
            let runs_known_program = found.runs_known_program();
            return if runs_known_program { still().map(|()| true) } else { Ok(false) };
        };
        // Excludes a process that reused the tid.
        still()?;
        if !found.runs_known_program() {
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
        // This thread outlived the ended ones, so their `execve` failed.
        let mut table = self.table();
        if let Some(leaving) = table.leaving(pid, exec) {
            ended.iter().for_each(|&tid| leaving.threads.remove(tid));
            ended.into_iter().for_each(|tid| table.ended(tid, pid));
            table.exec_failed(pid);
        }
        Ok(true)
    }

    /// The process of a thread, if known.
    pub(super) fn known(&self, tid: u32) -> Option<Pid> {
        if self.table().known.is_empty() {
            return None;
        }
        if let Ok(pid) = process_of(tid) {
            return Some(pid).filter(|pid| self.table().known.contains_key(pid));
        }
        // `process_of` fails if no descriptor is free.
        let all: Vec<Pid> = self.table().known.keys().copied().collect();
        all.into_iter().find(|&pid| sys::is_thread_of(tid, pid))
    }

    /// Records that a thread waits in `execve`; for a known process, [`Processes::note_execve`]
    /// must follow. If its process becomes known before the outcome, the table holds the `execve`.
    pub(super) fn note_early_execve(&self, tid: u32) {
        // `process_of` fails if no descriptor is free.
        let pid = process_of(tid).unwrap_or(Pid::from_raw(tid as i32));
        let mut table = self.table();
        table.add_early(pid, tid);
        if table.early_of.len() <= MIN_PURGE.max(table.early_purge_size) {
            return;
        }
        let pids: Vec<Pid> = table.early_of.keys().copied().collect();
        table.early_purge_size = 2 * pids.len();
        drop(table);
        let has_ended = |pid: &Pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true);
        let ended: Vec<Pid> = pids.into_iter().filter(has_ended).collect();
        let mut table = self.table();
        for pid in ended {
            for tid in table.early_of.remove(&pid).unwrap_or_default() {
                table.early.remove(&tid);
            }
        }
        table.early_purge_size = 2 * table.early_of.len();
    }

    /// Records that a thread of a known process waits in `execve`. `pause` pauses the model: no
    /// access to the process's memory is in progress while its rights change. `waits`: whether the
    /// call still waits.
    pub(super) fn note_execve<P>(
        &self,
        (pid, tid): (Pid, u32),
        pause: impl Fn() -> P,
        waits: impl Fn() -> bool,
    ) {
        let mut prepared = self.prepare_exec(pid);
        loop {
            let paused = pause();
            let mut table = self.table();
            // Another thread's `execve` may have succeeded meanwhile, and ended this thread.
            if !waits() {
                return;
            }
            let Some(process) = table.known.get(&pid).cloned() else { return };
            if table.add_exec(pid, tid) {
                return;
            }
            match prepared.take() {
                Some(Ok(exec)) => {
                    process.note_execve();
                    let leaving = PendingExec { exec: Arc::new(exec), threads: Threads::default() };
                    table.leaving.insert(pid, leaving);
                }
                // Without this, the device could access the next program's memory.
                Some(Err(_)) => return self.forget_in(&mut table, pid),
                None => {
                    drop((table, paused));
                    prepared = self.prepare_exec(pid);
                }
            }
        }
    }

    /// The program that a process runs now; `None`: the process is unknown, or known to be in
    /// `execve`. Takes milliseconds for a process with thousands of threads: nothing may be locked.
    fn prepare_exec(&self, pid: Pid) -> Option<Result<Exec, Errno>> {
        let process = {
            let table = self.table();
            table.known.get(&pid).filter(|_| !table.leaving.contains_key(&pid)).cloned()
        };
        let program = process?.program().ok_or(Errno::ESRCH);
        Some(program.and_then(|program| Exec::new(pid, program)))
    }

    /// Whether a process may be in `execve`.
    #[cfg(test)]
    pub(super) fn may_be_leaving(&self, pid: Pid) -> bool {
        self.table().leaving.contains_key(&pid)
    }

    /// Records a call of a thread: its `execve`, if any, has failed or succeeded. `waits`: whether
    /// the call still waits.
    pub(super) fn note_call(&self, tid: u32, waits: impl Fn() -> bool) {
        let is_early = self.table().early.contains_key(&tid);
        if is_early && waits() {
            self.table().remove_early(tid);
        }
        let of = |table: &ProcessTable| {
            let &pid = table.execs.get(&tid)?;
            Some((pid, table.leaving.get(&pid)?.exec.clone()))
        };
        let Some((pid, exec)) = of(&self.table()) else { return };
        let is_its = sys::is_thread_of(tid, pid);
        if !waits() {
            return;
        }
        // If the tid was reused, this process's memory must not be waited for. The outcome of the
        // `execve` then shows at a call of its process.
        let left = is_its && exec.succeeded(pid);
        let mut table = self.table();
        let Some(leaving) = table.leaving(pid, &exec) else { return };
        if left {
            return self.forget_in(&mut table, pid);
        }
        leaving.threads.remove(tid);
        table.ended(tid, pid);
        if is_its {
            table.exec_failed(pid);
        }
    }

    /// Forgets a process if it has ended.
    pub(super) fn forget_if_ended(&self, pid: Pid) {
        let mut table = self.table();
        if table.known.get(&pid).is_some_and(|process| process.has_ended()) {
            self.forget_in(&mut table, pid);
        }
    }

    /// Forgets a process that has ended or runs another program: ends access to its memory.
    fn forget_in(&self, table: &mut ProcessTable, pid: Pid) {
        if let Some(process) = table.known.remove(&pid) {
            let has_ended = process.has_ended();
            if let Some(reach) = process.reach() {
                self.wakes.forget(reach.pidfd.as_fd());
            }
            process.forget();
            if !has_ended {
                table.before.insert(pid, (process.start, process.claims.clone()));
                if table.before.len() > table.before_purge_size {
                    // If the lookup fails, the process may still exist.
                    table.before.retain(|&pid, &mut (start, _)| match start_of(pid) {
                        Ok(now) => now == start,
                        Err(errno) => errno == Errno::ENFILE,
                    });
                    table.before_purge_size = MIN_PURGE.max(2 * table.before.len());
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
