//! The supervisor's main loop, besides the threads that answer calls: signals, closed devices,
//! ended processes, guests.

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
use super::shared::SharedRun;
use super::sys::{self, Listener};
use super::view::{View, Views};
use super::wakes::Wake;
use super::{answer, descendants, file_closer, preflight};

/// Signals that are forwarded to the program. Signals from a terminal reach the program directly,
/// but not the command on the DPU side.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Limit for the last close after a filter's end.
const LAST_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for destroying the objects of closed devices.
const LAST_DESTROY_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit of guests' connections.
const MAX_GUESTS: usize = 256;
/// Limit of guests' programs being checked.
const MAX_CHECKS: usize = 16;

/// Grace period of the command on the DPU side after the program failed, and again after SIGTERM:
/// it may wait for the program.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// Limit for the end of killed processes: one may wait for a FUSE server that does not answer.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Blocks the signals in this thread and its later threads, and receives them by a signalfd. Also
/// returns the previous mask, for the program.
pub(super) fn block_signals() -> Result<(SignalFd, SigSet), Errno> {
    let mut set = SigSet::from_iter(FORWARDED);
    set.add(Signal::SIGCHLD);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    sys::keep_child_statuses()?;
    let records = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok((records, before))
}

/// A child of `run`, with its wait status once it has ended.
struct Child {
    pid: Pid,
    /// Signals go by pidfd: the pid is reused once the child was waited for.
    pidfd: OwnedFd,
    /// Whether the child leads a process group. Signals then go to the group, even after the
    /// child's end.
    leads: bool,
    status: Option<i32>,
}

impl Child {
    /// `pid`: a child that was not waited for.
    fn new(pid: u32, leads: bool) -> Result<Self, Errno> {
        let pid = Pid::from_raw(pid as i32);
        Ok(Self { pid, pidfd: sys::pidfd(pid)?, leads, status: None })
    }

    /// Whether the kernel also sent a signal with this `si_code` to the child: a terminal's signals
    /// go to the whole process group.
    fn was_sent(&self, code: i32) -> bool {
        code > 0 && !self.leads
    }

    fn signal(&self, signal: Signal) {
        let pidfd = self.pidfd.as_fd();
        // Fails if it has ended.
        let _ = match self.leads {
            true => match sys::signal_group_by(pidfd, signal) {
                Err(Errno::EINVAL) => killpg(self.pid, signal),
                done => done,
            },
            false => sys::signal_by(pidfd, signal),
        };
    }
}

/// The children of `run`: they get its signals, and determine its exit status.
pub(super) struct Programs {
    /// The program, and the command on the DPU side, if any.
    children: Vec<Child>,
    signals: SignalFd,
    /// The next signal for the command on the DPU side after the program failed, and its time.
    next: Option<(Instant, Signal)>,
    /// Number of SIGTERMs received.
    terminations: u32,
    /// The guardian, a child that is not a program.
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

    /// Exempts the guardian when all descendants are killed.
    pub(super) fn guarded_by(self, guardian: Pid) -> Self {
        Self { guardian: Some(guardian), ..self }
    }

    /// Readable when a signal arrived.
    pub(super) fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Kills the children when the supervisor stops answering their calls.
    pub(super) fn kill(mut self) {
        self.remaining().for_each(|child| child.signal(Signal::SIGKILL));
        self.wait_until(Some(Instant::now() + KILL_TIMEOUT));
    }

    /// The children that have not ended.
    fn remaining(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().filter(|child| child.status.is_none())
    }

    pub(super) fn have_ended(&self) -> bool {
        self.remaining().next().is_none()
    }

    /// Forwards signals, and records children that ended.
    pub(super) fn handle_signals(&mut self) {
        while let Ok(Some(record)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(record.ssi_signo as i32) else { continue };
            if signal == Signal::SIGCHLD {
                self.reap();
                continue;
            }
            if signal == Signal::SIGTERM {
                self.terminations += 1;
            }
            let remaining = self.remaining().filter(|it| !it.was_sent(record.ssi_code));
            remaining.for_each(|it| it.signal(signal));
        }
    }

