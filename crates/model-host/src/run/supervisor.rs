//! The loop that keeps house while other threads answer calls: signals, closed devices, processes
//! that ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::error::RunError;
use super::join::{Host, Peer, Request};
use super::shared::{SharedRun, Wake};
use super::side::{View, Views};
use super::sys::{self, Listener};
use super::{answer, preflight};

/// Signals to us that are passed on to the program. Those from a terminal reach the program
/// directly, but not the command on the DPU side.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// How long after a filter's end the last close may come.
const LAST_CLOSE: Duration = Duration::from_secs(2);

/// Connections of programs that have joined, or are about to, at a time.
const MOST_GUESTS: usize = 256;
/// Programs of guests at a time of which it is not known yet whether they may be looked into.
const MOST_CHECKS: usize = 16;
/// How long it may take to find out.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);

/// How long the command on the DPU side may go on once the program has failed, and once it was
/// told to end: it may wait for the program, which comes no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Blocks signals in this thread, and in those that it starts; they arrive as records instead. The
/// second result is the mask that was in force before, which the program gets.
pub(super) fn block_signals() -> Result<(SignalFd, SigSet), Errno> {
    let mut set = SigSet::from_iter(FORWARDED);
    set.add(Signal::SIGCHLD);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let records = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok((records, before))
}

/// A child that we run, with its status as `wait` gives it, once it has ended.
struct Child {
    pid: Pid,
    /// Whether it leads a process group: then its descendants get signals too, even after it has
    /// ended.
    leads: bool,
    status: Option<i32>,
}

impl Child {
    fn new(pid: u32, leads: bool) -> Self {
        Self { pid: Pid::from_raw(pid as i32), leads, status: None }
    }

    /// Whether a signal that arrived here with this code reached the child too: one from a terminal
    /// is for all of our process group.
    fn has_got(&self, code: i32) -> bool {
        code > 0 && !self.leads
    }

    fn signal(&self, signal: Signal) {
        // It may be gone.
        let _ = match self.leads {
            true => killpg(self.pid, signal),
            false => kill(self.pid, signal),
        };
    }
}

/// The children that we run: they get the signals that are sent to us, and our exit status is that
/// of one of them.
pub(super) struct Programs {
    /// The program, and the command on the DPU side, if there is one.
    children: Vec<Child>,
    signals: SignalFd,
    /// When the command on the DPU side is to hear which signal, as the program has failed.
    next: Option<(Instant, Signal)>,
}

impl Programs {
    /// `dpu`: the command on the DPU side, which leads a process group.
    pub(super) fn new(program: u32, dpu: Option<u32>, signals: SignalFd) -> Self {
        let program = Child::new(program, false);
        let children = [program].into_iter().chain(dpu.map(|pid| Child::new(pid, true)));
        Self { children: children.collect(), signals, next: None }
    }

    /// Readable when a signal was received.
    pub(super) fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Kills the children, because nobody answers their calls any more.
    pub(super) fn kill(self) {
        for child in self.children.iter().filter(|child| child.status.is_none()) {
            child.signal(Signal::SIGKILL);
        }
        self.wait();
    }

    /// Passes on what was sent to us, and takes note of children that ended.
    pub(super) fn hear_signals(&mut self) {
        while let Ok(Some(record)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(record.ssi_signo as i32) else { continue };
            if signal == Signal::SIGCHLD {
                #[cfg(target_arch = "x86_64")]
                let _none = super::ptrace::none();
                while self.reap(libc::WEXITED | libc::WNOHANG) {}
                continue;
            }
            let left = self.children.iter().filter(|child| child.status.is_none());
            left.filter(|it| !it.has_got(record.ssi_code)).for_each(|it| it.signal(signal));
        }
    }

    /// Ends the command on the DPU side if it goes on after the program has failed: first by
    /// SIGTERM, then by SIGKILL. Returns the time until the next step.
    fn end_after_a_failure(&mut self) -> Option<Duration> {
        let [program, dpu] = &self.children[..] else { return None };
        let failure = program.status.filter(|&status| status != 0)?;
        let now = Instant::now();
        let (at, signal) = self.next.unwrap_or((now + PATIENCE, Signal::SIGTERM));
        self.next = Some((at, signal));
        if now < at {
            return Some(at - now);
        }
        let failure = ExitStatus::from_raw(failure);
        tracing::error!(
            "the program failed ({failure}), and the command on the DPU side has not ended since: \
             it is stopped by {signal}"
        );
        dpu.signal(signal);
        self.next = Some((now + PATIENCE, Signal::SIGKILL));
        Some(PATIENCE)
    }

