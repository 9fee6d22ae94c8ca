//! The loop that keeps house while other threads answer calls: signals, closed devices, processes that ended.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::answer;
use super::room::{Room, Wake};
use super::side::View;
use super::sys::{self, Listener};

/// What is passed on to the program when somebody sends it to us. From a terminal it reaches both by itself.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Keeps signals from this thread, and from those that it starts; they come as records instead. The program is to get the
/// mask that was in force before, which is the second result.
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
    status: Option<i32>,
}

/// The children that we run: they hear the signals that are sent to us, and our status is one of theirs.
pub(super) struct Programs {
    children: Vec<Child>,
    signals: SignalFd,
}

impl Programs {
    pub(super) fn new(pids: &[u32], signals: SignalFd) -> Self {
        let child = |&pid| Child { pid: Pid::from_raw(pid as i32), status: None };
        Self { children: pids.iter().map(child).collect(), signals }
    }

    /// Passes on what was sent to us, and takes note of children that ended.
    pub(super) fn hear_signals(&mut self) {
        while let Ok(Some(record)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(record.ssi_signo as i32) else { continue };
            if signal == Signal::SIGCHLD {
                while self.reap(libc::WEXITED | libc::WNOHANG) {}
            } else if record.ssi_code <= 0 {
                for child in self.children.iter().filter(|child| child.status.is_none()) {
                    let _ = kill(child.pid, signal);
                }
            }
        }
    }

    /// The status of the first one that did not succeed, once all have ended.
    pub(super) fn wait(mut self) -> i32 {
        while self.children.iter().any(|child| child.status.is_none()) {
            self.reap(libc::WEXITED);
        }
        let mut statuses = self.children.iter().filter_map(|child| child.status);
        statuses.find(|&status| status != 0).unwrap_or_default()
    }

    /// Takes note of a child that ended, one of ours or an orphan that became ours; false: there is none.
    fn reap(&mut self, flags: i32) -> bool {
        let Some((pid, status)) = sys::wait_for_child(flags) else { return false };
        if let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) {
            child.status = Some(status);
        }
        true
    }
}

/// Who keeps house.
pub(super) struct Supervisor {
    room: Arc<Room>,
    programs: Programs,
    /// The filters behind which somebody is left, by number.
    filters: Vec<(u32, Arc<Listener>)>,
}

impl Supervisor {
    pub(super) fn new(room: Arc<Room>, programs: Programs) -> Result<Self, Errno> {
        room.wakes.on_input(programs.signals.as_fd(), Wake::Signal)?;
        Ok(Self { room, programs, filters: Vec::new() })
    }

    /// Answers the calls of programs behind one more filter.
    pub(super) fn take(&mut self, listener: Listener, view: Arc<View>) -> io::Result<()> {
        let number = self.filters.last().map_or(0, |&(number, _)| number + 1);
        listener.wake_in_place();
        let listener = Arc::new(listener);
        self.room.wakes.on_end(listener.as_fd(), Wake::Gone(number))?;
        answer::spawn(&self.room, &listener, &view)?;
        self.filters.push((number, listener));
        Ok(())
    }

    /// Keeps house until nobody is left behind any filter; gives the programs' status as `wait` does.
    pub(super) fn run(mut self) -> Result<i32, Errno> {
        while !self.filters.is_empty() {
            for wake in self.room.wakes.wait()? {
                match wake {
                    Wake::Signal => self.programs.hear_signals(),
                    Wake::Close => drop(self.room.opens()),
                    Wake::Death(pid) => self.room.processes().bury(pid),
                    Wake::Gone(number) => self.filters.retain(|&(other, ref listener)| {
                        if other == number {
                            self.room.wakes.forget(listener.as_fd());
                        }
                        other != number
                    }),
                }
            }
        }
        drop(self.room.opens());
        Ok(self.programs.wait())
    }
}
