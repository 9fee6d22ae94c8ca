//! The loop that keeps house while other threads answer calls: signals, closed devices, processes
//! that ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::error::RunError;
use super::join::{Host, Peer, Request};
use super::shared::{SharedRun, Wake};
use super::sys::{self, Listener};
use super::view::{View, Views};
use super::{answer, descendants, file_closer, preflight};

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
/// How long the objects of closed devices may take to be destroyed then.
const LAST_DESTROY: Duration = Duration::from_secs(60);

/// Connections of programs that have joined, or are about to, at a time.
const MOST_GUESTS: usize = 256;
/// Programs of guests at a time of which it is not known yet whether they may be looked into.
const MOST_CHECKS: usize = 16;
/// How long it may take to find out.
const CHECK_PATIENCE: Duration = Duration::from_secs(5);

/// How long the command on the DPU side may go on once the program has failed, and once it was
/// told to end: it may wait for the program, which comes no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long what was killed may take to end: a server of FUSE that it waits for may not answer.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// Blocks signals in this thread, and in those that it starts; they arrive as records instead. The
/// second result is the mask that was in force before, which the program gets.
pub(super) fn block_signals() -> Result<(SignalFd, SigSet), Errno> {
    let mut set = SigSet::from_iter(FORWARDED);
    set.add(Signal::SIGCHLD);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    sys::keep_statuses()?;
    let records = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok((records, before))
}

/// A child that we run, with its status as `wait` gives it, once it has ended.
struct Child {
    pid: Pid,
    /// By which it gets signals: its number is another's once it was waited for.
    pidfd: OwnedFd,
    /// Whether it leads a process group: then its descendants get signals too, even after it has
    /// ended.
    leads: bool,
    status: Option<i32>,
}

impl Child {
    /// `pid`: a child that was not waited for.
    fn new(pid: u32, leads: bool) -> Result<Self, Errno> {
        let pid = Pid::from_raw(pid as i32);
        Ok(Self { pid, pidfd: sys::pidfd(pid)?, leads, status: None })
    }

    /// Whether a signal that arrived here with this code reached the child too: one from a terminal
    /// is for all of our process group.
    fn has_got(&self, code: i32) -> bool {
        code > 0 && !self.leads
    }