    /// The status of the first one that did not succeed, once all have ended.
    pub(super) fn wait(mut self) -> i32 {
        while self.children.iter().any(|child| child.status.is_none()) {
            self.reap(libc::WEXITED);
        }
        let mut statuses = self.children.iter().filter_map(|child| child.status);
        statuses.find(|&status| status != 0).unwrap_or_default()
    }

    /// Takes note of a child that ended, one of ours or an orphan that became ours; false: there is
    /// none.
    fn reap(&mut self, flags: i32) -> bool {
        let Some((pid, status)) = sys::wait_for_child(flags) else { return false };
        if let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) {
            child.status = Some(status);
        }
        true
    }
}

/// A filter with live processes behind it.
struct Filter {
    listener: Arc<Listener>,
    /// The guest that brought the filter; `None` if it is ours.
    guest: Option<u32>,
}

/// A connection that has joined the run, or is about to.
struct Guest {
    peer: Peer,
    /// The devices that its programs see, once it has asked for a side.
    view: Option<Arc<View>>,
}

/// A guest's program, once it is known whether it may be looked into.
struct Checked {
    guest: u32,
    view: Arc<View>,
    result: Result<Arc<Listener>, RunError>,
}

/// Checks of guests' programs, each in a thread of its own: the memory of a program may never
/// arrive.
struct Checks {
    done: Mutex<Vec<Checked>>,
    under_way: AtomicUsize,
    bell: EventFd,
}

impl Checks {
    fn done(&self) -> MutexGuard<'_, Vec<Checked>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a check of the program behind a filter.
    fn begin(
        self: &Arc<Self>,
        guest: u32,
        view: Arc<View>,
        listener: Listener,
    ) -> Result<(), String> {
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= MOST_CHECKS {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            return Err(format!("{MOST_CHECKS} programs are joining: try again later"));
        }
        let checks = self.clone();
        let check = move || {
            let result = check_in_time(Arc::new(listener), CHECK_PATIENCE);
            checks.done().push(Checked { guest, view, result });
            checks.under_way.fetch_sub(1, Ordering::Relaxed);
            let _ = checks.bell.write(1);
        };
        match std::thread::Builder::new().spawn(check) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                Err(format!("no thread can be started: {error}"))
            }
        }
    }
}

/// Checks whether the program behind a filter may be looked into. If that takes longer than
/// `patience`, its process is killed, and what looks into it is left alone: it ends when its access
/// does.
fn check_in_time(listener: Arc<Listener>, patience: Duration) -> Result<Arc<Listener>, RunError> {
    let call = Arc::new(OnceLock::new());
    let (sender, done) = mpsc::channel();
    let (behind, seen) = (listener.clone(), call.clone());
    std::thread::Builder::new().spawn(move || {
        let result = preflight::check_call_of(&behind, |call| {
            let _ = seen.set(*call);
        });
        let _ = sender.send(result);
    })?;
    match done.recv_timeout(patience) {
        Ok(result) => result.map(|()| listener),
        Err(_) => {
            if let Some(call) = call.get() {
                answer::kill_maker(&*listener, call);
            }
            Err(preflight::no_memory())
        }
    }
}

/// The supervisor's state: programs, guests, filters.
pub(super) struct Supervisor {
    shared: Arc<SharedRun>,
    programs: Programs,
    views: Views,
    host: Option<Host>,
    filters: BTreeMap<u32, Filter>,
    guests: BTreeMap<u32, Guest>,
    checks: Arc<Checks>,
    /// Counts filters and guests.
    number: u32,
}

