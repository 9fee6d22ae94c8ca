use std::process::{Command, Stdio};

use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::super::process::Caller;
use super::super::process::tests::{becomes_sleep, shell, waiting};
use super::super::rig::{Program, is_apart};
use super::*;
use verbless_model::memory::RemoteMemory;
use verbless_model_kernel::remote::Client;

pub(in super::super) fn processes() -> Processes {
    let wakes = Wakes::new().expect("an epoll");
    Processes::new(Arc::default(), Arc::new(wakes))
}

#[test]
fn exec_makes_new_process_entry() {
    let processes = processes();
    let mut child = shell();
    let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
    let before = processes.of_thread(tid, || true).expect("a child");
    assert_eq!(processes.known(tid), Some(pid));
    assert_eq!(processes.known(std::process::id()), None);
    let is_whole =
        |process: &Process| matches!(process.remote_memory(), Some(RemoteMemory::Client(_)));
    assert!(is_whole(&before));
    // The thread calls `execve`, and nothing has changed yet.
    processes.note_execve((pid, tid), || (), || true);
    processes.note_execve((pid, tid), || (), || true);
    assert!(!is_whole(&before), "its memory is that of the program alone");
    let same = processes.of_thread(tid, || true).expect("a child");
    assert!(Arc::ptr_eq(&before, &same) && !is_whole(&before), "the thread still runs the program");
    processes.note_call(std::process::id(), || true);
    processes.note_call(tid, || false);
    assert!(!is_whole(&before), "no call of its waits");
    processes.note_call(tid, || true);
    assert!(is_whole(&before), "the call failed");
    processes.note_execve((pid, tid), || (), || true);
    becomes_sleep(&mut child);
    let after = processes.of_thread(tid, || true).expect("a child");
    assert!(!Arc::ptr_eq(&before, &after), "the process runs another program");
    assert!(is_whole(&after));
    // The next call also reveals a successful `execve`.
    processes.note_execve((pid, tid), || (), || true);
    child.kill().and_then(|()| child.wait()).expect("the child exists");
    processes.note_call(tid, || true);
    assert_eq!(processes.known(tid), None);
    processes.forget_if_ended(pid);
    let table = processes.table();
    assert!(table.known.is_empty() && table.leaving.is_empty() && table.execs.is_empty());
}

#[test]
fn exec_reads_proc_stat_before_model_is_paused() {
    let processes = processes();
    let mut child = shell();
    let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
    processes.of_thread(tid, || true).expect("a child");
    let child = std::cell::RefCell::new(&mut child);
    let pause = || {
        assert!(processes.table.try_lock().is_ok());
        // From here on its /proc/PID/stat cannot be read.
        let mut child = child.borrow_mut();
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    };
    processes.note_execve((pid, tid), pause, || true);
    assert!(processes.may_be_leaving(pid));
    processes.note_execve((pid, tid), || (), || false);
}

/// A thread of this process, which ends when this is dropped.
struct Thread(u32, Option<std::thread::JoinHandle<()>>, std::sync::mpsc::Sender<()>);

impl Thread {
    fn new() -> Self {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (said, says) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = said.send(nix::unistd::gettid().as_raw() as u32);
            let _ = released.recv();
        });
        Self(says.recv().expect("a number"), Some(thread), release)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.2 = std::sync::mpsc::channel().0;
        let _ = self.1.take().map(std::thread::JoinHandle::join);
        while sys::is_thread_of(self.0, Pid::this()) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn execve_of_an_ended_thread_has_failed() {
    let (processes, own) = (processes(), Pid::this());
    let [first, second] = [Thread::new(), Thread::new()];
    let process = processes.of_thread(first.0, || true).expect("this process");
    let is_whole = || matches!(process.remote_memory(), Some(RemoteMemory::Client(_)));
    let call = || processes.of_thread(nix::unistd::gettid().as_raw() as u32, || true);
    processes.note_execve((own, first.0), || (), || true);
    processes.note_execve((own, second.0), || (), || true);
    processes.note_call(first.0, || true);
    assert!(!is_whole(), "the other thread may leave yet");
    call().expect("this process");
    assert!(!is_whole(), "the other thread may leave yet");
    drop(second);
    let killed = processes.of_thread(first.0, || false);
    assert_eq!((killed.map(|it| it.pid), is_whole()), (Err(Errno::EINTR), false));
    call().expect("this process");
    assert!(is_whole() && processes.table().execs.is_empty(), "no thread may leave");
}

