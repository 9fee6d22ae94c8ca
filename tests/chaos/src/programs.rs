//! The programs of a test: starting them, reading their output, ending or killing them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::message::Message;
use crate::roles::Role;

/// How long a program may take to exit when asked to.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Identifies a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProgramId(u32);

/// The output of a program.
#[derive(Debug)]
pub(crate) enum Output {
    Message(Message),
    /// A line that is not a message.
    Unknown(String),
    /// The program closed its output.
    End,
}

/// Replaces this process by one in another role, with the same standard input and output; returns
/// only on failure, with the error.
pub(crate) fn exec_role(role: Role, device: &str, seed: u64) -> std::io::Error {
    match std::env::current_exe() {
        Ok(program) => Command::new(program)
            .args(["role", &role.name(), device, &seed.to_string(), "0"])
            .exec(),
        Err(error) => error,
    }
}

/// All programs that run.
pub(crate) struct Programs {
    running: BTreeMap<ProgramId, (Role, Child)>,
    next: u32,
    sender: Sender<(ProgramId, Output)>,
    receiver: Receiver<(ProgramId, Output)>,
}

impl Programs {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { running: BTreeMap::new(), next: 0, sender, receiver }
    }

    /// Starts a program.
    pub(crate) fn start(
        &mut self,
        role: Role,
        device: &str,
        seed: u64,
        connection: u32,
    ) -> Result<ProgramId, Stop> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["role", &role.name(), device, &seed.to_string(), &connection.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let program = ProgramId(self.next);
        self.next += 1;
        let output =
            child.stdout.take().ok_or_else(|| Stop::fail("the program has no output pipe"))?;
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let output = Message::parse(&line).map_or(Output::Unknown(line), Output::Message);
                // The receiver is dropped when the test ends.
                let _ = sender.send((program, output));
            }
            let _ = sender.send((program, Output::End));
        });
        self.running.insert(program, (role, child));
        Ok(program)
    }

    /// The next output of any program, or `None` at the time `until`.
    pub(crate) fn next_output(&self, until: Instant) -> Option<(ProgramId, Output)> {
        self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// Sends a message to a program; does nothing if the program has ended.
    pub(crate) fn send(&mut self, program: ProgramId, message: Message) {
        let input = self.running.get_mut(&program).and_then(|(_, child)| child.stdin.as_mut());
        if let Some(input) = input {
            let _ = writeln!(input, "{message}");
        }
    }

    /// Whether the program runs, as far as its output shows.
    pub(crate) fn has(&self, program: ProgramId) -> bool {
        self.running.contains_key(&program)
    }

    /// Kills a program.
    pub(crate) fn kill(&mut self, program: ProgramId) -> Result<(), Stop> {
        let Some((role, mut child)) = self.running.remove(&program) else { return Ok(()) };
        child.kill()?;
        let status = child.wait()?;
        let killed = status.signal() == Some(libc::SIGKILL);
        ensure!(killed, "{role:?} had ended before it was killed: {status}");
        Ok(())
    }

    /// The error for a program that ended unasked, with its exit status.
    pub(crate) fn unexpected_end(&mut self, program: ProgramId) -> Stop {
        let Some((role, mut child)) = self.running.remove(&program) else {
            return Stop::fail("a program ended");
        };
        match child.wait() {
            Ok(status) => Stop::fail(format!("{role:?} ended by itself: {status}")),
            Err(error) => error.into(),
        }
    }

    /// Asks a program to end, and waits until it has.
    pub(crate) fn end(&mut self, program: ProgramId) -> Result<(), Stop> {
        let Some((role, mut child)) = self.running.remove(&program) else { return Ok(()) };
        drop(child.stdin.take());
        let end = Instant::now() + EXIT_TIMEOUT;
        loop {
            if let Some(status) = child.try_wait()? {
                ensure!(status.success(), "{role:?}: {status}");
                return Ok(());
            }
            if Instant::now() > end {
                child.kill()?;
                child.wait()?;
                return Err(Stop::fail(format!("{role:?} does not exit within 20 s")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for (_, child) in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