impl Supervisor {
    /// Makes a supervisor. `host` accepts programs that join.
    pub(super) fn new(
        shared: Arc<SharedRun>,
        programs: Programs,
        views: Views,
        host: Option<Host>,
    ) -> Result<Self, Errno> {
        shared.wakes.on_input(programs.signals(), Wake::Signal)?;
        if let Some(host) = &host {
            shared.wakes.on_input(host.as_fd(), Wake::Door)?;
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        shared.wakes.on_input(bell.as_fd(), Wake::Checked)?;
        let (done, under_way) = Default::default();
        let checks = Arc::new(Checks { done, under_way, bell });
        let (filters, guests) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { shared, programs, views, host, filters, guests, checks, number: 0 })
    }

    /// Answers the calls of the program, which is behind this filter.
    pub(super) fn answer(&mut self, listener: Listener, view: &Arc<View>) -> io::Result<()> {
        self.take(Arc::new(listener), view, None)
    }

    fn take(
        &mut self,
        listener: Arc<Listener>,
        view: &Arc<View>,
        guest: Option<u32>,
    ) -> io::Result<()> {
        let number = self.next_number();
        listener.wake_in_place();
        self.shared.wakes.on_end(listener.as_fd(), Wake::Gone(number))?;
        answer::spawn(&self.shared, &listener, view)?;
        self.filters.insert(number, Filter { listener, guest });
        Ok(())
    }

    fn next_number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    /// Serves until no process is left behind any filter; returns the programs' status as `wait`
    /// does.
    pub(super) fn run(mut self) -> Result<i32, Errno> {
        while !self.filters.is_empty() {
            let timeout = self.programs.end_after_a_failure();
            for wake in self.shared.wakes.wait(timeout)? {
                match wake {
                    Wake::Signal => self.programs.hear_signals(),
                    Wake::Close => drop(self.shared.opens()),
                    Wake::Death(pid) => self.shared.processes().bury(pid),
                    Wake::Gone(number) => self.gone(number),
                    Wake::Door => self.open_the_door(),
                    Wake::Guest(number) => self.listen_to(number),
                    Wake::Checked => self.let_in(),
                }
            }
        }
        self.await_closes();
        self.views.remove();
        Ok(self.programs.wait())
    }

    /// Waits for what the programs had open to be closed: the kernel tells of a filter's end while
    /// its last process is still ending. What was given to a process without a filter may never be.
    fn await_closes(&self) {
        let end = Instant::now() + LAST_CLOSE;
        while !self.shared.opens().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Handles the end of the last process behind a filter.
    fn gone(&mut self, number: u32) {
        let Some(filter) = self.filters.remove(&number) else { return };
        self.shared.wakes.forget(filter.listener.as_fd());
        // What its processes held is free before its guest hears of it.
        drop(self.shared.opens());
        if let Some(guest) = filter.guest.and_then(|guest| self.guests.remove(&guest)) {
            self.shared.wakes.forget(guest.peer.as_fd());
            guest.peer.done();
        }
    }

    fn open_the_door(&mut self) {
        while let Some(peer) = self.host.as_ref().and_then(Host::accept) {
            if self.guests.len() >= MOST_GUESTS {
                continue;
            }
            let number = self.next_number();
            if self.shared.wakes.on_input(peer.as_fd(), Wake::Guest(number)).is_ok() {
                self.guests.insert(number, Guest { peer, view: None });
            }
        }
    }

    /// Handles a request of a guest, or its end. A guest that breaks the protocol is disconnected.
    fn listen_to(&mut self, number: u32) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        let heard = match (guest.peer.request(), guest.view.take()) {
            (Err(Errno::EAGAIN | Errno::EINTR), view) => {
                guest.view = view;
                return;
            }
            (Ok(Request::Join(side)), None) => {
                let view = self.views.of(side).map_err(|error| error.to_string());
                guest.view = view.as_ref().ok().cloned();
                guest.peer.reply(view.map(drop))
            }
            (Ok(Request::Program(listener)), Some(view)) => {
                match self.checks.begin(number, view, listener) {
                    Ok(()) => Ok(()),
                    refused => guest.peer.reply(refused),
                }
            }
            (Ok(Request::Control(control)), None) => {
                guest.peer.tell(control.execute(self.views.model()))
            }
            (Ok(_), _) => Err(Errno::EBADMSG),
            (Err(errno), _) => Err(errno),
        };
        if heard.is_err() {
            self.disconnect(number);
        }
    }