#[test]
fn execve_is_tracked_before_the_process_is_known() {
    let program = Program::new();
    let (processes, own) = (&program.answerer.shared.processes, Pid::this());
    let [first, second] = [Thread::new(), Thread::new()];
    for thread in [&first, &second] {
        program.call_of(thread.0, libc::SYS_execve, &[]);
    }
    program.call_of(second.0, libc::SYS_getcwd, &[]);
    let process = processes.of_thread(std::process::id(), || true).expect("this process");
    let is_whole = || matches!(process.remote_memory(), Some(RemoteMemory::Client(_)));
    assert!(processes.may_be_leaving(own) && !is_whole(), "the first thread may leave yet");
    assert!(processes.table().early.is_empty() && processes.table().execs.len() == 1);
    program.call_of(first.0, libc::SYS_getcwd, &[]);
    assert!(!processes.may_be_leaving(own) && is_whole(), "the call failed");
}

#[test]
fn early_execs_of_ended_threads_are_purged() {
    let (processes, thread) = (processes(), Thread::new());
    processes.note_early_execve(thread.0);
    // No thread has this tid.
    (0..10_000).for_each(|number| processes.note_early_execve((1 << 30) + number));
    let table = processes.table();
    assert!(table.early.len() <= MIN_PURGE && table.early.contains_key(&thread.0));
    assert_eq!(table.early.len(), table.early_of.len());
}

#[test]
fn early_execs_of_one_process_are_bounded() {
    let (processes, own) = (processes(), Pid::this());
    let threads: Vec<_> = (0..MAX_EARLY + 2).map(|_| Thread::new()).collect();
    threads.iter().for_each(|thread| processes.note_early_execve(thread.0));
    let count = || {
        let table = processes.table();
        (table.early.len(), table.early_of[&own].len())
    };
    assert_eq!(count(), (MAX_EARLY, MAX_EARLY));
    // Ended threads make room.
    let last = threads[MAX_EARLY + 1].0;
    assert!(!processes.table().early.contains_key(&last));
    let mut threads = threads;
    drop(threads.drain(..2));
    processes.note_early_execve(last);
    assert!(processes.table().early.contains_key(&last));
    assert_eq!(count(), (MAX_EARLY - 1, MAX_EARLY - 1));
}

#[test]
fn note_call_checks_no_other_process() {
    let processes = processes();
    let (mut child, mut stranger) = (shell(), shell());
    let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
    processes.of_thread(tid, || true).expect("a child");
    // As if the stranger had the tid of an ended thread that had called `execve`.
    processes.note_execve((pid, stranger.id()), || (), || true);
    becomes_sleep(&mut child);
    processes.note_call(stranger.id(), || false);
    assert!(processes.table().execs.contains_key(&stranger.id()), "the call may be the thread's");
    processes.note_call(stranger.id(), || true);
    assert_eq!(processes.known(tid), Some(pid), "the check of the process did not run");
    assert!(processes.may_be_leaving(pid) && processes.table().execs.is_empty());
    let killed = processes.of_thread(tid, || false);
    assert_eq!(killed.map(|it| it.pid), Err(Errno::EINTR), "its check did not run either");
    assert!(processes.may_be_leaving(pid));
    processes.of_thread(tid, || true).expect("a child");
    assert!(!processes.may_be_leaving(pid), "its own call shows that it runs another program");
    for child in [&mut child, &mut stranger] {
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    }
}