    /// Whether the run ends although descendants live: one SIGTERM arrived and all programs have
    /// ended, or two arrived.
    pub(super) fn is_over(&self) -> bool {
        self.terminations > 1 || self.terminations == 1 && self.have_ended()
    }

    /// Kills all remaining processes and waits for them, with a limit. Returns the status as
    /// [`wait`](Self::wait) does. All are killed before any is waited for, because a program may
    /// wait for a descendant's end.
    pub(super) fn end(mut self) -> i32 {
        let end = Instant::now() + KILL_TIMEOUT;
        self.remaining().for_each(|child| child.signal(Signal::SIGKILL));
        while descendants::kill_all(self.guardian) && Instant::now() < end {
            self.reap();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wait_until(Some(end))
    }

    /// Ends the command on the DPU side if it runs on after the program failed: SIGTERM, later
    /// SIGKILL. Returns the time until the next step.
    fn end_after_a_failure(&mut self) -> Option<Duration> {
        let [program, dpu] = &self.children[..] else { return None };
        let failure = program.status.filter(|&status| status != 0)?;
        let now = Instant::now();
        let (at, signal) = self.next.unwrap_or((now + GRACE_PERIOD, Signal::SIGTERM));
        self.next = Some((at, signal));
        if now < at {
            return Some(at - now);
        }
        let failure = ExitStatus::from_raw(failure);
        tracing::error!(
            "the program failed ({failure}), and the command on the DPU side is still running: \
             sending it {signal}"
        );
        dpu.signal(signal);
        self.next = Some((now + GRACE_PERIOD, Signal::SIGKILL));
        Some(GRACE_PERIOD)
    }

    /// Waits for all children; returns the first status that is not success.
    pub(super) fn wait(mut self) -> i32 {
        self.wait_until(None)
    }

    /// As [`wait`](Self::wait), until `end`: a killed child that has not ended counts as killed.
    fn wait_until(&mut self, end: Option<Instant>) -> i32 {
        loop {
            self.reap();
            let remaining: Vec<_> = self.remaining().map(|child| child.pidfd.as_fd()).collect();
            if remaining.is_empty() {
                break;
            }
            let timeout = end.map(|end| end.saturating_duration_since(Instant::now()));
            if timeout.is_some_and(|it| it.is_zero()) {
                tracing::error!(
                    "a killed program does not end: it waits in the kernel, for example for a \
                     FUSE server that does not answer"
                );
                break;
            }
            // Waiting on the pidfds: the kernel does not wake `wait` for a child that ends while
            // another thread traces it.
            sys::wait_for_input(&remaining, timeout);
        }
        let mut statuses = self.children.iter().map(|child| child.status.unwrap_or(libc::SIGKILL));
        statuses.find(|&status| status != 0).unwrap_or_default()
    }

    /// Records ended children, including adopted orphans.
    fn reap(&mut self) {
        while let Some((pid, status)) = sys::wait_for_child(libc::WNOHANG) {
            let of_pid = |child: &&mut Child| child.pid == pid && child.status.is_none();
            if let Some(child) = self.children.iter_mut().find(of_pid) {
                child.status = Some(status);
            }
            if self.guardian == Some(pid) {
                // Its pid can be reused from here on.
                self.guardian = None;
                tracing::warn!(
                    "the guardian has ended: programs would survive if this run is killed"
                );
            }
        }
    }
}

/// A filter with live processes behind it.
struct Filter {
    listener: Arc<Listener>,
    /// The guest that sent the listener; `None`: a program of this run.
    guest: Option<u32>,
}

/// A connection of a guest.
struct Guest {
    peer: Peer,
    /// The devices for its program, once it has asked for a side.
    view: Option<Arc<View>>,
}

/// The result of the check of a guest's program.
struct Checked {
    guest: u32,
    view: Arc<View>,
    result: Result<Arc<Listener>, RunError>,
}

/// Checks of guests' programs, one thread each: a program's memory may never arrive.
struct Checks {
    done: Mutex<Vec<Checked>>,
    running: AtomicUsize,
    wake_up: EventFd,
}

impl Checks {
    fn done(&self) -> MutexGuard<'_, Vec<Checked>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a check of the program behind a filter.
    fn begin(
        self: &Arc<Self>,
        guest: u32,
        view: Arc<View>,
        listener: Listener,
    ) -> Result<(), String> {
        if self.running.fetch_add(1, Ordering::Relaxed) >= MAX_CHECKS {
            self.running.fetch_sub(1, Ordering::Relaxed);
            return Err(format!("{MAX_CHECKS} programs are joining: try again later"));
        }
        let checks = self.clone();
        let check = move || {
            let result = check_in_time(Arc::new(listener), preflight::CHECK_TIMEOUT);
            checks.done().push(Checked { guest, view, result });
            checks.running.fetch_sub(1, Ordering::Relaxed);
            let _ = checks.wake_up.write(1);
        };
        match std::thread::Builder::new().spawn(check) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.running.fetch_sub(1, Ordering::Relaxed);
                Err(format!("cannot start a thread: {error}"))
            }
        }
    }
}