    fn signal(&self, signal: Signal) {
        let pidfd = self.pidfd.as_fd();
        // It may be gone.
        let _ = match self.leads {
            true => match sys::signal_group_by(pidfd, signal) {
                Err(Errno::EINVAL) => killpg(self.pid, signal),
                done => done,
            },
            false => sys::signal_by(pidfd, signal),
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
    /// How often SIGTERM has asked for the end.
    terminations: u32,
    /// A child that is none of the programs.
    guardian: Option<Pid>,
}

impl Programs {
    /// `dpu`: the command on the DPU side, which leads a process group.
    pub(super) fn new(program: u32, dpu: Option<u32>, signals: SignalFd) -> Result<Self, Errno> {
        let program = Child::new(program, false);
        let children = [program].into_iter().chain(dpu.map(|pid| Child::new(pid, true)));
        let children = children.collect::<Result<_, _>>()?;
        Ok(Self { children, signals, next: None, terminations: 0, guardian: None })
    }

    /// Lets the guardian live when all descendants are killed.
    pub(super) fn guarded_by(self, guardian: Pid) -> Self {
        Self { guardian: Some(guardian), ..self }
    }

    /// Readable when a signal was received.
    pub(super) fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Kills the children when the supervisor stops answering their calls.
    pub(super) fn kill(mut self) {
        self.left().for_each(|child| child.signal(Signal::SIGKILL));
        self.wait_until(Some(Instant::now() + LAST_BREATH));
    }

    /// The children that have not ended.
    fn left(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().filter(|child| child.status.is_none())
    }

    /// Whether all programs have ended.
    pub(super) fn have_ended(&self) -> bool {
        self.left().next().is_none()
    }

    /// Passes on what was sent to us, and takes note of children that ended.
    pub(super) fn hear_signals(&mut self) {
        while let Ok(Some(record)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(record.ssi_signo as i32) else { continue };
            if signal == Signal::SIGCHLD {
                self.reap();
                continue;
            }
            if signal == Signal::SIGTERM {
                self.terminations += 1;
            }
            let left = self.left().filter(|it| !it.has_got(record.ssi_code));
            left.for_each(|it| it.signal(signal));
        }
    }

    /// Whether the run is to end though descendants of its programs live on: SIGTERM has asked for
    /// that, and all programs have ended, or it has asked twice.
    pub(super) fn is_over(&self) -> bool {
        self.terminations > 1 || self.terminations == 1 && self.have_ended()
    }

    /// Kills what is left, and waits for it, though not for ever; returns the status as
    /// [`wait`](Self::wait) does. A program may wait for a descendant, whose end lets it end.
    pub(super) fn end(mut self) -> i32 {
        let end = Instant::now() + LAST_BREATH;
        self.left().for_each(|child| child.signal(Signal::SIGKILL));
        while descendants::kill_all(self.guardian) && Instant::now() < end {
            self.reap();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wait_until(Some(end))
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
        self.wait_until(None)
    }

    /// The same, at `end` at the latest: what was killed and goes on counts as ended then.
    fn wait_until(&mut self, end: Option<Instant>) -> i32 {
        loop {
            self.reap();
            let left: Vec<_> = self.left().map(|child| child.pidfd.as_fd()).collect();
            if left.is_empty() {
                break;
            }
            let timeout = end.map(|end| end.saturating_duration_since(Instant::now()));
            if timeout.is_some_and(|it| it.is_zero()) {
                tracing::error!(
                    "a program was killed and does not end: it waits in the kernel, as for a \
                     server of FUSE that does not answer"
                );
                break;
            }
            // The kernel wakes no wait for a child that ends while another thread of ours has
            // seized it.
            sys::wait_for_input(&left, timeout);
        }
        let mut statuses = self.children.iter().map(|child| child.status.unwrap_or(libc::SIGKILL));
        statuses.find(|&status| status != 0).unwrap_or_default()
    }

    /// Takes note of children that ended, ours and orphans that became ours.
    fn reap(&mut self) {
        while let Some((pid, status)) = sys::wait_for_child(libc::WNOHANG) {
            let of_pid = |child: &&mut Child| child.pid == pid && child.status.is_none();
            if let Some(child) = self.children.iter_mut().find(of_pid) {
                child.status = Some(status);
            }
            if self.guardian == Some(pid) {
                // Its number may be another's from now on.
                self.guardian = None;
                tracing::warn!(
                    "the guardian has ended: programs would survive the end of this run"
                );
            }
        }
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

/// Waits until all that the programs had open is closed. The kernel reports the end of a filter
/// before its last process has closed its files. A process without a filter may never close what
/// it was given, so the wait has a limit.
fn await_closes(shared: &SharedRun) {
    let start = Instant::now();
    let patience = || if shared.is_destroying() { LAST_DESTROY } else { LAST_CLOSE };
    while !shared.is_closed() && start.elapsed() < patience() {
        std::thread::sleep(Duration::from_millis(1));
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

    /// Serves until no process is left behind any filter and the programs have ended, which closing
    /// their files may hold up; returns the programs' status as `wait` does.
    pub(super) fn run(mut self) -> Result<i32, Errno> {
        let has_ended = |it: &Self| it.filters.is_empty() && it.programs.have_ended();
        while !has_ended(&self) && !self.programs.is_over() {
            let timeout = self.programs.end_after_a_failure();
            for wake in self.shared.wakes.wait(timeout)? {
                match wake {
                    Wake::Signal => self.programs.hear_signals(),
                    Wake::Close => drop(self.shared.opens()),
                    Wake::Death(pid) => self.shared.processes.bury(pid),
                    Wake::Gone(number) => self.gone(number),
                    Wake::Door => self.open_the_door(),
                    Wake::Guest(number) => self.listen_to(number),
                    Wake::Checked => self.let_in(),
                }
            }
        }
        let has_ended = has_ended(&self);
        let Self { shared, programs, views, .. } = self;
        // Guests' programs are not ours to kill.
        let status = if has_ended { programs.wait() } else { programs.end() };
        await_closes(&shared);
        views.remove();
        Ok(status)
    }

    /// Handles the end of the last process behind a filter.
    fn gone(&mut self, number: u32) {
        let Some(filter) = self.filters.remove(&number) else { return };
        self.shared.wakes.forget(filter.listener.as_fd());
        // The model frees what the processes held before it reports their end to the guest.
        drop(self.shared.opens());
        if let Some(guest) = filter.guest.and_then(|guest| self.guests.remove(&guest)) {
            self.shared.wakes.forget(guest.peer.as_fd());
            guest.peer.done();
            file_closer::close(guest.peer);
        }
    }

    fn open_the_door(&mut self) {
        while let Some(peer) = self.host.as_ref().and_then(Host::accept) {
            let number = self.next_number();
            if self.guests.len() < MOST_GUESTS
                && self.shared.wakes.on_input(peer.as_fd(), Wake::Guest(number)).is_ok()
            {
                self.guests.insert(number, Guest { peer, view: None });
            } else {
                file_closer::close(peer);
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
            // What it sent and we did not receive is closed with it.
            file_closer::close(guest.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use nix::sys::signal::kill;

    use super::super::rig::Program;
    use super::*;

    /// Programs with these pids, and no signals for them.
    fn programs(program: u32, dpu: Option<u32>) -> Programs {
        programs_with(&SigSet::empty(), program, dpu)
    }

    fn programs_with(signals: &SigSet, program: u32, dpu: Option<u32>) -> Programs {
        let signals = SignalFd::with_flags(signals, SfdFlags::SFD_NONBLOCK);
        let programs = Programs::new(program, dpu, signals.expect("a descriptor"));
        programs.expect("there are such processes")
    }

    /// A process that is there, and gets no signal.
    fn own() -> u32 {
        std::process::id()
    }

    #[test]
    fn terminal_signal_reaches_own_group_only() {
        let child = |leads| Child::new(own(), leads).expect("this process");
        let (same, leader) = (child(false), child(true));
        for (code, expected) in [(128, true), (1, true), (0, false), (-6, false)] {
            assert_eq!((same.has_got(code), leader.has_got(code)), (expected, false), "{code}");
        }
    }

    /// A process that sleeps, in a process group of its own.
    fn sleep() -> std::process::Child {
        Command::new("sleep").arg("60").process_group(0).spawn().expect("it runs")
    }

    #[test]
    fn signal_reaches_a_child_and_its_group_alone() {
        // The group of the second has another process, which goes on without its leader.
        let (mut plain, mut leader) = (sleep(), sleep());
        let group = leader.id() as i32;
        let mut member = Command::new("sleep").arg("60").process_group(group).spawn().expect("it");
        let mut strangers = [sleep(), sleep()];
        let usr = SigSet::from(Signal::SIGUSR1);
        let before = usr.thread_swap_mask(SigmaskHow::SIG_BLOCK).expect("a mask");
        let mut programs = programs_with(&usr, plain.id(), Some(leader.id()));
        let raise = || nix::sys::signal::raise(Signal::SIGUSR1).expect("a signal");
        let status = |child: &mut std::process::Child| child.wait().expect("a child").signal();
        let killed = Some(libc::SIGKILL);
        leader.kill().expect("it lives");
        assert_eq!(status(&mut leader), killed);
        raise();
        programs.hear_signals();
        assert_eq!(status(&mut plain), Some(libc::SIGUSR1));
        assert_eq!(status(&mut member), Some(libc::SIGUSR1));
        // As if others had the numbers of these by now. Before Linux 6.9 a group has a number only.
        let group = sys::signal_group_by(programs.children[1].pidfd.as_fd(), Signal::SIGUSR1);
        let numbers = if group == Err(Errno::EINVAL) { 1 } else { 2 };
        for (child, stranger) in programs.children.iter_mut().zip(&strangers).take(numbers) {
            child.pid = Pid::from_raw(stranger.id() as i32);
        }
        raise();
        programs.hear_signals();
        before.thread_set_mask().expect("a mask");
        for stranger in &mut strangers {
            stranger.kill().expect("it is there");
            assert_eq!(status(stranger), killed, "the first signal that it got");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn wait_ends_with_a_child_that_was_seized() {
        use super::super::ptrace::{Seized, apart};
        let mut child = sleep();
        let (programs, pid) = (programs(child.id(), None), Pid::from_raw(child.id() as i32));
        let killed = std::thread::spawn(move || {
            apart(|| {
                let _seized = Seized::new(pid.as_raw() as u32, || true, || {})?;
                // The wait for its end has begun, most likely.
                std::thread::sleep(Duration::from_millis(200));
                kill(pid, Signal::SIGKILL)?;
                std::thread::sleep(Duration::from_millis(200));
                Ok::<_, Errno>(())
            })
        });
        assert_eq!(programs.wait(), libc::SIGKILL);
        assert_eq!(killed.join().expect("no panic"), Ok(Ok(())));
        assert!(child.wait().is_err(), "it was waited for");
    }

    #[test]
    fn wait_for_what_was_killed_has_an_end() {
        let mut child = sleep();
        let mut programs = programs(child.id(), None);
        let (start, limit) = (Instant::now(), Duration::from_millis(50));
        assert_eq!(programs.wait_until(Some(start + limit)), libc::SIGKILL);
        assert!(start.elapsed() >= limit && !programs.have_ended());
        child.kill().and_then(|()| child.wait()).expect("it is there");
    }

    #[test]
    fn wait_returns_first_failed_status() {
        for (statuses, expected) in
            [([0, 0], 0), ([3 << 8, 7 << 8], 3 << 8), ([0, 7 << 8], 7 << 8), ([9, 0], 9)]
        {
            let mut programs = programs(own(), Some(own()));
            for (child, status) in programs.children.iter_mut().zip(statuses) {
                child.status = Some(status);
            }
            assert_eq!(programs.wait(), expected, "{statuses:?}");
        }
    }

    #[test]
    fn failure_terminates_then_kills_other_command() {
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
        let mut alone = programs(own(), None);
        alone.children[0].status = Some(1 << 8);
        assert_eq!(alone.end_after_a_failure(), None, "there is no other");
        let mut both = programs(own(), Some(child.id()));
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
        let mut supervisor = Supervisor::new(shared, programs(own(), None), views, None).unwrap();
        let start = Instant::now();
        await_closes(&supervisor.shared);
        assert!(start.elapsed() < LAST_CLOSE / 2);
        assert_eq!([supervisor.next_number(), supervisor.next_number()], [1, 2]);
    }
}