#[test]
fn execs_of_one_process_are_bounded() {
    let (processes, own) = (processes(), Pid::this());
    let process = processes.of_thread(std::process::id(), || true).expect("this process");
    // No thread has this tid.
    (0..1000).for_each(|number| processes.note_execve((own, (1 << 30) + number), || (), || true));
    assert!(processes.table().execs.len() <= 64);
    processes.of_thread(std::process::id(), || true).expect("this process");
    assert!(processes.table().execs.is_empty() && !processes.may_be_leaving(own));
    let threads: Vec<_> = (0..65).map(|_| Thread::new()).collect();
    threads.iter().for_each(|thread| processes.note_execve((own, thread.0), || (), || true));
    assert!(processes.table().execs.is_empty(), "which they are is not known");
    threads.iter().for_each(|thread| processes.note_call(thread.0, || true));
    processes.of_thread(std::process::id(), || true).expect("this process");
    let reach = process.remote_memory();
    assert!(processes.may_be_leaving(own) && matches!(reach, Some(RemoteMemory::Program(_))));
}

#[test]
fn claims_outlive_execve() {
    let processes = processes();
    let mut child = shell();
    let (tid, pid) = (child.id(), Pid::from_raw(child.id() as i32));
    let before = processes.of_thread(tid, || true).expect("a child");
    processes.note_execve((pid, tid), || (), || true);
    becomes_sleep(&mut child);
    processes.note_call(tid, || true);
    assert_eq!(processes.known(tid), None);
    let after = processes.of_thread(tid, || true).expect("a child");
    assert!(!Arc::ptr_eq(&before, &after));
    let [before, after] = [before, after].map(|it| Caller { process: it, tid, call: waiting() });
    before.pinned().store(5, Ordering::Relaxed);
    assert_eq!(after.pinned().load(Ordering::Relaxed), 5, "pages");
    assert!(std::ptr::eq(before.eventfds(), after.eventfds()), "eventfds");
    let of = |caller: &Caller| (0..).map_while(|_| caller.claim().ok()).collect::<Vec<_>>();
    // The child's limit is below its share of ours.
    sys::tests::limit_descriptors(tid, libc::rlimit { rlim_cur: 9, rlim_max: 9 });
    let held = of(&before);
    assert_eq!((held.len(), of(&after).len()), (9, 0), "descriptors");
    drop(held);
    assert_eq!(of(&after).len(), 9);
    child.kill().and_then(|()| child.wait()).expect("the child exists");
}

#[test]
fn claims_outlive_a_lack_of_descriptors() {
    if !is_apart("run::processes::tests::claims_outlive_a_lack_of_descriptors") {
        return;
    }
    let (processes, own) = (processes(), Pid::this());
    let tid = std::process::id();
    let before = processes.of_thread(tid, || true).expect("this process");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the process has the limit");
    // No descriptor is free: the process's files below /proc cannot be opened, and it is forgotten.
    setrlimit(Resource::RLIMIT_NOFILE, 1, hard).expect("the soft limit is lowered");
    processes.note_execve((own, tid), || (), || true);
    assert!(processes.table().known.is_empty());
    assert!(processes.of_thread(tid, || true).is_err());
    // Other processes are forgotten in the same state.
    let mut table = processes.table();
    let claims = before.claims.clone();
    (1..=MIN_PURGE as i32 + 1).for_each(|pid| {
        table.before.insert(Pid::from_raw(-pid), (0, claims.clone()));
    });
    table.known.insert(own, before.clone());
    processes.forget_in(&mut table, own);
    drop(table);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("as it was");
    let after = processes.of_thread(tid, || true).expect("this process");
    assert!(Arc::ptr_eq(&before.claims, &after.claims));
}