/// Checks whether the program's memory can be accessed. After `timeout`, the program is killed,
/// and the checking thread is abandoned; it ends when its access does.
fn check_in_time(listener: Arc<Listener>, timeout: Duration) -> Result<Arc<Listener>, RunError> {
    let call = Arc::new(OnceLock::new());
    let (sender, done) = mpsc::channel();
    let (behind, seen) = (listener.clone(), call.clone());
    std::thread::Builder::new().spawn(move || {
        let result = preflight::check_call_of(&behind, |call| {
            let _ = seen.set(*call);
        });
        let _ = sender.send(result);
    })?;
    match done.recv_timeout(timeout) {
        Ok(result) => result.map(|()| listener),
        Err(_) => {
            if let Some(call) = call.get() {
                answer::kill_caller(&*listener, call);
            }
            Err(preflight::no_memory())
        }
    }
}

/// Waits until all devices are closed. The kernel reports a filter's end before its last process
/// has closed its files. A process without the filter may hold a descriptor forever, so the wait
/// has a limit.
fn await_closes(shared: &SharedRun) {
    let start = Instant::now();
    let timeout = || if shared.is_destroying() { LAST_DESTROY_TIMEOUT } else { LAST_CLOSE_TIMEOUT };
    while !shared.is_closed() && start.elapsed() < timeout() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The supervisor: programs, guests, filters.
pub(super) struct Supervisor {
    shared: Arc<SharedRun>,
    programs: Programs,
    views: Views,
    host: Option<Host>,
    filters: BTreeMap<u32, Filter>,
    guests: BTreeMap<u32, Guest>,
    checks: Arc<Checks>,
    /// The last number of a filter or guest.
    number: u32,
}

impl Supervisor {
    /// `host` accepts guests.
    pub(super) fn new(
        shared: Arc<SharedRun>,
        programs: Programs,
        views: Views,
        host: Option<Host>,
    ) -> Result<Self, Errno> {
        shared.wakes.on_input(programs.signals(), Wake::Signal)?;
        if let Some(host) = &host {
            shared.wakes.on_input(host.as_fd(), Wake::JoinSocket)?;
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake_up = EventFd::from_value_and_flags(0, flags)?;
        shared.wakes.on_input(wake_up.as_fd(), Wake::Checked)?;
        let (done, running) = Default::default();
        let checks = Arc::new(Checks { done, running, wake_up });
        let (filters, guests) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { shared, programs, views, host, filters, guests, checks, number: 0 })
    }

    /// Answers the calls of a program of this run.
    pub(super) fn answer(&mut self, listener: Listener, view: &Arc<View>) -> io::Result<()> {
        self.serve_filter(Arc::new(listener), view, None)
    }

    fn serve_filter(
        &mut self,
        listener: Arc<Listener>,
        view: &Arc<View>,
        guest: Option<u32>,
    ) -> io::Result<()> {
        let number = self.next_number();
        listener.set_sync_wake_up();
        self.shared.wakes.on_end(listener.as_fd(), Wake::FilterUnused(number))?;
        answer::spawn(&self.shared, &listener, view)
            // The guest may keep a duplicate of the listener, which would wake `run` for good.
            .inspect_err(|_| self.shared.wakes.forget(listener.as_fd()))?;
        self.filters.insert(number, Filter { listener, guest });
        Ok(())
    }

    fn next_number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    /// Runs until no process is left behind any filter and the programs have ended, which slow
    /// closes can delay. Returns the programs' status as `wait` does.
    pub(super) fn run(mut self) -> Result<i32, Errno> {
        let has_ended = |it: &Self| it.filters.is_empty() && it.programs.have_ended();
        while !has_ended(&self) && !self.programs.is_over() {
            let timeouts = [self.programs.end_after_a_failure(), self.shared.poll_period()];
            let wakes = self.shared.wakes.wait(timeouts.into_iter().flatten().min())?;
            if wakes.is_empty() {
                drop(self.shared.opens());
            }
            for wake in wakes {
                match wake {
                    Wake::Signal => self.programs.handle_signals(),
                    Wake::Close => drop(self.shared.opens()),
                    Wake::Death(pid) => self.shared.processes.forget_if_ended(pid),
                    Wake::FilterUnused(number) => self.remove_filter(number),
                    Wake::JoinSocket => self.accept_guests(),
                    Wake::Guest(number) => self.handle_guest(number),
                    Wake::Checked => self.take_checked_programs(),
                }
            }
        }
        let has_ended = has_ended(&self);
        let Self { shared, programs, views, .. } = self;
        // Guests' programs belong to their parents.
        let status = if has_ended { programs.wait() } else { programs.end() };
        await_closes(&shared);
        views.remove();
        Ok(status)
    }

    /// Handles the end of the last process behind a filter.
    fn remove_filter(&mut self, number: u32) {
        let Some(filter) = self.filters.remove(&number) else { return };
        self.shared.wakes.forget(filter.listener.as_fd());
        // The objects are freed before the guest gets "done".
        drop(self.shared.opens());
        if let Some(guest) = filter.guest.and_then(|guest| self.guests.remove(&guest)) {
            self.shared.wakes.forget(guest.peer.as_fd());
            guest.peer.done();
            file_closer::close(guest.peer);
        }
    }

    fn accept_guests(&mut self) {
        while let Some(peer) = self.host.as_ref().and_then(Host::accept) {
            let number = self.next_number();
            if self.guests.len() < MAX_GUESTS
                && self.shared.wakes.on_input(peer.as_fd(), Wake::Guest(number)).is_ok()
            {
                self.guests.insert(number, Guest { peer, view: None });
            } else {
                file_closer::close(peer);
            }
        }
    }

    /// Handles a guest's request, or its end. Disconnects a guest that breaks the protocol.
    fn handle_guest(&mut self, number: u32) {
        let Some(guest) = self.guests.get_mut(&number) else { return };
        let handled = match (guest.peer.request(), guest.view.take()) {
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
                guest.peer.send_result(control.execute(self.views.model()))
            }
            (Ok(_), _) => Err(Errno::EBADMSG),
            (Err(errno), _) => Err(errno),
        };
        if handled.is_err() {
            self.disconnect(number);
        }
    }

    /// Takes over the programs whose checks have succeeded.
    fn take_checked_programs(&mut self) {
        let _ = self.checks.wake_up.read();
        let done = std::mem::take(&mut *self.checks.done());
        for Checked { guest: number, view, result } in done {
            if !self.guests.contains_key(&number) {
                continue;
            }
            let taken = result.and_then(|it| Ok(self.serve_filter(it, &view, Some(number))?));
            let reply = taken.map_err(|error| error.to_string());
            if self.guests.get(&number).is_some_and(|guest| guest.peer.reply(reply).is_err()) {
                self.disconnect(number);
            }
        }
    }

    fn disconnect(&mut self, number: u32) {
        if let Some(guest) = self.guests.remove(&number) {
            self.shared.wakes.forget(guest.peer.as_fd());
            // Unreceived descriptors are closed with it.
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

    /// Programs with these pids and an empty signalfd.
    fn programs(program: u32, dpu: Option<u32>) -> Programs {
        programs_with(&SigSet::empty(), program, dpu)
    }

    fn programs_with(signals: &SigSet, program: u32, dpu: Option<u32>) -> Programs {
        let signals = SignalFd::with_flags(signals, SfdFlags::SFD_NONBLOCK);
        let programs = Programs::new(program, dpu, signals.expect("a descriptor"));
        programs.expect("there are such processes")
    }

    /// This process, which gets no signal.
    fn own() -> u32 {
        std::process::id()
    }

    #[test]
    fn terminal_signal_reaches_own_group_only() {
        let child = |leads| Child::new(own(), leads).expect("this process");
        let (same, leader) = (child(false), child(true));
        for (code, expected) in [(128, true), (1, true), (0, false), (-6, false)] {
            assert_eq!((same.was_sent(code), leader.was_sent(code)), (expected, false), "{code}");
        }
    }

    /// A sleeping process in its own process group.
    fn sleep() -> std::process::Child {
        Command::new("sleep").arg("60").process_group(0).spawn().expect("the command runs")
    }

    #[test]
    fn signal_reaches_only_child_and_its_group() {
        // The second group keeps another process after its leader's end.
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
        leader.kill().expect("the process is alive");
        assert_eq!(status(&mut leader), killed);
        raise();
        programs.handle_signals();
        assert_eq!(status(&mut plain), Some(libc::SIGUSR1));
        assert_eq!(status(&mut member), Some(libc::SIGUSR1));
        // As if these pids were reused. Before Linux 6.9, a group is signalled by number.
        let group = sys::signal_group_by(programs.children[1].pidfd.as_fd(), Signal::SIGUSR1);
        let numbers = if group == Err(Errno::EINVAL) { 1 } else { 2 };
        for (child, stranger) in programs.children.iter_mut().zip(&strangers).take(numbers) {
            child.pid = Pid::from_raw(stranger.id() as i32);
        }
        raise();
        programs.handle_signals();
        before.thread_set_mask().expect("a mask");
        for stranger in &mut strangers {
            stranger.kill().expect("the process exists");
            assert_eq!(status(stranger), killed, "the first signal that it got");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn wait_ends_with_a_child_that_was_seized() {
        use super::super::ptrace::{Seized, in_own_thread};
        let mut child = sleep();
        let (programs, pid) = (programs(child.id(), None), Pid::from_raw(child.id() as i32));
        let killed = std::thread::spawn(move || {
            in_own_thread(|| {
                let _seized = Seized::new(pid.as_raw() as u32, || true, || {})?;
                // Most likely, the other thread waits for the child by now.
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
    fn wait_for_killed_children_ends_at_its_limit() {
        let mut child = sleep();
        let mut programs = programs(child.id(), None);
        let (start, limit) = (Instant::now(), Duration::from_millis(50));
        assert_eq!(programs.wait_until(Some(start + limit)), libc::SIGKILL);
        assert!(start.elapsed() >= limit && !programs.have_ended());
        child.kill().and_then(|()| child.wait()).expect("the child exists");
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
            .expect("the command runs");
        // It has ignored SIGTERM.
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
        let remaining = both.end_after_a_failure().expect("it is to end");
        assert!(remaining <= GRACE_PERIOD && remaining > GRACE_PERIOD / 2, "{remaining:?}");
        let (at, signal) = both.next.expect("it is to end");
        assert_eq!((signal, at > Instant::now()), (Signal::SIGTERM, true));
        both.next = Some((Instant::now(), Signal::SIGTERM));
        assert_eq!(both.end_after_a_failure(), Some(GRACE_PERIOD));
        let (at, signal) = both.next.expect("it is to be killed");
        let later = at.saturating_duration_since(Instant::now());
        assert_eq!((signal, later > GRACE_PERIOD / 2), (Signal::SIGKILL, true));
        assert!(child.try_wait().expect("a child").is_none(), "it does not listen");
        both.next = Some((Instant::now(), Signal::SIGKILL));
        assert_eq!(both.end_after_a_failure(), Some(GRACE_PERIOD));
        assert_eq!(child.wait().expect("a child").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn wait_for_closes_returns_at_once_if_all_are_closed() {
        let program = Program::new();
        let shared = program.answerer.shared.clone();
        let views = Views::new(program.model.clone());
        let mut supervisor = Supervisor::new(shared, programs(own(), None), views, None).unwrap();
        let start = Instant::now();
        await_closes(&supervisor.shared);
        assert!(start.elapsed() < LAST_CLOSE_TIMEOUT / 2);
        assert_eq!([supervisor.next_number(), supervisor.next_number()], [1, 2]);
    }
}