    /// Answers the calls of guests' programs that may be looked into.
    fn let_in(&mut self) {
        let _ = self.checks.bell.read();
        let done = std::mem::take(&mut *self.checks.done());
        for Checked { guest: number, view, result } in done {
            if !self.guests.contains_key(&number) {
                continue;
            }
            let taken = result.and_then(|it| Ok(self.take(it, &view, Some(number))?));
            let reply = taken.map_err(|error| error.to_string());
            if self.guests.get(&number).is_some_and(|guest| guest.peer.reply(reply).is_err()) {
                self.disconnect(number);
            }
        }
    }

    fn disconnect(&mut self, number: u32) {
        if let Some(guest) = self.guests.remove(&number) {
            self.shared.wakes.forget(guest.peer.as_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::super::rig::Program;
    use super::*;

    /// Programs with these pids, and no signals for them.
    fn programs(program: u32, dpu: Option<u32>) -> Programs {
        let signals = SignalFd::with_flags(&SigSet::empty(), SfdFlags::SFD_NONBLOCK);
        Programs::new(program, dpu, signals.expect("a descriptor"))
    }

    #[test]
    fn a_signal_from_a_terminal_has_reached_all_but_those_of_another_group() {
        let (same, leader) = (Child::new(2, false), Child::new(3, true));
        for (code, expected) in [(128, true), (1, true), (0, false), (-6, false)] {
            assert_eq!((same.has_got(code), leader.has_got(code)), (expected, false), "{code}");
        }
    }

    #[test]
    fn the_status_is_that_of_the_first_that_did_not_succeed() {
        for (statuses, expected) in
            [([0, 0], 0), ([3 << 8, 7 << 8], 3 << 8), ([0, 7 << 8], 7 << 8), ([9, 0], 9)]
        {
            let mut programs = programs(2, Some(3));
            for (child, status) in programs.children.iter_mut().zip(statuses) {
                child.status = Some(status);
            }
            assert_eq!(programs.wait(), expected, "{statuses:?}");
        }
    }

    #[test]
    fn after_a_failure_the_other_command_is_told_to_end_and_then_killed() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("it runs");
        // It has said that SIGTERM does not end it.
        let mut byte = [0];
        let output = child.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(output, &mut byte).expect("a line");
        let mut alone = programs(2, None);
        alone.children[0].status = Some(1 << 8);
        assert_eq!(alone.end_after_a_failure(), None, "there is no other");
        let mut both = programs(2, Some(child.id()));
        for status in [None, Some(0)] {
            both.children[0].status = status;
            assert_eq!(both.end_after_a_failure(), None, "{status:?}");
        }
        both.children[0].status = Some(1 << 8);
        let left = both.end_after_a_failure().expect("it is to end");
        assert!(left <= PATIENCE && left > PATIENCE / 2, "{left:?}");
        let (at, signal) = both.next.expect("it is to end");
        assert_eq!((signal, at > Instant::now()), (Signal::SIGTERM, true));
        both.next = Some((Instant::now(), Signal::SIGTERM));
        assert_eq!(both.end_after_a_failure(), Some(PATIENCE));
        let (at, signal) = both.next.expect("it is to be killed");
        let later = at.saturating_duration_since(Instant::now());
        assert_eq!((signal, later > PATIENCE / 2), (Signal::SIGKILL, true));
        assert!(child.try_wait().expect("a child").is_none(), "it does not listen");
        both.next = Some((Instant::now(), Signal::SIGKILL));
        assert_eq!(both.end_after_a_failure(), Some(PATIENCE));
        assert_eq!(child.wait().expect("a child").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn nothing_is_waited_for_when_all_is_closed() {
        let program = Program::new();
        let shared = program.answerer.shared.clone();
        let views = Views::new(program.model.clone());
        let mut supervisor = Supervisor::new(shared, programs(2, None), views, None).unwrap();
        let start = Instant::now();
        supervisor.await_closes();
        assert!(start.elapsed() < LAST_CLOSE / 2);
        assert_eq!([supervisor.next_number(), supervisor.next_number()], [1, 2]);
    }
}