#[test]
fn process_of_a_killed_caller_is_not_registered() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    let processes = processes();
    let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_NONBLOCK);
    let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).expect("a pair");
    processes.set_guarded(GuardedProcesses::through(ours));
    let is_guarded =
        || sys::receive_message(theirs.as_fd(), 1).is_ok_and(|(_, fds)| !fds.is_empty());
    let mut stranger = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
    let tid = stranger.id();
    let refused = processes.of_thread(tid, || false);
    assert_eq!(refused.map(|it| it.pid), Err(Errno::EINTR));
    assert!(
        processes.table().known.is_empty() && processes.table().threads.is_empty() && !is_guarded()
    );
    assert!((1..=u16::MAX).all(|number| processes.memory.remote(number).is_none()));
    // A known process is not taken for the caller either, and its thread is not recorded.
    let known = processes.of_thread(std::process::id(), || true).expect("this process");
    assert!(is_guarded());
    for tid in [std::process::id(), nix::unistd::gettid().as_raw() as u32] {
        let refused = processes.of_thread(tid, || false);
        assert_eq!(refused.map(|it| it.pid), Err(Errno::EINTR));
    }
    assert_eq!(processes.table().threads.len(), 1);
    // Its end causes no wake.
    drop(stranger.stdin.take());
    stranger.wait().expect("the child ends");
    assert_eq!(processes.wakes.wait(Some(std::time::Duration::ZERO)), Ok(vec![]));
    assert!(!known.has_ended());
}

#[test]
fn forget_if_ended_keeps_live_processes() {
    let processes = processes();
    let own = std::process::id();
    let process = processes.of_thread(own, || true).expect("this process");
    let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32);
    let _ = tid.join();
    assert_eq!(process.pid.as_raw() as u32, own);
    assert!(!process.has_ended());
    let again =
        processes.of_thread(nix::unistd::gettid().as_raw() as u32, || true).expect("a thread");
    assert!(Arc::ptr_eq(&process, &again));
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
    let gone = processes.of_thread(child.id(), || true).expect("the process is alive");
    child.wait().expect("the child ends");
    assert!(gone.has_ended());
    assert!(processes.of_thread(child.id(), || true).is_err());
    processes.forget_if_ended(process.pid);
    processes.forget_if_ended(gone.pid);
    assert_eq!(processes.table().known.len(), 1, "the live one is still known");
    assert!(processes.table().threads.values().all(|&of| of == process.pid), "with its threads");
}

#[test]
fn table_is_unlocked_during_process_check() {
    let processes = processes();
    let is_free = || processes.table.try_lock().is_ok();
    let (pool, own, looks) = (Arc::default(), std::process::id(), AtomicUsize::new(0));
    let open = |pid, tid| {
        looks.fetch_add(1, Ordering::Relaxed);
        assert!(is_free(), "the lock is held while files of the process are opened");
        ProcFiles::of(pid, tid)
    };
    for _ in 0..2 {
        processes.find_or_register(own, &pool, is_free, open).expect("the lock is free");
    }
    assert_eq!(looks.into_inner(), 1, "the process is known then");
}

#[test]
fn table_is_unlocked_while_guardian_receives_nothing() {
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};
    use std::os::fd::AsRawFd;
    let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
    let pair = socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.expect("a pair");
    while send(ours.as_raw_fd(), b"p", MsgFlags::MSG_DONTWAIT).is_ok() {}
    let (processes, mut child) = (processes(), shell());
    processes.set_guarded(GuardedProcesses::through(ours));
    std::thread::scope(|scope| {
        let known = scope.spawn(|| processes.of_thread(child.id(), || true).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let (waits, is_free) = (!known.is_finished(), processes.table.try_lock().is_ok());
        drop(theirs);
        assert_eq!(known.join().expect("no panic"), Ok(()));
        assert!(waits && is_free, "it waits: {waits}, unlocked: {is_free}");
    });
    child.kill().and_then(|()| child.wait()).expect("the child exists");
}
